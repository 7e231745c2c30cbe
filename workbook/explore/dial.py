"""The dial: what clusters are for, by the head, relu's zero, idf and the cut of vectors, with an answer at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import numpy as np
import pandas as pd

from .. import figures, probes
from ..backbones import load_config
from ..errors import InvalidValueError, whole
from ..evaluation.intervals import of_mean
from ..probes.dial import IDF_DOCUMENTS
from ..vocabulary.clusters import CLUSTERS
from .panel import Panel, answered, as_html, picture, refuse_blank

if TYPE_CHECKING:
    from matplotlib.transforms import Bbox
    from sentence_transformers import SentenceTransformer

CONTROLS = ("random clusters", "gaussian")
"""Heads that are shown beside the chosen one."""
TOPS = (8, 32, 128, 512)
"""Weights kept of a document, beside whole vectors."""
WIDTHS = (576, 8000, 16000)
"""Numbers of rows to choose beside those by default, where their clusters are kept."""
SHARES = (0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.03, 0.01)
"""Shares of active weights to choose from."""


class Dial(Panel):
    """Search in lexicon vectors of a model's states, which are read once, by head, zero, idf and cut.

    The chosen head is shown beside :data:`CONTROLS`, of as many rows, and beside dense vectors and BM25. What was read
    with a head is kept: the panel reads at its start what sliders reach from there, and at each new head what they
    reach then (``benchmarks/dial.py``). A head of more than 4,000 rows takes seconds at first, and clusters that the
    cache does not have may take a minute.

    Args:
        model: A model that begins with a Decoder.
        queries: Strings; the document in the same place is the right one.
        documents: Strings, as many as queries or more; ten at least, for an idf.
        instruction: The bare task instruction in front of every query, or None.
        rows: Numbers of rows to choose from; None for 4,000 and parts of it, or of an eighth of a smaller vocabulary,
            and those of :data:`WIDTHS` whose clusters the cache has.

    Raises:
        InvalidValueError: A blank text, too few documents, or a model that does not begin with a Decoder.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        queries: Sequence[str],
        documents: Sequence[str],
        instruction: str | None = None,
        rows: Sequence[int] | None = None,
    ):
        for text in (*queries, *documents):
            refuse_blank(text)
        if len(documents) < IDF_DOCUMENTS:
            raise InvalidValueError(
                "documents", f"{IDF_DOCUMENTS} at least, for an idf to choose", len(documents), "Give more documents."
            )
        self.texts = probes.collect(model, queries, documents, instruction)
        self.backbone, self.tokenizer = model[0].decoder.config.name_or_path, model.tokenizer
        self._heads = probes.Heads(self.backbone)
        vocabulary = load_config(self.backbone).vocab_size
        most = min(CLUSTERS, vocabulary // 8)
        self.rows = [whole("rows", k, 2) for k in rows or (most // 4, most // 2, most)]
        self._usual = self.rows[-1]
        if not rows:
            wider = (k for k in WIDTHS if k <= vocabulary // 2 and self._heads.at_hand("k-means", k))
            self.rows = sorted({*self.rows, *wider})
        found = probes.baseline_search(self.texts)
        self.baselines = {name: part for name, part in found.groupby("baseline", sort=False)}
        self._pooled: dict[tuple, tuple] = {}
        self._curves: dict[tuple, pd.DataFrame] = {}
        self._pictures: dict[tuple, str] = {}
        self._places: dict[tuple, Bbox] = {}

    def search(self, head: str, k: int, zero: str | float = "mean", idf: str = "subtracted") -> pd.DataFrame:
        """Search with one head at every cut.

        Args:
            head: One of ``workbook.probes.HEADS``.
            k: Number of rows, for a head that has no number of its own.
            zero: ``mean`` (of the head's rows), ``paper`` (the head's rows as they are), or the share of the documents'
                largest logits that lie above it.
            idf: One of ``workbook.probes.IDF``.

        Returns:
            See `workbook.probes.lexicon_search`.

        Raises:
            UnknownNameError: No such head or idf.
            InvalidValueError: Another zero, or as `workbook.probes.head_of`.
        """
        if isinstance(zero, str) and zero not in ("mean", "paper"):
            raise InvalidValueError("zero", "'mean', 'paper', or a share from 0 to 1", zero)
        centred, as_it_is, own = self._read(head, k)
        pooled = as_it_is if zero == "paper" else centred
        level = 0.0 if isinstance(zero, str) else probes.zero_at(pooled, zero)
        tops = [top for top in TOPS if top < pooled.documents.shape[1]]
        return probes.lexicon_search(pooled, level, idf, [*tops, None], own)

    def _read(self, head: str, k: int) -> tuple:
        """What a head makes of the texts, by its zero, and the clusters that count as readable in each document."""
        key = (head, k if head in probes.SIZED else None)
        if key not in self._pooled:
            made = self._heads.head(*key)
            own = probes.content_clusters(self.texts.documents, made, self.tokenizer)
            self._pooled[key] = *probes.pooled_by_zero(self.texts, made), own
        return self._pooled[key]

    def at_hand(self, head: str, k: int) -> bool:
        """Whether a head and its controls can be read without clustering, which may take minutes.

        Args:
            head, k: See :meth:`search`.
        """
        return all(self._heads.at_hand(kind, k) for kind in (head, *CONTROLS))

    def _read_ahead(self, head: str) -> None:
        """Read what sliders reach with this head, where nothing has to be clustered and few rows are read."""
        for k in self.rows:
            if k <= CLUSTERS and self.at_hand(head, k):
                for kind in (head, *CONTROLS):
                    self._read(kind, k)

    def curves(self, head: str, k: int, zero: str | float = "mean", idf: str = "subtracted") -> pd.DataFrame:
        """The chosen head and its controls at every cut, with intervals over queries.

        Args:
            head, k, zero, idf: See :meth:`search`.

        Returns:
            One row per head and top: ``top``, ``MRR`` (x 100), ``low``, ``high``, ``bytes``, ``active``, ``readable``
            (shares), ``cosine`` and ``head``.

        Raises:
            UnknownNameError, InvalidValueError: As :meth:`search`.
        """
        with ThreadPoolExecutor(2) as pool:  # numpy and torch let go of the lock
            return pd.concat(pool.map(lambda name: self._curve(name, k, zero, idf), dict.fromkeys((head, *CONTROLS))))

    def _curve(self, *setting: Any) -> pd.DataFrame:
        if setting not in self._curves:
            found = self.search(*setting)
            about = found.drop_duplicates("top")[["top", *_ABOUT]].reset_index(drop=True)
            ranks = found["reciprocal_rank"].to_numpy().reshape(len(about), -1)
            means = pd.DataFrame([_mean(one) for one in ranks])
            columns = {"top": about["top"], **means, **about[_ABOUT], "head": setting[0]}
            self._curves[setting] = pd.DataFrame(columns)
        return self._curves[setting]

    def table(
        self,
        head: str = "k-means",
        k: int | None = None,
        zero: str | float = "mean",
        idf: str = "subtracted",
        top: int | None = 32,
    ) -> pd.DataFrame:
        """The chosen head, its controls and the baselines at one cut.

        Args:
            head, zero, idf: See :meth:`search`.
            k: See :meth:`search`; None for the last of ``rows``, by default 4,000.
            top: Weights kept of a document, one of :data:`TOPS`; None for whole vectors.

        Returns:
            Rows as of :meth:`curves` without ``top``, and of the baselines.

        Raises:
            UnknownNameError, InvalidValueError: As :meth:`search`; or another ``top``.
        """
        if top not in (None, *TOPS):
            raise InvalidValueError("top", f"None or one of {TOPS}", top)
        curves = self.curves(head, self._usual if k is None else k, zero, idf)
        # Vectors that are no longer than that are whole.
        widths = curves.groupby("head")["top"].transform("max")
        rows = curves[curves["top"] == (widths if top is None else widths.clip(upper=top))]
        others = [
            {"head": name, **_mean(part["reciprocal_rank"].to_numpy()), "bytes": part["bytes"].iloc[0]}
            for name, part in self.baselines.items()
        ]
        columns = ["head", "MRR", "low", "high", *_ABOUT]
        return pd.concat([rows[columns], pd.DataFrame(others)], ignore_index=True)

    def panel(self) -> widgets.VBox:
        """Zero, idf, head, number of rows and cut to choose; below them the table, and the curves over all cuts."""
        zeros = [("paper", "paper"), ("mean", "mean"), *((f"{share:.0%} active", share) for share in SHARES)]
        wide = {"continuous_update": False, "style": {"description_width": "8em"}, "layout": {"width": "34em"}}
        controls = {
            "zero": widgets.SelectionSlider(options=zeros, value="mean", description="Zero", **wide),
            "idf": widgets.ToggleButtons(options=probes.IDF, value="subtracted", description="Mean weight"),
            "head": widgets.Dropdown(options=probes.HEADS, description="Head"),
            "k": widgets.SelectionSlider(options=self.rows, value=self._usual, description="Rows", **wide),
            "top": widgets.SelectionSlider(
                options=[*((str(top), top) for top in TOPS), ("whole", 0)], value=32, description="Kept", **wide
            ),
        }

        def answer(zero: str | float, idf: str, head: str, k: int, top: int) -> str:
            setting = (head, k, zero, idf)
            self._read_ahead(head)
            return as_html(self.table(*setting, top or None).round(3)) + self._picture(*setting)

        return answered(controls, answer)

    def _picture(self, *setting: Any) -> str:
        """The curves as a figure; the cut chooses none of them."""
        if setting not in self._pictures:
            labels = {"title": "Search by the cut of documents", "xlabel": "weights kept of a document"}
            levels = {name: self.baselines[name]["reciprocal_rank"].mean() for name in ("dense", "BM25")}
            curves = self.curves(*setting)
            widths = curves.groupby("head")["top"].transform("max")
            curves = curves[(curves["top"] == widths) | (1.5 * curves["top"] < widths)]  # names of ticks need room
            fig = figures.lines(
                curves, "top", "MRR", hue="head", low="low", high="high", logx=True, baseline=levels,
                ylabel="MRR x 100", ylim=(0, 100), size=(4.8, 2.6), **labels,
            )  # fmt: skip
            [axes] = fig.axes
            alike = tuple(curves["head"].unique()), tuple(curves["top"].unique())
            if alike in self._places:  # laying it out takes as long as drawing it
                fig.set_layout_engine("none")
                axes.set_position(self._places[alike])
            self._pictures[setting] = picture(fig, "mean reciprocal rank by weights kept", small=False)
            self._places[alike] = axes.get_position()
        return self._pictures[setting]


_ABOUT = ["bytes", "active", "readable", "cosine"]


def _mean(ranks: np.ndarray) -> dict[str, float]:
    """The mean reciprocal rank with its 95 % interval over queries."""
    mean, half = ranks.mean(), of_mean(ranks)
    return {"MRR": mean, "low": mean - half, "high": mean + half}
