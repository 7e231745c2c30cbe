"""Stages that methods share, at each scale, and how they fit a device."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from .. import backbones
from ..scale import RECORDED, get_scale
from ..training.recipe import Adapter, Recipe, Stage

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

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
    # Ten times the tokens of a night, in larger batches: the 12,465 pairs of docs are read less than three times.
    "gpu": {"steps": 270, "batch_size": 128, "max_length": 256, "learning_rate": 3e-4, "warmup_steps": 27},
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
_GRADCACHE = {"paper": {"mini_batch_size": 16}}

DEVICE = {"gpu": 40_000_000_000}
"""Memory, in bytes, of the smallest device that a scale is for.

Stages are cut to it and not to the device at hand: a recipe, and with it a record, is the same on every machine. What
fits 40 GB fits 80 and 140.
"""

_FREE = 0.8  # share of the memory that is planned with; the rest is for kernels, logits, a teacher, and gaps
COLUMNS = {"mntp": 1, "simcse": 2, "reconstruction": 4, "llama2vec": 4, "gritlm": 3}
"""Passes of a row through the decoder, by objective: both texts are embedded and written, or the document is written.
Other objectives read each of its columns once.
"""


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


def of_equal_texts(stage: Stage, negatives: int) -> Stage:
    """A stage with another number of hard negatives a row, and at most as many texts in a batch.

    Args:
        stage: The stage.
        negatives: Hard negatives a row.
    """
    texts = stage.batch_size * (2 + (stage.negatives or 0))
    return stage.model_copy(update={"negatives": negatives, "batch_size": max(2, texts // (2 + negatives))})


def fitted(recipe: Recipe, scale: str, backbone: str) -> Recipe:
    """The recipe as the machines of its scale train it: compiled, or in micro-batches that fit.

    At the scales of :data:`~workbook.scale.RECORDED`, where a training takes hours, layers are compiled, unless the
    decoder does not train.

    A batch that does not fit is first checkpointed, which costs one more forward pass. If that is not enough, it is
    split as well: by GradCache where rows are negatives of each other, else by accumulation. A stage whose weights
    alone are too large is split as far as it goes; training refuses it with the arithmetic.

    Args:
        recipe: The recipe.
        scale: Name of the scale; others than these keep their recipes.
        backbone: Name of the backbone; its sizes decide, not its name.

    Raises:
        UnknownNameError, ModelNotFoundError: No such scale or backbone.
    """
    if get_scale(scale).name in RECORDED:
        return Recipe(stages=tuple(stage.model_copy(update={"compiled": not stage.frozen}) for stage in recipe.stages))
    memory = DEVICE.get(scale)
    if memory is None:
        return recipe
    return Recipe(stages=tuple(_fitted(stage, backbone, memory) for stage in recipe.stages))


def _fitted(stage: Stage, backbone: str, memory: int) -> Stage:
    columns = COLUMNS.get(stage.objective, 2 + (stage.negatives or 0))
    cached = stage.objective not in ("mntp", "reconstruction", "llama2vec", "state-distillation") and stage.options.get(
        "in_batch", True
    )
    for checkpointing in (stage.gradient_checkpointing, True):
        stage = stage.model_copy(update={"gradient_checkpointing": checkpointing})
        if memory_needed(stage, backbone, stage.batch_size * columns) <= _FREE * memory:
            return stage
    rows = stage.batch_size
    together = 1 if cached else columns  # GradCache computes one column after another
    while rows % 2 == 0 and memory_needed(stage, backbone, rows * together) > _FREE * memory:
        rows //= 2
    if cached:
        return stage.model_copy(update={"options": {**stage.options, "mini_batch_size": rows}})
    return stage.model_copy(update={"accumulation": stage.batch_size // rows})


def memory_needed(stage: Stage, backbone: str, texts: int) -> int:
    """Bytes that a stage takes on a device in bfloat16: weights, gradients, optimizer, and activations.

    Args:
        stage: The stage; whether it has adapters and checkpoints, and its longest input, decide.
        backbone: Name of the backbone.
        texts: Texts of the longest length whose activations are kept at once.

    Raises:
        UnknownNameError, ModelNotFoundError: No such backbone.
    """
    parameters, config = _sizes(backbone)
    # Frozen weights take 2 bytes. Those that train take 16, as in training.devices, and autocast keeps a copy of 2.
    weights = parameters * (2 if stage.adapter or stage.frozen or stage.context_alone else 18)
    layer, layers = bytes_a_token(config, adapted=stage.adapter is not None), config.num_hidden_layers
    kept = layers * 4 * config.hidden_size + layer if stage.gradient_checkpointing else layers * layer
    return weights + texts * stage.max_length * kept


def bytes_a_token(config: PreTrainedConfig, adapted: bool) -> int:
    """Bytes of activations that one layer keeps of a token for the backward pass, under autocast to bfloat16.

    Args:
        config: Of the decoder: one of Llama's kind, whose MLP has a gate.
        adapted: Whether its weights are in bfloat16, with adapters on the attention's projections, and not float32.
    """
    width, heads = config.hidden_size, config.num_attention_heads
    dim = getattr(config, "head_dim", None) or width // heads
    # Counted in the tensors that autograd saves, in float32 or in bfloat16: the inputs of norms and projections,
    # queries, keys, values and the outputs of attention, and what the MLP multiplies.
    at_width, inside, a_head = (14, 6, 6) if adapted else (26, 8, 4)
    attention = (a_head * heads + 4 * config.num_key_value_heads) * dim
    return at_width * width + inside * config.intermediate_size + attention


@lru_cache
def _sizes(backbone: str) -> tuple[int, PreTrainedConfig]:
    """Number of parameters and configuration of a backbone, without its weights."""
    import torch
    from transformers import AutoModel

    config = backbones.load_config(backbone)
    with torch.device("meta"):
        return AutoModel.from_config(config).num_parameters(), config
