"""The experiments of notebook 03: pooling by mask after each stage, and the other ways to run the stages."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from sklearn.metrics import v_measure_score

from .. import evaluation
from ..methods import nv_embed
from .grid import SUITES, Experiment, Variant
from .suite import smaller, suites_and_loss

POOLINGS = {
    "EOS": "last_token",
    "mean": "mean",
    "latent attention": "latent_attention",
    "self-attention": "self_attention",
}
"""Names of poolings in the published tables, and their names in the library."""

MASKS = ("bidirectional", "causal")
_STAGES = ("retrieval", "blended")


def name(pooling: str, mask: str, stages: int) -> str:
    """Name of the variant with a pooling and a mask after some stages.

    Args:
        pooling: A key of :data:`POOLINGS`.
        mask: One of :data:`MASKS`.
        stages: Number of stages that have been trained.
    """
    return f"{pooling}, {mask}, stage {stages}"


def parts(variants: pd.Series) -> pd.DataFrame:
    """Columns pooling, mask and stage (int) of variants called by :func:`name`."""
    found = variants.str.extract(r"^(?P<pooling>.+), (?P<mask>\w+), stage (?P<stage>\d)$")
    return found.astype({"stage": int})


_measure = partial(suites_and_loss, others=("PackageClustering",))


def shuffled_clusters(scale: str) -> dict[str, float]:
    """Scores of clustering at chance: the mean V-measure (points) of labels shuffled a hundred times.

    Returns:
        The scores by task, ``PackageClustering`` and ``TopicClustering``, at the sizes of the experiments.
    """
    draw, found = np.random.default_rng(0), {}
    for task in ("PackageClustering", "TopicClustering"):
        labels = np.array(evaluation.tasks([task], smaller(scale))[0].dataset["test"]["labels"])
        scores = [v_measure_score(labels, draw.permutation(labels)) for _ in range(100)]
        found[task] = 100 * float(np.mean(scores))
    return found


POOLING = Experiment(
    name="03_pooling",
    description="Pooling by mask after each stage of NV-Embed: the offline suites and clusters of packages",
    variants=tuple(
        Variant(
            name(pooling, mask, stages),
            "nv-embed",
            _STAGES[:stages],
            {"pooling": POOLINGS[pooling], "attention": mask},
        )
        for stages in (1, 2)
        for mask in MASKS
        for pooling in POOLINGS
    ),
    sizes=smaller,
    measure=_measure,
    inputs=SUITES,
    rerun_variants=(name("latent attention", "bidirectional", 2),),
    version=2,
)
RECIPES = Experiment(
    name="03_recipes",
    description="Other ways to run the stages of NV-Embed: the offline suites and clusters of packages",
    variants=(
        Variant("two stages", "nv-embed", _STAGES),
        Variant("single stage", "nv-embed", ("blended",), recipe=nv_embed.single_stage),
        Variant("single stage, in-batch", "nv-embed", ("blended",), recipe=nv_embed.single_stage_in_batch),
        Variant("reversed", "nv-embed", _STAGES, recipe=nv_embed.reversed_order),
        Variant("labels for clusters", "nv-embed", _STAGES, recipe=nv_embed.with_labels),
        Variant("without mining", "nv-embed", _STAGES, recipe=nv_embed.without_mining),
    ),
    sizes=smaller,
    measure=_measure,
    inputs=SUITES,
    rerun_variants=("two stages",),
    version=2,
)
EXPERIMENTS = (POOLING, RECIPES)
