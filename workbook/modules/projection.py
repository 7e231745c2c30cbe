"""Logits of token states under a head, pooled over positions or read one by one, without ever holding all of them.

A head as large as a vocabulary gives a logit for each of its rows at every position: 32 texts of 512 tokens and 49152
rows take 3 GiB in float32, and as much again for every step of the formula that a gradient needs. So logits are
computed for some rows of the head and some texts at a time, and not kept for the backward pass: max pooling keeps the
position of each maximum, sum pooling and losses compute them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..precision import without_autocast

LOGITS = 2**22
"""Logits that are held at a time, 16 MiB in float32."""
LOSS_LOGITS = 2**24
"""Logits of a loss that are held at a time, 64 MiB in float32: with fewer, the gradient of a large head is summed too
often."""
_ROWS = 1024  # of the head at a time, where they fit: narrower products are slower


def max_logits(
    states: torch.Tensor, mask: torch.Tensor, head: torch.Tensor, logits: int = LOGITS, zero: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """By how much the largest logit of each row of the head over a text's positions exceeds ``zero``, and its position.

    The gradient goes to the states at those positions alone, as through ``torch.max``; of two equal logits, to the one
    that ``torch.max`` happens to return. The head gets no gradient. In half precision the product has the states'
    dtype, as under autocast (it sums in float32), and all that follows is float32.

    Args:
        states: (batch, tokens, dim), any floating dtype.
        mask: Bool (batch, tokens), True at the positions to pool; the others may hold anything.
        head: (rows, dim); cast to the states' dtype a chunk at a time.
        logits: Number of logits to hold at a time.
        zero: 0 or more.

    Returns:
        relu(logit - zero), (batch, rows), float32 (float64 for float64 states), and the positions, int64 of the same
        shape, which mean nothing where the former is 0.
    """
    states, columns = _packed(states, mask)
    largest, order = _Max.apply(states, head, logits)
    return (largest - zero).relu(), columns.gather(1, order)


def sum_weights(
    states: torch.Tensor, mask: torch.Tensor, head: torch.Tensor, logits: int = LOGITS, zero: float = 0.0
) -> torch.Tensor:
    """log(1 + relu(logit - zero)) of each row of the head, summed over the positions of a text.

    The gradient goes to the states alone.

    Args:
        states, mask, head, logits, zero: See :func:`max_logits`.

    Returns:
        (batch, rows), float32 (float64 for float64 states).
    """
    return _Sum.apply(_packed(states, mask)[0], head, logits, zero)


def token_losses(
    states: torch.Tensor,
    labels: torch.Tensor,
    head: torch.Tensor,
    softcap: float | None = None,
    logits: int = LOSS_LOGITS,
) -> torch.Tensor:
    """Minus the log-probability of each label, read from its state by the head.

    States and head both get gradients. If there are more logits than may be held, they are computed for some states at
    a time, and again for the gradient. All is float32, under autocast too: a logit of 20 in bfloat16 is off by as much
    as a sixteenth.

    Args:
        states: (positions, dim), any floating dtype.
        labels: int64 (positions, labels), row numbers of the head.
        head: (vocabulary, dim).
        softcap: Bound of the logits, for backbones that have one (Gemma 2).
        logits: Number of logits to hold at a time.

    Returns:
        float32 (positions, labels), in nats.
    """
    size = max(1, logits // len(head))
    parts = list(zip(states.split(size), labels.split(size), strict=True))
    if len(parts) == 1:
        return _losses(states, labels, head, softcap)
    options = {"use_reentrant": False, "preserve_rng_state": False}
    return torch.cat([checkpoint(_losses, *part, head, softcap, **options) for part in parts])


def _losses(states: torch.Tensor, labels: torch.Tensor, head: torch.Tensor, softcap: float | None) -> torch.Tensor:
    with without_autocast(states.device):
        made = F.linear(states.float(), head.float())
        if softcap is not None:
            made = softcap * torch.tanh(made / softcap)
        return -made.log_softmax(dim=-1).gather(1, labels)


def _packed(states: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The states to pool moved to the left, with 0 behind them, and the columns that they come from.

    A state of 0 has logits of 0, which exceed no zero: no mask is needed any more.
    """
    columns = mask.int().argsort(dim=1, descending=True, stable=True)[:, : int(mask.sum(dim=1).max())]
    rows = torch.arange(len(mask), device=mask.device).unsqueeze(1)
    return torch.where(mask[rows, columns].unsqueeze(-1), states[rows, columns], 0), columns


def _chunks(states: torch.Tensor, head: torch.Tensor, logits: int) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Some texts, some rows of the head, and these rows in the states' dtype."""
    batch, tokens, _ = states.shape
    texts = min(batch, max(1, logits // (tokens * min(len(head), _ROWS))))
    width = max(1, logits // (tokens * texts))
    for start in range(0, len(head), width):
        part = head[start : start + width].to(states.dtype)
        for first in range(0, batch, texts):
            yield slice(first, first + texts), slice(start, start + width), part


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


class _Max(Function):
    """Largest logit over all positions, and which."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, head: torch.Tensor, logits: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = len(states), len(head)
        largest = states.new_empty(shape, dtype=_wide(states.dtype))
        order = states.new_empty(shape, dtype=torch.int64)
        with without_autocast(states.device):
            for texts, rows, part in _chunks(states, head, logits):
                found = (states[texts] @ part.T).max(dim=1)
                largest[texts, rows], order[texts, rows] = found.values, found.indices
        ctx.save_for_backward(head, order)
        ctx.states = states.shape, states.dtype
        ctx.mark_non_differentiable(order)
        return largest, order

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        head, order = ctx.saved_tensors
        (batch, tokens, dim), dtype = ctx.states
        # As a product with a matrix that has one entry for every maximum, at the position it came from.
        texts, rows = gradient.nonzero(as_tuple=True)
        places = torch.stack([texts * tokens + order[texts, rows], rows])
        size = batch * tokens, len(head)
        with without_autocast(gradient.device):
            matrix = torch.sparse_coo_tensor(places, gradient[texts, rows], size, check_invariants=False)
            received = torch.sparse.mm(matrix, head.to(gradient.dtype))
        return received.view(batch, tokens, dim).to(dtype), None, None


class _Sum(Function):
    """Sum of log(1 + relu(logit - zero)) over all positions."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, head: torch.Tensor, logits: int, zero: float) -> torch.Tensor:
        total = states.new_empty(len(states), len(head), dtype=_wide(states.dtype))
        with without_autocast(states.device):
            for texts, rows, part in _chunks(states, head, logits):
                total[texts, rows] = (states[texts] @ part.T - zero).relu_().to(total.dtype).log1p_().sum(dim=1)
        ctx.save_for_backward(states, head)
        ctx.logits, ctx.zero = logits, zero
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        states, head = ctx.saved_tensors
        received = torch.zeros_like(states, dtype=gradient.dtype)
        with without_autocast(states.device):
            for texts, rows, part in _chunks(states, head, ctx.logits):
                made = (states[texts] @ part.T - ctx.zero).to(gradient.dtype)
                slope = torch.where(made > 0, gradient[texts, rows].unsqueeze(1) / (1 + made), 0)
                received[texts] += slope.to(states.dtype) @ part
        return received.to(states.dtype), None, None, None
