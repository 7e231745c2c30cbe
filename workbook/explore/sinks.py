"""The second sink: what a contextual token becomes in the decoder, by its length and its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ipywidgets as widgets
import numpy as np
import pandas as pd

from .. import figures, probes
from ..errors import InvalidValueError
from ..modules.context_length import word_length
from .panel import Panel, answered, as_html, picture, refuse_blank, text_field

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

LENGTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Lengths of the contextual token in a table, by the mean length of a word embedding."""


class SinkExplorer(Panel):
    """A contextual token of chosen length, behind BOS or behind an instruction, layer by layer.

    Its direction is the model's own; only its length is set. A token that becomes an attention sink has a state as long
    as that of BOS, whatever the text says.

    Args:
        model: A model that reads contextual tokens; it is left as it was.
        instruction: The bare task instruction that may stand in front.

    Raises:
        InvalidValueError: A model without contextual tokens, or a blank instruction.
    """

    def __init__(self, model: SentenceTransformer, instruction: str):
        refuse_blank(instruction)
        probes.contextual_tokens(model, ["a"])  # a model that can't be read is refused here, not in the panel
        self.model, self.instruction = model, instruction
        self._word = word_length(model[0].decoder)
        self._kept: dict[tuple, pd.DataFrame] = {}

    def norms(self, text: str, length: float = 1.0, instructed: bool = False) -> pd.DataFrame:
        """Lengths of states by layer, with the contextual token at a length.

        Args:
            text: The text.
            length: Of the contextual token, by the mean length of a word embedding.
            instructed: Whether the instruction stands in front of it; else BOS alone does.

        Returns:
            As of `workbook.probes.contextual_norms`, for one text.

        Raises:
            InvalidValueError: A text that is blank or not a string, or a length that is not above 0.
        """
        refuse_blank(text)
        if not length > 0:
            raise InvalidValueError("length", "a number above 0", length)
        key = (text, float(length), bool(instructed))
        if key not in self._kept:
            asked = self.instruction if instructed else None
            own = probes.contextual_tokens(self.model, [text], asked)
            given = own / own.norm(dim=-1, keepdim=True) * (length * self._word)
            with probes.given_context(self.model[0], given):
                self._kept[key] = probes.contextual_norms(self.model, [text], asked)
        return self._kept[key]

    def table(self, text: str) -> pd.DataFrame:
        """The token's state at the middle layer, at :data:`LENGTHS`, in both places.

        Args:
            text: The text.

        Returns:
            One row per place and length: ``place``, ``length`` (by a word's), ``state`` (its norm at the middle layer,
            by that of the median word), ``attention`` (the share that later tokens pay to it there) and ``sink``.

        Raises:
            InvalidValueError: A text that is blank or not a string.
        """
        rows = []
        for place, instructed in _PLACES.items():
            for length in LENGTHS:
                norms = self.norms(text, length, instructed)
                middle = norms.loc[(len(norms) - 1) // 2]
                state = middle["context"] / middle["words"]
                rows.append((place, length, state, middle["attention"], bool(middle["sink"])))
        return pd.DataFrame(rows, columns=["place", "length", "state", "attention", "sink"]).round(3)

    def panel(self, text: str) -> widgets.VBox:
        """A text, a length and a place; below them the norms by layer, and the table.

        Args:
            text: The text at the start.
        """
        wide = {"continuous_update": False, "style": {"description_width": "8em"}, "layout": {"width": "34em"}}
        lengths = [round(float(value), 2) for value in np.geomspace(LENGTHS[0], LENGTHS[-1], 17)]
        controls = {
            "text": text_field(text, "Text"),
            "length": widgets.SelectionSlider(options=lengths, value=lengths[0], description="Length", **wide),
            "place": widgets.ToggleButtons(options=list(_PLACES), description="Place"),
        }

        def answer(text: str, length: float, place: str) -> str:
            norms = self.norms(text, length, _PLACES[place])
            lines = norms.melt("layer", ["context", "bos", "words"], "token", "norm")
            lines["norm"] = np.log10(lines["norm"])
            fig = figures.lines(
                lines, "layer", "norm", hue="token", size=(4.8, 2.6), ylabel="log10 of the norm",
                title=f"Length of states by layer{', a second sink' if norms['sink'].any() else ''}",
            )  # fmt: skip
            return picture(fig, "norms of states by layer") + as_html(self.table(text))

        return answered(controls, answer)


_PLACES = {"behind BOS": False, "behind the instruction": True}
