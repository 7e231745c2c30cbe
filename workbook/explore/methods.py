"""One panel for several methods on the same texts, side by side."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import ipywidgets as widgets
import numpy as np
import pandas as pd

from .. import evaluation, figures, probes
from ..errors import InvalidValueError, UnknownNameError
from ..modules import LatentAttention, Lexicon
from .panel import WIDE, Panel, TextExplorer, answered, as_html, picture, refuse_blank, text_field
from .single import LatentExplorer, LexiconExplorer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_POOLINGS = {"latents": LatentAttention, "words": Lexicon}
"""Views that only some methods have, and the pooling that they need."""


class MethodExplorer(Panel):
    """Several methods on the same texts: similarities, neighbours, clusters, lengths of vectors, latents and words.

    Latents and words are shown for methods that have them. A model reads a text once, and its vector is kept as long as
    the explorer; latents and words are computed every time.

    Args:
        models: Embedders by name; they are left as they were.
        texts: Texts to pick from, at least two distinct ones.
        prompts: Prompt of every text by name of a model: the bare instruction, if the model begins with a
            ``workbook.modules.Decoder``. Other models have none.

    Raises:
        InvalidValueError: No model, something that is not a model, or texts that are blank or fewer than two.
        UnknownNameError: A prompt for a model that is not there.
    """

    def __init__(
        self,
        models: Mapping[str, SentenceTransformer],
        texts: Sequence[str],
        prompts: Mapping[str, str] | None = None,
    ):
        from sentence_transformers import SentenceTransformer

        kinds = {name: type(model).__name__ for name, model in models.items()}
        if not kinds or not all(isinstance(model, SentenceTransformer) for model in models.values()):
            raise InvalidValueError("models", "at least one SentenceTransformer, by name", kinds)
        self.models = dict(models)
        self.prompts = dict(prompts or {})
        for name in self.prompts:
            self._refuse_unknown(name)
        self.texts = _several(texts)
        self._vectors: dict[str, dict[str, np.ndarray]] = {name: {} for name in self.models}
        self._readers: dict[str, TextExplorer] = {}

    def vectors(self, method: str, texts: Sequence[str]) -> np.ndarray:
        """The vectors of texts, (texts, dim), not normalised; each text is read once.

        Args:
            method: Name of one of the explorer's methods.
            texts: Strings.

        Raises:
            UnknownNameError: No such method.
            InvalidValueError: A model whose vectors are not finite.
        """
        self._refuse_unknown(method)
        known = self._vectors[method]
        if new := [text for text in dict.fromkeys(texts) if text not in known]:
            made = self.models[method].encode(new, prompt=self.prompts.get(method), show_progress_bar=False)
            if bad := int((~np.isfinite(made)).any(axis=1).sum()):
                got = f"NaN or inf in {bad} of {len(made)}"
                raise InvalidValueError(f"vectors of {method}", "finite numbers", got, "Train the model again.")
            known.update(zip(new, made, strict=True))
        return np.stack([known[text] for text in texts])

    def similarities(self, methods: Sequence[str], texts: Sequence[str]) -> dict[str, pd.DataFrame]:
        """Cosine of every two texts, by method: float32 (texts, texts), rows and columns numbered from 1.

        Args:
            methods: Names of the explorer's methods.
            texts: Strings, at least two.

        Raises:
            InvalidValueError: No method, texts that are blank or fewer than two, or as :meth:`vectors`.
            UnknownNameError: No such method.
        """
        from sentence_transformers.util import cos_sim

        texts = _several(texts)
        numbers = range(1, len(texts) + 1)
        read = {method: self.vectors(method, texts) for method in _chosen(methods)}
        return {method: pd.DataFrame(cos_sim(rows, rows).numpy(), numbers, numbers) for method, rows in read.items()}

    def neighbours(self, methods: Sequence[str], text: str, texts: Sequence[str], top: int = 5) -> pd.DataFrame:
        """The texts nearest to one, by method.

        Args:
            methods: Names of the explorer's methods.
            text: The one; among ``texts`` it is left out.
            texts: The others.
            top: Number of neighbours.

        Returns:
            One row per method and rank: ``method``, ``rank`` (from 1), ``text``, ``score`` (the cosine).

        Raises:
            InvalidValueError: As :meth:`similarities`, or a ``top`` that is not a positive whole number.
            UnknownNameError: No such method.
        """
        refuse_blank(text)
        texts = _several([text, *texts])
        cosines = {method: matrix.to_numpy()[:1, 1:] for method, matrix in self.similarities(methods, texts).items()}
        return evaluation.neighbours(cosines, texts[1:], top).drop(columns="query")

    def clusters(self, methods: Sequence[str], texts: Sequence[str], clusters: int) -> pd.DataFrame:
        """Clusters of texts and their place on a plane, by method.

        Args:
            methods: Names of the explorer's methods.
            texts: Strings, at least two.
            clusters: Number of clusters, from 2 to the number of texts.

        Returns:
            One row per method and text: ``method``, ``number`` (of the text, from 1), ``text``, and ``cluster``, ``x``,
            ``y`` and ``shown`` as in `workbook.probes.vector_map`.

        Raises:
            InvalidValueError: As :meth:`similarities`, or a number of clusters outside its range.
            UnknownNameError: No such method.
        """
        texts = _several(texts)
        found = {method: probes.vector_map(self.vectors(method, texts), clusters) for method in _chosen(methods)}
        return _numbered(found, texts)

    def lengths(self, methods: Sequence[str], texts: Sequence[str]) -> pd.DataFrame:
        """Lengths of vectors, and of their halves, by method.

        Args:
            methods: Names of the explorer's methods.
            texts: Strings, at least two.

        Returns:
            One row per method, text and part: ``method``, ``number`` (of the text, from 1), ``text``, and ``part`` and
            ``length`` as in `workbook.probes.vector_lengths`.

        Raises:
            InvalidValueError: As :meth:`similarities`.
            UnknownNameError: No such method.
        """
        texts = _several(texts)
        read = {method: self.vectors(method, texts) for method in _chosen(methods)}
        return _numbered({name: probes.vector_lengths(self.models[name], rows) for name, rows in read.items()}, texts)

    def inside(self, what: str, methods: Sequence[str], text: str) -> dict[str, pd.DataFrame]:
        """The latents that a text attends to, against the mean of the explorer's texts, or its words with weights.

        Args:
            what: ``latents`` or ``words``.
            methods: Names of the explorer's methods; those without latents or words are left out.
            text: The text.

        Returns:
            The table of :class:`LatentExplorer` or :class:`LexiconExplorer` by method.

        Raises:
            InvalidValueError: A blank text, no method, no method with latents or words, or as :meth:`vectors`.
            UnknownNameError: Neither latents nor words, or no such method.
        """
        refuse_blank(text)
        able = self._able(what)
        for method in _chosen(methods):
            self.vectors(method, [text])  # refuses unknown methods and vectors that are not finite
        if not (having := [method for method in able if method in methods]):
            raise InvalidValueError("methods", f"one with {what}, of {able}", list(methods))
        return {method: self._reader(method).table(text) for method in having}

    def table(self, text: str, top: int = 5) -> pd.DataFrame:
        """The nearest of the explorer's texts to one, by all methods side by side, for a batch run.

        Args:
            text: Any string.
            top: Number of neighbours.

        Returns:
            One row per rank, from 1, and one column per method; a cell is the cosine and the text.

        Raises:
            InvalidValueError: A text that is blank or not a string, or as :meth:`neighbours`.
        """
        return _side_by_side(self.neighbours([*self.models], text, self.texts, top))

    def panel(self, text: str) -> widgets.VBox:
        """Widgets to choose texts, methods and a view.

        From the top: the methods; the texts to pick from; your own texts; the text for neighbours, latents and words,
        which joins the others; the view; the number of clusters; and the answer.

        Args:
            text: The text for neighbours, latents and words at the start.
        """
        views = {
            "similarities": self._draw_similarities,
            "neighbours": self._draw_neighbours,
            "clusters": self._draw_clusters,
            "lengths": self._draw_lengths,
        }
        controls = {
            "methods": _list([*self.models], "Methods"),
            "picked": _list(self.texts, "Texts"),
            "own": widgets.Textarea(
                placeholder="texts of your own, one a line", description="Own", layout=WIDE, continuous_update=False
            ),
            "text": text_field(text, "Text", options=self.texts),
            "view": widgets.ToggleButtons(options=[*views, *filter(self._able, _POOLINGS)], description="Show"),
            "clusters": widgets.IntSlider(value=3, min=2, max=10, description="Clusters", continuous_update=False),
        }

        def answer(methods: tuple, picked: tuple, own: str, text: str, view: str, clusters: int) -> str:
            refuse_blank(text)
            if view in _POOLINGS:
                return "".join(map(_titled, *zip(*self.inside(view, methods, text).items(), strict=True)))
            typed = [line.strip() for line in own.splitlines() if line.strip()]
            return views[view](_chosen(methods), _several([text, *picked, *typed]), clusters)

        return answered(controls, answer)

    def _draw_similarities(self, methods: list[str], texts: list[str], _: int) -> str:
        options = {"unit": "cosine", "xlabel": "text", "ylabel": "text", "size": _wide(methods)}
        title = methods[0] if len(methods) == 1 else ""  # of several, each panel has its own
        fig = figures.heatmaps(self.similarities(methods, texts), title=title, **options)
        return picture(fig, "cosines of the texts") + _listed(texts)

    def _draw_neighbours(self, methods: list[str], texts: list[str], _: int) -> str:
        return as_html(_side_by_side(self.neighbours(methods, texts[0], texts[1:])), index=True)

    def _draw_clusters(self, methods: list[str], texts: list[str], clusters: int) -> str:
        frame = self.clusters(methods, texts, clusters)
        options = {"xlabel": "first principal component", "ylabel": "second", "size": _wide(methods)}
        named = frame.assign(cluster=[f"cluster {number}" for number in frame["cluster"]])
        fig = figures.scatter(named, "x", "y", hue="cluster", names="number", panel="method", **options)
        return picture(fig, "clusters of the texts") + as_html(_by_method(frame, "method", "cluster"))

    def _draw_lengths(self, methods: list[str], texts: list[str], _: int) -> str:
        frame = self.lengths(methods, texts)
        frame["method"] = frame["method"] + frame["part"].map(lambda part: "" if part == "whole" else f": {part}")
        return as_html(_by_method(frame, "method", "length").round(2))

    def _able(self, what: str) -> list[str]:
        """The methods that have the view."""
        if what not in _POOLINGS:
            raise UnknownNameError("view", what, _POOLINGS)
        return [name for name, model in self.models.items() if isinstance([*model][-1], _POOLINGS[what])]

    def _reader(self, method: str) -> TextExplorer:
        """The explorer of one text, made at first use, since that of latents reads the background."""
        if method not in self._readers:
            model, prompt = self.models[method], self.prompts.get(method)
            latents = isinstance([*model][-1], LatentAttention)
            self._readers[method] = (
                LatentExplorer(model, self.texts, instruction=prompt) if latents else LexiconExplorer(model, prompt)
            )
        return self._readers[method]

    def _refuse_unknown(self, method: str) -> None:
        if method not in self.models:
            raise UnknownNameError("method", method, self.models)


def _several(texts: Sequence[str]) -> list[str]:
    """The distinct texts, in their order."""
    if isinstance(texts, str):
        raise InvalidValueError("texts", "a list of strings", texts)
    for text in texts:
        refuse_blank(text)
    if len(several := list(dict.fromkeys(texts))) < 2:
        raise InvalidValueError("texts", "at least two that differ", several, "Pick or type another.")
    return several


def _chosen(methods: Sequence[str]) -> list[str]:
    if isinstance(methods, str) or not len(methods):
        raise InvalidValueError("methods", "at least one, in a list", methods)
    return list(dict.fromkeys(methods))


def _numbered(found: Mapping[str, pd.DataFrame], texts: Sequence[str]) -> pd.DataFrame:
    """The frames of all methods in one, each text with its number, from 1."""
    frame = pd.concat(found, names=["method"]).reset_index("method").reset_index(drop=True)
    frame.insert(1, "number", frame["text"] + 1)
    return frame.assign(text=[texts[index] for index in frame["text"]])


def _by_method(frame: pd.DataFrame, column: str, value: str) -> pd.DataFrame:
    """One row per text, one column per method."""
    wide = frame.pivot(index=["number", "text"], columns=column, values=value)
    return wide[list(dict.fromkeys(frame[column]))].reset_index().rename_axis(columns=None)


def _side_by_side(neighbours: pd.DataFrame) -> pd.DataFrame:
    cells = neighbours.assign(cell=[f"{row.score:.2f} {row.text}" for row in neighbours.itertuples()])
    wide = cells.pivot(index="rank", columns="method", values="cell")
    return wide[list(dict.fromkeys(neighbours["method"]))].rename_axis(columns=None)


def _list(options: Sequence[str], name: str) -> widgets.SelectMultiple:
    """A list in which all options are selected."""
    rows = min(len(options), 8)
    return widgets.SelectMultiple(options=options, value=options, description=name, rows=rows, layout=WIDE)


def _wide(methods: Sequence[str]) -> tuple[float, float]:
    """The size in inches at which the panels of many methods are as wide as those of three."""
    return max(1, len(methods) / 3) * figures.FULL[0], figures.FULL[1]


def _listed(texts: Sequence[str]) -> str:
    return f"<ol>{''.join(f'<li>{html.escape(text)}</li>' for text in texts)}</ol>"


def _titled(name: str, frame: pd.DataFrame) -> str:
    return f"<b>{html.escape(name)}</b>{as_html(frame)}"
