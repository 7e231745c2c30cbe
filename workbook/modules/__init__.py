"""Sentence-transformers modules, the parts of a chain from text to vector."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from ..errors import UnknownNameError
from ..resolved import resolved_options
from ..vocabulary.clusters import clustering
from .attention_pooling import LatentAttention, SelfAttention
from .context_length import contextual_decoder
from .contextual import ContextualDecoder, ContextualPooling, ContextualTokens
from .decoder import Decoder
from .hybrid import Hybrid
from .lexicon import Lexicon, lexicon_of
from .lexicon_encoder import LexiconEncoder
from .loading import load_embedder
from .pooling import POOLINGS as _PLAIN
from .pooling import Pooling

if TYPE_CHECKING:
    from sentence_transformers.base.modules.module import Module
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "POOLINGS",
    "ContextualDecoder",
    "ContextualPooling",
    "ContextualTokens",
    "Decoder",
    "Hybrid",
    "LatentAttention",
    "Lexicon",
    "LexiconEncoder",
    "Pooling",
    "SelfAttention",
    "encoder_options",
    "load_embedder",
    "make_decoder",
    "make_pooling",
    "pooling_options",
    "resolved_pooling",
]

_KINDS = {
    "latent_attention": LatentAttention,
    "self_attention": SelfAttention,
    "contextual": ContextualPooling,
}

POOLINGS = (*_PLAIN, *_KINDS, "lexicon")
"""Names of the poolings.

The attention poolings have weights of their own, ``lexicon`` has the backbone's head, and ``contextual`` needs an
encoder.
"""

_ENCODER_OPTIONS = {
    "tokens": 1,
    "pretrained": True,
    "layers": None,
    "length": "word",
    "prefix": "",
    "sees_instruction": False,
    "trainable": False,
}


def make_decoder(
    decoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encoder: str | None = None,
    /,
    options: Mapping[str, Any] | None = None,
    **layout: Any,
) -> Decoder:
    """The first module of a chain: a decoder, or one that reads contextual tokens of an encoder.

    Args:
        decoder: A transformers decoder.
        tokenizer: Its tokenizer.
        encoder: Name of an encoder, or None.
        options: Options of the encoder; see :func:`encoder_options`.
        **layout: ``attention``, ``template``, ``max_length``, ``vector_behind_bos``
            and ``prefix_cache``; see :class:`~.decoder.Decoder`.

    Raises:
        UnknownNameError: No such encoder, option, attention or template, or options without an encoder.
        ModelNotFoundError: The encoder is not on this machine and can't be fetched.
        InvalidValueError, AttentionError: As :class:`~.decoder.Decoder` and :class:`~.contextual.ContextualDecoder`.
    """
    own = encoder_options(encoder, options or {})
    if encoder is None:
        return Decoder(decoder, tokenizer, **layout)
    return contextual_decoder(decoder, tokenizer, encoder, **own, **layout)


def encoder_options(encoder: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an encoder with their defaults; empty without an encoder.

    Args:
        encoder: Name of an encoder, or None.
        options: Some of ``tokens``, ``pretrained``, ``layers``, ``length``, ``prefix``, ``sees_instruction`` and
            ``trainable``; see :func:`~.context_length.contextual_decoder`.

    Raises:
        UnknownNameError: An option that does not exist, or any where there is no encoder.
    """
    return _completed("encoder", options, _ENCODER_OPTIONS if encoder else {})


def make_pooling(name: str, embedding_dimension: int, backbone: str, /, **options: Any) -> Module:
    """The pooling module of that name.

    Args:
        name: One of :data:`POOLINGS`.
        embedding_dimension: Width of the token states.
        backbone: Name of the backbone whose head ``lexicon`` pools over; the others do not use it.
        **options: Options of the module, such as ``latents``; for ``lexicon`` those of :func:`~.lexicon.lexicon_of`.

    Raises:
        UnknownNameError: No such pooling, or an option that it does not have.
        InvalidValueError: A size that is not a positive whole number, or as :func:`~.lexicon.lexicon_of`.
        ModelNotFoundError, MissingDataError, DamagedFileError: As :func:`~.lexicon.lexicon_of`.
    """
    own = pooling_options(name, options)
    if name in _PLAIN:
        return Pooling(name, embedding_dimension)
    if name == "lexicon":
        return lexicon_of(backbone, **own)
    return _KINDS[name](embedding_dimension, **own)


def pooling_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a pooling with their defaults.

    Args:
        name: One of :data:`POOLINGS`.
        options: Some of its options.

    Raises:
        UnknownNameError: No such pooling, or an option that it does not have.
    """
    if name not in POOLINGS:
        raise UnknownNameError("pooling", name, POOLINGS)
    # The first parameter is the width of the states, or the backbone whose head is pooled over.
    makes = {"lexicon": lexicon_of} | _KINDS
    known = list(signature(makes[name]).parameters.values())[1:] if name in makes else []
    return _completed(f"{name} pooling", options, {one.name: one.default for one in known})


def resolved_pooling(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a pooling with their defaults, and of ``lexicon`` the content of what they name, as plain data.

    Args:
        name: One of :data:`POOLINGS`.
        options: Some of its options.

    Raises:
        UnknownNameError: As :func:`pooling_options`.
        MissingDataError: No clusters in the folder that is named.
    """
    own = pooling_options(name, options)
    if name == "lexicon":
        return resolved_options("lexicon pooling", own) | {"clusters": clustering(own["clusters"])}
    return resolved_options(f"{name} pooling", own)


def _completed(of: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    for option in options:
        if option not in defaults:
            raise UnknownNameError(f"option of {of}", option, defaults)
    return {**defaults, **options}
