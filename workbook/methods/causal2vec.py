"""Causal2Vec: a small encoder turns the text into one token, which the causal decoder reads before the text."""

from __future__ import annotations

from typing import Any

from .. import backbones
from ..scale import get_scale
from ..training.recipe import Recipe, Stage
from .chain import Chain
from .stages import ALL_LINEAR

CHAIN = Chain(pooling="contextual", template="causal2vec", encoder="minilm")
"""The paper's encoder is ``intfloat/e5-base-v2``, which must be fetched from the Hub: see :func:`options`.

The contextual token begins as long as a word embedding, which is this project's: the paper names no initialisation.
With that of torch, MiniLM's token of a paragraph is a sixth as long as a word of SmolLM2-135M. See
:func:`~workbook.modules.context_length.contextual_decoder`.
"""

SIZES = {
    "quick": {"steps": 4, "batch_size": 4, "max_length": 48, "learning_rate": 1e-3, "warmup_steps": 1},
    "cpu": {"steps": 20, "batch_size": 32, "max_length": 32, "learning_rate": 2e-3, "warmup_steps": 2},
    # Some 256,000 tokens of the decoder: 128 batches of 32 pairs of 62 tokens, closed by the suffix answer.
    "night": {"steps": 128, "batch_size": 32, "max_length": 32, "learning_rate": 2e-3, "warmup_steps": 13},
    # Ten times the tokens of a night; the pairs of docs are read twice.
    "gpu": {"steps": 200, "batch_size": 128, "max_length": 256, "learning_rate": 3e-4, "warmup_steps": 20},
    "paper": {
        "data": "e5",
        "steps": 1000,
        "batch_size": 512,
        "accumulation": 8,
        "max_length": 512,
        "learning_rate": 1e-4,
        "warmup_steps": 300,
        "decay_steps": 2000,
        "adapter": ALL_LINEAR.model_copy(update={"rank": 64, "alpha": 32}),
        "gradient_checkpointing": True,
    },
}
"""Sizes by scale; those of ``paper`` are of table 7 (7B) and appendix A.1.

The paper does not say which layers get an adapter, nor its dropout; both are LLM2Vec's here.

With SmolLM2-135M the suffix decides what learns. After 260,000 tokens at half of this rate (`05_length`, five seeds)
last-token pooling is at 1.3 nats on held-out pairs with the opening of its chat answers, 1.4 with EOS, where chance is
log 32 = 3.5. But the half of the contextual token is near chance with the former, 3.3, and has learned with EOS, 2.5.
The suffix ``answer`` is this project's (``build(.., suffix="answer")``): in equation 2 a text ends in EOS. For its chat
models of 7B the paper adds [INST] and [/INST], as template ``causal2vec-chat`` does: see :func:`options`.
"""

SMALL = {
    "paper": {
        "steps": 2000,
        "accumulation": 4,
        "decay_steps": 4000,
        "adapter": ALL_LINEAR.model_copy(update={"rank": 64, "alpha": 128}),
    }
}
"""Differences for a small backbone, by scale: table 7 (1.3B)."""

_WIDTH = 2048  # of S-LLaMA-1.3B


def recipe(scale: str, backbone: str) -> Recipe:
    """One stage: InfoNCE over in-batch and hard negatives.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone; small ones are trained longer, with larger updates.

    Raises:
        UnknownNameError, ModelNotFoundError: No such scale or backbone.

    Source: Causal2Vec, sections 3.2 and 4.1; appendix A.1.
    """
    name = get_scale(scale).name
    sizes = SIZES[name] | (SMALL.get(name, {}) if _small(backbone) else {})
    # A batch of the paper is accumulated from micro-batches of 64 or 128 rows; GradCache fits these on one GPU.
    options = {"temperature": 0.05} | ({"mini_batch_size": 16} if name == "paper" else {})
    return Recipe(stages=(Stage(name="contextual", objective="contrastive", options=options, **sizes),))


def options(scale: str, backbone: str) -> dict[str, Any]:
    """Options of the chain: at scale ``paper`` the paper's encoder, which small backbones also train, with adapters.

    A backbone whose chat writes [INST], as the paper's models of 7B do, is read in its chat form.

    There the contextual token begins as torch initialises the layers, as in LLaVA, which the paper follows: scaling it
    to the length of a word is this project's. A build warns if that leaves it far from a word's length.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError, ModelNotFoundError: No such scale or backbone.

    Source: Causal2Vec, sections 4.3 and 4.5.2; table 7; appendix A.1.
    """
    if get_scale(scale).name != "paper":
        return {}
    options = {"trainable": _small(backbone), "length": "torch"}
    chat = {"template": "causal2vec-chat"} if "[INST]" in str(backbones.load_tokenizer(backbone).chat_template) else {}
    return {"encoder": "intfloat/e5-base-v2", "encoder_options": options} | chat


def _small(backbone: str) -> bool:
    return backbones.load_config(backbone).hidden_size <= _WIDTH
