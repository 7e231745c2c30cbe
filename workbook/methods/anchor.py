"""Anchor: before contrastive training, the last token learns to hold what the other text of a pair says."""

from __future__ import annotations

import math
from typing import Any

from ..errors import UnknownNameError
from ..scale import get_scale
from ..training.recipe import Recipe, Stage
from .chain import Chain
from .stages import contrastive

CHAIN = Chain(pooling="last_token", template="eos", vector_behind_bos=True)
"""Causal attention and the state of EOS, as in last-token pooling: what is new is how it is trained."""

ALPHA = 0.2
"""Weight of the direction from query to document. Source: Anchor, section 3.2 and table 4."""

SIZES = {
    "quick": {"steps": 4, "batch_size": 4, "max_length": 32, "learning_rate": 1e-4, "warmup_steps": 1},
    "cpu": {"steps": 120, "batch_size": 4, "max_length": 32, "learning_rate": 2e-4, "warmup_steps": 24},
    "night": {"steps": 500, "batch_size": 32, "max_length": 32, "learning_rate": 2e-4, "warmup_steps": 100},
    # The pairs of docs one and a half times: each is read four times, by weights that all train.
    "gpu": {
        "steps": 300,
        "batch_size": 64,
        "max_length": 256,
        "learning_rate": 1e-4,
        "warmup_steps": 30,
    },
    "paper": {
        "data": "e5",
        "steps": 2000,
        "batch_size": 512,
        "accumulation": 16,
        "max_length": 512,
        "learning_rate": 4e-5,
        "warmup_steps": 300,
        "gradient_checkpointing": True,
    },
}
"""Sizes of the first stage by scale; those of ``paper`` are of appendix A.2. All parameters are trained.

The paper does not say into how many micro-batches a batch is split, nor whether the learning rate falls after its
warm-up; here it does, linearly, to 0 at the last step.

At ``cpu`` it took all of these together for a document's anchor to be read (``probes.anchor_losses``: ``own`` below
``shuffled``): batches of 4, a warm-up over a fifth of the steps, BOS in front of the anchor, and the suffix
``keywords``. Which of them are needed is not recorded. At ``night`` the anchors of both sides are read in every seed.

On SmolLM2-135M the state of EOS holds almost nothing of a text before training, and after 500 steps a fraction of what
that of ``keywords`` holds; with the suffix ``answer``, the loss fell just as far with the vector of another pair.
``build("anchor", suffix="keywords")`` is therefore this project's choice: in the paper texts end in EOS.
"""

SECOND = {
    "cpu": {"steps": 24, "max_length": 32, "learning_rate": 1e-3, "warmup_steps": 2},
    # Some 256,000 tokens: 272 batches of 16 pairs of 59 tokens, closed by the suffix keywords.
    "night": {"steps": 272, "max_length": 32, "learning_rate": 1e-3, "warmup_steps": 23},
}
"""Differences of the second stage from :data:`.stages.CONTRASTIVE`, by scale: other steps, shorter texts and a higher
learning rate. So compare scores at ``cpu`` and ``night`` with those of :func:`contrastive_alone`, not with those of
other methods.
"""

_TEMPERATURE = 0.05  # section 3.3
# "All parameters" includes the head. But an untied head that trains is lost with the stage, and with it what the
# vectors can write: the other scales leave it as it is.
_OPTIONS = {"paper": {"train_head": True}}


def reconstruction(scale: str, alpha: float = ALPHA, target: str = "text") -> Stage:
    """The first stage: each side of a pair is written from the vector of the other.

    Except at scale ``paper``, the decoder reads the vector after BOS, which the paper does not do; see :func:`options`.

    Args:
        scale: Name of the scale.
        alpha: Weight of the direction from query to document: 1 is the paper's OnlyQ2D, 0 its OnlyD2Q.
        target: ``text``; ``input``, which writes a query with its instruction; or ``released``, as the released code
            does. See :class:`~workbook.objectives.reconstruction.ReconstructionOptions`.

    Raises:
        UnknownNameError: No such scale.

    Source: Anchor, section 3.2 and appendix A.2. The paper does not say whether instructions are written.
    """
    name = get_scale(scale).name
    options = {"alpha": alpha, "target": target} | _OPTIONS.get(name, {})
    return Stage(name="reconstruction", objective="reconstruction", options=options, adapter=None, **SIZES[name])


def recipe(scale: str, backbone: str, alpha: float = ALPHA, target: str = "text") -> Recipe:
    """Reconstruction with all parameters, then contrastive training of low-rank adapters.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone; all are trained alike.
        alpha, target: See :func:`reconstruction`.

    Raises:
        UnknownNameError: No such scale.

    Source: Anchor, section 3 and appendix A.2: the second stage is LLM2Vec's, at a temperature of 0.05; at
    ``cpu`` and ``night`` with the sizes of :data:`SECOND`.
    """
    second = contrastive(scale, _TEMPERATURE).model_copy(update=SECOND.get(get_scale(scale).name, {}))
    return Recipe(stages=(reconstruction(scale, alpha, target), second))


def options(scale: str, backbone: str) -> dict[str, Any]:
    """Options of the chain: at scale ``paper`` the vector takes the place of the first word, as in the paper.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.

    Source: Anchor, section 3.2.
    """
    return {"vector_behind_bos": False} if get_scale(scale).name == "paper" else {}


def with_llama2vec(scale: str, backbone: str) -> Recipe:
    """:func:`recipe` with LLaMA2Vec's objective in the first stage, for as many steps.

    The paper compares with LLaMA2Vec's own 10,000 steps on running text.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.

    Source: Anchor, appendix E.
    """
    first, second = recipe(scale, backbone).stages
    options = {name: value for name, value in first.options.items() if name == "train_head"}
    return Recipe(stages=(first.model_copy(update={"objective": "llama2vec", "options": options}), second))


def contrastive_alone(scale: str, backbone: str, *, by: str = "steps") -> Recipe:
    """The second stage alone, for as many steps as both stages have together, or on as many pairs.

    The two lengths differ where the batch sizes of the stages do: 144 and 54 steps at ``cpu``, 772 and 1272 at
    ``night``, 570 and 420 at ``gpu``.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
        by: ``steps``, as in the paper, or ``pairs``.

    Raises:
        UnknownNameError: No such scale, or another ``by``.

    Source: Anchor, section 4.3 and table 5.
    """
    if by not in ("steps", "pairs"):
        raise UnknownNameError("by", by, ("steps", "pairs"))
    first, second = recipe(scale, backbone).stages
    more = first.steps if by == "steps" else math.ceil(first.steps * first.batch_size / second.batch_size)
    return Recipe(stages=(second.model_copy(update={"steps": second.steps + more}),))
