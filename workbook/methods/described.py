"""A method in rows: what it reads, who sees whom, what is pooled and what trains, taken from its chain and recipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .chain import Chain

if TYPE_CHECKING:
    from ..templates import Piece
    from ..training.recipe import Recipe, Stage

POOLED = {
    "mean": "mean",
    "weighted_mean": "mean, weighted\n1, 2, .. n",
    "last_token": "state of the\nlast token",
    "latent_attention": "latent attention,\nthen mean",
    "self_attention": "self-attention,\nthen mean",
    "max": "max of logits,\none to the left",
    "sum": "sum of weights,\none to the left",
    "last": "logits of the\nlast token",
    "concat": "both states,\nconcatenated",
    "eos": "state of the\nlast token",
    "context": "state of the\ncontext token",
    "encoder": "context token,\nas it is read",
    "bi-eos": "token as read,\nlast state",
}
"""In words, what is made of the states: by pooling, and for ``lexicon`` and ``contextual`` by their option."""

TAUGHT = {
    "mntp": "masked words, from both sides",
    "simcse": "a text is near itself",
    "reconstruction": "writes the pair's other text",
    "llama2vec": "the words of a text, at once",
    "gritlm": "pairs near; the next word",
}
"""In words, what an objective teaches; for ``contrastive`` its stage decides."""

_SUFFIXES = {"eos": "EOS", "answer": "chat's answer", "keywords": "keywords"}


def rows(name: str, chain: Chain, recipe: Recipe) -> Iterator[dict[str, str]]:
    """The rows of a method for `workbook.figures.anatomy`; see :func:`workbook.methods.describe`.

    Args:
        name: Name of the method. The first line of its module's docstring, if it has one, says what is new in it.
        chain: Its chain.
        recipe: Its recipe.

    Raises:
        UnknownNameError, InvalidValueError: A template, pooling, suffix, or an option of them, that does not exist.
    """
    from ..modules import encoder_options, pooling_options

    module = sys.modules.get(f"{__package__}.{name.replace('-', '_')}")
    title, _, line = ((module and module.__doc__) or name).partition("\n")[0].partition(": ")
    yield {"shows": "method", "name": title, "detail": line.rstrip(".")}
    options = pooling_options(chain.pooling, chain.pooling_options)
    pieces = chain.layout().instructed
    used = _used(chain.pooling, options, pieces)
    for place, piece in enumerate(pieces):
        state = "pooled" if place in used else "read"
        yield {"shows": "token", "name": _label(piece, chain.suffix), "detail": piece.string, "state": state}
    yield {"shows": "attention", "name": chain.attention}
    kind = options.get("representation", options.get("pooling", chain.pooling))
    yield {"shows": "pooling", "name": chain.pooling, "detail": POOLED.get(kind, kind)}
    trainable = encoder_options(chain.encoder, chain.encoder_options).get("trainable", False)
    for stage in recipe.stages:
        yield {"shows": "stage", "stage": stage.name, "name": stage.objective, "detail": _taught(stage)}
        for part, place, detail, trains in _parts(chain, options, stage, trainable):
            state = "trained" if trains else "frozen"
            yield {"shows": place, "stage": stage.name, "name": part, "detail": detail, "state": state}


def _used(pooling: str, options: dict, pieces: tuple[Piece, ...]) -> set[int]:
    """Places of the pieces whose states make the vector."""
    from ..modules.contextual import REPRESENTATIONS

    marked = {place for place, piece in enumerate(pieces) if piece.pooled}
    if options.get("pooling") == "last":
        return {len(pieces) - 1}
    if pooling == "last_token":
        return {max(marked)}
    if pooling != "contextual":
        return marked
    context = {place for place, piece in enumerate(pieces) if piece.string == "{context}"}
    parts = REPRESENTATIONS[options["representation"]]
    return (context if {*parts} - {"eos"} else set()) | ({max(marked)} if "eos" in parts else set())


def _label(piece: Piece, suffix: str) -> str:
    """A word for a piece: what stands in it, else its own marks."""
    string = piece.string
    if string in ("{eos}", "{context}"):
        return _SUFFIXES[suffix] if string == "{eos}" else "context token"
    for content in ("text", "instruction", "examples"):
        if f"{{{content}}}" in string:
            return content
    return re.sub(r"\s+", " ", string.replace("{bos}", "BOS ")).strip()


def _taught(stage: Stage) -> str:
    if stage.objective != "contrastive":
        return TAUGHT.get(stage.objective, stage.objective)
    near = "all tasks" if stage.blend or stage.others else "pairs near"
    far = "others far" if stage.options.get("in_batch", True) else "own negatives far"
    return f"{near}; {'scores of a teacher' if stage.teacher else far}"


def _parts(chain: Chain, options: dict, stage: Stage, trainable: bool) -> Iterator[tuple[str, str, str, bool]]:
    """Each part of the chain that has weights: its name, the place it is drawn at, its size, and whether it trains."""
    import torch

    from ..modules import make_pooling
    from ..objectives import get

    yield "decoder", "decoder", "", stage.adapter is None and not (stage.frozen or stage.context_alone)
    if stage.adapter:
        yield "adapters", "decoder", f"rank {stage.adapter.rank}", True
    if chain.encoder:
        yield "encoder", "context", chain.encoder.rpartition("/")[2], trainable and not stage.context_alone
        yield "projection", "context", "", True
    if chain.pooling == "lexicon":
        yield "centroids", "dictionary", str(options["clusters"] or ""), False  # a buffer, which no optimizer sees
        return
    with torch.device("meta"):  # no weights, and no random numbers
        pooling = make_pooling(chain.pooling, 8, "", **options)
    if any(True for _ in pooling.parameters()):
        latents = options.get("latents")
        name = "latents" if latents and options["train_dictionary"] else "layers"
        # Chunks of running text are not pooled.
        yield name, "dictionary", str(latents or ""), get(stage.objective).reads != "chunks"
