"""Lexicon beside dense vectors, by how much each counts: do two *kinds* of vectors complement each other?

Two models know more than one, whatever their kinds. Hence the controls that LENS' table 6 lacks: two lexicon models,
and two dense ones. A hybrid's cosine is a weighted mean of two cosines, so each pair of models is measured once, and
all weights are arithmetic on its two matrices. The best weight of a sweep looks better than it is, so :func:`gain`
chooses it on one half of the queries and measures on the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..corpora.tables import by_hash
from ..errors import InvalidValueError, MissingDataError
from ..evaluation.effects import Estimate, Quantity, effect
from ..evaluation.outcomes import Outcomes
from ..evaluation.rankings import cosines
from ..evaluation.run import cut_to
from ..probes.dial import searched
from ..scale import get_scale
from .compare import caveat_of, judged, learned
from .grid import Experiment
from .lens import DENSE, MAX, SUM, UNTRAINED, WEIGHTED, beside
from .suite import held_out_loss, row, smaller

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale

SHARES = tuple(np.linspace(0, 1, 11).round(1).tolist())
"""Shares of the second model in the mean of both cosines; weight w of `workbook.hybrid` is the share w / (1 + w)."""

PAIRS = {"lexicon + dense": (MAX, DENSE), "lexicon + lexicon": (MAX, SUM), "dense + dense": (DENSE, WEIGHTED)}
"""Two embedders each: of two kinds, and the controls."""


def measure(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Retrieval of suite docs by the share of the second embedder, and the held-out loss of each.

    Args:
        model: A hybrid of two embedders; its own weight does not matter.
        sizes: Sizes of evaluation; ``queries`` and ``documents`` of docs, test, as of task DocsRetrieval.

    Returns:
        One row per share, of the metric ``mrr``: ``task`` (the share in words), score (mean reciprocal rank x 100),
        low, high, items and outcomes of queries; ``share``, 0 to 1. Then one row per embedder, of the metric ``loss``:
        ``task`` (``first``, ``second``), nats.
    """
    parts = {"first": model[0].first, "second": model[0].second}
    pairs = by_hash(load_docs().split("test")).head(sizes.documents)
    queries, documents = pairs["query"].head(sizes.queries).tolist(), pairs["document"].tolist()
    with cut_to(model, sizes.max_length):
        found = cosines(parts, queries, documents, dict.fromkeys(parts, instruction_of("DocsRetrieval")))
        losses = [row(name, held_out_loss(part), metric="loss") for name, part in parts.items()]
    mixed = [
        row(
            f"share {share:g}",
            Outcomes.of_values(
                searched((1 - share) * found["first"] + share * found["second"])["reciprocal_rank"], queries
            ),
            metric="mrr",
            share=share,
        )
        for share in SHARES
    ]
    return pd.concat([*mixed, *losses], ignore_index=True)


def gain(rows: pd.DataFrame, beyond: pd.DataFrame | None = None) -> Estimate:
    """The hybrid minus the better of its two parts, over the same queries and seeds.

    Which share is best, and which part, is known from the other half of the queries, under the same seed. That choice
    is not resampled: where all shares are level, the 95% interval covers some 92%. It can't be tested if a part was
    trained and did not learn.

    Args:
        rows: Rows of one variant, as from ``Run.experiment``: columns source, seed, metric, task, share, score,
            outcomes and trained.
        beyond: Rows of another variant, whose own gain is subtracted: do two kinds gain more than two of one kind?

    Raises:
        MissingDataError: No shares were measured.
        InvalidValueError: Rows of several variants; or ``beyond`` of other queries or seeds.
    """
    weights, both = {"mixed": 1.0, "alone": -1.0}, _chosen(rows)
    if beyond is not None:
        weights |= {f"other {name}": -weight for name, weight in weights.items()}
        both |= {f"other {name}": one for name, one in _chosen(beyond).items()}
    return effect(weights, both)


def curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Every share of the second embedder, minus the first alone.

    Args:
        rows: As for :func:`gain`.

    Returns:
        One row per share: ``share``, ``effect`` (points of mean reciprocal rank), ``low`` and ``high``, the 95%
        interval over the same queries and seeds, of that share alone: the best of eleven looks better than it is.

    Raises:
        MissingDataError, InvalidValueError: As for :func:`gain`.
    """
    by_seed, said = _measured(rows)
    by_share = {
        share: Quantity({seed: {"": several[share]} for seed, several in by_seed.items()}, **said)
        for share in next(iter(by_seed.values()))
    }
    first = by_share[min(by_share)]
    found = {s: effect({"both": 1.0, "first": -1.0}, {"both": one, "first": first}) for s, one in by_share.items()}
    return pd.DataFrame(
        [(share, one.value, one.low, one.high) for share, one in found.items()],
        columns=["share", "effect", "low", "high"],
    )


def _chosen(rows: pd.DataFrame) -> dict[str, Quantity]:
    """The best share, and the better part alone, as chosen on other queries."""
    by_seed, said = _measured(rows)
    ends = {seed: {share: found[share] for share in (min(found), max(found))} for seed, found in by_seed.items()}
    return {
        name: Quantity({seed: {"": _crossed(several)} for seed, several in of_seeds.items()}, **said)
        for name, of_seeds in (("mixed", by_seed), ("alone", ends))
    }


def _measured(rows: pd.DataFrame) -> tuple[dict[int, dict[float, Outcomes]], dict[str, Any]]:
    """Outcomes by seed and share; and what every quantity made of them says of itself."""
    rows = judged(rows)
    losses = rows[rows["metric"] == "loss"]
    rows = rows[rows["metric"] == "mrr"]
    if rows.empty:
        raise MissingDataError("Expected rows of shares, found none.")
    if rows.duplicated(["seed", "share"]).any():
        raise InvalidValueError("rows", "those of one variant", "a share that is twice under a seed")
    by_seed = {
        int(seed): dict(zip(of_seed["share"], of_seed["outcomes"], strict=True))
        for seed, of_seed in rows.groupby("seed")
    }
    trained = bool(rows["trained"].any())
    why = next(filter(None, learned(losses.assign(variant=losses["task"])).values()), "") if trained else ""
    return by_seed, {"trained": trained, "why": why, "caveat": caveat_of(rows)}


def _crossed(by_share: Mapping[float, Outcomes]) -> Outcomes:
    """The outcome of each query under the share that is best on the queries of the other half."""
    if missing := [one for one in by_share.values() if one.statistic == "none"]:
        return missing[0]
    several = [*by_share.values()]
    table = np.stack([one.values for one in several])
    values, even = np.empty(table.shape[1]), np.arange(table.shape[1]) % 2 == 0
    for half in (even, ~even):
        best = int(table[:, ~half].mean(axis=1).argmax())
        values[half] = table[best, half]
    return replace(several[0], values=values, score=float(values.mean()))


def _sizes(scale: str) -> Scale:
    return smaller(scale) if scale == "quick" else get_scale(scale)


MIXTURE = Experiment(
    name="04_mixture",
    description="Lexicon and dense embedders, and two of each kind, by the share of the second: docs",
    variants=(
        *(beside(f"{name}, {UNTRAINED}", *(replace(one, stages=()) for one in pair)) for name, pair in PAIRS.items()),
        *(beside(name, *pair) for name, pair in PAIRS.items()),
    ),
    sizes=_sizes,
    measure=measure,
    inputs=("docs", "instructions/docs.csv"),
)
EXPERIMENTS = (MIXTURE,)
