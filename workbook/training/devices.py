"""The processes and devices of a training: what they can serve, and what they must agree on."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object, parse_flag_from_env
from torch import nn

from ..errors import InvalidValueError, TrainingError
from ..files import check_room, make_folder
from ..objectives import get
from ..objectives.head import LMHeadObjective

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .recipe import Stage

_SHARDING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}
"""What a launcher says of models that it would divide, by the variable that says it."""

_TRAINED = 16
"""Bytes of an entry that trains, all float32: the weight, its gradient, and the two moments of AdamW."""

_SAVED = 12
"""Bytes of such an entry in a checkpoint, which has no gradients."""

_CHECKPOINTS = 3
"""Of a stage at a time: two are kept while the next is written."""


@atexit.register
def _end_process_group() -> None:
    """Leave the other processes in order: a thread of a group that is left open can abort an interpreter as it ends.

    Such a thread may let go of the last tensor that was sent when there is no interpreter any more to free it.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()  # what still holds the group
        torch.distributed.destroy_process_group()


def take_device(cpu: bool = False) -> PartialState:
    """Let this process take its device, before anything lies on one.

    Args:
        cpu: Whether it computes on the CPU, whatever else is there.

    Raises:
        InvalidValueError: A launcher that divides the model: adapters, checkpoints and measurements need it whole.
    """
    for flag, name in _SHARDING.items():
        if parse_flag_from_env(flag):
            raise InvalidValueError(
                "launcher", "processes that hold the whole model each", name,
                "Run `accelerate config` again without it, or `accelerate launch --multi_gpu`.",
            )  # fmt: skip
    return PartialState(cpu=cpu)


def check_memory(model: SentenceTransformer, stage: Stage) -> None:
    """Refuse a stage whose weights alone, with gradients and optimizer, are more than a device holds.

    Activations come on top of that: a stage that passes may still be too large.

    Args:
        model: A chain that begins with a Decoder, not prepared.
        stage: The stage.

    Raises:
        InvalidValueError: Too little memory; the message has the arithmetic.
    """
    trained, kept = weights(model, stage)
    needed, there = _TRAINED * trained + kept, memory(model.device)
    if there is not None and needed > there:
        raise InvalidValueError(
            "memory",
            f"{needed / 1e9:,.1f} GB on each device, and more for activations: {_TRAINED} bytes for each of "
            f"{trained:,} numbers that train (float32: weight, gradient, two moments of AdamW), and {kept / 1e9:,.1f} "
            "GB of weights that don't",
            f"{there / 1e9:,.1f} GB",
            "Train adapters, or a smaller backbone, or take a larger device; a model is not divided over devices.",
        )


@contextlib.contextmanager
def told_of_memory(stage: Stage, device: torch.device) -> Iterator[None]:
    """Say what would need less memory where a device runs out of it.

    Args:
        stage: The stage that trains in the block.
        device: The device.

    Raises:
        TrainingError: It did.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"Stage {stage.name}: expected a batch of {stage.batch_size} rows of at most {stage.max_length} tokens "
            f"to fit {device}, got: {str(error).partition('.')[0]}. Way out: --set {stage.name}.batch_size or "
            f"max_length lower, accumulation higher, or {stage.name}.gradient_checkpointing=true."
        ) from error


def check_disk(model: SentenceTransformer, stage: Stage, folder: Path) -> None:
    """Refuse a stage whose checkpoints are more than the disk holds.

    Args:
        model: A chain that begins with a Decoder, not prepared.
        stage: The stage.
        folder: Where they are written; what lies there already has its room.

    Raises:
        OutputError: Too little room; the message has the arithmetic.
    """
    trained, _ = weights(model, stage)
    before = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    check_room(
        folder,
        _CHECKPOINTS * _SAVED * trained - before,
        f"stage {stage.name} ({_CHECKPOINTS} checkpoints at a time, {_SAVED} bytes for each of {trained:,} numbers "
        "that train)",
        "Make room, or set WORKBOOK_CACHE to a folder on a larger disk.",
    )


def weights(model: SentenceTransformer, stage: Stage) -> tuple[int, int]:
    """The weights of a stage: how many numbers train, and the bytes of those that don't.

    Args:
        model: A chain that begins with a Decoder, not prepared.
        stage: The stage.
    """
    module, kind = model[0], get(stage.objective)
    parts = {name: getattr(module, name) for name in module.adapted}
    still = stage.adapter or stage.frozen or stage.context_alone
    frozen = {id(p) for part in parts.values() for p in part.parameters()} if still else set()
    parameters = {id(p): p for p in model.parameters()}.values()
    trains = [p.requires_grad and id(p) not in frozen for p in parameters]
    trained = sum(p.numel() for p, does in zip(parameters, trains, strict=True) if does)
    kept = sum(p.nbytes for p, does in zip(parameters, trains, strict=True) if not does)
    for part in parts.values() if stage.adapter else ():
        for name, layer in part.named_modules():
            chosen = part is not module.decoder or name.rpartition(".")[2] in stage.adapter.targets
            if isinstance(layer, nn.Linear) and chosen:
                trained += stage.adapter.rank * (layer.in_features + layer.out_features)
    config = module.decoder.config
    if issubclass(kind, LMHeadObjective) and not config.tie_word_embeddings:
        head = config.vocab_size * config.hidden_size
        if kind.validated(stage.options).train_head:
            trained += head
        else:
            # It takes the decoder's dtype, which is float32 where all of that trains.
            kept += head * (module.decoder.dtype if stage.adapter else torch.float32).itemsize
    return trained, kept


def memory(device: torch.device) -> int | None:
    """Bytes of a device's memory, used or not; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total if device.type == "cpu" else None


def shared(folder: Path) -> bool:
    """True if all processes see one and the same folder; on several machines each may have one of its own.

    Args:
        folder: The folder, created if absent.

    Raises:
        OutputError: It can't be written.
    """
    state, name = PartialState(), [uuid.uuid4().hex]
    if state.num_processes == 1:
        return True
    broadcast_object_list(name)
    mark = folder / f".{name[0]}"
    if state.is_main_process:
        make_folder(folder)
        mark.touch()
    state.wait_for_everyone()
    seen = all(gather_object([os.path.exists(mark)]))
    if state.is_main_process:
        mark.unlink()
    return seen
