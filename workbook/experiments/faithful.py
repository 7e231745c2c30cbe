"""Does a score's split by cluster explain the rank? Search without some clusters of the query, on states read once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import pandas as pd

from .. import probes
from ..backbones import load_config
from ..evaluation.effects import Estimate, effect
from ..evaluation.outcomes import Outcomes
from ..vocabulary.clusters import CLUSTERS
from .dial import CLUSTERED, DIAL, backbone_of, chosen, collected, head_seeds, measured
from .grid import Experiment
from .suite import row

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale

DELETED = (0, 1, 4, 16, 64)
"""Numbers of clusters that are deleted from queries."""
BEYOND = "matched, k-means - random clusters"
"""How much farther ranks fall with k-means; see :func:`falls`."""


def faithful(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """The rank of the right document without some clusters of the query: best-matched ones, and as many at random.

    Vectors are those of the dial with a tenth of the weights active and the collection's mean subtracted. As heads
    random clusters are the control: the best-matched clusters are chosen knowing the right document.

    Args:
        model: As for :func:`~.dial.measure`.
        sizes: Likewise.

    Returns:
        One row per head, its seed, order and number, of the metric ``rank``: ``task`` (these in words), score (mean
        reciprocal rank x 100), low, high, items and outcomes of queries; ``head``, ``head_seed``, ``order``
        (``matched`` or ``random``) and ``deleted`` (number of clusters), see `workbook.probes.faithfulness`.
    """
    queries, texts = collected(model, sizes)
    heads, frames = probes.Heads(backbone_of(model)), []
    k = min(CLUSTERS, load_config(backbone_of(model)).vocab_size // 8)
    for kind in CLUSTERED:
        for seed in range(head_seeds(sizes)):
            pooled = probes.pooled_logits(texts, heads.head(kind, k, seed))
            vectors = probes.lexicon_vectors(pooled, probes.zero_at(pooled, 0.1), "subtracted")
            found = probes.faithfulness(*vectors, range(len(queries)), deleted=DELETED)
            found = found[found["change"] == "delete"]
            for (order, deleted), part in found.groupby(["order", "clusters"]):
                said = {"head": kind, "head_seed": seed, "order": order, "deleted": deleted}
                task = ", ".join(f"{name} {value}" for name, value in said.items())
                ranks = part.sort_values("query")["reciprocal_rank"]
                frames.append(row(task, Outcomes.of_values(ranks, queries, factor=100), metric="rank", **said))
    return pd.concat(frames, ignore_index=True)


def fall(rows: pd.DataFrame, first: Mapping[str, Any], second: Mapping[str, Any] | None = None) -> Estimate:
    """How far the mean reciprocal rank falls when clusters are deleted, in points; of two ways, how much farther.

    Args:
        rows: Rows of :func:`faithful`, of one variant.
        first: Values of columns: ``head``, ``order`` and ``deleted``.
        second: Of another way, whose fall is subtracted.

    Raises:
        MissingDataError: One of the two was not measured.
    """
    ways = {"first": (1.0, first)} | ({} if second is None else {"second": (-1.0, second)})
    weights, found = {}, {}
    for name, (sign, way) in ways.items():
        for part, deleted, factor in (("whole", 0, sign), ("left", way["deleted"], -sign)):
            weights[f"{name} {part}"] = factor
            found[f"{name} {part}"] = measured(chosen(rows, **{**way, "deleted": deleted}))
    return effect(weights, found)


def falls(rows: pd.DataFrame) -> pd.DataFrame:
    """Every :func:`fall` of a record.

    Args:
        rows: Rows of :func:`faithful`, as from ``Run.experiment``.

    Returns:
        One row per variant, way and number: ``model`` (the variant), ``deleted`` (order and head; or :data:`BEYOND`,
        how much farther the rank falls with k-means), ``clusters``, ``points``, ``low`` and ``high``.
    """
    ways = {f"{order}, {head}": [(head, order)] for order in ("matched", "random") for head in CLUSTERED}
    ways[BEYOND] = [(head, "matched") for head in CLUSTERED]
    found = []
    for model, group in rows.groupby("variant", sort=False):
        for way, number in product(ways, DELETED[1:]):
            both = ({"head": head, "order": order, "deleted": number} for head, order in ways[way])
            one = fall(group, *both)
            found.append((model, way, number, one.value, one.low, one.high))
    return pd.DataFrame(found, columns=["model", "deleted", "clusters", "points", "low", "high"])


FAITHFUL = Experiment(
    name="04_faithfulness",
    description="The rank of the right document without the clusters that explain its score, by head: docs",
    variants=DIAL.variants,
    sizes=DIAL.sizes,
    measure=faithful,
    inputs=DIAL.inputs,
    rerun_variants=DIAL.rerun_variants,
)
EXPERIMENTS = (FAITHFUL,)
