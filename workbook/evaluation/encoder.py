"""The adapter from mteb to a SentenceTransformer: instructions by task, every text embedded once."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from mteb.models import ModelMeta
from mteb.types import PromptType

from ..errors import InvalidValueError

if TYPE_CHECKING:
    import pandas as pd
    from sentence_transformers import SentenceTransformer

KEPT = 100_000
"""Most vectors that are kept at a time: 1.6 GB of 4096 numbers each."""


class Encoder:
    """A SentenceTransformer with the interface that mteb expects.

    Queries go through ``encode_query``, documents through ``encode_document`` and other texts through ``encode``, each
    with the bare instruction of the task, if any, as ``prompt``; only a model that begins with a
    ``workbook.modules.Decoder`` can lay it out. Vectors are kept until :meth:`forget`, so that a text that several
    tasks share under one instruction is embedded once; but no more than :data:`KEPT` of them, since the corpora of MTEB
    are larger than any memory.

    Args:
        model: Any SentenceTransformer; with instructions, one that begins with a Decoder.
        instructions: Columns task, side (query, document or both), instruction; None for no instructions.
        batch_size: Texts per batch.
        pool: Processes on several devices, as ``model.start_multi_process_pool`` gives them; None for the model's own.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        instructions: pd.DataFrame | None = None,
        batch_size: int = 32,
        pool: dict[str, Any] | None = None,
    ):
        self.model = model
        self.batch_size, self.pool = batch_size, pool
        self.mteb_model_meta = ModelMeta.create_empty()
        self._instructions = {}
        if instructions is not None:
            rows = zip(instructions["task"], instructions["side"], instructions["instruction"], strict=True)
            self._instructions = {(task, side): instruction for task, side, instruction in rows}
        self._vectors: dict[tuple[str | None, str | None], dict[str, np.ndarray]] = {}
        self._digest = hashlib.sha256()

    @property
    def kept(self) -> int:
        """Number of vectors that are kept."""
        return sum(map(len, self._vectors.values()))

    def forget(self) -> None:
        """Keep no vector any more."""
        self._vectors.clear()

    def instruction(self, task: str, prompt_type: PromptType | None) -> str | None:
        """The instruction in front of a text, or None; texts that are neither query nor document get the query's.

        Args:
            task: Name of an mteb task.
            prompt_type: Query, document, or None for neither.
        """
        side = "document" if prompt_type == PromptType.document else "query"
        return self._instructions.get((task, side), self._instructions.get((task, "both")))

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: PromptType | None = None, **kwargs: Any
    ) -> np.ndarray:
        """Embed the texts of an mteb data loader: float32 (texts, dim), in their order.

        Args:
            inputs: Batches with their texts under ``text``.
            task_metadata: Metadata of the mteb task.
            prompt_type: Query, document, or None for neither.
            **kwargs: Ignored: mteb's options for the model.

        Raises:
            InvalidValueError: Vectors that are not finite, which can't be ranked, though mteb would score them.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        role = prompt_type.value if prompt_type else None
        instruction = self.instruction(task_metadata.name, prompt_type)
        vectors = self._vectors.setdefault((role, instruction), {})
        new = [text for text in dict.fromkeys(texts) if text not in vectors]
        own: dict[str, np.ndarray] = {}
        if new:
            methods = {"query": self.model.encode_query, "document": self.model.encode_document}
            encode = methods.get(role, self.model.encode)
            options = {"batch_size": self.batch_size, "show_progress_bar": False, "pool": self.pool}
            made = encode(new, prompt=instruction, **options)
            bad = [text for text, vector in zip(new, made, strict=True) if not np.isfinite(vector).all()]
            if bad:
                got = f"NaN or inf for {len(bad)} of {len(new)} texts, the first {bad[0]!r}"
                hint = "A training that ran away leaves such a model."
                raise InvalidValueError(f"vectors of {task_metadata.name}", "finite numbers", got, hint)
            own = dict(zip(new, made, strict=True))
        self._digest.update(repr(texts).encode())
        found = np.stack([own[text] if text in own else vectors[text] for text in texts])
        if self.kept + len(own) <= KEPT:
            vectors.update(own)
        return found

    def digest(self) -> str:
        """Digest of the texts embedded since the last call."""
        name, self._digest = self._digest.hexdigest()[:16], hashlib.sha256()
        return name

    def similarity(self, first: np.ndarray, second: np.ndarray) -> Any:
        """The model's own similarity of all pairs, (texts, others).

        Args:
            first: float32 (texts, dim).
            second: float32 (others, dim).
        """
        return self.model.similarity(first, second)

    def similarity_pairwise(self, first: np.ndarray, second: np.ndarray) -> Any:
        """The model's own similarity of each pair, (pairs,).

        Args:
            first: float32 (pairs, dim).
            second: float32 (pairs, dim).
        """
        return self.model.similarity_pairwise(first, second)
