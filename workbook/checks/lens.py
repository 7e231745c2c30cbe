"""Checks of the exercises in ``04_lens.ipynb``."""

from __future__ import annotations

import torch

from . import exercise, expect


@exercise(1, hint="One zero for all texts, with the share of all logits above it; then log(1 + relu(logit - zero)).")
def exercise_1(weights):
    """Logits whose order by text and over all differs, so that a zero for each text is wrong."""
    logits = torch.tensor([[5.0, -1.0, 2.0, 3.0], [0.5, -4.0, -2.0, 0.0]])
    for share, zero in ((0.25, 2.0), (0.5, 0.0), (0.75, -2.0)):
        wanted = torch.log1p((logits - zero).clamp(min=0))
        expect(f"weights(tensor({logits.tolist()}), {share})", weights(logits.clone(), share), wanted)


@exercise(2, hint="Permute the clusters of the tokens, with a generator of that seed: then sizes stay.")
def exercise_2(random_clusters):
    """Sizes are kept, who is together is not; seeds count."""
    assignment = torch.tensor([0] * 40 + [1] * 5 + [2] * 15).repeat_interleave(2)
    drawn = [random_clusters(assignment.clone(), seed) for seed in (0, 0, 1)]
    for one in drawn[::2]:
        expect(
            "the sizes of random_clusters(assignment, seed)", torch.as_tensor(one).bincount(minlength=3), [80, 10, 30]
        )
    expect("random_clusters(assignment, 0), twice", drawn[1], drawn[0])
    first, other = (torch.as_tensor(one) for one in drawn[1:])
    expect("another seed gives other clusters", bool((first != other).any()), True)
    # Of two neighbours, which shared a cluster before, fewer than nine in ten still do: by chance it is about half.
    expect("neighbours are dealt out apart", bool((first[::2] == first[1::2]).float().mean() < 0.9), True)


@exercise(3, hint="Subtract the mean of each cluster over the documents, drop what is below 0, then keep the largest.")
def exercise_3(prune):
    """A cluster that all documents share is the heaviest everywhere, and goes."""
    weights = torch.tensor([[8.0, 1, 0, 6], [8, 5, 0, 0], [8, 0, 3, 0]])
    left = [[0.0, 0, 0, 4], [0, 3, 0, 0], [0, 0, 2, 0]]
    for top in (1, 2):
        expect(f"prune(tensor({weights.tolist()}), {top})", prune(weights.clone(), top), left)
    weights = torch.tensor([[4.0, 8, 2], [0, 0, 0]])
    for top, kept in ((1, [0.0, 4, 0]), (2, [2, 4, 0]), (3, [2, 4, 1])):
        expect(f"prune(tensor({weights.tolist()}), {top})", prune(weights.clone(), top), [kept, [0, 0, 0]])
