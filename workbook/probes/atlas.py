"""Clusters of a head against those that LENS prints, and on a plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from sklearn.preprocessing import normalize

from ..errors import InvalidValueError, whole
from ..vocabulary.names import name_of, token_forms

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..vocabulary.clusters import Clusters

_COLUMNS = ("cluster", "token")


def printed_pairs(assignment: torch.Tensor, tokenizer: PreTrainedTokenizerBase, printed: pd.DataFrame) -> pd.DataFrame:
    """Pairs of different words that share a cluster in print: do they share one here?

    A word is what the paper prints, without case and ``#``. Its forms are the tokens that spell it as printed, with a
    leading space or without: a word that this vocabulary splits has none. Pairs of forms of one word do not count, so
    merging case and space alone earns nothing.

    Args:
        assignment: int64 (vocabulary,), the cluster of each token: ``Clusters.assignment``, or ``Lexicon.clusters``.
        tokenizer: The tokenizer of the clustered head.
        printed: Columns ``cluster`` and ``token``: ``workbook.papers.published("lens_clusters")``.

    Returns:
        One row per pair of words: ``cluster`` (in print), ``first``, ``second``, ``pairs`` (of tokens, one a form of
        each; 0 if a word has no form, so that the pair can't be counted), ``together`` (the share of them in one
        cluster, 0 to 1, NaN if there are none) and ``chance``: the share of all other tokens that are in the cluster of
        a form, its mean over the pairs and both sides, NaN likewise.

    Raises:
        InvalidValueError: Other columns, or a tokenizer with tokens that the clusters do not know.

    Source: LENS, tables 4 and 7.
    """
    _check(printed, assignment, tokenizer)
    forms = token_forms(tokenizer, len(assignment))
    sizes, cluster_of = assignment.bincount().tolist(), assignment.tolist()
    rows = []
    for number, part in printed.groupby("cluster", sort=False):
        words: dict[str, list[int]] = {}
        for token in part["token"]:
            words.setdefault(_bare(token).lower(), []).extend(_forms(forms, token))
        for (first, ones), (second, others) in combinations(words.items(), 2):
            pairs = [(cluster_of[one], cluster_of[other]) for one in ones for other in others]
            together = [one == other for one, other in pairs]
            others_there = [(sizes[one] + sizes[other]) / 2 - 1 for one, other in pairs]
            chance = np.mean(others_there) / (len(assignment) - 1) if pairs else np.nan
            rows.append((number, first, second, len(pairs), np.mean(together) if pairs else np.nan, chance))
    return pd.DataFrame(rows, columns=["cluster", "first", "second", "pairs", "together", "chance"])


def cluster_map(clusters: Clusters, tokenizer: PreTrainedTokenizerBase, printed: pd.DataFrame) -> pd.DataFrame:
    """The clusters of a head on a plane, and which of them hold words of the printed ones.

    The plane is that of t-SNE of the centroids, less their mean and scaled to length 1: near each other is what was
    near, but distances between far points mean nothing. Its seed is fixed.

    Args:
        clusters: The clusters, four or more.
        tokenizer: The tokenizer of the head.
        printed: Columns ``cluster`` and ``token``: ``workbook.papers.published("lens_clusters")``.

    Returns:
        One row per cluster, those that hold most tokens of a printed one first: ``k`` (their number), ``cluster`` (from
        0), ``x``, ``y``, ``size`` (tokens), ``name`` (the two tokens nearest to the centre), ``printed`` (the first
        token in print of the printed cluster of which it holds most tokens, of several the first; empty if it holds
        none) and ``held`` (how many of them it holds).

    Raises:
        InvalidValueError: Fewer than four clusters, or as :func:`printed_pairs`.

    Source: LENS, tables 4 and 7; the map is this project's.
    """
    from sklearn.decomposition import PCA  # takes a second to import
    from sklearn.manifold import TSNE

    _check(printed, clusters.assignment, tokenizer)
    k = whole("number of clusters", len(clusters), 4)
    rows = clusters.centroids.double().numpy()
    directions = normalize(rows - rows.mean(axis=0))
    parts = min(50, *directions.shape)
    own = {"perplexity": min(30, (k - 1) / 3), "init": "pca", "random_state": 0}
    plane = TSNE(2, max_iter=500, angle=0.8, **own)  # a wide angle: half the time, and far points mean nothing anyway
    x, y = plane.fit_transform(PCA(parts, random_state=0).fit_transform(directions)).T.astype(float)
    tokens = range(k)
    frame = pd.DataFrame({"k": k, "cluster": tokens, "x": x, "y": y, "size": clusters.sizes.numpy()})
    frame["name"] = [", ".join(name_of(tokenizer, clusters.members(cluster).tolist())) for cluster in tokens]
    forms, cluster_of = token_forms(tokenizer, len(clusters.assignment)), clusters.assignment.tolist()
    held = pd.DataFrame(
        [
            (part["token"].iloc[0], cluster_of[form])
            for _, part in printed.groupby("cluster", sort=False)
            for form in {form for token in part["token"] for form in _forms(forms, token)}
        ],
        columns=["printed", "cluster"],
    )
    most = held.value_counts(["cluster", "printed"], sort=False).reset_index()
    order = {name: place for place, name in enumerate(printed.drop_duplicates("cluster")["token"])}
    most = most.sort_values(["count", "printed"], key=lambda c: -c if c.name == "count" else c.map(order))
    most = most.drop_duplicates("cluster").rename(columns={"count": "held"})
    frame = frame.merge(most, on="cluster", how="left").fillna({"printed": "", "held": 0}).astype({"held": int})
    return frame.sort_values("held", ascending=False, kind="stable", ignore_index=True)


def _bare(token: str) -> str:
    return token.removeprefix("#")


def _forms(forms: Mapping[str, list[int]], token: str) -> Sequence[int]:
    """Ids of the tokens that spell a printed token, with a leading space or without."""
    bare = _bare(token)
    return [*forms.get(bare, ()), *forms.get(f" {bare}", ())]


def _check(printed: pd.DataFrame, assignment: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> None:
    if not isinstance(printed, pd.DataFrame) or not {*_COLUMNS} <= {*printed.columns}:
        raise InvalidValueError("printed", f"a frame with the columns {' and '.join(_COLUMNS)}", printed)
    if len(tokenizer) > len(assignment):
        raise InvalidValueError("tokenizer", f"that of {len(assignment)} clustered tokens", f"{len(tokenizer)} tokens")
