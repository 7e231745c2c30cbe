"""Checks of the exercises in ``04_lens.ipynb``."""

from __future__ import annotations

import torch

from . import exercise, expect


@exercise(1, hint="Relu, log(1 + ..), the largest over the pooled positions of each cluster, then length 1.")
def exercise_1(lexicon_vector):
    """Logits one below a power of two: the weights are multiples of log 2, and the vectors simple fractions."""
    for logits, mask, expected in (
        ([[7, 1, -3], [3, 15, -0.5]], [1, 1], [3 / 5, 4 / 5, 0]),
        ([[63, 0, 511], [3, 1, -2], [-0.5, -4, -0.5], [1, 3, 0]], [0, 1, 1, 1], [1 / 2**0.5, 1 / 2**0.5, 0]),
        ([[0, 3, 31, -1], [1, -7, -0.75, 3], [255, 255, 255, 255]], [0, 1, 0], [1 / 5**0.5, 0, 0, 2 / 5**0.5]),
    ):
        got = lexicon_vector(torch.tensor(logits, dtype=torch.float32), torch.tensor(mask))
        expect(f"lexicon_vector(tensor({logits}), tensor({mask}))", got, expected)


@exercise(2, hint="List the documents of each cluster; add weight times weight; sort by falling score, then by number.")
def exercise_2(search):
    """Scores exact in binary, so that ties are ties; a document's length and its number of clusters mislead."""
    documents = [{3: 0.5, 8: 0.25}, {1: 1.0}, {8: 0.5, 5: 0.75, 9: 4.0}, {3: 0.5, 8: 0.25}, {}, {3: 0.75, 2: 0.5}]
    for query, expected in (
        ({3: 1.0}, [5, 0, 3]),
        ({8: 2.0, 3: 1.0}, [0, 2, 3, 5]),  # 1, 1, 1 and 0.75
        ({3: 0.25, 5: 0.5, 1: 0.125, 7: 9.0}, [2, 5, 0, 1, 3]),  # 0.375, 0.1875, and three times 0.125
        ({2: 0.5, 4: 1.0}, [5]),
        ({4: 1.0}, []),
        ({}, []),
    ):
        got = search(dict(query), [dict(document) for document in documents])
        expect(f"search({query}, {documents})", got, expected)
    expect("search({1: 1.0}, [])", search({1: 1.0}, []), [])
