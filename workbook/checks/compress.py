"""Checks of the exercises in ``09_compress.ipynb``."""

from __future__ import annotations

import torch

from . import exercise, expect


@exercise(1, hint="One number per input: the root of the sum of its squares over all tokens. It multiplies a column.")
def exercise_1(scores):
    """Norms are not means; a weight's sign does not count; a loud input beats a large weight."""
    for weight, inputs, expected in (
        ([[1.0, -2.0], [3.0, 0.0]], [[3.0, 0.0], [4.0, 1.0]], [[5.0, 2.0], [15.0, 0.0]]),
        ([[2.0, -1.0, 0.5]], [[1.0, 2.0, -8.0]], [[2.0, 2.0, 4.0]]),
        ([[1.0], [-1.0], [2.0]], [[1.0], [1.0], [1.0], [1.0]], [[2.0], [2.0], [4.0]]),
    ):
        got = scores(torch.tensor(weight), torch.tensor(inputs))
        expect(f"scores({weight}, {inputs})", got, expected)


@exercise(2, hint="A row's scale makes its largest magnitude 127; a row of zeros needs a scale that is not 0.")
def exercise_2(rounded):
    """Scales are of rows, not of columns or of all; the sign stays; a row of zeros stays one."""
    for weight, expected in (
        ([[127.0, -63.4, 0.4]], [[127.0, -63.0, 0.0]]),
        ([[0.5, -1.0, 0.26]], [[64 / 127, -1.0, 33 / 127]]),
        ([[1.0, 0.1], [100.0, 10.0]], [[1.0, 13 / 127], [100.0, 1300 / 127]]),
        ([[0.0, 0.0], [2.0, -2.0]], [[0.0, 0.0], [2.0, -2.0]]),
    ):
        expect(f"rounded({weight})", rounded(torch.tensor(weight)), expected)
