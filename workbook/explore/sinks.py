"""The second sink: what a contextual token becomes in the decoder, by its length and place, text and backbone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import ipywidgets as widgets
import numpy as np
import pandas as pd

from .. import figures, probes
from ..errors import InvalidValueError, UnknownNameError, whole
from ..modules.context_length import word_length
from .panel import Panel, answered, as_html, picture, refuse_blank, text_field

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

LENGTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Lengths of the contextual token in a table, by the mean length of a word embedding."""
WORDS = (2, 4, 8, 16, 32, 64, 128)
"""Numbers of words to cut a text to, beside all of it."""
BEHIND_BOS, INSTRUCTED, LAST = PLACES = ("behind BOS", "behind the instruction", "last")
"""Places of the contextual token. Last is behind the text, in front of what closes it, where no instruction is given; a
diagnostic, see ``ContextualDecoder.context_last``.
"""


class SinkExplorer(Panel):
    """A contextual token of chosen length and place, in a text of chosen length, layer by layer.

    Its direction is the model's own; only its length is set. A token that becomes an attention sink has a state as long
    as that of BOS, whatever the text says. Then texts can't be told apart by it: the rank of a query's document, found
    by the token's state, says so where pairs are given.

    What was read is kept. With SmolLM2-135M on a busy core a setting takes some half a second for the text, and twice
    that for each pair: ranks are drawn in the panel, and left out of the table.

    Args:
        model: A model that reads contextual tokens, or several by the name of their backbone; left as they were.
        instruction: The bare task instruction that may stand in front.
        pairs: Queries, and as many documents, each the right one for the query in its place; None for no ranks.

    Raises:
        InvalidValueError: No model, one without contextual tokens or with them in front of the instruction, a blank
            instruction, or pairs that are not two or more, of texts that are not blank.
    """

    def __init__(
        self,
        model: SentenceTransformer | Mapping[str, SentenceTransformer],
        instruction: str,
        pairs: tuple[Sequence[str], Sequence[str]] | None = None,
    ):
        refuse_blank(instruction)
        given = model if isinstance(model, Mapping) else {"": model}
        if not given:
            raise InvalidValueError("model", "at least one", given)
        for one in given.values():
            probes.contextual_tokens(one, ["a"])  # a model that can't be read is refused here, not in the panel
            _refuse_before(one)
        self.models = {name or one[0].decoder.config.name_or_path: one for name, one in given.items()}
        self.instruction, self.pairs = instruction, _checked(pairs)
        self._word = {name: word_length(one[0].decoder) for name, one in self.models.items()}
        self._kept: dict[tuple, pd.DataFrame] = {}

    def norms(
        self,
        text: str,
        length: float = 1.0,
        place: str = BEHIND_BOS,
        words: int | None = None,
        backbone: str | None = None,
    ) -> pd.DataFrame:
        """Lengths of states and shares of attention by layer.

        Args:
            text: The text.
            length: Of the contextual token, by the mean length of a word embedding.
            place: One of :data:`PLACES`.
            words: Number of words that the text is cut to, or None for all.
            backbone: Name of one of the models; None for the first.

        Returns:
            As of `workbook.probes.contextual_norms`, for one text.

        Raises:
            InvalidValueError: A text that is blank or not a string, a length that is not above 0, or a number of words
                that is not a positive whole number.
            UnknownNameError: No such place or backbone.
        """
        refuse_blank(text)
        read = _cut(text, words)
        return self._once(
            lambda model, asked: probes.contextual_norms(model, [read], asked), read, length, place, backbone
        )

    def ranks(
        self, length: float = 1.0, place: str = BEHIND_BOS, words: int | None = None, backbone: str | None = None
    ) -> pd.DataFrame:
        """How well queries find their documents by the state of the contextual token, layer by layer.

        Behind the instruction it stands in queries; in their documents, which have none, it stands behind BOS.

        Args:
            length, place, backbone: See :meth:`norms`.
            words: Number of words that all texts are cut to, or None for all.

        Returns:
            One row per layer: ``layer``, ``context`` and ``last`` (mean reciprocal rank x 100 by the state of the
            contextual token, and of the last token) and ``chance`` (that of a random order).

        Raises:
            InvalidValueError: An explorer without pairs, or as :meth:`norms`.
            UnknownNameError: As :meth:`norms`.
        """
        if not self.pairs:
            raise InvalidValueError("pairs", "queries and their documents, given to the explorer", self.pairs)
        queries, documents = ([_cut(text, words) for text in side] for side in self.pairs)

        def find(model: SentenceTransformer, asked: str | None) -> pd.DataFrame:
            found = probes.layer_ranks(model, queries, documents, asked)
            means = 100 * found.pivot_table("reciprocal_rank", "layer", "token")
            return means.assign(chance=100 * np.mean(1 / np.arange(1, len(queries) + 1))).reset_index()

        return self._once(find, words, length, place, backbone)

    def table(self, text: str, words: int | None = None) -> pd.DataFrame:
        """The token's state at the middle layer, at :data:`LENGTHS`, in all places.

        Args:
            text: The text.
            words: Number of words that it is cut to, or None for all.

        Returns:
            One row per place and length: ``place``, ``length`` (by a word's), ``state`` (its norm at the middle layer,
            by that of the median word), ``attention`` (the share that later tokens pay to it there) and ``sink``. Of
            several models every second length, with ``backbone`` in front.

        Raises:
            InvalidValueError: As :meth:`norms`.
        """
        several = len(self.models) > 1
        rows = [
            ({"backbone": backbone} if several else {}) | self._row(text, length, place, words, backbone)
            for backbone in self.models
            for place in PLACES
            for length in LENGTHS[:: 1 + several]
        ]
        return pd.DataFrame(rows).round(3)

    def panel(self, text: str) -> widgets.VBox:
        """A text, a length, a place, a number of words, and of several models one; below them the curves by layer.

        Args:
            text: The text at the start.
        """
        wide = {"style": {"description_width": "8em"}, "layout": {"width": "34em"}}
        lengths = [round(float(value), 2) for value in np.geomspace(LENGTHS[0], LENGTHS[-1], 17)]
        sliders = {
            "length": {"options": lengths, "value": lengths[0], "description": "Length of token"},
            "words": {
                "options": [*((str(words), words) for words in WORDS), ("all", 0)],
                "value": 0,
                "description": "Words of text",
            },
        }
        controls = {
            "text": text_field(text, "Text"),
            **{name: widgets.SelectionSlider(continuous_update=False, **own, **wide) for name, own in sliders.items()},
            "place": widgets.ToggleButtons(options=PLACES, description="Place"),
        }
        if len(self.models) > 1:
            controls["backbone"] = widgets.Dropdown(options=[*self.models], description="Backbone")

        def answer(text: str, length: float, words: int, place: str, backbone: str | None = None) -> str:
            setting = (length, place, words or None, backbone)
            return self._picture(text, *setting) + as_html(pd.DataFrame([self._row(text, *setting)]).round(3))

        return answered(controls, answer)

    def _row(self, text: str, length: float, place: str, *others: int | str | None) -> dict[str, str | float | bool]:
        """What the table says of a setting."""
        norms = self.norms(text, length, place, *others)
        middle = norms.loc[(len(norms) - 1) // 2]
        row = {"place": place, "length": length, "state": middle["context"] / middle["words"]}
        return row | {"attention": middle["attention"], "sink": bool(middle["sink"])}

    def _picture(self, text: str, *setting: float | str | None) -> str:
        """The curves of a setting as a figure."""
        norms = self.norms(text, *setting)
        paid = norms[["layer", "attention", "attention_bos"]].dropna().set_axis(["layer", "context", "bos"], axis=1)
        curves = {
            "length": norms[["layer"]].join(np.log10(norms[["context", "bos", "words"]])),
            "attention": paid,
            **({"search": self.ranks(*setting)} if self.pairs else {}),
        }
        labels = {"length": "log10 of the norm", "attention": "share of attention", "search": "MRR x 100"}
        fig = figures.lines(
            pd.concat([part.melt("layer", var_name="token").assign(curve=name) for name, part in curves.items()]),
            "layer", "value", hue="token", panel="curve", ylabel=labels,
            title=f"The contextual token by layer{', a second sink' if norms['sink'].any() else ''}",
        )  # fmt: skip
        return picture(fig, "by layer: " + ", ".join(labels[name] for name in curves))

    def _once(
        self,
        find: Callable[[SentenceTransformer, str | None], pd.DataFrame],
        read: str | int | None,
        length: float,
        place: str,
        backbone: str | None,
    ) -> pd.DataFrame:
        """What is found of texts in a setting, which is kept."""
        backbone = next(iter(self.models)) if backbone is None else backbone
        if isinstance(length, bool) or not isinstance(length, int | float) or not 0 < length < math.inf:
            raise InvalidValueError("length", "a number above 0", length)
        for kind, name, known in (("place", place, PLACES), ("backbone", backbone, self.models)):
            if name not in known:
                raise UnknownNameError(kind, name, known)
        key = (read, float(length), place, backbone)
        if key not in self._kept:
            model = self.models[backbone]
            with _placed(model, length * self._word[backbone], place):
                self._kept[key] = find(model, self.instruction if place == INSTRUCTED else None)
        return self._kept[key]


@contextmanager
def _placed(model: SentenceTransformer, length: float, place: str) -> Iterator[None]:
    """Have a model read its contextual tokens at a length, and in the last place where that is asked for."""
    with ExitStack() as stack:
        stack.enter_context(probes.context_of_length(model[0], length))
        if place == LAST:
            stack.enter_context(model[0].context_last())
        yield


def _cut(text: str, words: int | None) -> str:
    """The beginning of a text, up to the end of a word."""
    return text if words is None else re.match(rf"(?:\s*\S+){{1,{whole('words', words)}}}", text)[0]


def _refuse_before(model: SentenceTransformer) -> None:
    """A template that has the tokens in front of the instruction has no place behind it."""
    pieces = [piece for piece, _ in model[0].template["instructed"]]
    asked = next(place for place, piece in enumerate(pieces) if "{instruction}" in piece)
    if pieces.index("{context}") < asked:
        way_out = 'Build it with template="causal2vec".'
        raise InvalidValueError("model", "contextual tokens behind the instruction", "".join(pieces), way_out)


def _checked(pairs: tuple[Sequence[str], Sequence[str]] | None) -> tuple[list[str], list[str]] | None:
    if pairs is None:
        return None
    if not isinstance(pairs, list | tuple) or len(pairs) != 2 or any(isinstance(side, str) for side in pairs):
        raise InvalidValueError("pairs", "queries and documents, two lists", pairs)
    queries, documents = map(list, pairs)
    if not 2 <= len(queries) == len(documents):
        got = (len(queries), len(documents))
        raise InvalidValueError("pairs", "two or more queries, and as many documents", got)
    for text in (*queries, *documents):
        refuse_blank(text)
    return queries, documents
