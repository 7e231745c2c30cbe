"""A query and its own candidates, its positive and its hard negatives: their scores, and what is learnt from them."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy, normalize

from ..precision import without_autocast


def distillation(scores: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Cross-entropy from a teacher's distribution over a query's candidates to the model's, mean over the queries.

    Args:
        scores: The model's cosines divided by its temperature, floating (queries, candidates).
        teacher: The teacher's scores, of the same shape, on the scale of logits.

    Returns:
        A scalar of the dtype of ``scores``, in nats.

    Source: LENS, section 4.1 (there a KL divergence, which differs by the teacher's entropy, a constant).
    """
    return cross_entropy(scores, teacher.to(scores).softmax(dim=-1))


def own_loss(vectors: list[torch.Tensor], temperature: float, labels: torch.Tensor | None) -> torch.Tensor:
    """Cross-entropy of each query's positive among its own candidates, mean over the queries.

    Args:
        vectors: Of the queries, their positives, and columns of hard negatives; each floating (queries, dim).
        temperature: Divisor of the cosines.
        labels: A teacher's scores (queries, candidates), for :func:`distillation` on top; None for none.

    Returns:
        A scalar in float32, in nats.
    """
    scores = own_scores(vectors, temperature)
    loss = cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long))
    return loss if labels is None else loss + distillation(scores, labels)


def own_scores(vectors: list[torch.Tensor], temperature: float) -> torch.Tensor:
    """Cosine / temperature of each query with its own candidates, float32 (queries, candidates).

    Args:
        vectors, temperature: See :func:`own_loss`.
    """
    with without_autocast(vectors[0].device):
        query, *documents = (normalize(column.float(), dim=-1) for column in vectors)
        return torch.einsum("bd,cbd->bc", query, torch.stack(documents)) / temperature
