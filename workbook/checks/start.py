"""Checks of the exercises in ``00_start.ipynb``."""

from __future__ import annotations

import numpy as np
import torch

from . import exercise, expect

_STATES = torch.tensor(
    [
        [[1.0, 0.0], [3.0, 2.0], [90.0, 90.0], [70.0, 70.0]],  # padded right
        [[80.0, 80.0], [2.0, 2.0], [4.0, 0.0], [0.0, 4.0]],  # padded left
    ]
)
_MASK = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]])


@exercise(1, hint="Sum the states times the mask over the tokens, and divide by the number of ones in each row.")
def exercise_1(mean_pool):
    """Mean pooling leaves padding out, on either side."""
    expect(
        "mean_pool(states, mask) of a text padded right and one padded left",
        mean_pool(_STATES, _MASK),
        [[2, 1], [2, 2]],
    )
    full = mean_pool(_STATES, torch.ones_like(_MASK))
    expect("mean_pool(states, mask) without padding", full, _STATES.mean(1))


@exercise(2, hint="A running sum of the mask, times the mask, over its own sum.")
def exercise_2(position_weights):
    """Weights count from the first pooled token."""
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [0, 1, 0, 0]])
    expected = [[1 / 6, 2 / 6, 3 / 6, 0], [0, 0, 1 / 3, 2 / 3], [0, 1, 0, 0]]
    expect("position_weights(mask)", position_weights(mask), expected)


@exercise(
    3, hint="Normalise, multiply, and count how many documents beat the right one; it is found if fewer than k do."
)
def exercise_3(recall_at):
    """Recall at k on vectors of unequal length, where the plain product ranks differently."""
    queries = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
    documents = np.array([[1.0, 1.0], [0.0, 1.0], [9.0, -1.0]])
    for k, expected in ((1, 1 / 3), (2, 2 / 3), (3, 1.0)):
        expect(f"recall_at(queries, documents, k={k})", recall_at(queries, documents, k), expected)
