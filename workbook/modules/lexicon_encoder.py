"""A lexicon model as sentence-transformers' SparseEncoder: sparse tensors, and the words of their clusters."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers import SparseEncoder

from ..errors import InvalidValueError
from ..vocabulary.sparse import sparse
from .lexicon import Lexicon


class LexiconEncoder(SparseEncoder):
    """A SparseEncoder whose dimensions are clusters of tokens.

    sentence-transformers' own class takes the number of a cluster for that of a token when it decodes, and puts an
    autoencoder with random weights behind a model that was saved as a SentenceTransformer. This class reads the folder
    as it is, decodes clusters, and saves a folder that loads as a SentenceTransformer again.

    Args:
        *args, **kwargs: As of ``SparseEncoder``: a folder with ``trust_remote_code=True``, or ``modules=[*model]`` of a
            model that is already there; ``max_active_dims`` cuts each vector to its largest weights.

    Raises:
        InvalidValueError: A model without lexicon pooling.

    Example:
        >>> import workbook
        >>> model = LexiconEncoder(modules=[*workbook.build("lens", "tiny-llama", device="cpu")], device="cpu")
        >>> vectors = model.encode(["one text"], max_active_dims=2)
        >>> vectors.is_sparse, len(model.decode(vectors)[0])
        (True, 2)
    """

    model_type = "SentenceTransformer"
    """As in the folders that it reads and writes."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not isinstance(last := list(self)[-1], Lexicon):
            raise InvalidValueError(
                "LexiconEncoder", "a model that ends with Lexicon pooling", type(last).__name__,
                "workbook.build('lens') makes one; load others as SentenceTransformer.",
            )  # fmt: skip

    def decode(
        self, embeddings: torch.Tensor, top_k: int | None = None
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """The largest weights of vectors, largest first, with the tokens of their clusters joined by ``|``.

        Args:
            embeddings: (clusters,) or (texts, clusters), sparse or dense.
            top_k: Most weights per vector; None for all that are not 0.

        Returns:
            Pairs of words and weight, for each text if there are several.

        Raises:
            InvalidValueError: Vectors of another shape or with other numbers, or a ``top_k`` below 1.
        """
        if not isinstance(embeddings, torch.Tensor) or embeddings.shape[-1:] != (self.get_embedding_dimension(),):
            expected = f"a tensor (texts, {self.get_embedding_dimension()}) or a row of it"
            raise InvalidValueError("embeddings", expected, getattr(embeddings, "shape", type(embeddings).__name__))
        dense = embeddings.to_dense()
        rows = sparse(dense.unsqueeze(0) if dense.ndim == 1 else dense, dense.shape[-1] if top_k is None else top_k)
        clusters = sorted({cluster for row in rows for cluster in row})
        words = dict(zip(clusters, self[-1].words(self.tokenizer, clusters), strict=True))
        decoded = [[("|".join(words[cluster]), weight) for cluster, weight in row.items()] for row in rows]
        return decoded[0] if dense.ndim == 1 else decoded
