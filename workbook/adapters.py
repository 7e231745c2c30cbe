"""Low-rank adapters of a decoder, as peft saves them: loaded from a folder or the Hub, and merged into its weights."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import backbones
from .checksums import verify_checksums
from .errors import DamagedFileError, InvalidValueError, MissingDataError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS = "adapter_model.safetensors"
_HEADED = {r"^model\.": ""}
"""What peft takes from the names of layers of a language model that was adapted with its head."""


def with_adapters(
    decoder: PreTrainedModel, adapters: str | os.PathLike | Sequence[str | os.PathLike]
) -> PreTrainedModel:
    """A decoder with adapters merged into its weights, one after the other.

    As after a stage of training, each sum is made in float32 and rounded once, to the decoder's dtype. Which backbone,
    and which adapters before it, an adapter was trained on can't be seen in it: the caller names them.

    Args:
        decoder: A transformers decoder without its language-model head; it changes.
        adapters: A folder that peft wrote, or a Hugging Face id, or several in the order of their training.

    Raises:
        MissingDataError: No adapter in the folder.
        ModelNotFoundError: A Hub adapter that can't be fetched.
        InvalidValueError: Not an adapter's name, or an adapter of another architecture or size, or of another kind than
            LoRA.
        DamagedFileError: A file does not match its checksum, or can't be read.
    """
    for one in listed(adapters):
        dtype = decoder.dtype
        decoder = _merged(decoder.float(), _folder(one)).to(dtype)
    return decoder.eval().requires_grad_(True)


def listed(adapters: str | os.PathLike | Sequence[str | os.PathLike]) -> list[str]:
    """Names of adapters, one or several, as a list.

    Args:
        adapters: As of :func:`with_adapters`.

    Raises:
        InvalidValueError: Something else than names.
    """
    names = [adapters] if isinstance(adapters, str | os.PathLike) else adapters
    if not isinstance(names, Sequence) or not all(isinstance(one, str | os.PathLike) and str(one) for one in names):
        raise InvalidValueError("adapter", "a folder that peft wrote, a Hugging Face id, or several", adapters)
    return [*map(os.fspath, names)]


def _folder(name: str) -> Path:
    """The folder of an adapter, checked, downloaded where needed."""
    folder = Path(name).expanduser()
    if not os.path.isdir(folder):
        if name.count("/") != 1 or name.startswith((".", "/", "~")):
            raise MissingDataError(
                f"Expected an adapter in the folder {folder}, found no folder. Name one that exists."
            )
        folder = backbones.hub_folder(name, lambda found: (found / WEIGHTS).is_file())
    for file in ("adapter_config.json", WEIGHTS):
        if not (folder / file).is_file():
            raise MissingDataError(
                f"Expected an adapter in {folder}, with adapter_config.json and {WEIGHTS}, found no {file}. Name the "
                "folder that peft's save_pretrained, or the command adapters, wrote (weights are read from safetensors "
                "alone)."
            )
    verify_checksums(folder, "Export the adapter again, or copy it again from its source.")
    return folder


def _merged(decoder: PreTrainedModel, folder: Path) -> PreTrainedModel:
    import peft

    with backbones.loading(folder, "an adapter that peft can load"):
        config = peft.PeftConfig.from_pretrained(str(folder))
    if not isinstance(config, peft.LoraConfig):
        raise InvalidValueError(f"adapter {folder}", "low-rank adapters (LoRA)", str(config.peft_type))
    config.inference_mode = True
    try:
        with warnings.catch_warnings():
            # peft's own calls of what transformers renamed.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
            adapted = peft.PeftModel(decoder, config)
        found = adapted.load_adapter(str(folder), "default", torch_device=str(decoder.device), key_mapping=_HEADED)
    except (ValueError, RuntimeError) as error:  # no such layers, or layers of another size
        reason = str(error).strip().splitlines()[-1].strip()
        raise _foreign(folder, decoder, reason) from error
    except OSError as error:
        raise DamagedFileError(f"{folder}: expected weights of an adapter: {error}") from error
    missing = [name for name in found.missing_keys if "lora_" in name]
    if missing or found.unexpected_keys:
        raise _foreign(folder, decoder, f"it has no {missing[0]}" if missing else f"it has {found.unexpected_keys[0]}")
    return adapted.merge_and_unload()


def _foreign(folder: Path, decoder: PreTrainedModel, reason: str) -> InvalidValueError:
    return InvalidValueError(
        "adapter", f"one that was trained on this backbone ({type(decoder).__name__})", str(folder),
        f"Name the backbone that it was trained on. ({reason})",
    )  # fmt: skip
