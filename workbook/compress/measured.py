"""What compression left of a model: zeros and bytes of its layers, and how far one block moves the vectors."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize

from ..corpora.docs import load_docs
from ..errors import InvalidValueError, UnknownNameError
from ..quantized import FORMATS, QuantizedLinear, check_form
from .calibration import decoder_of, layers_of
from .matrices import CRITERIA, ROUNDINGS
from .models import check_layers, copied, pruned_blocks, put, quantized_blocks

_HELD_OUT = 64


def report(model: SentenceTransformer) -> pd.DataFrame:
    """What is stored of the linear layers in a decoder's blocks.

    Args:
        model: As of :func:`prune`; pruned, quantized or neither.

    Returns:
        One row per layer: ``block`` (its number), ``layer`` (its name), ``rows``, ``columns``, ``zeros`` (the share of
        weights that are 0), ``dtype`` and ``bytes`` (with the scales of quantized weights).

    Raises:
        InvalidValueError: Another kind of model.
    """
    rows = []
    for index, layers in enumerate(layers_of(decoder_of(model))):
        for name, layer in layers.items():
            stored = [layer.weight, layer.weight_scale] if isinstance(layer, QuantizedLinear) else [layer.weight]
            zeros = (layer.weight.to(torch.float32) == 0).float().mean().item()
            dtype = str(layer.weight.dtype).removeprefix("torch.")
            rows.append(
                (index, name.rpartition(".")[2], *layer.weight.shape, zeros, dtype, sum(one.nbytes for one in stored))
            )
    return pd.DataFrame(rows, columns=["block", "layer", "rows", "columns", "zeros", "dtype", "bytes"])


def disk_bytes(model: SentenceTransformer) -> int:
    """Bytes of a model's weights on disk: it is saved to a temporary folder, and its safetensors are counted.

    Args:
        model: Any SentenceTransformer.
    """
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder, create_model_card=False)
        return sum(file.stat().st_size for file in Path(folder).rglob("*.safetensors"))


def drift(before: SentenceTransformer, after: SentenceTransformer, texts: Sequence[str]) -> float:
    """How far the vectors of texts turned: 1 - cosine, 0 to 2, the mean over texts.

    Args:
        before: An embedder.
        after: The same, compressed.
        texts: Held-out texts, others than were calibrated on.
    """
    return _turned(_vectors(before, texts), _vectors(after, texts))


def sensitivity(
    model: SentenceTransformer,
    how: str = "wanda",
    sparsity: str | float | None = None,
    form: str | None = None,
    texts: Sequence[str] | None = None,
    instruction: str | None = None,
    held_out: Sequence[str] | None = None,
) -> pd.DataFrame:
    """How far the vectors of texts move when one block of the decoder is compressed and the others are not.

    Args:
        model: As of :func:`prune`; it stays as it is.
        how: One of :data:`CRITERIA`, or of :data:`ROUNDINGS`.
        sparsity: With a criterion; None for 2:4.
        form: With a rounding; None for int8.
        texts, instruction: As of :func:`prune`.
        held_out: Texts whose vectors are compared; None for 64 documents of the docs corpus' ``dev`` split.

    Returns:
        One row per block: ``block`` (its number) and ``drift``; see :func:`drift`.

    Raises:
        UnknownNameError: No such criterion, rounding, pattern or form.
        InvalidValueError: As :func:`prune` or :func:`quantize`; a sparsity with a rounding, or a form with a criterion.
    """
    if how not in (*CRITERIA, *ROUNDINGS):
        raise UnknownNameError("criterion or rounding", how, [*CRITERIA, *ROUNDINGS])
    unused, value = ("form", form) if how in CRITERIA else ("sparsity", sparsity)
    if value is not None:
        raise InvalidValueError(unused, f"None, since {how} has none", value)
    sparsity, form = sparsity or "2:4", form or "int8"
    if form not in FORMATS:
        raise UnknownNameError("form", form, FORMATS)
    check_layers(model, sparsity if how in CRITERIA else None)
    if how in ROUNDINGS:
        check_form(form, model.device)
    if held_out is None:
        held_out = load_docs().split("dev").sort_values("id")["document"].head(_HELD_OUT).tolist()
    model = copied(model)
    before = _vectors(model, held_out)
    compressed = (
        pruned_blocks(model, how, sparsity, texts, instruction) if how in CRITERIA
        else quantized_blocks(model, how, form, texts, instruction)
    )  # fmt: skip
    whole_layers = [dict(one) for one in layers_of(model[0])]
    kept = [{name: layer.weight.detach().clone() for name, layer in one.items()} for one in whole_layers]
    rows = []
    for block in compressed:
        rows.append((block.index, _turned(before, _vectors(model, held_out))))
        for name, layer in whole_layers[block.index].items():
            put(model[0].decoder, name, layer)
            layer.weight.data.copy_(kept[block.index][name])
    return pd.DataFrame(rows, columns=["block", "drift"])


def _turned(before: torch.Tensor, after: torch.Tensor) -> float:
    return 1 - float((before * after).sum(dim=1).mean())


def _vectors(model: SentenceTransformer, texts: Sequence[str]) -> torch.Tensor:
    vectors = model.encode(list(texts), show_progress_bar=False, convert_to_tensor=True)
    return normalize(vectors.double().cpu(), dim=1)
