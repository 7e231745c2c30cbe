"""Anchor: before it is told which texts belong together, the last token learns to hold what the other text says."""

from __future__ import annotations

from ..scale import get_scale
from ..training.recipe import Recipe, Stage
from .chain import Chain
from .stages import contrastive

CHAIN = Chain(pooling="last_token", template="eos")
"""Causal attention and the state of EOS, as in last-token pooling: what is new is how it is trained."""

ALPHA = 0.2
"""Weight of the direction from query to document. Source: Anchor, section 3.2 and table 4."""

SIZES = {
    "quick": {"steps": 4, "batch_size": 8, "max_length": 32, "learning_rate": 1e-4, "warmup_steps": 1},
    "cpu": {"steps": 40, "batch_size": 16, "max_length": 32, "learning_rate": 1e-4, "warmup_steps": 4},
    "gpu": {
        "steps": 400,
        "batch_size": 64,
        "accumulation": 2,
        "max_length": 256,
        "learning_rate": 1e-4,
        "warmup_steps": 40,
    },
    "paper": {
        "data": "e5",
        "steps": 2000,
        "batch_size": 512,
        "accumulation": 16,
        "max_length": 512,
        "learning_rate": 4e-5,
        "warmup_steps": 300,
        "gradient_checkpointing": True,
    },
}
"""Sizes of the first stage by scale; those of ``paper`` are of appendix A.2. All parameters are trained.

Not said there: into how many micro-batches a batch is split, and whether the rate falls after its warm-up; it does
here, linearly, to 0 at the last step.

On SmolLM2-135M the state of EOS holds next to nothing of a text, and some minutes of contrastive training seldom change
that. ``build("anchor", closing="answer")`` closes texts with the opening of a chat's answer instead, of which the last
token is the anchor. The sizes of ``cpu`` are a first guess: after 40 steps of half their pairs the loss had fallen by a
quarter to a third, and was the same with another pair's vector (``probes.anchor_losses``), so the anchor was not read.
"""

_TEMPERATURE = 0.05  # section 3.3
# All parameters are the head's too; but a head that is not tied and trains is lost with the stage, and with it what the
# vectors can write: the other scales leave it as it is.
_PAPER = {"paper": {"train_head": True}}


def reconstruction(scale: str, alpha: float = ALPHA) -> Stage:
    """The first stage: each side of a pair is written from the vector of the other.

    Args:
        scale: Name of the scale.
        alpha: Weight of the direction from query to document: 1 is the paper's OnlyQ2D, 0 its OnlyD2Q.

    Raises:
        UnknownNameError: No such scale.

    Source: Anchor, section 3.2 and appendix A.2.
    """
    name = get_scale(scale).name
    options = {"alpha": alpha} | _PAPER.get(name, {})
    return Stage(name="reconstruction", objective="reconstruction", options=options, adapter=None, **SIZES[name])


def recipe(scale: str, backbone: str, alpha: float = ALPHA) -> Recipe:
    """Reconstruction with all parameters, then contrastive training of low-rank adapters.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone; all are trained alike.
        alpha: As for :func:`reconstruction`.

    Raises:
        UnknownNameError: No such scale.

    Source: Anchor, section 3 and appendix A.2: the second stage is LLM2Vec's, at a temperature of 0.05.
    """
    return Recipe(stages=(reconstruction(scale, alpha), contrastive(scale, _TEMPERATURE)))


def with_llama2vec(scale: str, backbone: str) -> Recipe:
    """:func:`recipe` with LLaMA2Vec's objective in the first stage, as many steps of it.

    The paper compares with LLaMA2Vec's own 10,000 steps on running text.

    Source: Anchor, appendix E.
    """
    first, second = recipe(scale, backbone).stages
    options = {name: value for name, value in first.options.items() if name != "alpha"}
    return Recipe(stages=(first.model_copy(update={"objective": "llama2vec", "options": options}), second))


def contrastive_alone(scale: str, backbone: str) -> Recipe:
    """The second stage alone, for as many steps as the two have together.

    Source: Anchor, section 4.3 and table 5.
    """
    first, second = recipe(scale, backbone).stages
    steps = first.steps + second.steps
    return Recipe(stages=(second.model_copy(update={"steps": steps}),))
