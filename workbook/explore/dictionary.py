"""The laboratory of a dictionary: who reads a latent, and what a ranking loses without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import ipywidgets as widgets
import numpy as np
import pandas as pd
import torch
from sentence_transformers.util import batch_to_device, cos_sim

from .. import figures, probes
from ..errors import InvalidValueError, UnknownNameError, whole
from .panel import Panel, answered, as_html, picture, refuse_blank, text_field

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_NONE = "none"


class DictionaryLab(Panel):
    """Single latents of a dictionary: the tokens that read them, and the ranking of documents without them.

    Of all heads it shows the latents that add most to the tokens of the documents; see `workbook.probes.influence`. A
    latent is called by its head and its number, both from 0, such as ``3.41``. A silenced latent adds nothing to any
    token, of the query and of the documents; see ``LatentAttention.silenced``.

    Args:
        model: An embedder whose pooling is latent attention; it is left as it was.
        documents: Texts that are ranked, and whose tokens are shown, at least two distinct ones.
        instruction: The bare task instruction in front of every query, or None.
        latents: Number of latents that are shown.

    Attributes:
        latents: Head and number of each latent that is shown, by its name, the one that adds most first.

    Raises:
        InvalidValueError: Another pooling, fewer than two texts, a blank one, or a number of latents that is not a
            positive whole number.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        documents: Sequence[str],
        instruction: str | None = None,
        latents: int = 12,
    ):
        if isinstance(documents, str) or len(distinct := list(dict.fromkeys(documents))) < 2:
            raise InvalidValueError("documents", "at least two that differ, in a list", documents)
        for text in distinct:
            refuse_blank(text)
        self.model, self.documents, self.instruction = model, distinct, instruction
        added = probes.influence(model, distinct)
        most = np.argsort(-added, axis=None, kind="stable")[: whole("latents", latents)]
        places = [tuple(map(int, np.unravel_index(place, added.shape))) for place in most]
        self.latents = {f"{head}.{latent}": (head, latent) for head, latent in places}
        self._read = self._states(distinct, None)

    def view(self, text: str) -> pd.DataFrame:
        """Attention of each token of a query to the latents that are shown.

        Args:
            text: The query.

        Returns:
            One row per pooled token, called by its place and string; one column per latent; 0 to 1.

        Raises:
            InvalidValueError: A text that is blank or not a string.
        """
        refuse_blank(text)
        [attention] = probes.token_attention(self.model, [text], self.instruction)
        [encoded] = self.model[0].encode_texts([text], self.instruction)
        ids = [token for token, pooled in zip(encoded.input_ids, encoded.pooling_mask, strict=True) if pooled]
        names = [f"{place} {self.model[0].tokenizer.decode([token])!r}" for place, token in enumerate(ids, 1)]
        columns = {name: attention[head, :, latent].cpu().numpy() for name, (head, latent) in self.latents.items()}
        return pd.DataFrame(columns, index=names)

    def tokens(self, latent: str, top: int = 8) -> pd.DataFrame:
        """The tokens of the documents that attend most to a latent; see `workbook.probes.top_tokens`.

        Args:
            latent: Its name.
            top: Largest number of tokens.

        Raises:
            UnknownNameError: Not one of those that are shown.
            InvalidValueError: A ``top`` that is not a positive whole number.
        """
        return probes.top_tokens(self.model, self.documents, *self._place(latent), top=top)

    def ranking(self, text: str, silenced: Sequence[str] = ()) -> pd.DataFrame:
        """The documents by their cosine with a query, without some latents and with all.

        Args:
            text: The query.
            silenced: Names of the latents that are silenced.

        Returns:
            One row per document, the nearest without those latents first: ``rank`` (from 1), ``before`` (its rank with
            all latents), ``score`` (the cosine), ``change`` (of the cosine), ``document``.

        Raises:
            InvalidValueError: A text that is blank or not a string.
            UnknownNameError: A latent that is not shown.
        """
        refuse_blank(text)
        places = [self._place(name) for name in silenced]
        query = self._states([text], self.instruction)
        whole_scores = self._scores(query)
        with self.model[1].silenced(places):
            scores = self._scores(query)
        frame = pd.DataFrame(
            {"before": _ranks(whole_scores), "score": scores, "change": scores - whole_scores},
        ).assign(document=self.documents)
        frame.insert(0, "rank", _ranks(scores))
        return frame.sort_values("rank").reset_index(drop=True)

    def table(self, text: str) -> pd.DataFrame:
        """What each latent that is shown does for a query, for a batch run.

        Args:
            text: The query.

        Returns:
            One row per latent: ``latent`` (its name), ``attention`` (of the query's tokens, their mean), ``tokens``
            (the three of the documents that attend most to it), ``change`` (the largest of a document's cosine when it
            is silenced) and ``nearest`` (the document that is then first).

        Raises:
            InvalidValueError: A text that is blank or not a string.
        """
        attention, rows = self.view(text), []
        for name in self.latents:
            ranked = self.ranking(text, [name])
            rows.append(
                {
                    "latent": name,
                    "attention": round(float(attention[name].mean()), 4),
                    "tokens": ", ".join(map(repr, self.tokens(name, 3)["token"])),
                    "change": round(float(ranked["change"].iloc[ranked["change"].abs().argmax()]), 4),
                    "nearest": ranked["document"][0],
                }
            )
        return pd.DataFrame(rows)

    def panel(self, text: str) -> widgets.VBox:
        """A text field and the latents to choose from.

        Below them the tokens by the latents, the tokens that attend most to the chosen one, and the ranking without it.

        Args:
            text: The query at the start.
        """
        controls = {
            "text": text_field(text, "Text"),
            "silenced": widgets.ToggleButtons(options=[_NONE, *self.latents], description="Silence"),
        }

        def answer(text: str, silenced: str) -> str:
            labels = {"unit": "attention", "xlabel": "head.latent", "ylabel": "token"}
            said = picture(figures.heatmaps({"": self.view(text)}, **labels), "attention of tokens to latents")
            if silenced == _NONE:
                return said + as_html(self.ranking(text).drop(columns=["before", "change"]).round(3))
            said += f"<b>tokens that attend most to {silenced}</b>" + as_html(self.tokens(silenced).round(3))
            return f"{said}<b>without {silenced}</b>" + as_html(self.ranking(text, [silenced]).round(3))

        return answered(controls, answer)

    def _place(self, latent: str) -> tuple[int, int]:
        if latent not in self.latents:
            raise UnknownNameError("latent", latent, self.latents)
        return self.latents[latent]

    @torch.no_grad()
    def _states(self, texts: list[str], instruction: str | None) -> dict[str, torch.Tensor]:
        """What the decoder passes on; silencing changes only what follows it."""
        module = self.model[0]
        with probes.reading(module, module.attention):
            return module(batch_to_device(module.preprocess(texts, instruction), self.model.device))

    @torch.no_grad()
    def _scores(self, query: dict[str, torch.Tensor]) -> np.ndarray:
        one, others = (self._vectors(states) for states in (query, self._read))
        return cos_sim(one, others)[0].double().cpu().numpy()

    def _vectors(self, states: dict[str, torch.Tensor]) -> torch.Tensor:
        features = dict(states)
        for module in list(self.model)[1:]:
            features = module(features)
        return features["sentence_embedding"]


def _ranks(scores: np.ndarray) -> np.ndarray:
    ranks = np.empty(len(scores), dtype=int)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return ranks
