"""How the methods' published checkpoints are laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import MistralConfig, MistralModel

from ..errors import InvalidValueError
from ..modules import LatentAttention, Lexicon
from ..modules.attention_pooling import from_published, published_names
from .tensors import HEAD, Tensor

if TYPE_CHECKING:
    from sentence_transformers.base.modules.module import Module

_OF_TRUNK = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "initializer_range"),
    *("rms_norm_eps", "rope_theta", "rope_parameters", "rope_scaling", "sliding_window", "attention_dropout"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)
"""Settings of the decoder. The rest of a published configuration names code, or how text would be generated."""


class Parts(NamedTuple):
    """What a configuration says of a checkpoint's two parts.

    Attributes:
        trunk: Settings of the decoder, a Mistral.
        prefix: Of the names of the decoder's tensors.
        shapes: Shapes of the pooling's tensors, by published name.
        pooled: What the pooling is made of, for readers, such as ``512 latents``.
        pooling: Function of the pooling's tensors by published name, which makes the module.
    """

    trunk: dict[str, Any]
    prefix: str
    shapes: dict[str, tuple[int, ...]]
    pooled: str
    pooling: Callable[[dict[str, torch.Tensor]], Module]


@dataclass(frozen=True)
class Layout:
    """The layout of a method's published checkpoints, and how their texts are laid out.

    Attributes:
        title: Name of the method, for readers.
        model_type: As ``config.json`` has it.
        hub: Hugging Face ids of the checkpoints.
        license: Theirs, by the Hub's name for it.
        parts: Function of ``config.json`` and of the tensors by name.
        template: Name of the template under which they were evaluated.
        padding: Side of the padding, which decides no vector.
        max_length: Longest input in tokens, the default of the published code.
        marks: Tokens that the tokenizer must know.
    """

    title: str
    model_type: str
    hub: tuple[str, ...]
    license: str
    parts: Callable[[Mapping[str, Any], Mapping[str, Tensor]], Parts]
    template: str
    padding: str
    max_length: int
    marks: tuple[str, ...] = ()


def shapes_of(parts: Parts, trunk: MistralConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a checkpoint; nothing is allocated.

    Args:
        parts: What its configuration says.
        trunk: Of the decoder.
    """
    with torch.device("meta"):
        decoder = MistralModel(trunk)
    shapes = {f"{parts.prefix}{name}": tuple(one.shape) for name, one in decoder.state_dict().items()}
    return shapes | parts.shapes


def _nv_embed(config: Mapping[str, Any], found: Mapping[str, Tensor]) -> Parts:
    """The decoder is in ``embedding_model``, the block of latent attention beside it; settings left out are NV-Embed's.

    Source: the configuration and the modelling code of the released NV-Embed-v2.
    """
    block = config.get("latent_attention_config") or {}
    assumed = {"padding_side": "right", "is_mask_instruction": True, "mask_type": "b", "output_normalize": True}
    for name, expected in assumed.items():
        if (got := {**block, **config}.get(name, expected)) != expected:
            raise InvalidValueError(name, f"{expected!r}, as in the published checkpoints", got)
    sizes = {"hidden_dim": 4096, "latent_dim": 4096, "num_latents_value": 512, "num_cross_heads": 8}
    sizes = {name: block.get(name, default) for name, default in sizes.items()}
    heads = sizes["num_cross_heads"]
    trunk = _trunk(config.get("text_config") or {})
    width = trunk.get("hidden_size", 4096)
    if not sizes["hidden_dim"] == sizes["latent_dim"] == width:
        got = f"hidden_dim {sizes['hidden_dim']} and latent_dim {sizes['latent_dim']}"
        raise InvalidValueError("latent_attention_config", f"latents as wide as the decoder, {width}", got)
    with torch.device("meta"):
        module = LatentAttention(
            width, latents=sizes["num_latents_value"], heads=heads, head_dimension=block.get("cross_dim_head", 4096)
        )
    return Parts(
        trunk,
        "embedding_model.",
        {theirs: tuple(module.state_dict()[own].shape) for own, theirs in published_names(module).items()},
        f"{module.latents} latents, {heads} heads of {module.head_dimension}",
        lambda weights: from_published(weights, heads),
    )


def _lens(config: Mapping[str, Any], found: Mapping[str, Tensor]) -> Parts:
    """A Mistral with rows of embeddings for three more tokens, whose head has a row for each cluster.

    The number of embeddings is taken from the weights, as is that of clusters. Which tokens a cluster stands for is not
    published.

    Source: the README and the code of LENS; the head is a file of its own, ``lm_head.pth``.
    """
    head, prefix = found.get("lm_head.weight"), "model." if "model.embed_tokens.weight" in found else ""
    embeddings = found.get(f"{prefix}embed_tokens.weight")
    trunk = _trunk(config) | ({"vocab_size": embeddings.shape[0]} if embeddings else {})
    if head is None or len(head.shape) != 2 or (embeddings and head.shape[0] == embeddings.shape[0]):
        raise InvalidValueError(
            "model", f"a head of clusters, as in LENS (lm_head.weight, in a shard or in {HEAD})",
            "a Mistral without one" if head is None else f"one row for each of {head.shape[0]} tokens",
            "A language model is a backbone: name it in workbook.build or with --backbone.",
        )  # fmt: skip
    clusters = head.shape[0]
    return Parts(
        trunk,
        prefix,
        {"lm_head.weight": (clusters, trunk.get("hidden_size", 4096))},
        f"{clusters} clusters",
        lambda weights: Lexicon(weights["lm_head.weight"]),
    )


LAYOUTS = (
    Layout(
        title="NV-Embed",
        model_type="nvembed",
        hub=("nvidia/NV-Embed-v2", "nvidia/NV-Embed-v1"),
        license="cc-by-nc-4.0",
        parts=_nv_embed,
        template="nv-embed-released",
        padding="right",
        max_length=4096,
    ),
    Layout(
        title="LENS",
        model_type="mistral",
        hub=("yibinlei/LENS-d4000", "yibinlei/LENS-d8000"),
        license="apache-2.0",
        parts=_lens,
        template="lens",
        padding="left",
        max_length=512,
        marks=("<instruct>", "<query>"),
    ),
)
"""The layouts that can be read."""


def _trunk(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in _OF_TRUNK if settings.get(name) is not None}
