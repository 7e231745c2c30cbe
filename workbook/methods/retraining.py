"""Retraining of a compressed model: adapters that keep its zeros, with labels alone or with its teacher's states."""

from __future__ import annotations

from functools import partial

from ..scale import get_scale
from ..training.recipe import Recipe, Stage
from .stages import ALL_LINEAR, contrastive

STEPS = {"quick": 4, "cpu": 15, "night": 108, "gpu": 135, "paper": 500}
"""Updates by scale: half of those that made the model. The paper prints neither steps, rates nor adapters."""

ALPHA = {True: 0.3, False: 1e-5}
"""Weight of the states' loss, for scaled states and for those of the formula as printed. Of neither the paper says it.

As printed the sum is some 200,000 for SmolLM2-135M pruned to 2:4, nearly all of it from the first token, a few of whose
features are in the ten thousands from layer 12 on. Scaled it is some 10. With both weights the states begin with about
half the loss of the labels.
"""


def recipe(scale: str, backbone: str, states: bool = False, scaled: bool = False) -> Recipe:
    """One stage on the pairs and in the batches that made the model, with adapters that keep zeros.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
        states: Whether the states of the model before compression, given to :func:`workbook.training.train` as
            ``teacher``, are learnt too.
        scaled: Whether they are compared after division by their root mean square, see
            :class:`~workbook.objectives.StateDistillation`.

    Raises:
        UnknownNameError: No such scale.

    Source: NV-Embed, appendices A.1 and A.2.
    """
    name = get_scale(scale).name
    labels, steps = contrastive(scale), STEPS[name]
    adapter = (labels.adapter or ALL_LINEAR).model_copy(
        update={"targets": ALL_LINEAR.targets, "dropout": 0.0, "keep_zeros": True}
    )
    changed = {"name": "retraining", "steps": steps, "decay_steps": None, "adapter": adapter}
    changed["warmup_steps"] = min(labels.warmup_steps, steps // 10)
    if states:
        changed["objective"] = "state-distillation"
        options = {key: value for key, value in labels.options.items() if key != "mini_batch_size"}
        changed["options"] = options | {"alpha": ALPHA[scaled], "scaled": scaled}
        if size := labels.options.get("mini_batch_size"):  # GradCache has no states to compare: batches are split
            changed["accumulation"] = labels.batch_size // size
    return Recipe(stages=(Stage(**labels.model_dump() | changed),))


with_states = partial(recipe, states=True)
with_scaled_states = partial(recipe, states=True, scaled=True)
