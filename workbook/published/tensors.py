"""The tensors of a published checkpoint, before any of them is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open

from .. import backbones
from ..errors import DamagedFileError, ModelNotFoundError

HEAD = "lm_head.safetensors"
"""File of LENS' head of clusters, if it is not among the tensors of the decoder."""

_CONVERT = (
    'python -c "import torch, safetensors.torch as s; torch.serialization.add_safe_globals([torch.nn.Linear]); '
    "s.save_file({'lm_head.weight': torch.load('lm_head.pth', 'cpu').weight.detach()}, 'lm_head.safetensors')\""
)
"""Command that makes :data:`HEAD` of the published ``lm_head.pth``, by torch's reader of a few known classes."""

WAY_OUT = "Get the checkpoint again from its source."
_UNUSED = re.compile(r"rotary_emb\.inv_freq$")  # computed from the configuration, which older files hold all the same
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Tensor(NamedTuple):
    """A tensor of a checkpoint, unread.

    Attributes:
        shape: Its shape.
        dtype: Its torch dtype; None for one in which no published weights are, such as that of a quantized model.
        file: The file it is in.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    file: Path


def tensors_in(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder's safetensors by name, unread; that of :data:`HEAD` stands for one of its name elsewhere.

    Args:
        folder: The folder. Of a whole file and shards, the whole file counts, as in transformers.

    Raises:
        ModelNotFoundError: No safetensors, or a head that is a pickle alone.
        DamagedFileError: A shard is missing, can't be read, or lacks a tensor that the index has in it.
    """
    index, whole, head = folder / "model.safetensors.index.json", folder / "model.safetensors", folder / HEAD
    pickles = sorted(path.name for pattern in ("*.bin", "*.pth", "*.pt") for path in folder.glob(pattern))
    if not (index.is_file() or whole.is_file()):
        raise ModelNotFoundError(
            f"Expected model.safetensors, or its shards with their index, in {folder}, found "
            f"{f'{pickles[0]}: a pickle can run code, and is not read' if pickles else 'neither'}. "
            "Get the checkpoint's safetensors from its source."
        )
    listed = {} if whole.is_file() else weight_map(index)
    files = sorted({folder / file for file in listed.values()}) if listed else [whole]
    found: dict[str, Tensor] = {}
    for file in [*files, *([head] if head.is_file() else [])]:
        if not file.is_file():
            raise DamagedFileError(f"Expected the shard {file}, which {index.name} names, found no file. {WAY_OUT}")
        with backbones.loading(folder, "tensors"), safe_open(file, "pt") as shard:
            for name in shard.keys():  # noqa: SIM118
                part = shard.get_slice(name)
                found[name] = Tensor(tuple(part.get_shape()), _DTYPES.get(part.get_dtype()), file)
    for name, file in listed.items():
        if name not in found:
            raise DamagedFileError(f"Expected {name} in {folder / file}, as {index.name} says, got none. {WAY_OUT}")
    if "lm_head.pth" in pickles and "lm_head.weight" not in found:
        raise ModelNotFoundError(
            f"Expected LENS' head of clusters in {head}, found lm_head.pth: a pickle can run code, and is not read. "
            f"{conversion().replace('FOLDER', str(folder))}"
        )
    return found


def weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor, by an index of shards.

    Raises:
        DamagedFileError: It is not such an index.
    """
    try:
        return dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{index}: expected an index of tensors, got none ({error!r}). {WAY_OUT}") from error


def compare(folder: Path, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are missing, of another shape or format, or not known.

    Args:
        folder: Where they are.
        expected: Shapes by name.
        found: As of :func:`tensors_in`.

    Raises:
        DamagedFileError: There is one; the message names the first.
    """
    for name, shape in expected.items():
        if name not in found:
            missing = [one for one in expected if one not in found]
            raise DamagedFileError(
                f"Expected {len(expected)} tensors in {folder}, as its config.json says, found none for "
                f"{len(missing)}, the first {name}. {WAY_OUT}"
            )
        if found[name].shape != shape:
            raise DamagedFileError(
                f"Expected {name} of shape {shape} in {folder}, as its config.json says, got {found[name].shape}. "
                f"{WAY_OUT}"
            )
        if found[name].dtype is None:
            raise DamagedFileError(
                f"Expected {name} in {folder} as one of {', '.join(_DTYPES)}, got another format, as of a quantized "
                f"model. {WAY_OUT}"
            )
    unknown = [name for name in sorted(found.keys() - expected.keys()) if not _UNUSED.search(name)]
    if unknown:
        raise DamagedFileError(
            f"Expected no other tensors than those of the published layout in {folder}, got {len(unknown)} more, the "
            f"first {unknown[0]}: left out, they would change what the model computes. {WAY_OUT}"
        )


def conversion(first: str = "") -> str:
    """The way out of a head that is a pickle, for messages.

    Args:
        first: What is done before.
    """
    return f"Convert it once, then import the folder: {first}cd FOLDER; {_CONVERT}"
