"""What compression did to an embedder: its layers, its bytes, and how far its vectors turned."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from ..errors import InvalidValueError
from ..modules import Decoder
from ..quantized import Quantized, QuantizedLinear
from .calibration import linears

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def report(model: SentenceTransformer, before: SentenceTransformer | None = None) -> pd.DataFrame:
    """What the compressed layers of a model are made of.

    Args:
        model: An embedder whose first module is a Decoder.
        before: What it was made of, with as many blocks, if its change is asked for.

    Returns:
        One row per layer: ``block`` (from 0), ``layer`` (its name), ``rows``, ``columns``, ``zeros`` (share of its
        weights that are 0, 0 to 1), ``dtype`` and ``bytes`` (weight and scales); with
        ``before`` also ``change``: the length of the weights' difference over that of the weights before, 0 or more.

    Raises:
        InvalidValueError: A model that does not begin with a Decoder, or one with other layers than ``before``.
    """
    found = []
    for number, block in enumerate(decoder_of(model).decoder.layers):
        for name, part in linears(block).items():
            weight, scale = part.weight, getattr(part, "scale", None)
            found.append(
                {
                    "block": number,
                    "layer": name,
                    "rows": part.out_features,
                    "columns": part.in_features,
                    "zeros": float((weight.float() == 0).float().mean()),
                    "dtype": str(weight.dtype).removeprefix("torch."),
                    "bytes": weight.nbytes + (0 if scale is None else scale.nbytes),
                }
            )
    frame = pd.DataFrame(found)
    if before is not None:
        pairs = [_weights(one) for one in (before, model)]
        if [weight.shape for weight in pairs[0]] != [weight.shape for weight in pairs[1]]:
            raise InvalidValueError("before", "a model with the same layers", f"{len(pairs[0])} layers or other sizes")
        frame["change"] = [float((a - b).norm() / a.norm()) for a, b in zip(*pairs, strict=True)]
    return frame


def disk_bytes(model: SentenceTransformer | str | os.PathLike) -> int:
    """Bytes of a model's weights on disk, all safetensors of its folder.

    Args:
        model: A folder; or any SentenceTransformer, which is saved to a temporary one.
    """
    if isinstance(model, str | os.PathLike):
        return sum(file.stat().st_size for file in Path(model).rglob("*.safetensors"))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, create_model_card=False)
        return disk_bytes(folder)


def drift(
    before: SentenceTransformer, after: SentenceTransformer, texts: Sequence[str], instruction: str | None = None
) -> float:
    """How far the vectors of texts turned: the mean of 1 - cosine, 0 to 2.

    Args:
        before: An embedder.
        after: The same, compressed.
        texts: Held-out texts: others than were calibrated on.
        instruction: The bare instruction, or None.

    Raises:
        InvalidValueError: No texts.
    """
    return turned(vectors(before, texts, instruction), vectors(after, texts, instruction))


def decoder_of(model: SentenceTransformer) -> Decoder:
    """The first module of a model.

    Raises:
        InvalidValueError: It is no Decoder.
    """
    first = next(iter(model), None) if isinstance(model, nn.Module) else None
    if not isinstance(first, Decoder):
        raise InvalidValueError(
            "model", "one whose first module is a Decoder", type(first or model).__name__,
            "workbook.build makes such models; of a hybrid, compress each part.",
        )  # fmt: skip
    return first


def vectors(model: SentenceTransformer, texts: Sequence[str], instruction: str | None) -> torch.Tensor:
    """The vectors of texts, float32 (texts, dim).

    Args:
        model: An embedder.
        texts: Strings.
        instruction: The bare instruction, or None.

    Raises:
        InvalidValueError: No texts.
    """
    if isinstance(texts, str) or len(texts) == 0:
        raise InvalidValueError("texts", "at least one, in a list", texts)
    made = model.encode(list(texts), prompt=instruction, convert_to_tensor=True, show_progress_bar=False)
    return made.float()


def turned(before: torch.Tensor, after: torch.Tensor) -> float:
    """The mean of 1 - cosine, 0 to 2.

    Args:
        before: (texts, dim).
        after: (texts, dim).
    """
    return float((1 - F.cosine_similarity(before, after, dim=1)).mean())


def _weights(model: SentenceTransformer) -> list[torch.Tensor]:
    parts = [part for block in decoder_of(model).decoder.layers for part in linears(block).values()]
    return [
        (Quantized(part.weight, part.scale).dequantized() if isinstance(part, QuantizedLinear) else part.weight)
        .detach()
        .float()
        for part in parts
    ]
