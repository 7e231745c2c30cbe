"""A glass box: a lexicon search whose scores are split by cluster, with clusters to switch off."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import ipywidgets as widgets
import numpy as np
import pandas as pd
from scipy.stats import rankdata

from .. import probes
from ..errors import InvalidValueError, UnknownNameError, WorkbookError, whole
from ..probes.lexicon import readable
from ..vocabulary.sparse import FEWEST, above_mean
from .panel import WIDE, Panel, answered, as_html, refuse_blank, text_field

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

FIRST = "the first"
"""In place of a document: the one that is first with all clusters."""


class GlassBox(Panel):
    """A search of documents by a lexicon model, and why each is where it is.

    The score of a document is its cosine with the query, a sum over clusters. A cluster that is switched off is left
    out of this sum for every document; the rest is as it was.

    Args:
        model: An embedder whose pooling is a lexicon; it is left as it was.
        documents: Texts that are searched, at least two distinct ones. Each is read once.
        instruction: The bare task instruction in front of every query, or None.
        above_mean: Whether weights are what exceeds their mean over the documents, scaled to length 1 again, see
            `workbook.vocabulary.sparse.above_mean`: it leaves out what all documents share, of which there must be
            three.
        shown: Number of clusters that are shown of a score, and that can be switched off.

    Raises:
        InvalidValueError: Another pooling, too few texts, a blank one, an instruction that is not a string, or a
            number of clusters that is not a positive whole number.

    Source: LENS, introduction: the weight of each token gives insight into the model's decisions.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        documents: Sequence[str],
        instruction: str | None = None,
        *,
        above_mean: bool = False,
        shown: int = 12,
    ):
        if isinstance(documents, str) or len(distinct := list(dict.fromkeys(documents))) < 2:
            raise InvalidValueError("documents", "at least two that differ, in a list", documents)
        if above_mean and len(distinct) < FEWEST:
            raise InvalidValueError(
                "documents", f"at least {FEWEST} that differ, to subtract their mean", len(distinct),
                "Give more, or leave above_mean out.",
            )  # fmt: skip
        for text in distinct:
            refuse_blank(text)
        self.model, self.documents, self.instruction = model, distinct, instruction
        self.above_mean, self.shown = above_mean, whole("shown", shown)
        self._names = probes.cluster_names(model)
        probes.lexicon_readings(model, distinct[:1], instruction)  # an instruction that can't be read is refused here
        readings = probes.lexicon_readings(model, distinct)
        self._collection = np.stack([reading.weights for reading in readings])
        self._readings = dict(zip(distinct, self._weighed(readings), strict=True))
        self._last: tuple[str, probes.LexiconReading] | None = None

    def ranking(self, text: str, off: Sequence[int] = ()) -> pd.DataFrame:
        """The documents by their score, without some clusters and with all.

        Args:
            text: The query.
            off: Numbers of the clusters that are switched off.

        Returns:
            One row per document, the highest score first: ``rank`` (from 1), ``before`` (its rank with all clusters),
            ``score``, ``change`` (of the score) and ``document``.

        Raises:
            InvalidValueError: A text that is blank or not a string, or a cluster that is not there.
        """
        query = self._query(text).weights
        if unknown := [cluster for cluster in off if cluster not in range(len(query))]:
            raise InvalidValueError("off", f"numbers of clusters, 0 to {len(query) - 1}", unknown[0])
        documents = np.stack([reading.weights for reading in self._readings.values()])
        lost = documents[:, [*off]] @ query[[*off]]
        scores = documents @ query
        left = scores - lost
        columns = {"before": _ranks(scores), "score": left, "change": left - scores, "document": self.documents}
        frame = pd.DataFrame({"rank": _ranks(left)} | columns)
        return frame.sort_values("rank").reset_index(drop=True)

    def split(self, text: str, document: str = FIRST) -> pd.DataFrame:
        """A document's score by cluster, the largest part first.

        Args:
            text: The query.
            document: One of the documents, or :data:`FIRST`.

        Returns:
            As `workbook.probes.matches`, all clusters; the column ``score`` adds up to the document's score.

        Raises:
            InvalidValueError: A text that is blank or not a string.
            UnknownNameError: No such document.
        """
        frame = probes.matched(self._query(text), self._readings[self._document(text, document)])
        frame.insert(1, "name", [self._names[cluster] for cluster in frame["cluster"]])
        return frame

    def marked(self, text: str, document: str = FIRST, off: Sequence[int] = ()) -> str:
        """Query and document as HTML: the darker a token, the more of the score comes from it.

        A token is marked where the state that predicts it gave clusters their weights. Their parts of the score, those
        of :meth:`split`, add up over the tokens; the darkest token of each text has the largest part.

        Args:
            text: The query.
            document: One of the documents, or :data:`FIRST`.
            off: Numbers of the clusters that are switched off.

        Raises:
            InvalidValueError: A text that is blank or not a string.
            UnknownNameError: No such document.
        """
        frame = self.split(text, document)
        frame = frame[~frame["cluster"].isin([*off])]
        readings = {"query": self._query(text), "document": self._readings[self._document(text, document)]}
        lines = []
        for side, reading in readings.items():
            parts = frame.groupby(f"{side}_position")["share"].sum()
            most = parts.max() if len(parts) else 1.0
            tokens = (
                f'<span title="{parts.get(position, 0.0):.1%} of the score" style="background: '
                f'rgba(230, 159, 0, {parts.get(position, 0.0) / most:.2f})">{_shown(token)}</span>'
                for position, token in reading.tokens.items()
            )
            lines.append(f'<div><b>{side}</b> <span style="white-space: pre-wrap">{"".join(tokens)}</span></div>')
        return "".join(lines)

    def table(self, text: str) -> pd.DataFrame:
        """What the first document's score is made of, for a batch run.

        Args:
            text: The query.

        Returns:
            One row per cluster that is shown: ``cluster``, ``name``, ``share`` (of the score, 0 to 1), ``in query`` and
            ``in document`` (the token where its weight comes from), and ``then first``: the document that is first
            without this cluster.

        Raises:
            InvalidValueError: A text that is blank or not a string.
        """
        frame = self._listed(self.split(text))
        return frame.assign(
            **{"then first": [self.ranking(text, [cluster])["document"][0] for cluster in frame["cluster"]]}
        )

    def panel(self, text: str) -> widgets.VBox:
        """A text field, a document, and the clusters of its score, which are switched off where they are chosen.

        Below them both texts with the tokens that the score comes from, the score by cluster, and the ranking. Another
        query or document switches all clusters on.

        Args:
            text: The query at the start.
        """
        controls = {
            "text": text_field(text, "Query"),
            "document": widgets.Dropdown(options=[FIRST, *self.documents], description="Document", layout=WIDE),
            "off": widgets.SelectMultiple(description="Switch off", rows=self.shown, layout=WIDE),
        }

        def offer(_: object = None) -> None:
            try:
                frame = self.split(controls["text"].value, controls["document"].value)[: self.shown]
            except WorkbookError:  # the answer says so
                frame = pd.DataFrame(columns=["cluster", "name", "share"])
            controls["off"].options = [
                (f"{name} ({share:.1%})", cluster)
                for cluster, name, share in frame[["cluster", "name", "share"]].itertuples(index=False)
            ]

        def answer(text: str, document: str, off: tuple[int, ...]) -> str:
            split, ranking = self.split(text, document), self.ranking(text, off)
            split = split[~split["cluster"].isin(off)]
            ranking = ranking if off else ranking.drop(columns=["before", "change"])
            return self.marked(text, document, off) + as_html(self._listed(split)) + as_html(ranking.round(4))

        offer()
        for name in ("text", "document"):
            controls[name].observe(offer, "value")  # before the answer, which is to what is then chosen
        return answered(controls, answer)

    def _listed(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The clusters that are shown, in words that can be read."""
        frame = frame[: self.shown]
        columns = {"cluster": frame["cluster"], "name": frame["name"], "share": frame["share"].round(4)}
        columns |= {f"in {side}": frame[f"{side}_token"].map(readable) for side in ("query", "document")}
        return pd.DataFrame(columns).reset_index(drop=True)

    def _query(self, text: str) -> probes.LexiconReading:
        """The query as it is read; the last one is kept."""
        refuse_blank(text)
        if self._last is None or self._last[0] != text:
            [reading] = self._weighed(probes.lexicon_readings(self.model, [text], self.instruction))
            self._last = text, reading
        return self._last[1]

    def _weighed(self, readings: list[probes.LexiconReading]) -> list[probes.LexiconReading]:
        if not self.above_mean:
            return readings
        rows = above_mean(np.stack([reading.weights for reading in readings]), self._collection)
        return [reading._replace(weights=row) for reading, row in zip(readings, rows, strict=True)]

    def _document(self, text: str, document: str) -> str:
        if document == FIRST:
            return self.ranking(text)["document"][0]
        if document not in self._readings:
            raise UnknownNameError("document", document, self.documents)
        return document


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Ranks from 1; of equal scores the earlier document's is better."""
    return rankdata(-scores, method="ordinal")


def _shown(token: str) -> str:
    """A token as HTML, in one line."""
    return html.escape(token if token.isprintable() else readable(token))
