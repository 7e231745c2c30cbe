"""Probes of latent attention: the dictionary entries that a text attends to, and those that tell two classes apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from sentence_transformers.util import batch_to_device

from ..errors import InvalidValueError, UnknownNameError, whole
from ..modules import LatentAttention
from .states import decoder_of, reading

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Of a correlation: a permutation that only swaps texts of one class ties with the data, whatever rounding says.
_ROUNDING = 1e-9
# Permutations whose statistics are held at once: 32 MB of them for 8 heads of 512 latents.
_BLOCK = 1000


def latent_attention(
    model: SentenceTransformer, texts: Sequence[str], instruction: str | None = None, batch_size: int = 32
) -> np.ndarray:
    """Mean attention that the tokens of each text pay to each latent.

    The mean is over the tokens that the model pools, without instruction and padding.

    Args:
        model: An embedder whose pooling is latent attention.
        texts: Strings.
        instruction: The bare task instruction in front of every text, or None.
        batch_size: Texts per batch.

    Returns:
        float32 (texts, heads, latents), 0 to 1; the latents of a text and head add up to 1.

    Raises:
        InvalidValueError: No texts, a text or instruction that is not a string, or a model that is not a Decoder
            followed by a LatentAttention.

    Source: NV-Embed, appendix D and figure 2.
    """
    return np.stack([part.mean(dim=1).cpu().numpy() for part in token_attention(model, texts, instruction, batch_size)])


def latents_of(model: SentenceTransformer) -> LatentAttention:
    """The pooling of a model, after a check that it has a dictionary.

    Args:
        model: An embedder.

    Raises:
        InvalidValueError: Another pooling, or one without latents.
    """
    if not (len(model) > 1 and isinstance(model[1], LatentAttention) and model[1].latents):
        got = [type(part).__name__ for part in model]
        hint = "Build it with workbook.build(..., pooling='latent_attention')."
        raise InvalidValueError("model", "a Decoder and a LatentAttention with latents", got, hint)
    return model[1]


@torch.no_grad()
def token_attention(
    model: SentenceTransformer, texts: Sequence[str], instruction: str | None = None, batch_size: int = 32
) -> list[torch.Tensor]:
    """Attention that each pooled token pays to each latent, by text: float32 (heads, tokens, latents).

    Args:
        model, texts, instruction, batch_size: See :func:`latent_attention`.

    Raises:
        InvalidValueError: As :func:`latent_attention`.
    """
    module, pooling = decoder_of(model, texts), latents_of(model)
    features, found = module.preprocess(list(texts), instruction), []
    with reading(module, module.attention):
        for start in range(0, len(texts), batch_size):
            rows = {name: values[start : start + batch_size] for name, values in features.items()}
            columns = rows["attention_mask"].any(dim=0)  # padding that only other batches need
            batch = module(batch_to_device({name: values[:, columns] for name, values in rows.items()}, model.device))
            mask = batch["pooling_mask"].bool()
            attention = pooling.attention(batch["token_embeddings"][mask].unsqueeze(0)).squeeze(0)
            found.extend(attention.split(mask.sum(dim=1).tolist(), dim=1))
    return found


def discriminating_latents(
    attention: np.ndarray, labels: Sequence, positive: object, *, permutations: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Latents to which two classes of texts pay different attention, with all of them tested at once.

    Of thousands of latents some differ between any twenty texts by chance. So each is compared with the largest
    statistic of all heads and latents when the labels are shuffled. In data without a difference, at most 5 % have a p
    below 0.05 anywhere, however many latents there are and however they correlate.

    Args:
        attention: (texts, heads, latents), from :func:`latent_attention`.
        labels: The class of each text, of two.
        positive: The label of the first class.
        permutations: Number of times the labels are shuffled.
        seed: Of the shuffling.

    Returns:
        One row per head and latent, the smallest p first, of equal ones the largest statistic: ``head`` and ``latent``
        (from 0), ``difference`` (the first class's mean attention minus the other's, -1 to 1), ``statistic`` (Student's
        t with pooled variance; 0 for a latent to which all texts attend equally) and ``p`` (family-wise, two-sided,
        from 1 / (1 + permutations) to 1).

    Raises:
        InvalidValueError: Another shape or a value that is not finite, another number of labels than of texts, more or
            fewer than two classes, fewer than two texts of one, or permutations that are not a positive whole number.
        UnknownNameError: No text of the class ``positive``.

    Source: NV-Embed, figure 2, which points at one such latent by eye; the test is Westfall and Young's (1993) max-T.
    """
    attention, labels = np.asarray(attention, dtype=float), list(labels)
    if attention.ndim != 3 or not attention.size or not np.isfinite(attention).all():
        raise InvalidValueError("attention", "finite numbers (texts, heads, latents)", attention)
    if len(labels) != len(attention):
        raise InvalidValueError("labels", f"{len(attention)}, one a text", len(labels))
    counts = {label: labels.count(label) for label in dict.fromkeys(labels)}
    if len(counts) != 2 or min(counts.values()) < 2:
        raise InvalidValueError("labels", "two classes of at least two texts each", counts)
    if positive not in counts:
        raise UnknownNameError("label", positive, map(str, counts))
    permutations = whole("permutations", permutations)
    first = np.array([label == positive for label in labels])
    values = attention.reshape(len(attention), -1)
    # With pooled variance t grows with the correlation of label and attention, and that is a product of matrices.
    centred = values - values.mean(axis=0)
    scaled = np.where(np.ptp(values, axis=0) > 0, centred, 0)
    scaled /= np.maximum(np.linalg.norm(scaled, axis=0), np.finfo(float).tiny)
    code = (first - first.mean()) / np.linalg.norm(first - first.mean())
    shuffled = np.random.default_rng(seed).permuted(np.tile(code, (permutations, 1)), axis=1)
    blocks = [shuffled[start : start + _BLOCK] for start in range(0, permutations, _BLOCK)]
    largest = np.sort(np.concatenate([np.abs(block @ scaled).max(axis=1) for block in blocks]))
    correlation = code @ scaled
    reached = permutations - np.searchsorted(largest, np.abs(correlation) - _ROUNDING)
    heads, latents = np.indices(attention.shape[1:])
    frame = pd.DataFrame(
        {
            "head": heads.ravel(),
            "latent": latents.ravel(),
            "difference": values[first].mean(axis=0) - values[~first].mean(axis=0),
            "statistic": correlation * np.sqrt((len(labels) - 2) / np.maximum(1 - correlation**2, np.finfo(float).eps)),
            "p": (1 + reached) / (1 + permutations),
        }
    )
    order = np.lexsort((-frame["statistic"].abs(), frame["p"]))
    return frame.iloc[order].reset_index(drop=True)
