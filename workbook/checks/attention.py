"""Checks of the exercises in ``01_attention.ipynb``."""

from __future__ import annotations

import torch

from . import exercise, expect


@exercise(1, hint="torch.arange(n)[:, None] - torch.arange(n) is the distance of row i from column j.")
def exercise_1(pairs):
    """Causal, bidirectional and sliding-window masks."""
    expect("pairs(2, 'causal')", pairs(2, "causal"), torch.tensor([[True, False], [True, True]]))
    expect("pairs(3, 'bidirectional')", pairs(3, "bidirectional"), torch.ones(3, 3).bool())
    window = [
        [True, False, False, False],
        [True, True, False, False],
        [False, True, True, False],
        [False] * 2 + [True] * 2,
    ]
    expect("pairs(4, 'causal', window=2)", pairs(4, "causal", window=2), torch.tensor(window))


@exercise(2, hint="Change each token in turn, and compare every state that stands before it.")
def exercise_2(sees_future):
    """A probe that finds any leak, and no false ones."""
    expect("sees_future(a causal model, ids)", bool(sees_future(_causal, [5, 3, 8, 1])), False)
    expect("sees_future(a bidirectional model, ids)", bool(sees_future(_bidirectional, [5, 3, 8, 1])), True)
    expect("sees_future(a model that peeks one token ahead, ids)", bool(sees_future(_peeking, [5, 3, 8, 1])), True)


def _tokens(ids: list[int]) -> torch.Tensor:
    return torch.tensor([[float(i), float(i) ** 2] for i in ids])


def _causal(ids: list[int]) -> torch.Tensor:
    return _tokens(ids).cumsum(0)


def _bidirectional(ids: list[int]) -> torch.Tensor:
    return _tokens(ids) + _tokens(ids).mean(0)


def _peeking(ids: list[int]) -> torch.Tensor:
    states = _causal(ids)
    states[1:-1] += _tokens(ids)[2:]  # the first state looks at nothing, the others one token ahead
    return states
