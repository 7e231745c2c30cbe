"""LENS: the decoder's vocabulary in clusters, and a vector with the weight of each cluster in a text."""

from __future__ import annotations

from typing import Any

from .. import backbones
from ..scale import get_scale
from ..training.recipe import STORED, Others, Recipe, Stage
from .chain import Chain
from .stages import ALL_LINEAR, of_equal_texts

CHAIN = Chain(pooling="lexicon", attention="bidirectional", template="lens")

_VOCABULARY = 32_000  # tokens of the paper's backbone

SIZES = {
    "quick": {"steps": 4, "batch_size": 4, "negatives": 1, "max_length": 48, "learning_rate": 1e-3, "warmup_steps": 1},
    "cpu": {"steps": 10, "batch_size": 16, "negatives": 1, "max_length": 40, "learning_rate": 1e-3, "warmup_steps": 1},
    # Some 256,000 tokens: 154 batches of 16 pairs with a negative, of 104 tokens together.
    "night": {
        "steps": 154,
        "batch_size": 16,
        "negatives": 1,
        "max_length": 40,
        "learning_rate": 1e-3,
        "warmup_steps": 15,
    },
    # Ten times the tokens of a night, 490 a row, and no mined row twice.
    "gpu": {
        "data": "docs-mined-large",
        "steps": 165,
        "batch_size": 32,
        "negatives": 7,
        "max_length": 128,
        "learning_rate": 3e-4,
        "warmup_steps": 17,
    },
    "paper": {
        "data": "bge-full",
        "steps": 3_000,
        "batch_size": 512,
        "others": Others(batch_size=256),
        "negatives": 7,
        "max_length": 512,
        "learning_rate": 1e-4,
        "warmup_steps": 100,
        "adapter": ALL_LINEAR.model_copy(update={"rank": 32, "alpha": 64, "dropout": 0.1}),
        "gradient_checkpointing": True,
        "teacher": STORED,
    },
}
"""Sizes by scale; those of ``paper`` are of section 4.1, warm-up and the adapters' dropout of the released code.

``paper`` is the paper's single stage, on its data: retrieval and reranking in batches of 512, with in-batch negatives
and the reranker's scores that come with the rows; classes, clusters and graded pairs in batches of 256, each row with
its own negatives alone. Differences: the paper trains for one epoch, whose length it does not give; ``steps`` are an
epoch of 1.5 million rows in batches of 512. Of data sets whose rows all have fewer than seven hard negatives it takes
those, where the released code repeats them; and graded pairs have in-batch negatives there. Where relu's zero lies at
other scales, see :func:`~workbook.modules.lexicon.lexicon_of`.
"""


def recipe(scale: str, backbone: str) -> Recipe:
    """One stage: InfoNCE over in-batch and hard negatives, each batch from one data set, and a teacher's scores.

    At scale ``paper`` it mixes tasks, see :data:`SIZES`; the data of other scales are all of retrieval.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.

    Source: LENS, sections 3.2.3 and 4.1.
    """
    name = get_scale(scale).name
    options = {"temperature": 0.02} | ({"mini_batch_size": 16} if name == "paper" else {})
    sizes = {"data": "docs-mined", "teacher": "minilm"} | SIZES[name]
    return Recipe(stages=(Stage(name="distilled", objective="contrastive", options=options, **sizes),))


def varied(scale: str, backbone: str, *, teacher: bool = True, mined: str = "", negatives: int | None = None) -> Recipe:
    """:func:`recipe` with another teacher, other hard negatives, or more of them in at most as many texts a batch.

    Our negatives are mined by the encoder that teaches. Random ones, and BM25's, tell the teacher's scores from its
    choice; BM25's have no margin either, so that some are too near. More negatives mean fewer pairs, as the texts of a
    batch cost the same.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
        teacher: Whether the teacher's scores are learnt.
        mined: Source of the rows; empty for the recipe's own.
        negatives: Hard negatives a row; None for the recipe's own.

    Raises:
        UnknownNameError: No such scale.

    Source: LENS, section 4.1, has seven negatives and distils from a reranker.
    """
    (stage,) = recipe(scale, backbone).stages
    if negatives is not None:
        stage = of_equal_texts(stage, negatives)
    changed = {"data": mined or stage.data, "teacher": stage.teacher if teacher else None}
    return Recipe(stages=(stage.model_copy(update=changed),))


def options(scale: str, backbone: str) -> dict[str, Any]:
    """Options of the chain: at scale ``paper`` the paper's zero, k-means of the rows as they are, 8,000 clusters.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError, ModelNotFoundError: No such scale or backbone.

    Source: LENS, section 3.2.1 and tables 1 and 5, whose numbers are of LENS-8000.
    """
    if get_scale(scale).name != "paper":
        return {}
    large = backbones.load_config(backbone).vocab_size >= _VOCABULARY
    return {"pooling_options": {"zero": "paper", "spherical": False} | ({"clusters": 8000} if large else {})}
