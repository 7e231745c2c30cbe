"""Embedders by name: a saved folder, a method on a backbone, a carried encoder, or a model of the Hugging Face Hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import __version__, backbones
from .errors import InvalidValueError, ModelNotFoundError, UnknownNameError
from .methods import METHODS
from .resolved import digest

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

ENCODERS = [name for name, model in backbones.CARRIED.items() if model.kind == "encoder"]
"""The carried models that are embedders as they are."""


class Embedder(NamedTuple):
    """An embedder, and what is known of it.

    Attributes:
        model: The model.
        name: Its name, for tables.
        method: The method by which it was built or trained, if known.
        key: Hash of its content.
        folder: Where a saved model lies.
    """

    model: SentenceTransformer
    name: str
    method: str | None
    key: str
    folder: Path | None = None


def load(
    name: str, *, backbone: str | None = None, device: str | None = None, trust_remote_code: bool = False
) -> Embedder:
    """The embedder of that name.

    Args:
        name: The folder of a saved model; a method, which is built untrained; ``minilm``; or a Hugging Face id.
        backbone: Of a method; None for ``smollm2-135m``.
        device: A torch device; None for the best one.
        trust_remote_code: Whether to run code that a folder brings; see :func:`~.modules.load_embedder`.

    Raises:
        UnknownNameError: No folder, method or carried encoder, and not shaped like a Hugging Face id.
        ModelNotFoundError: A folder or a Hub model that is no embedder, or a model that can't be fetched.
        InvalidValueError: A backbone for what is not a method; or as :func:`~.modules.load_embedder`.
        DamagedFileError: As :func:`~.modules.load_embedder`.
    """
    from .methods import build
    from .modules import load_embedder
    from .training.folder import method_of

    folder = Path(name).expanduser()
    if name in METHODS and not os.path.isdir(folder):
        backbone = backbone or "smollm2-135m"
        return Embedder(build(name, backbone, device=device), name, name, _content(name, backbone))
    if backbone:
        hint = "Other models have their own. Name a method, such as mean."
        got = f"the folder {name}" if os.path.isdir(folder) else name
        raise InvalidValueError("backbone", f"a method beside it, one of {[*METHODS]}", got, hint)
    options = {"device": device, "trust_remote_code": trust_remote_code}
    if os.path.isdir(folder):
        if not (folder / "modules.json").is_file():
            raise ModelNotFoundError(
                f"Expected a saved sentence-transformers model in {folder} (a folder with modules.json), found none. "
                f"Give the folder that training or model.save wrote, or a method: {', '.join(METHODS)}."
            )
        key = backbones.content_sha256(str(folder.resolve()))
        return Embedder(load_embedder(folder, **options), folder.resolve().name, method_of(folder), key, folder)
    if name in backbones.TINY or name in {*backbones.CARRIED} - {*ENCODERS}:
        raise InvalidValueError(
            "model",
            "an embedder",
            f"the language model {name}",
            "Name a method, such as mean, with it as the backbone.",
        )
    if name not in ENCODERS and name.count("/") != 1:
        raise UnknownNameError("model", name, [*METHODS, *ENCODERS], "A saved folder or a Hugging Face id works too.")
    found = backbones.resolve(name)
    if not (found / "modules.json").is_file():
        raise ModelNotFoundError(
            f"Expected a sentence-transformers model (with modules.json) in {name}, found none. Name a method, such as "
            "mean, with it as the backbone."
        )
    return Embedder(load_embedder(found, **options), name, None, backbones.content_sha256(name))


def _content(method: str, backbone: str) -> str:
    chain = METHODS[method].chain
    parts = [backbones.content_sha256(one) for one in (backbone, chain.encoder) if one]
    return digest([parts, chain.resolved(), __version__])
