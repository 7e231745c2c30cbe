"""Stages that methods share, at each scale."""

from __future__ import annotations

from ..scale import get_scale
from ..training.recipe import Adapter, Stage

ALL_LINEAR = Adapter(
    rank=16,
    alpha=32,
    dropout=0.05,
    targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)
"""The papers' adapters: on every linear layer, with a little dropout."""

CONTRASTIVE = {
    "quick": {"steps": 4, "batch_size": 4, "max_length": 48, "learning_rate": 3e-4, "warmup_steps": 1},
    "cpu": {"steps": 30, "batch_size": 16, "max_length": 64, "learning_rate": 3e-4, "warmup_steps": 3},
    # Some 256,000 tokens: 217 batches of 16 pairs, whose query and description have 74 tokens together at this length.
    "night": {"steps": 217, "batch_size": 16, "max_length": 64, "learning_rate": 3e-4, "warmup_steps": 22},
    "gpu": {"steps": 300, "batch_size": 128, "max_length": 256, "learning_rate": 3e-4, "warmup_steps": 30},
    "paper": {
        "data": "e5",
        "steps": 1000,
        "batch_size": 512,
        "max_length": 512,
        "learning_rate": 2e-4,
        "warmup_steps": 300,
        "decay_steps": 8_800,  # three epochs of 1.5 million pairs, as in the released code
        "adapter": ALL_LINEAR,
        "gradient_checkpointing": True,
    },
}
"""Sizes of the supervised stage by scale; those of ``paper`` are LLM2Vec's, appendix G.2."""

# The paper's batch lies on eight GPUs; GradCache fits it on any number.
_GRADCACHE = {"gpu": {"mini_batch_size": 32}, "paper": {"mini_batch_size": 16}}


def contrastive(scale: str, temperature: float = 0.02) -> Stage:
    """The supervised stage: InfoNCE over in-batch and hard negatives, instructions on the queries.

    Args:
        scale: Name of the scale.
        temperature: Divisor of the cosines.

    Raises:
        UnknownNameError: No such scale.

    Source: LLM2Vec, section 5.1 and appendix G.2; the temperature is that of the released code.
    """
    name = get_scale(scale).name
    options = {"temperature": temperature} | _GRADCACHE.get(name, {})
    return Stage(name="contrastive", objective="contrastive", options=options, **CONTRASTIVE[name])
