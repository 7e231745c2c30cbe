"""A model made ready for one stage, and put back afterwards; the stage's objective; and a check of both."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import peft
import torch
from accelerate import PartialState
from torch import nn

from ..errors import InvalidValueError, UnknownNameError
from ..objectives import OBJECTIVES, Contrastive, set_attention_dropout
from ..objectives.head import Predicting

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .data import TrainingData
    from .recipe import Adapter, Stage


@contextlib.contextmanager
def prepared(model: SentenceTransformer, stage: Stage, seed: int) -> Iterator[None]:
    """The model ready to train, and back: adapters merged, dtype, dropout and limits as they were.

    What is frozen stays frozen. Where the block fails, adapters are dropped and the decoder is as it was before the
    stage; one that was trained whole is not.

    Args:
        model: A chain that begins with a Decoder.
        stage: Says what trains, and how.
        seed: Of fresh adapters.
    """
    module = model[0]
    decoder = module.decoder
    parts = {name: getattr(module, name) for name in module.adapted}
    dtypes = {name: part.dtype for name, part in parts.items()}
    kernel, length = decoder.config._attn_implementation, module.max_length
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    merged = False
    try:
        module.max_length = stage.max_length
        if decoder.device.type == "cpu":
            decoder.set_attn_implementation("eager")  # faster than sdpa where there is a gradient
        for name, part in parts.items():
            if stage.adapter is None:
                part.float()  # in half precision small updates round to nothing
            else:
                # The names of layers are the decoder's; an encoder has others, and gets one on each linear layer.
                targets = list(stage.adapter.targets) if part is decoder else "all-linear"
                setattr(module, name, _adapted(part, stage.adapter, targets, seed))
        if stage.gradient_checkpointing:
            decoder.activation_checkpointing_enable({"use_reentrant": False})
        yield
        merged = True
    finally:
        for name, part in parts.items():
            if (adapted := getattr(module, name)) is not part:
                setattr(module, name, adapted.merge_and_unload() if merged else adapted.unload())
            part.to(dtypes[name])
        if stage.gradient_checkpointing:
            decoder.activation_checkpointing_disable()
        set_attention_dropout(decoder, 0.0)
        decoder.set_attn_implementation(kernel)
        model.requires_grad_(True).eval()
        for parameter in frozen:
            parameter.requires_grad_(False)
        module.max_length = length


def _adapted(transformer: nn.Module, adapter: Adapter, targets: list[str] | str, seed: int) -> peft.PeftModel:
    config = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=targets,
    )
    device = transformer.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        return peft.get_peft_model(transformer, config)


def objective(stage: Stage) -> Callable[..., nn.Module]:
    """What makes the objective of a stage for a model, its name and the names of its options checked.

    Raises:
        UnknownNameError: No such objective, or an option that it does not take.
    """
    if stage.objective not in OBJECTIVES:
        raise UnknownNameError("objective", stage.objective, OBJECTIVES)
    kind = OBJECTIVES[stage.objective]
    # SimCSE passes on what it does not know itself, so the options are those of all its bases.
    family = [base for base in kind.__mro__ if base.__module__ == kind.__module__]
    known = {name for base in family for name in inspect.signature(base.__init__).parameters}
    known -= {"self", "model", "head", "generator", "gather_across_devices", "options"}
    for option in stage.options:
        if option not in known:
            raise UnknownNameError(f"option of {stage.objective}", option, sorted(known))

    def make(model: SentenceTransformer, **given: nn.Module) -> nn.Module:
        options = dict(stage.options) | given
        if issubclass(kind, Contrastive):  # negatives are those of the whole batch, on however many devices it lies
            options["gather_across_devices"] = PartialState().num_processes > 1
        return kind(model, **options)

    return make


def check(model: SentenceTransformer, stage: Stage, data: TrainingData, rows: int) -> None:
    """Refuse, before anything trains, what a stage would fail at; the model is left as it was.

    Args:
        model: A chain that begins with a Decoder.
        stage: Its objective is made and dropped, its adapters are looked for.
        data: One text of each data set, column and instruction is laid out at the stage's ``max_length``.
        rows: Of a micro-batch, over all devices.

    Raises:
        UnknownNameError: An adapter for a layer that the decoder has not, or an option's value that does not exist.
        InvalidValueError: An option out of its range, a batch that holds no negative, an instruction without room, or
            nothing that a teacher could score.
        AttentionError: Dropout that the decoder does not apply.
    """
    module = model[0]
    decoder, length = module.decoder, module.max_length
    linear = {name.rpartition(".")[2] for name, layer in decoder.named_modules() if isinstance(layer, nn.Linear)}
    for target in stage.adapter.targets if stage.adapter else ():
        if target not in linear:  # peft passes over a name that it does not find, as long as it finds another
            raise UnknownNameError("adapter target", target, sorted(linear))
    make, given = objective(stage), {}
    if issubclass(OBJECTIVES[stage.objective], Predicting) and not decoder.config.tie_word_embeddings:
        # The real head would take a whole language model from disk.
        given["head"] = nn.Linear(decoder.config.hidden_size, 1, bias=False, device="meta")
    try:
        loss = make(model, **given)
    finally:
        set_attention_dropout(decoder, 0.0)
    if stage.teacher and (stage.objective != "contrastive" or any(d.num_columns < 3 for d in data.datasets.values())):
        got = stage.objective if stage.objective != "contrastive" else "pairs without hard negatives"
        raise InvalidValueError("teacher", "a contrastive stage whose data has hard negatives to score", got)
    if stage.objective == "mntp":  # its chunks are laid out by no template
        if module.contextual_tokens:
            raise InvalidValueError(
                "objective", "one that reads texts, where an encoder reads them too", "mntp",
                "Train the decoder first, without contextual tokens.",
            )  # fmt: skip
        return
    for dataset in data.datasets.values():
        loss.check_batch(rows, dataset.num_columns)
    module.max_length = stage.max_length
    try:
        for text, instruction in data.examples():
            module.encode_texts([text], instruction)
    finally:
        module.max_length = length
