"""Explorers of one model: similarity, states that move, latents, words with weights, and what a vector can write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import ipywidgets as widgets
import numpy as np
import pandas as pd

from ..attention import MODES
from ..errors import InvalidValueError, whole
from ..modules import Decoder, Pooling
from ..modules.pooling import POOLINGS
from ..probes import (
    cluster_names,
    discriminating_latents,
    latent_attention,
    prefix_movement,
    regenerated,
    top_clusters,
)
from ..probes.lexicon import readable
from .panel import Panel, TextExplorer, answered, as_html, refuse_blank, text_field

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class Explorer(Panel):
    """Similarities of two sentences under every pooling and attention, with one backbone loaded once.

    The cosine of an untrained decoder is high for any two sentences. What means something is the share of unrelated
    pairs that are less similar. The background is read once under each pooling and attention.

    Args:
        model: A chain of `workbook.build`: a Decoder, then a Pooling; it is left as it was.
        background: At least three unrelated sentences.

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
        self._unrelated: dict[tuple[str, str], np.ndarray] = {}

    def compare(self, first: str, second: str, pooling: str, attention: str) -> tuple[float, float]:
        """Cosine of two sentences (-1 to 1), and the share of unrelated pairs that are less similar (0 to 1).

        Args:
            first: A sentence.
            second: Another.
            pooling: Name of a pooling.
            attention: ``causal`` or ``bidirectional``.

        Raises:
            InvalidValueError: A sentence that is blank or not a string.
            UnknownNameError: No such pooling or attention.
        """
        refuse_blank(first)
        refuse_blank(second)
        decoder, own = self.model[0], (self.model[0].attention, self.model[1])
        try:
            self.model[1] = Pooling(pooling, decoder.get_embedding_dimension())
            if attention != decoder.attention:
                decoder.attention = attention
            one, other = self._vectors([first, second])
            if (pooling, attention) not in self._unrelated:
                vectors = self._vectors(self.background)
                self._unrelated[pooling, attention] = (vectors @ vectors.T)[np.tril_indices(len(vectors), -1)]
        finally:
            self.model[1] = own[1]
            if decoder.attention != own[0]:
                decoder.attention = own[0]
        cosine = float(one @ other)
        return cosine, float(np.mean(self._unrelated[pooling, attention] < cosine))

    def _vectors(self, texts: list[str]) -> np.ndarray:
        return self.model.encode(texts, normalize_embeddings=True, show_progress_bar=False)

    def table(self, first: str, second: str) -> pd.DataFrame:
        """Every combination: columns attention, pooling, cosine and above (the share of unrelated pairs below it).

        Args:
            first: A sentence.
            second: Another.

        Raises:
            InvalidValueError: A sentence that is blank or not a string.
        """
        rows = [(a, p, *self.compare(first, second, p, a)) for a in MODES for p in POOLINGS]
        return pd.DataFrame(rows, columns=["attention", "pooling", "cosine", "above"]).round(2)

    def panel(self, first: str, second: str) -> widgets.VBox:
        """Two text fields, two choices, and a line with the similarity of the sentences.

        Args:
            first: The first sentence at the start.
            second: The second.
        """
        controls = {
            "first": text_field(first, "First"),
            "second": text_field(second, "Second"),
            "pooling": widgets.ToggleButtons(options=POOLINGS, description="Pooling"),
            "attention": widgets.ToggleButtons(options=MODES, description="Attention"),
        }

        def answer(**chosen: str) -> str:
            cosine, above = self.compare(**chosen)
            return f"cosine <b>{cosine:.3f}</b>, more alike than {above:.0%} of unrelated pairs"

        return answered(controls, answer)


class PrefixExplorer(Panel):
    """How far the states of what two texts begin with move when the end is exchanged, under either attention.

    Args:
        model: An embedder that begins with a Decoder; it is left as it was.
    """

    def __init__(self, model: SentenceTransformer):
        self.model = model

    def table(self, first: str, second: str) -> pd.DataFrame:
        """The tokens that both texts begin with, and how far the last state of each moves.

        Args:
            first: A text.
            second: Another that begins like it.

        Returns:
            One row per token: ``token`` (as :class:`LexiconExplorer` writes it), ``causal`` and ``bidirectional``, as
            in `workbook.probes.prefix_movement`.

        Raises:
            InvalidValueError: A text that is blank or not a string, or as `workbook.probes.prefix_movement`.
        """
        refuse_blank(first)
        refuse_blank(second)
        frame = prefix_movement(self.model, first, second)
        return frame.assign(token=frame["token"].map(readable)).drop(columns="position").round(2)

    def panel(self, first: str, second: str) -> widgets.VBox:
        """Two text fields, and the table of the typed texts.

        Args:
            first: The first text at the start.
            second: The second.
        """
        fields = {"first": text_field(first, "First"), "second": text_field(second, "Second")}
        return answered(fields, lambda first, second: as_html(self.table(first, second)))


class LatentExplorer(TextExplorer):
    """Latents to which a text attends more or less than other texts do.

    Args:
        model: An embedder whose pooling is latent attention; it is left as it was.
        texts: The background: with labels, texts of two classes, such as reviews, at least two of each.
        labels: The class of each text, or None.
        instruction: The bare task instruction in front of every text, typed ones too, or None.

    Attributes:
        latents: The latents that tell the classes apart, from `workbook.probes.discriminating_latents`; the class of
            the first text is the first. None without labels.
        background: Mean attention of the texts, float64 (heads, latents).

    Raises:
        InvalidValueError: Another pooling, too few texts, or not two classes.

    Source: NV-Embed, appendix D and figure 2.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        texts: Sequence[str],
        labels: Sequence | None = None,
        instruction: str | None = None,
    ):
        attention = latent_attention(model, texts, instruction).astype(float)
        self.model = model
        self.instruction = instruction
        self.background = attention.mean(axis=0)
        self.latents = None
        if labels is not None:
            labels = list(labels)
            self.latents = discriminating_latents(attention, labels, next(iter(labels), None))
            self._classes = " - ".join(map(str, dict.fromkeys(labels)))

    def table(self, text: str, top: int = 3) -> pd.DataFrame:
        """The latents in which a text differs most from the background, for every head.

        Args:
            text: The text.
            top: Number of latents per head.

        Returns:
            One row per head and latent, the farthest from the background first: ``head`` and ``latent`` (from 0),
            ``attention`` (the text's, 0 to 1, mean over its tokens), ``background`` (the mean of its texts), and with
            labels a column named after the classes, such as ``positive - negative``: the difference of their means.

        Raises:
            InvalidValueError: A text that is blank or not a string, or a ``top`` that is not a positive whole number.
        """
        refuse_blank(text)
        top = whole("top", top)
        attention = latent_attention(self.model, [text], self.instruction)[0].astype(float)
        places = np.argsort(-np.abs(attention - self.background), axis=1, kind="stable")[:, :top]
        rows = [(head, latent) for head, latents in enumerate(places.tolist()) for latent in latents]
        frame = pd.DataFrame(rows, columns=["head", "latent"])
        frame["attention"] = [attention[row] for row in rows]
        frame["background"] = [self.background[row] for row in rows]
        if self.latents is not None:
            frame[self._classes] = self.latents.set_index(["head", "latent"]).loc[rows, "difference"].to_numpy()
        return frame.round(4)


class LexiconExplorer(TextExplorer):
    """The words with the largest weights in the lexicon vector of a text.

    Args:
        model: An embedder whose pooling is a lexicon, such as ``workbook.build("lens")``; it is left as it was.
        instruction: The bare task instruction in front of every text, or None.

    Raises:
        InvalidValueError: Another model, or an instruction that is not a string.

    Source: LENS, table 3.
    """

    def __init__(self, model: SentenceTransformer, instruction: str | None = None):
        top_clusters(model, ["a"], instruction, top=1)  # a model that can't be read is refused here, not in the panel
        self.model = model
        self.instruction = instruction

    def table(self, text: str, top: int = 8) -> pd.DataFrame:
        """The clusters with the largest weights in a text.

        Args:
            text: The text.
            top: Largest number of clusters.

        Returns:
            One row per cluster, the largest weight first: ``cluster`` (from 0), ``weight`` (0 to 1, in the vector of
            length 1), ``words`` (the four of its tokens nearest to its centre, see `workbook.probes.cluster_names`) and
            ``token`` (the one predicted where the cluster's logit is largest, see `workbook.probes.top_clusters`).
            Spaces in tokens are written ``␣``, other invisible characters as in Python.

        Raises:
            InvalidValueError: A text that is blank or not a string, or a ``top`` that is not a positive whole number.
        """
        refuse_blank(text)
        frame = top_clusters(self.model, [text], self.instruction, top)
        frame["words"] = cluster_names(self.model, frame["cluster"].tolist(), top=4)
        frame["token"] = frame["token"].map(readable)
        return frame[["cluster", "weight", "words", "token"]].round(3)


class AnchorExplorer(TextExplorer):
    """What a model writes from the vector of a text alone, beside what it writes from the vectors of others.

    A model that ignores the vector writes the same from each.

    Args:
        model: An embedder that `workbook.probes.regenerated` takes, such as one trained by ``anchor``; it is left as it
            was.
        others: The other texts, at least one.
        instruction: The bare task instruction in front of every text, or None.

    Raises:
        InvalidValueError: No other text.

    Source: Anchor, section 3.2.
    """

    def __init__(self, model: SentenceTransformer, others: Sequence[str], instruction: str | None = None):
        if isinstance(others, str) or not len(others):
            raise InvalidValueError("others", "at least one text", others)
        self.model = model
        self.others = list(others)
        self.instruction = instruction

    def table(self, text: str, tokens: int = 12) -> pd.DataFrame:
        """What is written, the likeliest token at each step.

        Args:
            text: The text.
            tokens: Largest number of tokens that are written.

        Returns:
            One row per text, the typed one first: ``vector of`` (the text) and ``written``.

        Raises:
            InvalidValueError: A text that is blank or not a string, or as `workbook.probes.regenerated`.
        """
        refuse_blank(text)
        texts = [text, *self.others]
        written = regenerated(self.model, texts, self.instruction, tokens=tokens)
        return pd.DataFrame({"vector of": texts, "written": [repr(one)[1:-1] for one in written]})
