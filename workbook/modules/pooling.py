"""Pooling: from token states to one vector, with instruction tokens left out."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers.base.modules.module import Module

from ..errors import InvalidValueError, UnknownNameError
from ..precision import without_autocast

POOLINGS = ("mean", "weighted_mean", "last_token")


class Pooling(Module):
    """One vector from the token states that ``pooling_mask`` marks.

    ``mean`` averages them; ``weighted_mean`` weights the n marked tokens 1, 2, .., n in order (counted from the first
    marked token, wherever padding and instruction are); ``last_token`` takes the last marked one.

    Args:
        pooling: ``mean``, ``weighted_mean`` or ``last_token``.
        embedding_dimension: Width of the token states.

    Raises:
        UnknownNameError: No such pooling.

    Source: LLM2Vec, sections 2.2 and 3.2; weighted mean after SGPT (Muennighoff 2022).
    """

    config_keys = ("pooling", "embedding_dimension")

    def __init__(self, pooling: str, embedding_dimension: int):
        super().__init__()
        if pooling not in POOLINGS:
            raise UnknownNameError("pooling", pooling, POOLINGS)
        self.pooling = pooling
        self.embedding_dimension = embedding_dimension

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, float32 (batch, dim), to the features; see ``Module.forward``.

        Args:
            features: ``token_embeddings`` (batch, tokens, dim); ``pooling_mask``, else ``attention_mask``,
                (batch, tokens), 1 at the tokens to pool.
            **kwargs: Ignored.

        Raises:
            InvalidValueError: A row without a token to pool; the Decoder makes none.
        """
        mask = features.get("pooling_mask", features["attention_mask"])
        features["sentence_embedding"] = pool(features["token_embeddings"], mask, self.pooling)
        return features

    def get_embedding_dimension(self) -> int:
        """Width of the vector."""
        return self.embedding_dimension

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the configuration; there are no weights. See ``Module.save``."""
        self.save_config(output_path)


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Pool token states.

    Args:
        states: (batch, tokens, dim), any floating dtype.
        mask: (batch, tokens), 1 where a token is pooled; at least one in every row.
        pooling: One of :data:`POOLINGS`.

    Returns:
        float32 (batch, dim): sums of many bfloat16 states would lose digits.

    Raises:
        InvalidValueError: A row without a token to pool, of which the released code of LLM2Vec averages all columns,
            padding included.
    """
    refuse_empty(mask)
    mask = mask.to(states.device).float()
    order = mask.cumsum(dim=1)
    if pooling == "mean":
        weights = mask
    elif pooling == "weighted_mean":
        weights = order * mask
    else:
        weights = mask * (order == order[:, -1:])
    weights = weights / weights.sum(dim=1, keepdim=True)
    # where, not a product: a state behind the mask may be anything, and 0 times infinity is not 0.
    states = torch.where(mask.bool().unsqueeze(-1), states.float(), 0.0)
    with without_autocast(states.device):
        return torch.einsum("bt,btd->bd", weights, states)


def refuse_empty(mask: torch.Tensor) -> None:
    """Refuse a row without a token to pool: its vector would not be that of a text.

    Args:
        mask: (batch, tokens), 1 where a token is pooled.

    Raises:
        InvalidValueError: Such a row; the message says which.
    """
    filled = mask.any(dim=1)
    if not filled.all():
        raise InvalidValueError(
            "pooling_mask", "a pooled token in every row", f"none in row {int(filled.int().argmin())}",
            "Drop the texts that are empty or of special tokens only.",
        )  # fmt: skip
