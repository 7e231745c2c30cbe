"""GritLM: a decoder that embeds without the causal mask and writes with it, trained for both at once."""

from __future__ import annotations

from ..scale import get_scale
from ..training.recipe import Recipe
from .chain import Chain
from .stages import contrastive

CHAIN = Chain(pooling="mean", attention="bidirectional", template="gritlm")

PAPER = {
    "steps": 1253,
    "batch_size": 256,
    "learning_rate": 2e-5,
    "warmup_steps": 38,
    "decay_steps": 1253,
    "adapter": None,
}
"""Differences at scale ``paper`` from the stage that methods share: all parameters are trained, with GritLM-7B's steps,
learning rate and warm-up. Its batches hold 2048 pairs and, from another data set, 256 answers; here the same 256 rows
are embedded and written.
"""


def recipe(scale: str, backbone: str, generative_weight: float = 1.0) -> Recipe:
    """One stage: InfoNCE and the language model's own loss.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone; all are trained alike.
        generative_weight: Weight of the language model's loss; 0 is contrastive training alone.

    Raises:
        UnknownNameError: No such scale.

    Source: Muennighoff et al. 2024, "Generative representational instruction tuning", section 2 and appendix.
    """
    shared = contrastive(scale, temperature=0.02)
    options = {**shared.options, "generative_weight": generative_weight}
    own = {"name": "joint", "objective": "gritlm", "options": options}
    return Recipe(stages=(shared.model_copy(update=own | (PAPER if get_scale(scale).name == "paper" else {})),))
