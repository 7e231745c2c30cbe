"""Loading a saved embedder, without running code that comes with it."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.module import Module

from .. import backbones
from ..errors import InvalidValueError, UnknownNameError
from .context_length import check_loaded
from .contextual import ContextualDecoder


def load_embedder(folder: str | os.PathLike, *, trust_remote_code: bool = False, **options: Any) -> SentenceTransformer:
    """A saved model, made of this library's modules and of sentence-transformers' own.

    A folder names the classes of its modules. ``SentenceTransformer(folder)`` refuses this library's classes, and with
    ``trust_remote_code`` it accepts any, even the folder's own Python files. A warning says when a contextual token is
    far from as long as a word: a sink may have its place.

    Args:
        folder: As ``model.save`` wrote it.
        trust_remote_code: Whether to run the folder's own code and that of other packages it names.
        **options: Options of ``SentenceTransformer``, such as ``device``.

    Raises:
        InvalidValueError: The model needs other code, which was not allowed (the message names the class), or a device
            that is not there.
        UnknownNameError: An option that the model does not honour; see :func:`~.saving.loading_options`.
        DamagedFileError: A file can't be read, or its content is not what was saved.

    Examples:
        >>> import tempfile, workbook
        >>> folder = tempfile.mkdtemp()
        >>> workbook.build("mean", "tiny-llama").save(folder)
        >>> load_embedder(folder).encode(["one text"]).shape
        (1, 32)
    """
    folder = Path(folder)
    backbones.capability(options.get("device"))  # refuses one that is not there
    known = {*inspect.signature(SentenceTransformer.__init__).parameters} - {"self", "model_name_or_path", "modules"}
    if unknown := sorted({*options} - known):
        raise UnknownNameError("option of load_embedder", unknown[0], sorted(known))
    model_kwargs = {"use_safetensors": True} | (options.pop("model_kwargs", None) or {})  # nothing is unpickled
    with backbones.loading(folder, "a model that sentence-transformers can load", backbones.TRUST):
        if not trust_remote_code:
            _refuse_activations(folder)
        # Classes that are given are not looked up by name; sentence-transformers itself refuses all others.
        model = SentenceTransformer._load_with_module_classes(
            str(folder),
            dict(_own(Module)),
            trust_remote_code=trust_remote_code,
            model_kwargs=model_kwargs,
            **options,
        )
    if isinstance(first := next(iter(model), None), ContextualDecoder):
        check_loaded(first)
    return model


def _own(kind: type[Module]) -> Iterator[tuple[str, type[Module]]]:
    """This library's modules by their names in saved models."""
    for one in kind.__subclasses__():
        if one.__module__.startswith("workbook."):
            yield f"{one.__module__}.{one.__qualname__}", one
        yield from _own(one)


def _refuse_activations(folder: Path) -> None:
    """Refuse activations of other packages, which sentence-transformers would replace by its default."""
    for file in sorted(folder.rglob("config.json")):
        name = str(json.loads(file.read_text(encoding="utf-8")).get("activation_function", ""))
        if "." in name and not name.startswith("torch."):
            raise InvalidValueError(str(file), "an activation_function of torch", name, backbones.TRUST)
