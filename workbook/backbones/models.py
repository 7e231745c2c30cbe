"""Loading decoders, heads, tokenizers and encoders, with the device, dtype and kernel that suit the machine."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import textwrap
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFileError, InvalidValueError, ModelNotFoundError, WorkbookError
from ..tiny import TINY, tiny_config, tiny_tokenizer
from .folders import CARRIED, resolve, shown

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

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

    from .. import quantized  # noqa: F401  # so that transformers can load what was quantized

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
                    model = factory.from_config(config, dtype=dtype, attn_implementation=attn_implementation)
                    # Drawn in float32 and rounded: torch draws other numbers in half precision.
                    torch.default_generator.manual_seed(0)
                    model.load_state_dict(factory.from_config(load_config(name), dtype=torch.float32).state_dict())
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
