"""How often negatives lie, as sliders: the closed form, and what is measured on the vectors of texts with classes."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets
import numpy as np
import pandas as pd

from ..data.curation import DOCUMENTS
from ..errors import InvalidValueError
from ..probes import IN_BATCH, false_negatives, measured_negatives
from .panel import Panel, answered, as_html

_SIZES = (2, 4, 8, 16, 32, 64, 128)
_NEGATIVES = (0, 1, 3, 7)
_SHOWN = {"chance": "row has a false negative", "number": "false negatives of a row", "share": "share of negatives"}


class NegativesExplorer(Panel):
    """False negatives by number of classes, batch size, hard negatives, documents of a class, and in-batch negatives.

    Args:
        vectors: Of texts, (texts, dim).
        labels: The class of each text.
        label_vectors: Of the labels' texts, in the order of the sorted classes, (classes, dim); None to leave labels as
            documents out.
        temperature: Divisor of the cosines.
        batches: Batches that are measured for an answer.

    Raises:
        InvalidValueError: As `workbook.probes.measured_negatives`.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        labels: Sequence,
        label_vectors: np.ndarray | None = None,
        *,
        temperature: float = 0.02,
        batches: int = 10,
    ):
        self.data = {"vectors": np.asarray(vectors), "labels": np.asarray(labels), "label_vectors": label_vectors}
        self.options = {"temperature": temperature, "batches": batches}
        self.most = len(np.unique(self.data["labels"]))
        self.documents = DOCUMENTS if label_vectors is not None else DOCUMENTS[:1]
        self.compare(2, 2, 0)

    def compare(
        self, classes: int, batch_size: int, negatives: int, documents: str = "examples", in_batch: str = "on"
    ) -> pd.DataFrame:
        """The closed form beside the measurement.

        Args:
            classes, batch_size, negatives, documents, in_batch: See `workbook.probes.false_negatives`.

        Returns:
            Columns quantity, closed form (for classes of equal size) and measured (NaN where they have no number): the
            chance, number and share of false negatives, then of the gradient the share of its push that falls on them,
            its cosine with the one without them by row and by batch, and its length.

        Raises:
            UnknownNameError, InvalidValueError: As `workbook.probes.false_negatives` and `measured_negatives`.
        """
        expected = false_negatives(classes, batch_size, negatives, documents=documents, in_batch=in_batch)
        if documents not in self.documents:
            raise InvalidValueError("documents", "examples, as no vectors of labels were given", documents)
        sizes = {"classes": [classes], "batch_sizes": [batch_size], "negatives": [negatives]}
        found = measured_negatives(**self.data, **sizes, **self.options)
        row = found[(found["documents"] == documents) & (found["in_batch"] == in_batch)].iloc[0]
        names = _SHOWN | {
            "pushed": "share of the push on false negatives",
            "row_cosine": "cosine with the gradient without them, row",
            "batch_cosine": "cosine with the gradient without them, batch",
            "row_length": "length, as a multiple of that gradient's",
        }
        rows = [(names[key], expected.get(key, float("nan")), row[key]) for key in names]
        return pd.DataFrame(rows, columns=["quantity", "closed form", "measured"])

    def table(self) -> pd.DataFrame:
        """Chance of a false negative, closed form and measured, for a few numbers of classes and batch sizes."""
        counts = sorted({2, min(6, self.most), self.most})
        found = measured_negatives(**self.data, classes=counts, batch_sizes=(8, 32), negatives=(0, 7), **self.options)
        found = found[found["in_batch"] == "on"].drop(columns="in_batch").reset_index(drop=True)
        keys = ["classes", "batch_size", "negatives", "documents"]
        closed = [
            false_negatives(row.classes, row.batch_size, row.negatives, documents=row.documents)["chance"]
            for row in found.itertuples()
        ]
        return found[[*keys, "chance", "pushed", "row_cosine", "batch_cosine"]].assign(closed_form=closed).round(2)

    def panel(self) -> widgets.VBox:
        """Sliders and menus, and below them the closed form beside the measurement."""
        controls = {
            "classes": widgets.IntSlider(value=2, min=2, max=self.most, description="Classes", continuous_update=False),
            "batch_size": widgets.SelectionSlider(value=32, options=_SIZES, description="Batch"),
            "negatives": widgets.SelectionSlider(value=0, options=_NEGATIVES, description="Negatives"),
            "documents": widgets.Dropdown(options=self.documents, description="Documents"),
            "in_batch": widgets.Dropdown(value="on", options=IN_BATCH, description="In-batch"),
        }
        return answered(controls, lambda **values: as_html(_written(self.compare(**values))))


def _written(frame: pd.DataFrame) -> pd.DataFrame:
    numbers = frame.select_dtypes("number")
    return frame.assign(
        **{name: numbers[name].map(lambda value: f"{value:.3f}".replace("nan", "")) for name in numbers}
    )
