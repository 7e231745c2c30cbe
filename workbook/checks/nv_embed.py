"""Checks of the exercises in ``03_nv_embed.ipynb``."""

from __future__ import annotations

import math

import torch

from . import exercise, expect


@exercise(
    1, hint="Each state's scores over the latents, taken as they are, become weights of the latents that sum to 1."
)
def exercise_1(latent_read):
    """Two states attend to three latents; the logits are logarithms, so that the weights are simple shares."""
    latents = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 0]])
    for state, expected in (
        ([math.log(2), 0.0, 0.0, 5.0], [1 / 2, 1 / 4, 1 / 2, 0]),
        ([0.0, 0.0, math.log(3), 7.0], [1 / 11, 1 / 11, 18 / 11, 0]),
    ):
        shown = [round(value, 2) for value in state]
        expect(f"latent_read([{shown}], latents)", latent_read(torch.tensor([state]), latents.clone()), [expected])
    states = torch.tensor([[0.0, math.log(2), 0, 0], [0, math.log(6), 0, 0]])
    expected = [[1 / 4, 1 / 2, 1 / 2, 0], [1 / 8, 3 / 4, 1 / 4, 0]]
    expect("latent_read(states, latents) of two states", latent_read(states, latents.clone()), expected)


@exercise(2, hint="The lowest positive sets the limit; what is at it passes, but no positive does; sort downward.")
def exercise_2(below_margin):
    """The lowest of several positives first, in between or last; scores at the limit; and no candidate left."""
    for scores, positive, margin, expected in (
        ([0.9, 0.2, 0.8, 0.7, 0.1, 0.6], [2], 0.95, [3, 5, 1, 4]),
        ([0.35, 0.8, 0.45, 0.1], [1], 0.5, [0, 3]),
        ([0.26, 0.75, 0.1, 0.5, 0.25, 0.7, 0.2, 0.33], [1, 3, 5], 0.5, [4, 6, 2]),
        ([0.6, 0.75, 0.6, 0.9, 0.4], [0, 1], 1.0, [2, 4]),
        ([0.3, 0.29, 0.9, 0.1], [0, 3], 0.95, []),
    ):
        got = below_margin(torch.tensor(scores), list(positive), margin)
        expect(f"below_margin(tensor({scores}), {positive}, {margin})", got, expected)
    got = below_margin(torch.tensor([0.5, 0.49, 0.47]), [0])
    expect("below_margin(tensor([0.5, 0.49, 0.47]), [0])", got, [2])


@exercise(
    3,
    hint="Another row holds none if it is of another class (k - 1 of k) and each of its negatives, which are not of "
    "its own class, is not of yours either (k - 2 of k - 1). All other rows must hold none.",
)
def exercise_3(false_negative_chance):
    """Few classes and many; a batch of one; hard negatives, which with two classes are all of the query's."""
    for classes, batch_size, negatives, expected in (
        (2, 2, 0, 1 / 2),
        (2, 3, 0, 3 / 4),
        (77, 128, 0, 1 - (76 / 77) ** 127),
        (5, 1, 3, 0.0),
        (3, 2, 1, 2 / 3),
        (3, 3, 1, 8 / 9),
        (4, 3, 2, 8 / 9),
        (2, 2, 1, 1.0),
        (150, 16, 7, 1 - ((149 / 150) * (148 / 149) ** 7) ** 15),
    ):
        said = f"false_negative_chance(classes={classes}, batch_size={batch_size}, negatives={negatives})"
        expect(said, false_negative_chance(classes, batch_size, negatives), expected)
