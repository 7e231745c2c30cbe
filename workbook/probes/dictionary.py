"""Probes of the dictionary of latent attention: what training did to it, who reads it, and what single latents do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from ..errors import InvalidValueError, whole
from .latents import latent_attention, latents_of, token_attention

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..modules import LatentAttention

DEAD = 0.1
"""A latent is dead whose mean attention stays below this share of what every latent would get if all got the same."""


def movement(before: LatentAttention, after: LatentAttention) -> tuple[float, float]:
    """How far training moved the dictionary.

    Args:
        before: The pooling before training.
        after: The same after it.

    Returns:
        The norm of the change, as a share of the norm before; and the largest change of a single number.

    Raises:
        InvalidValueError: Dictionaries of different sizes.
    """
    one, other = (part.dictionary.detach().double().cpu() for part in (before, after))
    if one.shape != other.shape:
        raise InvalidValueError("after", f"a dictionary {tuple(one.shape)}", tuple(other.shape))
    change = other - one
    return float(change.norm() / one.norm()), float(change.abs().max())


def adam_bound(rates: Iterable[float]) -> float:
    """The distance that Adam moves a weight whose gradient keeps its sign and size: the sum of the learning rates.

    An update is the learning rate times a mean of gradients over the root of a mean of their squares. A gradient that
    changes its sign moves the weight less far. Only one that is rare, zero at most steps and then large, moves it
    farther. Weight decay comes on top.

    Args:
        rates: The learning rate of each step at which the weight had a gradient. That of a new dictionary begins with
            the second step, since the projection behind it starts at 0.

    Source: Kingma and Ba 2015, section 2.1.
    """
    return float(sum(rates))


@torch.no_grad()
def perplexity(model: SentenceTransformer, texts: Sequence[str], instruction: str | None = None) -> np.ndarray:
    """Number of latents among which a token's attention is spread, by head: from 1 to the size of the dictionary.

    It is the exponential of the entropy, whose mean is taken over all pooled tokens.

    Args:
        model: An embedder whose pooling is latent attention.
        texts: Strings.
        instruction: The bare task instruction in front of every text, or None.

    Returns:
        float64 (heads,).

    Raises:
        InvalidValueError: As :func:`~.latents.latent_attention`.
    """
    entropies = [torch.special.entr(part.double()).sum(dim=-1) for part in token_attention(model, texts, instruction)]
    return torch.cat(entropies, dim=1).mean(dim=1).exp().cpu().numpy()


def dead(attention: np.ndarray, below: float = DEAD) -> np.ndarray:
    """Which latents hardly any token reads.

    Args:
        attention: (texts, heads, latents), from :func:`~.latents.latent_attention`.
        below: Share of the mean attention to a latent, which is 1 / latents.

    Returns:
        bool (heads, latents): those whose mean attention is below it.
    """
    return np.asarray(attention, dtype=float).mean(axis=0) * np.shape(attention)[-1] < below


@torch.no_grad()
def influence(model: SentenceTransformer, texts: Sequence[str], instruction: str | None = None) -> np.ndarray:
    """How much each latent adds to the tokens: its mean attention times the length of what it adds.

    Args:
        model: An embedder whose pooling is latent attention.
        texts: Strings.
        instruction: The bare task instruction in front of every text, or None.

    Returns:
        float64 (heads, latents), in the unit of the decoder's states.

    Raises:
        InvalidValueError: As :func:`~.latents.latent_attention`.
    """
    attention = latent_attention(model, texts, instruction).mean(axis=0)
    return attention.astype(float) * latents_of(model).added().norm(dim=-1).double().cpu().numpy()


def silencing(
    model: SentenceTransformer,
    places: Sequence[Sequence[tuple[int, int]]],
    measure: Callable[[SentenceTransformer], float],
) -> pd.DataFrame:
    """What a measurement loses when some latents are silenced; see ``LatentAttention.silenced``.

    Args:
        model: An embedder whose pooling is latent attention; it is left as it was.
        places: Sets of latents, silenced one set after the other; each latent a head and a number, from 0.
        measure: Function of the model that returns a number.

    Returns:
        One row per set: ``places``, ``value`` (the measurement without them) and ``change`` (minus that with all).

    Raises:
        InvalidValueError: Another pooling, or no such head or latent.
    """
    module, whole_value, rows = latents_of(model), measure(model), []
    for chosen in places:
        with module.silenced(chosen):
            value = measure(model)
        rows.append({"places": list(chosen), "value": value, "change": value - whole_value})
    return pd.DataFrame(rows, columns=["places", "value", "change"])


@torch.no_grad()
def top_tokens(
    model: SentenceTransformer,
    texts: Sequence[str],
    head: int,
    latent: int,
    instruction: str | None = None,
    top: int = 10,
) -> pd.DataFrame:
    """The tokens that attend most to a latent.

    Args:
        model: An embedder whose pooling is latent attention.
        texts: Strings.
        head: Number of the head, from 0.
        latent: Number of the latent, from 0.
        instruction: The bare task instruction in front of every text, or None.
        top: Largest number of tokens.

    Returns:
        One row per token, the largest attention first: ``text`` (its index), ``position`` (of the token in the input,
        from 0), ``token`` (its string) and ``attention`` (0 to 1).

    Raises:
        InvalidValueError: No such head or latent, or as :func:`~.latents.latent_attention`.
    """
    module = latents_of(model)
    head, latent = whole("head", head, 0, module.heads - 1), whole("latent", latent, 0, module.latents - 1)
    rows = []
    encoded = model[0].encode_texts(list(texts), instruction)
    for index, (one, part) in enumerate(zip(encoded, token_attention(model, texts, instruction), strict=True)):
        pooled = [place for place, marked in enumerate(one.pooling_mask) if marked]
        strings = [model[0].tokenizer.decode([one.input_ids[place]]) for place in pooled]
        rows.extend(zip([index] * len(pooled), pooled, strings, part[head, :, latent].tolist(), strict=True))
    frame = pd.DataFrame(rows, columns=["text", "position", "token", "attention"])
    return frame.sort_values("attention", ascending=False, kind="stable").head(whole("top", top)).reset_index(drop=True)
