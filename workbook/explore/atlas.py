"""The atlas: the clusters of a head on a plane, by their number, with those that LENS prints marked and scored."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets
import pandas as pd

from .. import figures, papers, probes
from ..backbones import load_config, load_tokenizer
from ..errors import InvalidValueError, whole
from ..vocabulary.clusters import CLUSTERS
from .panel import Panel, answered, as_html, picture

ROWS = (576, 1000, 2000, CLUSTERS)
"""Numbers of clusters to choose from; the first is the rank of SmolLM2-135M's head."""

PRINTED = 8000
"""Number of clusters of the model whose clusters LENS prints in table 4. The panel offers it once they are in the
cache: ``clusters_of(backbone, 8000)`` of `workbook.vocabulary.clusters` makes them, in minutes.
"""


class AtlasExplorer(Panel):
    """Clusters of a head by their number: where they lie, and which hold the words that share a cluster in print.

    Clusters are kept in the cache, those of a backbone once for all: with SmolLM2-135M on a core, all of :data:`ROWS`
    take some two minutes at first, and less than a second later. The table needs no more. A map takes two seconds for
    576 clusters, up to twenty for 4,000 and about a minute for 8,000, and is kept as long as the explorer.

    Args:
        backbone: The name, folder or Hub id of a decoder with its language-model head.
        printed: Columns ``cluster`` and ``token``; None for the paper's 15 clusters,
            ``workbook.papers.published("lens_clusters")``.
        rows: Numbers of clusters to choose from, four or more each; None for those of :data:`ROWS` that are half of the
            vocabulary or less, or an eighth of a smaller one, and in the panel :data:`PRINTED` too, if it is kept.

    Raises:
        InvalidValueError: No number, or one that is not whole, below 4 or above the vocabulary.
        UnknownNameError, ModelNotFoundError: No such backbone.

    Source: LENS, tables 4 and 7; the map is this project's.
    """

    def __init__(self, backbone: str, printed: pd.DataFrame | None = None, rows: Sequence[int] | None = None):
        most, self.heads = load_config(backbone).vocab_size, probes.Heads(backbone)
        self._kept = []
        if rows is None:
            self._kept = [PRINTED] if most // 2 >= PRINTED and self.heads.at_hand("k-means", PRINTED) else []
            rows = [k for k in ROWS if k <= most // 2] or [max(4, most // 8)]
        self.rows = sorted({whole("rows", k, 4, most, of="clusters") for k in rows})
        if not self.rows:
            raise InvalidValueError("rows", "at least one number of clusters", self.rows)
        self.tokenizer = load_tokenizer(backbone)
        self.printed = papers.published("lens_clusters") if printed is None else printed
        self._pairs: dict[int, pd.DataFrame] = {}
        self._maps: dict[int, pd.DataFrame] = {}
        self._pictures: dict[int, str] = {}

    def map(self, k: int) -> pd.DataFrame:
        """The clusters on a plane; see `workbook.probes.cluster_map`.

        Args:
            k: Their number.

        Raises:
            InvalidValueError: As `workbook.probes.cluster_map`, or a number above the vocabulary.
        """
        if k not in self._maps:
            self._maps[k] = probes.cluster_map(self.heads.clusters(k), self.tokenizer, self.printed)
        return self._maps[k]

    def pairs(self, k: int) -> pd.DataFrame:
        """Pairs of different words that share a cluster in print; see `workbook.probes.printed_pairs`.

        Args:
            k: Number of clusters.

        Returns:
            Those that can be counted: both words are tokens here.

        Raises:
            InvalidValueError: As `workbook.probes.printed_pairs`, or a number of clusters that can't be.
        """
        if k not in self._pairs:
            found = probes.printed_pairs(self.heads.clusters(k).assignment, self.tokenizer, self.printed)
            self._pairs[k] = found[found["pairs"] > 0].reset_index(drop=True)
        return self._pairs[k]

    def scores(self, k: int) -> pd.DataFrame:
        """The printed clusters one by one: how much of each is together here?

        Args:
            k: Number of clusters.

        Returns:
            One row per printed cluster of which pairs can be counted: ``printed`` (its first token in print, as in the
            map), ``pairs`` (their number), ``together`` (the share of them that share a cluster here, 0 to 1) and
            ``chance`` (that of a word and any other token).

        Raises:
            InvalidValueError: As :meth:`pairs`.
        """
        first = self.printed.drop_duplicates("cluster").set_index("cluster")["token"]
        found = self.pairs(k).groupby("cluster", sort=False)
        frame = found.agg(pairs=("together", "size"), together=("together", "mean"), chance=("chance", "mean"))
        frame.insert(0, "printed", first[frame.index])
        return frame.reset_index(drop=True)

    def table(self) -> pd.DataFrame:
        """The share of the printed pairs that share a cluster, by the number of clusters.

        Returns:
            One row per number, the smallest first: ``k``, ``pairs``, ``together`` and ``chance``, the mean over pairs,
            as in :meth:`scores`.

        Raises:
            InvalidValueError: As :meth:`pairs`.
        """
        found = {k: self.pairs(k) for k in self.rows}
        rows = [(k, len(pairs), pairs["together"].mean(), pairs["chance"].mean()) for k, pairs in found.items()]
        return pd.DataFrame(rows, columns=["k", "pairs", "together", "chance"]).round(4)

    def panel(self) -> widgets.VBox:
        """A slider of the number of clusters; below it the map, and the printed clusters with their scores."""
        slider = widgets.SelectionSlider(
            options=[*self.rows, *self._kept], description="Clusters", continuous_update=False
        )
        return answered({"k": slider}, lambda k: self._picture(k) + as_html(self.scores(k).round(4)))

    def _picture(self, k: int) -> str:
        """The map as a figure."""
        if k not in self._pictures:
            title = f"{k:,} clusters of the head; in colour, those that hold printed words"
            self._pictures[k] = picture(figures.atlas(self.map(k), title=title), f"map of {k:,} clusters")
        return self._pictures[k]
