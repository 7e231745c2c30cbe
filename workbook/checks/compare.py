"""Checks of the exercises in ``07_compare.ipynb``."""

from __future__ import annotations

from . import exercise, expect


@exercise(1, hint="A row leaves the front if another one is as cheap and as good, and not equal in both.")
def exercise_1(front):
    """Comparing neighbours in cost is not enough, equals stay together, and the order of rows does not matter."""
    for costs, scores, expected in (
        ([1, 2, 3], [40, 60, 50], [True, True, False]),
        ([4, 1, 3, 2], [65, 40, 70, 45], [False, True, True, True]),
        ([1, 2, 3, 4], [40, 60, 50, 55], [True, True, False, False]),  # the last is better than its neighbour alone
        ([2, 2, 1], [50, 50, 40], [True, True, True]),
        ([2, 2, 3], [50, 60, 60], [False, True, False]),
        ([5.0], [-1.0], [True]),
    ):
        expect(f"front({costs}, {scores})", front([*costs], [*scores]), expected)


@exercise(
    2, hint="Choose the better rank for every query; then take means, and only then compare with the better model."
)
def exercise_2(gain):
    """The better of two means is not the mean of the better; a mean of ranks is not a rank."""
    for first, second, expected in (
        ([1, 2], [2, 1], 100 - 75),
        ([1, 4, 2], [2, 1, 10], 250 / 3 - 175 / 3),
        ([1, 1], [3, 5], 0),
        ([4, 4, 4, 4], [4, 4, 4, 2], 0),
        ([10, 2, 1], [1, 5, 4], 250 / 3 - 160 / 3),
    ):
        expect(f"gain({first}, {second})", gain([*first], [*second]), expected)
