"""Checks of the exercises in ``02_llm2vec.ipynb``."""

from __future__ import annotations

import math

import torch

from . import exercise, expect


@exercise(1, hint="Find the chosen indices and drop 0; each is predicted by the state one to its left.")
def exercise_1(shifted_labels):
    """The state before a masked token predicts it; the first token has none."""
    ids = torch.tensor([7, 3, 9, 4, 5])
    for chosen, expected in (
        ([False, False, True, True, False], [[1, 2], [9, 4]]),
        ([True, True, False, False, True], [[0, 3], [3, 5]]),
        ([True, False, False, False, False], [[], []]),
    ):
        got = shifted_labels(ids.clone(), torch.tensor(chosen))
        expect(f"shifted_labels(tensor({ids.tolist()}), tensor({chosen}))", got, expected)


@exercise(2, hint="Normalise both views; rows of the cosines over the temperature are logits, and row i's class is i.")
def exercise_2(simcse_loss):
    """InfoNCE from the first view to the second, on vectors of unequal length."""
    # Cosines: [[1, c], [0, c]]; read by columns, or as plain products, they give other losses.
    first = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    second = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    c = math.sqrt(0.5)
    for temperature in (1.0, 0.5):
        expected = sum(math.log1p(math.exp(wrong / temperature)) for wrong in (c - 1, 0 - c)) / 2
        got = simcse_loss(first, second, temperature)
        expect(f"simcse_loss({first.tolist()}, {second.tolist()}, {temperature})", got, expected)


@exercise(3, hint="A span (start, end) leaves end out; shifted, it reads from start - 1 up to end - 1.")
def exercise_3(word_means):
    """The example of LLM2Vec's appendix D.1.3: three words of two, three and one tokens, after a BOS token."""
    states = torch.tensor([[1.0, 0.0], [2, 10], [4, 20], [8, 30], [16, 40], [32, 50], [64, 60]])
    spans = [(1, 3), (3, 6), (6, 7)]
    own = [[3, 15], [56 / 3, 40], [64, 60]]
    before = [[1.5, 5], [28 / 3, 30], [32, 50]]
    for shifted, expected in ((False, own), (True, before)):
        expect(f"word_means(states, {spans}, shifted={shifted})", word_means(states, spans, shifted), expected)
