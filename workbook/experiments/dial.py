"""What are clusters for? Search by head, zero, idf and cut, on states that one model read once.

Not the full product of the dial's settings but its axes around a centre, 4,000 rows and the mean row as zero:

- every kind of head by every idf and every cut, which is the claim: clusters of like words pay only where vectors are
  cut, and what all texts share is subtracted;
- the number of rows, by k-means and at random;
- where zero lies, by k-means, at random, and in Gaussian directions;
- dense vectors and BM25 in the same texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from .. import probes
from ..backbones import load_config
from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..corpora.tables import by_hash
from ..errors import InvalidValueError, MissingDataError
from ..evaluation.effects import Estimate, Quantity, effect
from ..evaluation.outcomes import Outcomes
from ..evaluation.run import cut_to
from ..scale import get_scale
from ..vocabulary.clusters import CLUSTERS
from .grid import Experiment, Variant
from .lens import UNTRAINED, lexicon
from .suite import row, smaller

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale

TOPS = (None, 512, 128, 32, 8)
"""Weights kept of a document; None for all."""
SHARES = (0.5, 0.25, 0.1, 0.03)
"""Shares of the documents' largest logits that lie above zero."""
ROWS = (576, 1000, 2000, 8000, 16000)
"""Numbers of rows beside the centre's 4,000; the first is the width of the default backbone's states."""
CLUSTERED = ("k-means", "random clusters")
"""Heads of the same sizes, with and without meaning."""
WHOLE = "whole"
"""``top`` of vectors that are not cut."""

_ROWS = {"quick": (576,), "cpu": (576, 1000, 2000)}  # all at larger scales
_SEEDS = {"quick": 1}  # three at larger scales
_VARIED = ("k-means", "random clusters", "gaussian")


class _Read(NamedTuple):
    """A head, and what is read with it."""

    kind: str
    k: int | None
    seed: int
    zeros: tuple[str | float, ...]
    idfs: tuple[str, ...]


def _plan(k: int, rows: tuple[int, ...], seeds: int) -> Iterator[_Read]:
    """The heads in the order in which they are read; a zero is ``mean``, ``paper`` or a share."""
    some = ("off", "subtracted")
    for kind in probes.HEADS:
        for seed in range(seeds if kind in _VARIED else 1):
            yield _Read(kind, k if kind in probes.SIZED else None, seed, ("mean",), probes.IDF)
    for kind in _VARIED:
        yield _Read(kind, k, 0, SHARES, some)
        yield _Read(kind, k, 0, ("paper",), some)
    for kind in _VARIED[:2]:
        yield from (_Read(kind, other, 0, ("mean",), some) for other in rows)


def measure(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Retrieval of suite docs by every setting of the grid.

    Heads are of the model's backbone before any training, as LENS' own is.

    Args:
        model: A model that begins with a Decoder; what pools its states does not matter.
        sizes: Sizes of evaluation; ``queries`` and ``documents`` of docs, test, as of task DocsRetrieval.

    Returns:
        One row per setting, of the metric ``mrr``: ``task`` (the setting in words), score (mean reciprocal rank x 100),
        low, high, items and outcomes of queries; ``head`` (a kind, or a baseline), ``k`` (rows), ``head_seed``,
        ``zero`` (``mean``, ``paper`` or ``share 0.25``), ``idf``, ``top`` (a number as text, or ``whole``), ``bytes``
        per document, ``active``, ``cosine`` and ``readable`` (see `workbook.probes.lexicon_search`). Baselines have
        only ``head`` and ``bytes``.
    """
    queries, texts = collected(model, sizes)
    backbone, frames = backbone_of(model), []

    def add(found: pd.DataFrame, **setting: Any) -> None:
        shown = {name: value for name, value in setting.items() if name not in ("active", "cosine", "readable")}
        task = ", ".join(f"{name} {value}" for name, value in shown.items())
        size = float(found["bytes"].iloc[0])
        outcomes = Outcomes.of_values(found["reciprocal_rank"], queries)
        frames.append(row(task, outcomes, metric="mrr", **setting, bytes=size))

    for name, found in probes.baseline_search(texts).groupby("baseline", sort=False):
        add(found, head=name)
    vocabulary = load_config(backbone).vocab_size
    rows = [k for k in _ROWS.get(sizes.name, ROWS) if k <= vocabulary // 2]
    heads = probes.Heads(backbone)
    for one in _plan(min(CLUSTERS, vocabulary // 8), tuple(rows), head_seeds(sizes)):
        head = heads.head(one.kind, one.k, one.seed, centred="paper" not in one.zeros)
        pooled = probes.pooled_logits(texts, head)
        own = probes.content_clusters(texts.documents, head, model.tokenizer)
        for zero in one.zeros:
            share = not isinstance(zero, str)
            level = probes.zero_at(pooled, zero) if share else 0.0
            for idf in one.idfs:
                found = probes.lexicon_search(pooled, level, idf, [top for top in TOPS if (top or 0) < len(head)], own)
                for top, part in found.groupby("top", sort=False):
                    about = part[["active", "cosine", "readable"]].iloc[0].to_dict()
                    said = {"head": one.kind, "k": len(head), "head_seed": one.seed}
                    said |= {"zero": f"share {zero}" if share else zero, "idf": idf}
                    add(part, **said, top=WHOLE if top == len(head) else str(top), **about)
    return pd.concat(frames, ignore_index=True)


def head_seeds(sizes: Scale) -> int:
    """Number of seeds of k-means, permutation and directions."""
    return _SEEDS.get(sizes.name, 3)


def backbone_of(model: SentenceTransformer) -> str:
    """Name of the backbone of a model that begins with a Decoder."""
    return model[0].decoder.config.name_or_path


def collected(model: SentenceTransformer, sizes: Scale) -> tuple[list[str], probes.Collection]:
    """Queries of docs, test, and the states of them and of their documents; the first is right for the first.

    Args:
        model: The model whose states are collected.
        sizes: How many queries and documents, and the length in tokens to which they are cut.
    """
    pairs = by_hash(load_docs().split("test")).head(sizes.documents)
    queries = pairs["query"].head(sizes.queries).tolist()
    with cut_to(model, sizes.max_length):
        return queries, probes.collect(model, queries, pairs["document"].tolist(), instruction_of("DocsRetrieval"))


def chosen(rows: pd.DataFrame, **setting: Any) -> pd.DataFrame:
    """The rows of some settings.

    Args:
        rows: Rows of :func:`measure`, as from ``Run.experiment``.
        **setting: Values, or collections of values, of columns such as ``head`` and ``top``.

    Raises:
        MissingDataError: None was measured.
    """
    for name, value in setting.items():
        allowed = value if isinstance(value, list | tuple | set) else [value]
        rows = rows[rows[name].isin(allowed)]
    if rows.empty:
        raise MissingDataError(f"Expected rows of {setting}, found none.")
    return rows


def crossing(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of every kind of head by idf and cut, at the centre's zero and number of rows.

    Args:
        rows: Rows of :func:`measure`, as from ``Run.experiment``.

    Raises:
        MissingDataError: They were not measured.
    """
    k = chosen(rows, head="gaussian")["k"].iloc[0]  # which is measured there alone
    other = rows["head"].isin(_VARIED) & (rows["k"] != k)
    return chosen(rows[~other], head=[*probes.HEADS], zero="mean")


def measured(rows: pd.DataFrame) -> Quantity:
    """The mean reciprocal rank of one setting, by query.

    Seeds are those of the training, over which the head's are averaged; of a model that no seed changes, the head's.

    Args:
        rows: Rows of one setting and one variant: columns seed, head_seed, trained and outcomes.

    Raises:
        InvalidValueError: Rows of several settings.
    """
    if rows.duplicated(["seed", "head_seed"]).any():
        raise InvalidValueError("rows", "those of one setting", [*rows["task"].unique()], "Choose by more columns.")
    outcomes = {seed: [*of_seed["outcomes"]] for seed, of_seed in rows.groupby("seed")}
    if rows["trained"].any():
        return Quantity({int(seed): {"": _mean(several)} for seed, several in outcomes.items()})
    [several] = outcomes.values()
    return Quantity({seed: {"": one} for seed, one in enumerate(several)}, trained=len(several) > 1)


def _mean(several: list[Outcomes]) -> Outcomes:
    if missing := [one for one in several if one.statistic == "none"]:
        return missing[0]
    values = np.mean([one.values for one in several], axis=0)
    return replace(several[0], values=values, score=float(np.mean([one.score for one in several])))


def curves(rows: pd.DataFrame, by: tuple[str, ...] = ("head", "k", "zero", "idf", "top")) -> pd.DataFrame:
    """Quality against cost: each setting with its interval over queries and seeds.

    Args:
        rows: Rows of one variant.
        by: Columns that tell settings apart; those of one group differ in seeds alone.

    Returns:
        One row per setting, in the order of their first rows: the columns of ``by``, score, low, high, items, and the
        means of ``bytes``, ``active``, ``cosine`` and ``readable``.

    Raises:
        InvalidValueError: Settings that ``by`` does not tell apart.
    """
    numbers, found = ["bytes", "active", "cosine", "readable"], []
    for names, group in rows.groupby(list(by), sort=False, dropna=False):
        one = effect({"it": 1.0}, {"it": measured(group)})
        found.append([*names, one.value, one.low, one.high, one.items, *group[numbers].astype(float).mean()])
    return pd.DataFrame(found, columns=[*by, "score", "low", "high", "items", *numbers])


def gap(rows: pd.DataFrame, first: Mapping[str, Any], second: Mapping[str, Any]) -> Estimate:
    """Paired difference of two settings, first minus second, over the same queries and seeds.

    Args:
        rows: Rows of one variant.
        first, second: Values of columns; see :func:`chosen`.

    Raises:
        MissingDataError: One of the two was not measured.
    """
    both = {name: measured(chosen(rows, **one)) for name, one in (("first", first), ("second", second))}
    return effect({"first": 1.0, "second": -1.0}, both)


def meaning(rows: pd.DataFrame) -> pd.DataFrame:
    """What the meaning of clusters is worth: k-means minus random clusters, by zero, number, idf and cut.

    Args:
        rows: Rows of one variant, as from :func:`measure`.

    Returns:
        One row per setting: ``zero`` (the mean and the larger shares; and ``mean, k 576`` and the like, of whole
        vectors at the fewest and the most clusters), ``idf``, ``top``, ``effect``, ``low`` and ``high``, in points of
        the mean reciprocal rank. At the mean as zero and the centre's number it is over the seeds of both heads,
        elsewhere over the first.

    Raises:
        MissingDataError: They were not measured.
    """
    k, found = int(chosen(rows, head="gaussian")["k"].iloc[0]), []
    first = {"head_seed": 0}
    settings: dict[str, dict[str, Any]] = {"mean": {"k": k, "zero": "mean"}}
    for name in (f"share {share}" for share in SHARES[:-1]):
        settings[name] = {"k": k, "zero": name} | first
    sizes = chosen(rows, head=CLUSTERED[1], zero="mean")["k"].unique()
    settings |= {f"mean, k {int(n):,}": {"k": n, "zero": "mean"} | first for n in (min(sizes), max(sizes)) if n != k}
    for (name, setting), idf, top in product(settings.items(), ("off", "subtracted"), (WHOLE, "32")):
        cut = rows[(rows["k"] == setting["k"]) & (rows["top"] == top)]
        if len(cut) and (top == WHOLE or setting["k"] == k):  # 32 rows or fewer have no such cut
            one = gap(cut, *({**setting, "idf": idf, "head": head} for head in CLUSTERED))
            found.append((name, idf, top, one.value, one.low, one.high))
    return pd.DataFrame(found, columns=["zero", "idf", "top", "effect", "low", "high"])


def by_zero(rows: pd.DataFrame) -> pd.DataFrame:
    """Active weights, readable ones and search by where zero lies, with the meaning of clusters and without.

    Args:
        rows: Rows of any variants, as from :func:`measure`.

    Returns:
        One row per quantity, variant, head (of :data:`CLUSTERED`) and zero, of whole vectors at the centre's number of
        rows: ``quantity``, ``model`` (variant and head), ``zero`` (``0``, the paper's; ``mean``; or the share above it,
        as ``25%``), ``level``, ``low`` and ``high``. Quantities, all from 0 to 100: the weights above zero, of all,
        with idf off; the content words, of a document's heaviest weights, with the mean weight subtracted, since
        without idf zero leaves their order as it is; and the mean reciprocal rank, likewise. The first two have no
        interval: a record keeps their means alone.

    Raises:
        MissingDataError: They were not measured.
    """
    k = int(chosen(rows, head="gaussian")["k"].iloc[0])
    names = {"paper": "0", "mean": "mean"} | {f"share {share}": f"{share:.0%}" for share in SHARES}

    def levels(idf: str) -> pd.DataFrame:
        found = []
        for (variant, of_one), zero in product(rows.groupby("variant", sort=False), names):
            made = curves(chosen(of_one, head=[*CLUSTERED], k=k, zero=zero, idf=idf, top=WHOLE))
            found.append(made.assign(zero=names[zero], model=variant + ", " + made["head"]))
        return pd.concat(found, ignore_index=True)

    off, subtracted = levels("off"), levels("subtracted")
    parts = {
        "weights above zero": off.assign(level=100 * off["active"], low=np.nan, high=np.nan),
        "content words": subtracted.assign(level=100 * subtracted["readable"], low=np.nan, high=np.nan),
        "search": subtracted.assign(level=subtracted["score"]),
    }
    found = pd.concat([part.assign(quantity=quantity) for quantity, part in parts.items()], ignore_index=True)
    return found[["quantity", "model", "zero", "level", "low", "high"]]


def against_centre(rows: pd.DataFrame, idf: str, top: str) -> pd.DataFrame:
    """What another head, zero or idf is worth: other kinds, rows, zeros and idfs, minus the centre's k-means.

    Args:
        rows: Rows of one variant.
        idf, top: Of both heads, as in :func:`measure`, where they are not what differs; so is the mean as zero.

    Returns:
        One row per setting, the kinds first, the idfs last: ``label``, ``effect``, ``low`` and ``high``, in points of
        the mean reciprocal rank, paired over the same queries and seeds of the head.

    Raises:
        MissingDataError: They were not measured.
    """
    kinds = chosen(crossing(rows), idf=idf, top=top)
    k_means = chosen(rows, head="k-means", idf=idf, top=top)
    k = chosen(kinds, head="k-means")["k"].iloc[0]
    by_mean, by_other = k_means[k_means["zero"] == "mean"], k_means[k_means["zero"] != "mean"]
    others = {kind: group for kind, group in kinds.groupby("head", sort=False) if kind != "k-means"}
    others |= {f"k-means, {size:,.0f}": group for size, group in by_mean.groupby("k") if size != k}
    others |= {f"zero: {zero}": group for zero, group in by_other.groupby("zero", sort=False)}
    of_idfs = chosen(rows, head="k-means", k=k, zero="mean", top=top)
    others |= {f"idf: {other}": group for other, group in of_idfs.groupby("idf", sort=False) if other != idf}
    found = []
    for label, group in others.items():
        centre = by_mean[(by_mean["k"] == k) & by_mean["head_seed"].isin(group["head_seed"])]
        one = effect({"other": 1.0, "centre": -1.0}, {"other": measured(group), "centre": measured(centre)})
        found.append((label, one.value, one.low, one.high))
    return pd.DataFrame(found, columns=["label", "effect", "low", "high"])


def _sizes(scale: str) -> Scale:
    """Sizes of evaluation; texts of 64 tokens at most, that a cell of a night takes a core minutes."""
    sizes = smaller(scale) if scale == "quick" else get_scale(scale)
    return sizes.model_copy(update={"max_length": min(64, sizes.max_length)})


DIAL = Experiment(
    name="04_dial",
    description="Search by head, zero, idf and cut: docs, on states that are read once",
    variants=(Variant(UNTRAINED, "lens"), lexicon("trained")),
    sizes=_sizes,
    measure=measure,
    inputs=("docs", "instructions/docs.csv"),
    rerun_variants=(UNTRAINED,),
)
EXPERIMENTS = (DIAL,)
