"""Checks of the exercises in ``08_efficiency.ipynb``."""

from __future__ import annotations

import numpy as np

from . import exercise, expect


@exercise(1, hint="Cells of a batch: its texts times the longest of them. The last batch may be smaller.")
def exercise_1(padding):
    """Each batch has a longest text of its own; the last is padded to itself; one a batch needs none."""
    for lengths, size, expected in (
        ([1, 9, 1, 9], 2, 8 / 18),
        ([1, 1, 9, 9], 2, 0.0),
        ([2, 4, 6], 2, 2 / 14),
        ([5, 3, 1], 3, 6 / 15),
        ([7, 2, 5], 1, 0.0),
    ):
        expect(f"padding({lengths}, {size})", padding(list(lengths), size), expected)


@exercise(2, hint="Two operations for a weight and a token; in each layer two products of tokens by tokens by width.")
def exercise_2(flops):
    """The part that grows with the square is doubled for scores and for values; the front is met but not read."""
    for weights, layers, width, tokens, front, expected in (
        (100, 0, 0, 3, 0, 600),
        (0, 1, 1, 3, 0, 36),
        (0, 2, 5, 3, 7, 1200),
        (1000, 2, 8, 10, 0, 26400),
        (1000, 2, 8, 10, 90, 84000),
    ):
        got = flops(weights, layers, width, tokens, front)
        expect(f"flops({weights}, {layers}, {width}, {tokens}, {front})", got, expected)


@exercise(3, hint="A vector's own largest number decides its step; a row of zeros needs a step that is not 0.")
def exercise_3(kept):
    """Cut first, round afterwards; steps are of rows; nothing is scaled back, since a cosine does not see it."""
    for vectors, width, expected in (
        ([[127.0, -63.4, 500.0]], 2, [[127.0, -63.0]]),
        ([[0.5, -1.0, 0.26]], 3, [[64.0, -127.0, 33.0]]),
        ([[1.0, 0.1], [10.0, 100.0]], 2, [[127.0, 13.0], [13.0, 127.0]]),
        ([[0.0, 0.0, 9.0]], 2, [[0.0, 0.0]]),
    ):
        expect(f"kept(array({vectors}), {width})", kept(np.array(vectors), width), expected)
