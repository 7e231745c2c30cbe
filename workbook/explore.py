"""A small explorer: two sentences, a pooling, an attention, and how alike the embedder finds them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import ipywidgets as widgets
import pandas as pd

from .attention import MODES
from .errors import InvalidValueError
from .modules import Decoder, Pooling
from .modules.pooling import POOLINGS

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class Explorer:
    """Similarities of two sentences under every pooling and attention, with one backbone loaded once.

    The cosine of an untrained decoder is high for any two sentences. What can be read is its place: the share of
    unrelated pairs that are less alike.

    Args:
        model: A chain of `workbook.build`: a Decoder, then a Pooling; it is left as it was.
        background: At least three sentences without much to do with one another.

    Raises:
        InvalidValueError: Another chain, or too few sentences.
    """

    def __init__(self, model: SentenceTransformer, background: Sequence[str]):
        if not (len(model) == 2 and isinstance(model[0], Decoder) and isinstance(model[1], Pooling)):
            got = [type(module).__name__ for module in model]
            raise InvalidValueError("model", "a Decoder and a Pooling", got, "Build it with workbook.build('mean').")
        if isinstance(background, str) or len(background) < 3:
            raise InvalidValueError("background", "at least three sentences", background)
        self.model = model
        self.background = list(background)

    def compare(self, first: str, second: str, pooling: str, attention: str) -> tuple[float, float]:
        """Cosine of two sentences (-1 to 1), and the share of unrelated pairs that are less alike (0 to 1).

        Raises:
            InvalidValueError: A sentence that is not a string.
            UnknownNameError: No such pooling or attention.
        """
        decoder, own = self.model[0], (self.model[0].attention, self.model[1])
        try:
            self.model[1] = Pooling(pooling, decoder.get_embedding_dimension())
            if attention != decoder.attention:
                decoder.attention = attention
            vectors = self.model.encode(
                [first, second, *self.background], normalize_embeddings=True, show_progress_bar=False
            )
        finally:
            self.model[1] = own[1]
            if decoder.attention != own[0]:
                decoder.attention = own[0]
        cosine = float(vectors[0] @ vectors[1])
        unrelated = vectors[2:] @ vectors[2:].T
        pairs = [unrelated[i, j] for i in range(len(unrelated)) for j in range(i)]
        return cosine, sum(pair < cosine for pair in pairs) / len(pairs)

    def table(self, first: str, second: str) -> pd.DataFrame:
        """Every combination at once: columns attention, pooling, cosine and above (the share of unrelated pairs)."""
        rows = [(a, p, *self.compare(first, second, p, a)) for a in MODES for p in POOLINGS]
        return pd.DataFrame(rows, columns=["attention", "pooling", "cosine", "above"]).round(2)

    def show(self, first: str, second: str) -> widgets.Widget | pd.DataFrame:
        """Something to play with where a person looks on, else the table.

        Args:
            first: The sentence to begin with.
            second: Another.

        Returns:
            Widgets in JupyterLab and VS Code; a frame in papermill, nbclient and nbval, where nobody could type.
        """
        return self.panel(first, second) if _someone_looks_on() else self.table(first, second)

    def panel(self, first: str, second: str) -> widgets.VBox:
        """Two text fields, two choices, and a line that says how alike the sentences are."""
        wide = widgets.Layout(width="40em")
        controls = {
            "first": widgets.Text(first, description="First", layout=wide, continuous_update=False),
            "second": widgets.Text(second, description="Second", layout=wide, continuous_update=False),
            "pooling": widgets.ToggleButtons(options=POOLINGS, description="Pooling"),
            "attention": widgets.ToggleButtons(options=MODES, description="Attention"),
        }
        answer = widgets.HTML()

        def update(_: object = None) -> None:
            cosine, above = self.compare(**{name: control.value for name, control in controls.items()})
            answer.value = f"cosine <b>{cosine:.3f}</b>, more alike than {above:.0%} of unrelated pairs"

        for control in controls.values():
            control.observe(update, "value")
        update()
        return widgets.VBox([*controls.values(), answer])


def _someone_looks_on() -> bool:
    """Jupyter's server names the session, VS Code its process, to the kernels they start; batch runners do neither."""
    return any(name in os.environ for name in ("JPY_SESSION_NAME", "VSCODE_PID"))
