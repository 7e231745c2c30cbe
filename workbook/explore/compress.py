"""One embedder compressed as you choose: how far its vectors move, and what happens to a ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import ipywidgets as widgets
import numpy as np
import pandas as pd

from .. import compress
from ..compress import CRITERIA
from ..errors import InvalidValueError, UnknownNameError
from .panel import Panel, answered, as_html, refuse_blank, text_field

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SPARSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, "4:8", "2:4", 0.6, 0.7, 0.8, 0.9)
"""Shares of weights that are zero, anywhere in a layer or in a pattern, from nothing on."""
FORMS = ("as it is", *compress.FORMATS)
_SHOWN = (0.3, 0.5, "4:8", "2:4", 0.7)  # in a table, which computes all of its rows


class CompressionExplorer(Panel):
    """A query and documents before and after compression, by criterion, sparsity and form.

    Vectors of a setting are kept as long as the explorer, models are not. Rounding is to nearest, without GPTQ.

    Args:
        model: An embedder; it is left as it is.
        documents: Texts to rank, at least two distinct ones.
        instruction: The bare task instruction in front of a query, or None.
        texts: Calibration texts of Wanda and SparseGPT; None for those of :func:`workbook.compress.prune`.

    Raises:
        InvalidValueError: Fewer than two distinct documents, or a blank one.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        documents: Sequence[str],
        instruction: str | None = None,
        texts: Sequence[str] | None = None,
    ):
        self.model, self.instruction, self.texts = model, instruction, texts
        self.documents = [*dict.fromkeys(documents)]
        for one in self.documents:
            refuse_blank(one)
        if len(self.documents) < 2:
            raise InvalidValueError("documents", "at least two distinct texts", self.documents)
        self._kept: dict[tuple[object, ...], np.ndarray] = {}

    def vectors(self, query: str, criterion: str, sparsity: float | str, form: str) -> np.ndarray:
        """Vectors of length 1 of the query and the documents, (1 + documents, dim).

        Args:
            query: A text.
            criterion: One of ``workbook.compress.CRITERIA``; does not matter at sparsity 0.
            sparsity: One of :data:`SPARSITIES`.
            form: One of :data:`FORMS`.

        Raises:
            InvalidValueError: A query that is blank or not a string.
            UnknownNameError: No such criterion, sparsity or form.
        """
        refuse_blank(query)
        for what, name, known in (
            ("criterion", criterion, CRITERIA), ("sparsity", sparsity, SPARSITIES), ("form", form, FORMS)
        ):  # fmt: skip
            if name not in known:
                raise UnknownNameError(what, name, [*map(str, known)])
        key = (query, criterion if sparsity else "", sparsity, form)
        if key not in self._kept:
            model = self.model
            if sparsity:
                model = compress.prune(model, how=criterion, sparsity=sparsity, texts=self.texts)
            if form != FORMS[0]:
                model = compress.quantize(model, how="rtn", form=form)
            options = {"normalize_embeddings": True, "show_progress_bar": False}
            asked = model.encode([query], prompt=self.instruction, **options)
            self._kept[key] = np.concatenate([asked, model.encode(self.documents, **options)])
        return self._kept[key]

    def compare(self, query: str, criterion: str, sparsity: float | str, form: str) -> tuple[float, pd.DataFrame]:
        """How far compression moves the vectors, and the ranking before and after it.

        Args:
            query, criterion, sparsity, form: See :meth:`vectors`.

        Returns:
            The mean cosine of each text's vector with its own before compression; and one row per document, the nearest
            first: ``document``, ``rank`` and ``cosine`` (with the query), ``rank before``, ``cosine before``.
        """
        before, after = (self.vectors(query, criterion, *chosen) for chosen in ((0.0, FORMS[0]), (sparsity, form)))
        frame = pd.DataFrame({"document": self.documents})
        for ending, vectors in (("", after), (" before", before)):
            frame[f"cosine{ending}"] = vectors[1:] @ vectors[0]
            frame[f"rank{ending}"] = frame[f"cosine{ending}"].rank(ascending=False, method="first").astype(int)
        columns = ["document", "rank", "rank before", "cosine", "cosine before"]
        return float((before * after).sum(axis=1).mean()), frame.sort_values("rank", ignore_index=True)[columns]

    def table(self, query: str) -> pd.DataFrame:
        """Magnitude at some sparsities, and every form without pruning.

        Args:
            query: A text.

        Returns:
            One row per setting: ``criterion``, ``sparsity``, ``form``, ``cosine`` (of a text's vector with its own
            before, the mean) and ``tau`` (Kendall's, of the ranking with that before).
        """
        chosen = [("magnitude", sparsity, FORMS[0]) for sparsity in _SHOWN]
        rows = []
        for setting in [*chosen, *(("-", 0.0, form) for form in FORMS[1:])]:
            criterion = setting[0] if setting[1] else CRITERIA[0]
            cosine, ranking = self.compare(query, criterion, *setting[1:])
            tau = ranking["rank"].corr(ranking["rank before"], method="kendall")
            rows.append((*setting, cosine, tau))
        return pd.DataFrame(rows, columns=["criterion", "sparsity", "form", "cosine", "tau"]).round(3)

    def panel(self, query: str) -> widgets.VBox:
        """A field for the query, a choice of criterion and form, a slider of sparsity, and the ranking.

        Args:
            query: The query at the start.
        """
        controls = {
            "query": text_field(query, "Query"),
            "criterion": widgets.ToggleButtons(options=CRITERIA, description="Criterion"),
            "sparsity": widgets.SelectionSlider(options=SPARSITIES, description="Sparsity", continuous_update=False),
            "form": widgets.ToggleButtons(options=FORMS, description="Form"),
        }

        def answer(**chosen: str) -> str:
            cosine, ranking = self.compare(**chosen)
            return f"cosine with the vectors before: <b>{cosine:.3f}</b>{as_html(ranking.head(8).round(3))}"

        return answered(controls, answer)
