"""Reading texts from embeddings: texts regenerated from their vectors alone, and a test that the vector is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch
from sentence_transformers.util import batch_to_device
from torch import nn
from torch.nn.functional import linear

from ..errors import InvalidValueError, whole
from ..objectives import Reconstruction
from .states import decoder_of, reading

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DIRECTIONS = ("query to document", "document to query")
"""The source of the vector, and the text that is written."""


@torch.no_grad()
def regenerated(
    model: SentenceTransformer,
    texts: Sequence[str],
    instruction: str | None = None,
    *,
    tokens: int = 32,
    head: nn.Linear | None = None,
    batch_size: int = 32,
) -> list[str]:
    """Texts that the language model writes from the vectors of texts alone, in place of a first word or after BOS.

    The likeliest token is taken at each step, so the same vectors give the same texts. A model that was trained to
    reconstruct never learnt where a text ends: writing stops at EOS, if that is ever the likeliest, or after
    ``tokens``.

    Args:
        model: A causal embedder whose vectors are as wide as its states.
        texts: Strings.
        instruction: The bare task instruction in front of every text, or None.
        tokens: Largest number of tokens that are written.
        head: The language-model head of a backbone without tied weights; None for the backbone's own. One that trained
            with the model is not saved with it.
        batch_size: Texts per batch.

    Returns:
        The written texts, without special tokens, in the order of the texts.

    Raises:
        InvalidValueError: No texts, a number of tokens that is not positive and whole, or a model that
            :class:`~workbook.objectives.Reconstruction` does not take.
        ModelNotFoundError: A backbone without a head.

    Source: Anchor, section 3.2.
    """
    tokens = whole("tokens", tokens)
    module = decoder_of(model, texts)
    objective = Reconstruction(model, head).to(model.device)
    vectors = model.encode(
        list(texts), prompt=instruction, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False
    )
    with reading(module, "causal"):
        ids = torch.cat([_greedy(objective, part, tokens) for part in vectors.split(batch_size)])
    end = module.tokenizer.eos_token_id
    rows = [row[: row.index(end)] if end in row else row for row in ids.tolist()]
    return module.tokenizer.batch_decode(rows, skip_special_tokens=True)


def _greedy(objective: Reconstruction, vectors: torch.Tensor, tokens: int) -> torch.Tensor:
    """The likeliest tokens after a vector, one at a time, int64 (batch, tokens).

    An embedder does not have the head that transformers' ``generate`` needs.
    """
    decoder = objective.decoder_module.decoder
    table, (weight, _) = decoder.get_input_embeddings(), objective.projection()  # a bound does not change the order
    read, cache, written = objective.in_front(vectors), None, []
    for _ in range(tokens):
        made = decoder(inputs_embeds=read, past_key_values=cache, use_cache=True)
        cache = made.past_key_values
        written.append(linear(made.last_hidden_state[:, -1].to(weight.dtype), weight).argmax(dim=-1))
        read = table(written[-1]).unsqueeze(1)
    return torch.stack(written, dim=1)


@torch.no_grad()
def anchor_losses(
    model: SentenceTransformer,
    pairs: pd.DataFrame,
    instruction: str | None = None,
    *,
    head: nn.Linear | None = None,
    batch_size: int = 32,
) -> pd.DataFrame:
    """Loss of writing a text from the vector of its own pair, and from that of another pair, the shuffled control.

    A language model predicts much of a text from the words before it. A model that ignores the vector has the same loss
    with any; only the difference shows what the vector is worth. Every pair gets the vector of the pair half the list
    away, so that none keeps its own.

    Args:
        model: See :func:`regenerated`.
        pairs: Columns query and document, one row per pair, at least two rows.
        instruction: The bare task instruction in front of every query, or None.
        head: See :func:`regenerated`.
        batch_size: Texts per batch.

    Returns:
        One row per direction and pair: ``direction`` (one of :data:`DIRECTIONS`), ``pair`` (its number, from 0),
        ``tokens`` (number of written tokens), ``own`` and ``shuffled`` (nats per token). The objective's loss of a
        direction is the mean of ``own``, weighted by ``tokens``.

    Raises:
        InvalidValueError: A missing column, fewer than two pairs, a side without a text, or a model that
            :class:`~workbook.objectives.Reconstruction` does not take.
        ModelNotFoundError: As :func:`regenerated`.

    Source: Anchor, equations 3 and 4; the control is ours.
    """
    if not {"query", "document"} <= set(pairs):
        raise InvalidValueError("pairs", "a frame with the columns query, document", list(pairs))
    if len(pairs) < 2:
        raise InvalidValueError("pairs", "at least two, since a vector is exchanged for another's", len(pairs))
    sides = {"query": pairs["query"].tolist(), "document": pairs["document"].tolist()}
    asked = {"query": instruction, "document": None}
    module = decoder_of(model, sides["query"])
    objective = Reconstruction(model, head).to(model.device)
    rows = []
    for direction in DIRECTIONS:
        source, target = direction.split(" to ")
        own = model.encode(
            sides[source],
            prompt=asked[source],
            batch_size=batch_size,
            convert_to_tensor=True,
            show_progress_bar=False,
        )
        shuffled = own.roll(len(own) // 2, dims=0)
        with reading(module, "causal"):
            for start in range(0, len(own), batch_size):
                part = slice(start, start + batch_size)
                # The instruction is not written, but a text may begin with another token behind it than without.
                features = batch_to_device(model.preprocess(sides[target][part], prompt=asked[target]), model.device)
                losses = []
                for vectors in (own, shuffled):
                    made, where = objective.losses(vectors[part], features, f"{target}, from pair {start} on")
                    losses.append((made.sum(dim=1) / where.sum(dim=1)).tolist())
                numbers = zip(where.sum(dim=1).tolist(), *losses, strict=True)
                rows += [(direction, start + place, *values) for place, values in enumerate(numbers)]
    return pd.DataFrame(rows, columns=["direction", "pair", "tokens", "own", "shuffled"])
