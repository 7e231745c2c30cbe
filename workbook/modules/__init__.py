"""Sentence-transformers modules: what a chain from text to vector is made of."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from ..errors import UnknownNameError
from .attention_pooling import LatentAttention, SelfAttention
from .decoder import Decoder
from .hybrid import Hybrid
from .lexicon import Lexicon, lexicon_of
from .pooling import POOLINGS as _PLAIN
from .pooling import Pooling

if TYPE_CHECKING:
    from sentence_transformers.base.modules.module import Module

__all__ = ["POOLINGS", "Decoder", "Hybrid", "LatentAttention", "Lexicon", "Pooling", "SelfAttention", "make_pooling"]

_TRAINED = {"latent_attention": LatentAttention, "self_attention": SelfAttention}

POOLINGS = (*_PLAIN, *_TRAINED, "lexicon")
"""Names of the poolings; those by attention have weights of their own, ``lexicon`` the backbone's head."""


def make_pooling(name: str, embedding_dimension: int, backbone: str, /, **options: Any) -> Module:
    """The pooling module of that name.

    Args:
        name: One of :data:`POOLINGS`.
        embedding_dimension: Width of the token states.
        backbone: Whose head ``lexicon`` pools over; the others don't ask.
        **options: Of the module, such as ``latents``; those of ``lexicon`` are :func:`~.lexicon.lexicon_of`'s.

    Raises:
        UnknownNameError: No such pooling, or an option that it has not.
        InvalidValueError: A size that is not a positive whole number, or as :func:`~.lexicon.lexicon_of`.
    """
    if name not in POOLINGS:
        raise UnknownNameError("pooling", name, POOLINGS)
    if name in _PLAIN:
        if options:
            raise UnknownNameError(f"option of {name} pooling", next(iter(options)), ())
        return Pooling(name, embedding_dimension)
    if name == "lexicon":
        make, known = partial(lexicon_of, backbone), list(signature(lexicon_of).parameters)[1:]
    else:
        kind = _TRAINED[name]
        make, known = partial(kind, embedding_dimension), [k for k in kind.config_keys if k != "embedding_dimension"]
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of {name} pooling", option, known)
    return make(**options)
