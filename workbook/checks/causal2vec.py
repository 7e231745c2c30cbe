"""Checks of the exercises in ``05_causal2vec.ipynb``."""

from __future__ import annotations

import torch

from . import exercise, expect


@exercise(1, hint="What reads the words of every row in order: rows before the place, the token, rows from the place.")
def exercise_1(inject):
    """Each row has its own number, so that a token that replaces one, or is misplaced, is caught."""
    words = torch.arange(1.0, 9.0).reshape(4, 2)
    for place, order in ((0, [-1, 0, 1, 2, 3]), (1, [0, -1, 1, 2, 3]), (3, [0, 1, 2, -1, 3])):
        context = torch.tensor([-3.0, 0.5])
        expected = torch.stack([context if n < 0 else words[n] for n in order])
        expect(f"inject(words, context, {place})", inject(words.clone(), context.clone(), place), expected)
    expect("inject(one word, context, 0)", inject(torch.ones(1, 3), torch.zeros(3), 0), [[0, 0, 0], [1, 1, 1]])


@exercise(2, hint="Where the mask is 1 are the real tokens, in order; count among these, from both ends.")
def exercise_2(represent):
    """Padding on either side, and none; the contextual token after an instruction, and in front."""
    states = torch.tensor([[1.0, 2.0], [3.0, 5.0], [7.0, 11.0], [13.0, 17.0], [19.0, 23.0]])
    for mask, place, rows in (
        ([1, 1, 1, 1, 1], 0, (0, 4)),
        ([1, 1, 1, 1, 0], 1, (1, 3)),
        ([0, 0, 1, 1, 1], 1, (3, 4)),
        ([0, 1, 1, 1, 0], 0, (1, 3)),
    ):
        got = represent(states.clone(), torch.tensor(mask), place)
        expect(f"represent(states, tensor({mask}), {place})", got, torch.cat([states[row] for row in rows]))
