"""NV-Embed: a trained dictionary between decoder and mean pooling, and instruction tuning in two stages."""

from __future__ import annotations

from ..scale import get_scale
from ..training.recipe import Recipe, Stage
from .chain import Chain
from .stages import ALL_LINEAR

CHAIN = Chain(pooling="latent_attention", attention="bidirectional", template="nv-embed")
"""Instruction tokens are not pooled, as in the paper. ``build("nv-embed", template="nv-embed-released")`` pools as the
released code does for the published checkpoints.
"""

_PAPER = {
    "data": "e5",
    "batch_size": 128,
    "negatives": 7,
    "max_length": 512,
    "warmup_steps": 50,
    "weight_decay": 0.03,
    "adapter": ALL_LINEAR.model_copy(update={"dropout": 0.1}),
    "gradient_checkpointing": True,
}

SIZES = {
    "quick": {"steps": 4, "batch_size": 4, "negatives": 1, "max_length": 40, "learning_rate": 1e-3, "warmup_steps": 1},
    "cpu": {"steps": 10, "batch_size": 16, "negatives": 1, "max_length": 40, "learning_rate": 1e-3, "warmup_steps": 1},
    # The stages share some 256,000 tokens: 78 batches of 16 rows of 102 tokens (query, document and negative), and 105
    # of the blend, whose rows have 76.
    "night": {
        "steps": 78,
        "batch_size": 16,
        "negatives": 1,
        "max_length": 40,
        "learning_rate": 1e-3,
        "warmup_steps": 8,
    },
    # Ten times the tokens of a night over both stages, of 400 tokens a row: the sixteen poolings of notebook 03 and its
    # other recipes are to take minutes. No mined row is read twice, and 32 rows of nine texts need no checkpoints.
    "gpu": {
        "data": "docs-mined-large",
        "steps": 120,
        "batch_size": 32,
        "negatives": 7,
        "max_length": 128,
        "learning_rate": 3e-4,
        "warmup_steps": 12,
    },
    "paper": _PAPER | {"steps": 20_000, "learning_rate": 2e-5, "blend": True},
}
"""Sizes of the first stage by scale; those of ``paper`` are of table 11 and appendix C.

Differences from the paper: it does not name the layers that get an adapter, here all linear ones. AdamW, which has the
weight decay, stands for Adam. A blend draws rows uniformly, and so data sets in proportion to their rows; the paper's
"uniformly" may mean the data sets. Examples of clusters get the instruction on both sides too, which the paper says of
similar texts alone. The data of table 12 are not public as a whole: the first stage of ``paper`` reads the public
portion of E5's, which holds many of its retrieval sets with one hard negative each. The second refuses to read
retrieval alone: give it classes, clusters and graded pairs in your own file (``--data blended=FILE``).
"""

SECOND = {
    "quick": {"learning_rate": 7.5e-4},
    "cpu": {"learning_rate": 7.5e-4},
    "night": {"steps": 105, "learning_rate": 7.5e-4, "warmup_steps": 10},
    "gpu": {"data": "docs-blend", "steps": 80, "learning_rate": 2.25e-4, "warmup_steps": 8},
    "paper": {"steps": 18_000, "learning_rate": 1.5e-5, "accumulation": 8, "mixed": True},
}
"""Differences of the second stage from the first, by scale."""

_TEMPERATURE = {"temperature": 0.02}  # left open by the paper; LLM2Vec's
_GRADCACHE = {"paper": {"mini_batch_size": 16}}


def retrieval(scale: str) -> Stage:
    """The first stage: retrieval alone, with in-batch and hard negatives.

    Raises:
        UnknownNameError: No such scale.

    Source: NV-Embed, section 3.3.
    """
    name = get_scale(scale).name
    options = _TEMPERATURE | _GRADCACHE.get(name, {})
    return Stage(name="retrieval", objective="contrastive", options=options, **{"data": "docs-mined"} | SIZES[name])


def blended(scale: str, in_batch: bool = False) -> Stage:
    """The second stage: all tasks in every batch, and each row with its own hard negatives only.

    Args:
        scale: Name of the scale.
        in_batch: Whether the documents of other rows are negatives too, which the paper warns against.

    Raises:
        UnknownNameError: No such scale.

    Source: NV-Embed, section 3.3.
    """
    name = get_scale(scale).name
    sizes = {"data": "docs-blend"} | SIZES[name] | SECOND[name]
    options = _TEMPERATURE | {"in_batch": in_batch}
    if in_batch:  # GradCache keeps the batch whole, where accumulation would split it
        sizes, options = sizes | {"accumulation": 1}, options | _GRADCACHE.get(name, {})
    return Stage(name="blended", objective="contrastive", options=options, **sizes | {"blend": True})


def recipe(scale: str, backbone: str) -> Recipe:
    """Retrieval first, then all tasks.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.

    Source: NV-Embed, sections 3.3 and 5.2.1.
    """
    return Recipe(stages=(retrieval(scale), blended(scale)))


def reversed_order(scale: str, backbone: str) -> Recipe:
    """All tasks first, then retrieval. The paper puts its longer single stage first, and so trains more steps in all.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.

    Source: NV-Embed, section 5.2.1 and table 4.
    """
    return Recipe(stages=(blended(scale), retrieval(scale)))


def single_stage(scale: str, backbone: str, in_batch: bool = False) -> Recipe:
    """All tasks from the start, for as many steps as the two stages have together.

    The blend holds less retrieval data than the two stages together, so that fewer retrieval rows are seen.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
        in_batch: Whether the documents of other rows are negatives too.

    Raises:
        UnknownNameError: No such scale.

    Source: NV-Embed, section 5.2.1 and table 4.
    """
    steps = retrieval(scale).steps + blended(scale).steps
    first = {name: getattr(retrieval(scale), name) for name in ("learning_rate", "warmup_steps")}
    stage = blended(scale, in_batch).model_copy(update=first | {"steps": steps})
    return Recipe(stages=(stage,))


def single_stage_in_batch(scale: str, backbone: str) -> Recipe:
    """:func:`single_stage` with in-batch negatives.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.
    """
    return single_stage(scale, backbone, in_batch=True)


def with_labels(scale: str, backbone: str) -> Recipe:
    """The two stages with clusters represented by their labels, where :func:`recipe` represents them by examples.

    Only the offline data have both forms.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.

    Source: NV-Embed, section 5.2.4 and tables 4 and 5.
    """
    return _changed(scale, blended={"data": "docs-blend-labels"})


def without_mining(scale: str, backbone: str) -> Recipe:
    """The two stages, the first with in-batch negatives alone.

    Without hard negatives there are also fewer candidates. The paper does not say which negatives its training without
    mining has.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.

    Source: NV-Embed, table 4, rows S0 and S1.
    """
    return _changed(scale, retrieval={"negatives": 0})


def _changed(scale: str, **updates: dict) -> Recipe:
    stages = recipe(scale, "").stages
    return Recipe(stages=tuple(stage.model_copy(update=updates.get(stage.name, {})) for stage in stages))
