"""Does the decoder listen to its contextual token? What changes when it is another text's, a mean, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
import torch.nn.functional as F

from ..errors import InvalidValueError, UnknownNameError
from ..modules import ContextualDecoder, ContextualPooling
from ..modules.contextual import REPRESENTATIONS
from .contextual import reader_of_context
from .states import features_of, reading

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

REPLACEMENTS = ("own", "swap", "mean", "zero", "oracle")
"""What stands in for a text's contextual token: its own; that of the next text on its side; the mean of its side;
nothing, a vector of zeros; or that of its partner on the other side, which says what the token could say at best.
"""
SIDES = ("queries", "documents")
"""Whose contextual tokens are replaced."""


@contextmanager
def given_context(module: ContextualDecoder, tokens: torch.Tensor) -> Iterator[None]:
    """Have a decoder read given contextual tokens in the block, whatever the encoder says.

    Args:
        module: A decoder that reads contextual tokens.
        tokens: Those of the texts of each pass, in order, (texts, contextual tokens, dim).

    Raises:
        InvalidValueError: A pass of another number of texts, or tokens of another shape.
    """

    def replace(_: Any, args: tuple, features: dict[str, Any]) -> dict[str, Any]:
        if features["context"].shape != tokens.shape:
            raise InvalidValueError("tokens", tuple(features["context"].shape), tuple(tokens.shape))
        return features | {"context": tokens.to(features["context"])}

    hook = module.context.register_forward_hook(replace)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def context_of_length(module: ContextualDecoder, length: float) -> Iterator[None]:
    """Have a decoder read its contextual tokens at a length in the block, each in its own direction.

    Args:
        module: A decoder that reads contextual tokens.
        length: Euclidean norm of each, before any scaling by the decoder.
    """

    def scale(_: Any, args: tuple, features: dict[str, Any]) -> dict[str, Any]:
        return features | {"context": length * F.normalize(features["context"], dim=-1)}

    hook = module.context.register_forward_hook(scale)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def contextual_tokens(
    model: SentenceTransformer, texts: Sequence[str], instruction: str | None = None, batch_size: int = 32
) -> torch.Tensor:
    """The contextual tokens of texts, as they go into the decoder.

    Args:
        model: A model that reads contextual tokens.
        texts: Strings.
        instruction: The bare task instruction, which an encoder may read, or None.
        batch_size: Texts a pass.

    Returns:
        float32 (texts, contextual tokens, dim), on the model's device.

    Raises:
        InvalidValueError: No texts, or a model without contextual tokens.
    """
    module = reader_of_context(model, texts)
    with reading(module, module.attention):
        passes = [
            module.context_of(features_of(model, texts[start : start + batch_size], instruction))
            for start in range(0, len(texts), batch_size)
        ]
    return torch.cat(passes).float()


@torch.no_grad()
def vectors_given(
    model: SentenceTransformer,
    texts: Sequence[str],
    tokens: torch.Tensor,
    instruction: str | None = None,
    batch_size: int = 32,
) -> torch.Tensor:
    """Vectors of texts whose contextual tokens are given.

    Args:
        model: A model that reads contextual tokens.
        texts: Strings.
        tokens: A contextual token, or several, for each text: (texts, contextual tokens, dim).
        instruction: The bare task instruction, or None.
        batch_size: Texts a pass.

    Returns:
        float32 (texts, width), not normalised, on the model's device.

    Raises:
        InvalidValueError: No texts, a model without contextual tokens, or tokens of another shape.
    """
    module = reader_of_context(model, texts)
    if len(tokens) != len(texts):
        raise InvalidValueError("tokens", f"those of {len(texts)} texts", tuple(tokens.shape))
    made = []
    with reading(module, module.attention):
        for start in range(0, len(texts), batch_size):
            few = slice(start, start + batch_size)
            with given_context(module, tokens[few]):
                made.append(model(features_of(model, texts[few], instruction))["sentence_embedding"])
    return torch.cat(made).float()


def listening(
    model: SentenceTransformer,
    queries: Sequence[str],
    documents: Sequence[str],
    instruction: str | None = None,
    replacements: Sequence[str] = REPLACEMENTS,
    batch_size: int = 32,
    sides: Sequence[str] = SIDES,
) -> pd.DataFrame:
    """How far vectors and ranks move when the contextual tokens of one side are replaced.

    The other side stays as it is. If the decoder does not listen, the half of the last token moves little when the
    token is another text's, and is no better with the oracle's.

    Args:
        model: A model that reads contextual tokens; it is left as it is.
        queries: At least two strings.
        documents: As many; each is the one that belongs to the query at its place.
        instruction: The bare task instruction in front of the queries, or None.
        replacements: Some of :data:`REPLACEMENTS`.
        batch_size: Texts a pass.
        sides: Some of :data:`SIDES`: whose tokens are replaced.

    Returns:
        One row per side, replacement, part and query: ``side`` (``queries`` or ``documents``, whose tokens are
        replaced), ``replacement``, ``part`` (``whole``; then, for a vector of several parts, their names in
        `workbook.modules.contextual.REPRESENTATIONS`), ``query`` (its index), ``moved`` (1 - cosine between the vector
        of this query, or of its document, and the one with its own token; 0 to 2) and ``reciprocal_rank`` of its
        document by cosine, 0 to 1; equal scores count against it.

    Raises:
        UnknownNameError: No such replacement or side.
        InvalidValueError: Fewer than two queries, not as many documents, or a model without contextual tokens.
    """
    reader_of_context(model, queries)
    if len(queries) < 2 or isinstance(documents, str) or len(documents) != len(queries):
        got = (len(queries), len(documents))
        raise InvalidValueError("queries and documents", "two or more of each, in pairs", got)
    for replacement in replacements:
        if replacement not in REPLACEMENTS:
            raise UnknownNameError("replacement", replacement, REPLACEMENTS)
    for side in sides:
        if side not in SIDES:
            raise UnknownNameError("side", side, SIDES)
    texts = {"queries": (list(queries), instruction), "documents": (list(documents), None)}
    tokens = {side: contextual_tokens(model, *given, batch_size) for side, given in texts.items()}
    own = {
        side: _parts(model, vectors_given(model, given, tokens[side], asked, batch_size))
        for side, (given, asked) in texts.items()
    }
    frames = []
    for side in sides:
        given, asked = texts[side]
        other = "documents" if side == "queries" else "queries"
        for replacement in replacements:
            read = {
                "own": tokens[side],
                "swap": tokens[side].roll(-1, dims=0),
                "mean": tokens[side].mean(dim=0, keepdim=True).expand_as(tokens[side]),
                "zero": torch.zeros_like(tokens[side]),
                "oracle": tokens[other],
            }[replacement]
            moved = replacement != "own"
            parts = _parts(model, vectors_given(model, given, read, asked, batch_size)) if moved else own[side]
            for part, vectors in parts.items():
                found = {side: vectors, other: own[other][part]}
                cosines = found["queries"] @ found["documents"].T
                ranks = (cosines >= cosines.diagonal().unsqueeze(1) - 1e-6).sum(dim=1)
                columns = {
                    "query": range(len(given)),
                    "moved": (1 - (vectors * own[side][part]).sum(dim=1)).clamp(min=0).tolist(),
                    "reciprocal_rank": (1 / ranks).tolist(),
                }
                frames.append(pd.DataFrame({"side": side, "replacement": replacement, "part": part} | columns))
    return pd.concat(frames, ignore_index=True)


def _parts(model: SentenceTransformer, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
    """The vector and its parts, each as a unit vector."""
    pooling = model[1]
    names = REPRESENTATIONS[pooling.representation] if isinstance(pooling, ContextualPooling) else ()
    halves = dict(zip(names, vectors.chunk(len(names), dim=1), strict=True)) if len(names) > 1 else {}
    return {name: F.normalize(part, dim=1) for name, part in ({"whole": vectors} | halves).items()}
