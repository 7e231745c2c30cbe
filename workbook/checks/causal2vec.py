"""Checks of the exercises in ``05_causal2vec.ipynb``."""

from __future__ import annotations

import torch

from . import exercise, expect


@exercise(1, hint="One factor for all weights: the wanted mean length by the mean length of the tokens.")
def exercise_1(lengthened):
    """Tokens of unequal lengths, so that another mean than that of the lengths is caught."""
    second = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
    for tokens, word, factor in (([[3.0, 4.0], [0.0, 1.0]], 6.0, 2.0), ([[0.0, 8.0], [6.0, 8.0]], 3.0, 1 / 3)):
        got = lengthened(second.clone(), torch.tensor(tokens), word)
        expect(f"lengthened(W, {tokens}, {word})", got, factor * second)


@exercise(2, hint="Sum |a| |a'| cos(a, a') over the halves, and divide by the lengths of both concatenations.")
def exercise_2(weighed):
    """Halves of unequal lengths, opposite ones, and a ratio of lengths that differs between the texts."""
    for halves in (
        ([1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [0.0, 3.0]),
        ([3.0, 4.0], [1.0, 0.0], [0.0, 5.0], [-1.0, 0.0]),
        ([0.1, 0.0], [5.0, 5.0], [9.0, 0.0], [1.0, 0.0]),
    ):
        c, e, other_c, other_e = map(torch.tensor, halves)
        expected = torch.cosine_similarity(torch.cat([c, e]), torch.cat([other_c, other_e]), dim=0)
        expect(f"weighed{halves}", weighed(c, e, other_c, other_e), expected)
