"""A teacher, whose scores of queries with documents a contrastive stage learns from besides its own labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator

from .. import backbones
from ..errors import InvalidValueError
from ..resolved import digest
from .recipe import STORED

if TYPE_CHECKING:
    from .recipe import Stage

_COSINES = 20  # the factor of cosines in the training of contrastive encoders such as MiniLM


class Teacher:
    """A trained model that scores queries with documents, on the scale of logits.

    Args:
        name: A name, a folder or a Hugging Face id: of a reranker, such as the paper's ``BAAI/bge-reranker-large``,
            whose logits are the scores; or of an encoder, such as ``minilm``, whose scores are cosines times 20.
        device: A torch device.

    Raises:
        UnknownNameError, ModelNotFoundError, DamagedFileError, InvalidValueError: As :func:`is_reranker`.

    Source: LENS, section 4.1.
    """

    def __init__(self, name: str, device: torch.device | str = "cpu"):
        self.reranker = is_reranker(name)
        self.model: Any
        if self.reranker:
            folder = str(backbones.resolve(name))
            self.model = CrossEncoder(folder, device=str(device), activation_fn=torch.nn.Identity())
        else:
            self.model = backbones.load_encoder(name, device=str(device))

    @torch.no_grad()
    def scores(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> torch.Tensor:
        """Score each query with its own documents.

        Args:
            queries: Strings, without instructions.
            documents: Strings for each query, equally many for all.

        Returns:
            float32 (queries, documents), on the CPU.
        """
        rows, flat = len(queries), [text for row in documents for text in row]
        if self.reranker:
            pairs = [(query, text) for query, row in zip(queries, documents, strict=True) for text in row]
            found = self.model.predict(pairs, show_progress_bar=False, convert_to_tensor=True)
            return found.float().cpu().view(rows, -1)
        texts = list(dict.fromkeys([*queries, *flat]))
        options = {"normalize_embeddings": True, "show_progress_bar": False, "convert_to_tensor": True}
        made = dict(zip(texts, self.model.encode(texts, **options).float().cpu(), strict=True))
        vectors = torch.stack([made[text] for text in flat]).view(rows, -1, len(made[texts[0]]))
        return _COSINES * torch.einsum("qd,qnd->qn", torch.stack([made[query] for query in queries]), vectors)


def is_reranker(name: str) -> bool:
    """True for a reranker, False for an encoder, from the configuration alone, without its weights.

    Raises:
        UnknownNameError, ModelNotFoundError, DamagedFileError: As :func:`~workbook.backbones.resolve`.
        InvalidValueError: A classifier of several classes.
    """
    config = backbones.load_config(str(backbones.resolve(name)))
    found = any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ())
    if found and config.num_labels != 1:
        raise InvalidValueError("teacher", "a reranker, of one score", f"{config.num_labels} classes in {name}")
    return found


def teachers_sha256(stages: Iterable[Stage]) -> dict[str, str]:
    """Hex sha256 of the content of the stages' teachers, and of how their scores are made, by name.

    Scores that come with the rows are part of the data.

    Raises:
        UnknownNameError, ModelNotFoundError, DamagedFileError: As :func:`~workbook.backbones.resolve`.
    """
    names = {stage.teacher for stage in stages} - {None, STORED}
    return {name: digest([backbones.content_sha256(name), _COSINES]) for name in sorted(names)}


TAUGHT = "taught"
"""Name under which a batch holds the texts of its rows for a teacher."""


@dataclass
class TaughtCollator(SentenceTransformerDataCollator):
    """Keeps the texts of each batch for a teacher, who reads them in the process that trains: this may be another.

    Attributes:
        taught: Names of the data sets whose rows the teacher scores.
    """

    taught: frozenset[str] = frozenset()

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """The batch of some rows (query, positive, hard negatives), with their texts, without instructions."""
        batch = super().__call__(features)
        if batch.get("dataset_name") in self.taught:
            batch[TAUGHT] = [
                [_text(value) for name, value in row.items() if name != "dataset_name"] for row in features
            ]
        return batch


def _text(value: str | dict[str, str]) -> str:
    return value["text"] if isinstance(value, dict) else value  # in a blend each brings its instruction
