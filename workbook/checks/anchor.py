"""Checks of the exercises in ``06_anchor.ipynb``."""

from __future__ import annotations

import torch

from . import exercise, expect


@exercise(1, hint="The anchor is read first and predicts the first word; the last word is predicted and never read.")
def exercise_1(lay_out):
    """Each row of the table has its own number; a word that occurs twice, and a text of one word."""
    table = torch.arange(1.0, 13.0).reshape(6, 2)
    anchor = torch.tensor([-3.0, 0.5])
    for ids in ([4, 0, 2], [1, 1, 5, 1], [3]):
        call = f"lay_out(anchor, tensor({ids}), table)"
        inputs, labels = lay_out(anchor.clone(), torch.tensor(ids), table.clone()) or (None, None)
        expect(f"inputs of {call}", inputs, torch.stack([anchor, *(table[n] for n in ids[:-1])]))
        expect(f"labels of {call}", labels, ids)


@exercise(2, hint="Every token of the batch counts alike, so a long text counts more; alpha is the documents' weight.")
def exercise_2(loss):
    """Texts of different lengths, so that a mean of means is caught; the two directions differ."""
    documents = [torch.tensor([4.0, 2.0, 1.0, 1.0]), torch.tensor([7.0])]
    queries = [torch.tensor([3.0]), torch.tensor([0.5, 1.5]), torch.tensor([2.0, 2.0, 6.0])]
    for alpha in (0.2, 1.0, 0.0, 0.7):
        expected = alpha * 3.0 + (1 - alpha) * 2.5
        given = [[row.clone() for row in side] for side in (documents, queries)]
        expect(f"loss(documents, queries, {alpha})", loss(*given, alpha), expected)
    expect("loss of one token each", loss([torch.tensor([1.0])], [torch.tensor([5.0])], 0.25), 4.0)
