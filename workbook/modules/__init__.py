"""Sentence-transformers modules: what a chain from text to vector is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UnknownNameError
from .attention_pooling import LatentAttention, SelfAttention
from .decoder import Decoder
from .lexicon import Lexicon
from .pooling import POOLINGS as _PLAIN
from .pooling import Pooling

if TYPE_CHECKING:
    from sentence_transformers.base.modules.module import Module

__all__ = ["POOLINGS", "Decoder", "LatentAttention", "Lexicon", "Pooling", "SelfAttention", "make_pooling"]

_TRAINED = {"latent_attention": LatentAttention, "self_attention": SelfAttention}

POOLINGS = (*_PLAIN, *_TRAINED)
"""Names of the poolings; those by attention have weights of their own."""


def make_pooling(name: str, embedding_dimension: int, /, **options: Any) -> Module:
    """The pooling module of that name.

    Args:
        name: One of :data:`POOLINGS`.
        embedding_dimension: Width of the token states.
        **options: Of the module, such as ``latents``.

    Raises:
        UnknownNameError: No such pooling, or an option that it has not.
        InvalidValueError: A size that is not a positive whole number.
    """
    if name not in POOLINGS:
        raise UnknownNameError("pooling", name, POOLINGS)
    if name in _PLAIN:
        if options:
            raise UnknownNameError(f"option of {name} pooling", next(iter(options)), ())
        return Pooling(name, embedding_dimension)
    kind = _TRAINED[name]
    known = [key for key in kind.config_keys if key != "embedding_dimension"]
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of {name} pooling", option, known)
    return kind(embedding_dimension, **options)
