"""Saving and loading modules that have weights of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules.module import Module

from .. import backbones
from ..checksums import verify_checksums, write_checksums
from ..errors import DamagedFileError, InvalidValueError, UnknownNameError
from ..files import writing

WEIGHTS = "model.safetensors"
_FETCHING = ("token", "cache_folder", "revision", "local_files_only")
_PLACED = "A model lies whole, in full precision, on the device that device= names."


def hub_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The loading options of a module that say how its files are fetched from a hub."""
    return {name: options[name] for name in _FETCHING if name in options}


def loading_options(
    model_kwargs: Mapping[str, Any] | None = None,
    processor_kwargs: Mapping[str, Any] | None = None,
    config_kwargs: Mapping[str, Any] | None = None,
    backend: str = "torch",
) -> dict[str, Any]:
    """The options of ``SentenceTransformer(folder, ..)`` that a decoder honours; all others are refused by name.

    Args:
        model_kwargs: ``dtype`` (``auto`` for the saved one) and ``attn_implementation``. ``use_safetensors`` can only
            be True: no other weights are saved.
        processor_kwargs: ``padding_side``, ``left`` or ``right``.
        config_kwargs: Nothing: the configuration belongs to the weights.
        backend: ``torch``.

    Returns:
        Those of ``dtype``, ``attn_implementation`` and ``padding_side`` that say something.

    Raises:
        UnknownNameError: An option that is not honoured.
        InvalidValueError: Another backend, padding side or format of weights.
    """
    if backend != "torch":
        raise InvalidValueError("backend", "torch, the only one that runs these modules", backend)
    fetching = (*_FETCHING, "trust_remote_code")  # added by sentence-transformers; see is_converted
    model_kwargs, processor_kwargs, config_kwargs = (
        {name: value for name, value in (given or {}).items() if name not in fetching}
        for given in (model_kwargs, processor_kwargs, config_kwargs)
    )
    for name, given, known, hint in (
        ("model_kwargs", model_kwargs, ("dtype", "attn_implementation", "use_safetensors"), _PLACED),
        ("processor_kwargs", processor_kwargs, ("padding_side",), "For the longest input set model.max_seq_length."),
    ):
        for option in given:
            if option not in known:
                raise UnknownNameError(f"option in {name}", option, known, hint)
    if config_kwargs:
        hint = "The configuration belongs to the weights; build another model with workbook.build."
        raise InvalidValueError("config_kwargs", "nothing", config_kwargs, hint)
    options = model_kwargs | processor_kwargs
    if (safe := options.pop("use_safetensors", None)) not in (None, True):
        raise InvalidValueError("use_safetensors", "True: weights are read as safetensors alone", safe)
    options = {name: value for name, value in options.items() if value not in (None, "auto")}
    if (side := options.get("padding_side", "right")) not in ("left", "right"):
        raise InvalidValueError("padding_side", "left or right", side)
    return options


def is_converted(model_kwargs: Mapping[str, Any] | None) -> bool:
    """Whether sentence-transformers turns the model into one of another type, such as a SparseEncoder.

    It then adds to the options of each part how files are fetched.

    Args:
        model_kwargs: As a module's ``load`` gets them.
    """
    return "trust_remote_code" in (model_kwargs or {})


class SavedModule(Module):
    """A module that saves its weights and its configuration as files with checksums."""

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write weights (safetensors) and configuration, with their checksums.

        Args:
            output_path: The folder.
            *args, **kwargs: Ignored.

        Raises:
            OutputError: The folder can't be written.
        """
        with writing(Path(output_path)):
            self.save_config(output_path)
            save_file(
                {name: value.contiguous() for name, value in self.state_dict().items()}, Path(output_path, WEIGHTS)
            )
            write_checksums(Path(output_path))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:
        """Load from a folder or the hub.

        Args:
            model_name_or_path: The folder of a model, or its name on the hub.
            subfolder: The module's folder in it.
            **kwargs: Options for fetching files from the hub, such as ``revision``; others are ignored.

        Raises:
            DamagedFileError: A file does not match its checksum or can't be read, or the weights have other names or
                shapes.
        """
        hub = hub_options(kwargs)
        folder = Path(cls.load_dir_path(model_name_or_path, subfolder=subfolder, **hub))
        verify_checksums(folder, "Save the model again, or copy it again from its source.")
        with backbones.loading(folder, f"a saved {cls.__name__}"):
            weights = load_file(folder / WEIGHTS)
        module = cls._unfilled(cls.load_config(model_name_or_path, subfolder=subfolder, **hub), weights)
        module.load_weights(weights, str(folder / WEIGHTS))
        return module

    @classmethod
    def _unfilled(cls, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Self:
        """The module, before its weights are loaded; they give the sizes that the configuration does not hold."""
        return cls(**config)

    def load_weights(self, weights: dict[str, torch.Tensor], source: str, *, assign: bool = False) -> None:
        """Take over weights of the same names and shapes.

        Args:
            weights: Tensors by name.
            source: Where they are from, for the error.
            assign: Whether to take the tensors themselves, in their dtype; otherwise their values are copied.

        Raises:
            DamagedFileError: Other names or shapes.
        """
        try:
            self.load_state_dict(weights, assign=assign)
        except RuntimeError as error:
            raise DamagedFileError(f"{source}: expected the weights of {type(self).__name__}: {error}") from error
