"""NV-Embed: a dictionary between decoder and mean, and instruction tuning in two stages."""

from __future__ import annotations

from ..scale import get_scale
from ..training.recipe import Recipe, Stage
from .chain import Chain
from .stages import ALL_LINEAR

CHAIN = Chain(pooling="latent_attention", attention="bidirectional", template="nv-embed")
"""The paper's mask, without instruction tokens. That of the released code, for the published checkpoints, is
``build("nv-embed", template="nv-embed-released")``.
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
    "gpu": {
        "steps": 200,
        "batch_size": 64,
        "negatives": 7,
        "max_length": 128,
        "learning_rate": 3e-4,
        "warmup_steps": 20,
    },
    "paper": _PAPER | {"steps": 20_000, "learning_rate": 2e-5},
}
"""Sizes of the first stage by scale; those of ``paper`` are of table 11 and appendix C.

Other than there: the layers that get an adapter are not named, all linear ones are taken; Adam is AdamW, which has
the weight decay; data sets are drawn in proportion to their rows, where the paper says uniformly; the examples of
clusters take the instruction too, which it says of similar texts alone. Table 12's data are not public as a
whole. ``paper`` reads the public portion of E5's, which holds many of its retrieval sets with one hard negative each;
classes, clusters and graded pairs come from a file of one's own (``--data blended=FILE``), which
``workbook.data.curation`` helps to make.
"""

SECOND = {
    "quick": {"learning_rate": 7.5e-4},
    "cpu": {"learning_rate": 7.5e-4},
    "gpu": {"steps": 100, "learning_rate": 2.25e-4},
    "paper": {"steps": 18_000, "learning_rate": 1.5e-5, "accumulation": 8},
}
"""What is other in the second stage, by scale."""

_TEMPERATURE = {"temperature": 0.02}  # left open by the paper; LLM2Vec's
_GRADCACHE = {"gpu": {"mini_batch_size": 16}, "paper": {"mini_batch_size": 16}}


def retrieval(scale: str) -> Stage:
    """The first stage: retrieval alone, with in-batch and hard negatives.

    Source: NV-Embed, section 3.3.
    """
    name = get_scale(scale).name
    options = _TEMPERATURE | _GRADCACHE.get(name, {})
    return Stage(name="retrieval", objective="contrastive", options=options, **{"data": "docs-mined"} | SIZES[name])


def blended(scale: str, in_batch: bool = False) -> Stage:
    """The second stage: all tasks in every batch, and each row with its own hard negatives only.

    Args:
        scale: Name of the scale.
        in_batch: Whether the documents of other rows are negatives too, which the paper warns of.

    Source: NV-Embed, section 3.3.
    """
    name = get_scale(scale).name
    sizes = {"data": "docs-blend"} | SIZES[name] | SECOND[name]
    options = _TEMPERATURE | {"in_batch": in_batch}
    if in_batch:  # GradCache keeps the batch whole, where accumulation would split it
        sizes, options = sizes | {"accumulation": 1}, options | _GRADCACHE.get(name, {})
    return Stage(name="blended", objective="contrastive", options=options, blend=True, **sizes)


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
    """All tasks first, then retrieval. The paper's has the longer single stage in front, and so more steps in all.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Source: NV-Embed, section 5.2.1 and table 4.
    """
    return Recipe(stages=(blended(scale), retrieval(scale)))


def single_stage(scale: str, backbone: str, in_batch: bool = False) -> Recipe:
    """All tasks from the start, for as many steps as the two stages have together.

    The blend holds less retrieval than the two stages do, so that fewer of its rows are seen.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
        in_batch: Whether documents of other rows are negatives.

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
    """
    return single_stage(scale, backbone, in_batch=True)


def with_labels(scale: str, backbone: str) -> Recipe:
    """The two stages with clusters told by their labels, where :func:`recipe` tells them by examples.

    Only offline data have both forms.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Source: NV-Embed, section 5.2.4 and tables 4 and 5.
    """
    return _changed(scale, blended={"data": "docs-blend-labels"})


def without_mining(scale: str, backbone: str) -> Recipe:
    """The two stages, the first with in-batch negatives alone.

    That is a hard negative against none, and so fewer candidates too. The paper does not say what its training without
    mining contrasts with.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Source: NV-Embed, table 4, rows S0 and S1.
    """
    return _changed(scale, retrieval={"negatives": 0})


def _changed(scale: str, **updates: dict) -> Recipe:
    stages = recipe(scale, "").stages
    return Recipe(stages=tuple(stage.model_copy(update=updates.get(stage.name, {})) for stage in stages))
