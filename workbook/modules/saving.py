"""Saving and loading modules that have weights of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules.module import Module

from .. import backbones
from ..errors import DamagedFileError
from ..files import verify_checksums, write_checksums, writing

WEIGHTS = "model.safetensors"


def hub_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The loading options of a module that say how its files are fetched from a hub."""
    return {
        name: options[name] for name in ("token", "cache_folder", "revision", "local_files_only") if name in options
    }


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

    def load_weights(self, weights: dict[str, torch.Tensor], source: str) -> None:
        """Take over weights of the same names and shapes.

        Args:
            weights: Tensors by name.
            source: Where they are from, for the error.

        Raises:
            DamagedFileError: Other names or shapes.
        """
        try:
            self.load_state_dict(weights)
        except RuntimeError as error:
            raise DamagedFileError(f"{source}: expected the weights of {type(self).__name__}: {error}") from error
