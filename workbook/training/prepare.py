"""Preparing a model for one stage, restoring it afterwards, and checking a stage before it trains."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import peft
import torch
from torch import nn

from ..attention import MASKED
from ..checksums import write_checksums
from ..errors import InvalidValueError, UnknownNameError
from ..objectives import get, set_attention_dropout
from ..resolved import digest, resolved_options
from .masked import MaskedLora, masked
from .states import read_once, weights_sha256

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..data.rows import TrainingData
    from .batches import Batches
    from .recipe import Adapter, Stage


@contextlib.contextmanager
def prepared(model: SentenceTransformer, stage: Stage, seed: int) -> Iterator[None]:
    """Prepare a model to train in the block; then merge adapters and restore dtype, kernel, dropout and
    limits.

    All that trains is held in float32. The transformers get their own dtype back; what trains beside them, such as a
    pooling with weights, keeps float32, since it is small, and would lose the updates of a stage again.

    Frozen weights stay frozen. If the block fails, adapters are dropped and the decoder is as it was before the stage,
    unless it was trained as a whole.

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
        if stage.context_alone:
            model.requires_grad_(False)
            module.context.requires_grad_(True)
        if stage.frozen:
            module.requires_grad_(False)
        elif decoder.device.type == "cpu":
            decoder.set_attn_implementation("eager")  # faster than sdpa where there is a gradient
        elif get(stage.objective).own_attention and kernel not in MASKED:
            decoder.set_attn_implementation("sdpa")
        # In half precision small updates round to nothing.
        inside = {id(parameter) for part in parts.values() for parameter in part.parameters()}
        for parameter in model.parameters():
            if parameter.requires_grad and id(parameter) not in inside:
                parameter.data = parameter.data.float()
        for name, part in parts.items():
            if stage.adapter is None and not (stage.frozen or stage.context_alone):
                part.float()
            elif stage.adapter:
                # The names of layers are the decoder's; an encoder has others, and gets one on each linear layer.
                targets = list(stage.adapter.targets) if part is decoder else "all-linear"
                setattr(module, name, _adapted(part, stage.adapter, targets, seed))
        if stage.gradient_checkpointing:
            decoder.activation_checkpointing_enable({"use_reentrant": False})
        with contextlib.ExitStack() as stack:
            if stage.compiled:
                stack.enter_context(_compiled(decoder))
            if stage.frozen:
                stack.enter_context(read_once(module))
            yield
        merged = True
    finally:
        for name, part in parts.items():
            if (adapted := getattr(module, name)) is not part:
                setattr(module, name, adapted.merge_and_unload() if merged else adapted.unload())
            part.to(dtypes[name])
        if stage.gradient_checkpointing:
            decoder.activation_checkpointing_disable()
            decoder.disable_input_require_grads()  # transformers leaves its hook, beside which no prefix is kept
        set_attention_dropout(decoder, 0.0)
        decoder.set_attn_implementation(kernel)
        model.requires_grad_(True).eval()
        for parameter in frozen:
            parameter.requires_grad_(False)
        module.max_length = length


@contextlib.contextmanager
def _compiled(decoder: nn.Module) -> Iterator[None]:
    """Compile the layers of a decoder in the block, for any number of rows and tokens."""
    # All layers share their code, which is compiled anew with and without gradient, mask, training and autocast.
    with torch._dynamo.config.patch(recompile_limit=64):
        for layer in decoder.layers:
            layer.forward = torch.compile(layer.forward, dynamic=True)
        try:
            yield
        finally:
            for layer in decoder.layers:
                del layer.forward


def _adapted(transformer: nn.Module, adapter: Adapter, targets: list[str] | str, seed: int) -> peft.PeftModel:
    config = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=targets,
    )
    if adapter.keep_zeros:
        masked(config)
    device = transformer.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        return peft.get_peft_model(transformer, config)


def save_adapters(model: SentenceTransformer, folder: Path) -> None:
    """Write the adapters of a prepared model, each into a folder with the name of its transformer, as peft does.

    Args:
        model: A model within :func:`prepared`.
        folder: Gets nothing if no adapters train, or if they keep zeros: those are no adapters to others.
    """
    for name in model[0].adapted:
        adapted = getattr(model[0], name)
        if isinstance(adapted, peft.PeftModel) and not any(isinstance(one, MaskedLora) for one in adapted.modules()):
            # An adapter has no embeddings, and peft would ask the Hub whether they were resized.
            adapted.save_pretrained(str(folder / name), save_embedding_layers=False)
            write_checksums(folder / name, ("*.safetensors", "*.json"))


def check(
    model: SentenceTransformer,
    stage: Stage,
    data: TrainingData,
    batches: Batches,
    teacher: SentenceTransformer | None = None,
) -> None:
    """Refuse a stage that would fail, before anything trains; the model is left as it was.

    Args:
        model: A chain that begins with a Decoder.
        stage: The stage; its objective is made and dropped, its adapter targets are looked up.
        data: One text of each data set, column and instruction is laid out at the stage's ``max_length``.
        batches: What its batches hold.
        teacher: For an objective that learns from the states of another model.

    Raises:
        UnknownNameError: No such objective, option or choice, or an adapter for a layer that the decoder does not have.
        InvalidValueError: An option outside its range, a batch that holds no negative, an instruction that leaves no
            room, a teacher without candidates to score, or layers to compile where there is no compiler.
        AttentionError: Dropout that the decoder does not apply.
    """
    module = model[0]
    decoder, length = module.decoder, module.max_length
    if stage.frozen and module.contextual_tokens:
        raise InvalidValueError("frozen", "a decoder that reads text alone", "one that reads contextual tokens")
    if (stage.context_alone or stage.context_rate != 1) and not module.contextual_tokens:
        name = "context_alone" if stage.context_alone else "context_rate"
        raise InvalidValueError(name, "a decoder that reads contextual tokens", "one that reads text alone")
    if stage.compiled and decoder.device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        hint = f"Install one, or set {stage.name}.compiled=false."
        raise InvalidValueError("compiled", "a C++ compiler on the path, as torch.compile needs one", "none", hint)
    linear = {name.rpartition(".")[2] for name, layer in decoder.named_modules() if isinstance(layer, nn.Linear)}
    for target in stage.adapter.targets if stage.adapter else ():
        if target not in linear:  # peft passes over a name that it does not find, as long as it finds another
            raise UnknownNameError("adapter target", target, sorted(linear))
    kind = get(stage.objective)
    try:
        loss = kind(model, **kind.stand_ins(model), **stage.options, **({"teacher": teacher} if kind.states else {}))
    finally:
        set_attention_dropout(decoder, 0.0)
    taught = [name for name in data.datasets if name not in batches.others]
    if stage.teacher and (not kind.teacher or any(len(data.texts(name)) < 3 for name in taught)):
        got = "pairs without hard negatives" if kind.teacher else stage.objective
        raise InvalidValueError("teacher", "a contrastive stage whose data has hard negatives to score", got)
    if stage.teacher and not taught:
        raise InvalidValueError("teacher", "rows of retrieval, which alone are scored beside others", "none")
    if kind.reads == "chunks":  # laid out by no template
        if module.contextual_tokens:
            raise InvalidValueError(
                "objective", "one that reads texts, where an encoder reads them too", stage.objective,
                "Train the decoder first, without contextual tokens.",
            )  # fmt: skip
        return
    for name in data.datasets:
        if batches.mixed:
            loss.in_batch = batches.others.get(name, loss.options.in_batch)
        loss.check_batch(batches.rows[name], len(data.texts(name)))
    module.max_length = stage.max_length
    try:
        for text, instruction in data.examples():
            module.encode_texts([text], instruction)
    finally:
        module.max_length = length


def fingerprint(model: SentenceTransformer) -> str:
    """Hex sha256 of a model as trainings start from it: weights, settings, and the names of what is frozen.

    Args:
        model: A chain that begins with a Decoder.
    """
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    settings = [resolved_options(type(module).__name__, module.get_config_dict()) for module in list(model)[1:]]
    return digest([weights_sha256(model), [model[0].resolved(), settings, frozen]])
