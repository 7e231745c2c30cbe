"""NV-Embed: a trained dictionary between decoder and mean pooling, and instruction tuning in two stages."""

from __future__ import annotations

from ..scale import get_scale
from ..training.recipe import Recipe, Stage
from .chain import Chain
from .stages import ALL_LINEAR, of_equal_texts

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
    # The stages share some 256,000 tokens: 84 batches of five rows of nine texts, and 116 of the blend. Seven negatives
    # are the paper's; a batch of as many texts has fifteen rows with one negative.
    "night": {
        "steps": 84,
        "batch_size": 5,
        "negatives": 7,
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
    "night": {"steps": 116, "learning_rate": 7.5e-4, "warmup_steps": 12},
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


def retrieval_alone(scale: str, backbone: str) -> Recipe:
    """The first stage for as many steps as the two stages have together: the control of what the second one adds.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.
    """
    stage = retrieval(scale)
    return Recipe(stages=(stage.model_copy(update={"steps": stage.steps + blended(scale).steps}),))


def with_negatives(scale: str, backbone: str, negatives: int, in_batch: bool = False) -> Recipe:
    """The two stages with another number of hard negatives, and as many texts in a batch.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
        negatives: Hard negatives per row.
        in_batch: Whether the second stage has in-batch negatives too.

    Raises:
        UnknownNameError: No such scale.
    """
    both = retrieval(scale), blended(scale, in_batch)
    return Recipe(stages=tuple(of_equal_texts(stage, negatives) for stage in both))


def with_data(scale: str, backbone: str, *, mined: str = "", blend: str = "", mixed: bool = True) -> Recipe:
    """The two stages on other offline data: other hard negatives, or other representations of classes and clusters.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
        mined: Source of the first stage; empty for the recipe's own.
        blend: Source of the second, likewise.
        mixed: Whether the second stage mixes its tasks within a batch; otherwise a batch holds one task.

    Raises:
        UnknownNameError: No such scale.

    Source: NV-Embed, sections 2.2, 4.1.1, 5.2.4 and 5.2.5, tables 4 and 5. Table 4 changes mining in the first stage.
    """
    first, second = recipe(scale, backbone).stages
    first = first.model_copy(update={"data": mined or first.data})
    return Recipe(stages=(first, second.model_copy(update={"data": blend or second.data, "blend": mixed})))


def with_in_batch(scale: str, backbone: str) -> Recipe:
    """The two stages, both with in-batch negatives.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.
    """
    return Recipe(stages=(retrieval(scale), blended(scale, in_batch=True)))
