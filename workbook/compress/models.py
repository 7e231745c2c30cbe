"""Pruning, quantizing and cutting the decoder of an embedder, as a whole or one block at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import pandas as pd
import torch
from torch import nn

from ..errors import InvalidValueError, UnknownNameError, whole
from ..modules.card import card_of
from ..quantized import FORMATS, Quantized, QuantizedLinear, dtype_of, is_quantized, mark
from . import matrices
from .calibration import NORMS, Calibration, Inputs, default_texts, linears
from .measures import decoder_of, turned, vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

CRITERIA = ("magnitude", "wanda", "sparsegpt")
"""Names of the criteria of pruning."""
CONTROL = "random"
"""The control of a criterion: scores drawn at random, the same whenever a model of that shape is pruned.

One draw for all seeds of a training: an interval over these does not know of others.
"""
ROUNDINGS = ("rtn", "gptq")
"""Names of the ways to round: each weight to the nearest, or GPTQ."""

_HESSIAN = ("sparsegpt", "gptq")
_UNCALIBRATED = (CONTROL, "magnitude", "rtn")
_T = TypeVar("_T")
_Change = Callable[[nn.Linear, Inputs | None], torch.Tensor | Quantized]


def prune(
    model: SentenceTransformer,
    how: str = "wanda",
    sparsity: str | float = "2:4",
    texts: Sequence[str] | None = None,
    instruction: str | None = None,
) -> SentenceTransformer:
    """The model with some weights of its decoder's linear layers set to zero; nothing is trained.

    Layers of the blocks alone, not the embeddings. Dtype and size stay as they are.

    Args:
        model: An embedder whose first module is a Decoder; it stays as it is.
        how: One of :data:`CRITERIA`, or :data:`CONTROL`.
        sparsity: ``N:M``, of each M neighbours in a row N stay; or the share that goes, for Wanda of each row, for the
            others of each matrix (SparseGPT: of each 128 columns).
        texts: Calibration texts, for Wanda and SparseGPT: at least one token for each column of the widest layer,
            repeated texts not counted; for Wanda 256 are enough for a wider one. None for 128 documents of the docs
            corpus, of its split ``train``, or for as many more as the widest layer needs. What they leave unknown is
            damped; see :func:`~.matrices.sparsegpt`.
        instruction: The bare instruction with which they are read, or None.

    Raises:
        UnknownNameError: No such criterion.
        InvalidValueError: Another sparsity, a pattern that does not divide a layer's columns, a model that does not
            begin with a Decoder, is quantized or has experts stored as one tensor, or texts of too few tokens, that do
            not reach a layer, or before one of whose layers all states are zero, or one is not finite.

    Source: NV-Embed, appendix A.1; Sun et al. 2023 (Wanda); Frantar & Alistarh 2023 (SparseGPT).
    """
    change = _pruning(how, sparsity)
    _check(model, sparsity)
    _check_experts(model)
    small, tokens = _changed(model, how, change, texts, instruction)
    _note(small, f"pruned by {how}, sparsity {sparsity}{tokens}")
    return small


def quantize(
    model: SentenceTransformer,
    how: str = "rtn",
    form: str = "int8",
    texts: Sequence[str] | None = None,
    instruction: str | None = None,
    dynamic: bool = False,
) -> SentenceTransformer:
    """The model with its decoder's linear layers stored in 8 bits, with a float32 scale per row; zeros stay zero.

    It is saved and loaded that way. It can't be trained or pruned further: that comes first.

    Args:
        model: An embedder whose first module is a Decoder; it stays as it is.
        how: One of :data:`ROUNDINGS`; ``rtn`` needs no texts.
        form: ``int8``, or a float of 8 bits: ``e4m3`` or ``e5m2``.
        texts: See :func:`prune`.
        instruction: See :func:`prune`.
        dynamic: Whether each token's state is rounded to 8 bits too, where it meets a layer: products of integers,
            which save time on a CPU, for vectors that move further. For ``int8``.

    Raises:
        UnknownNameError: No such rounding or format.
        InvalidValueError: A model that does not begin with a Decoder, is quantized or has experts stored as one tensor,
            a device that does not hold the format, ``dynamic`` for a float, or for GPTQ texts of fewer tokens than a
            layer has columns, or as :func:`prune`.

    Source: NV-Embed, appendix A.3; Frantar et al. 2022 (GPTQ).
    """
    change = _rounding(how, form)
    if dynamic and form != "int8":
        raise InvalidValueError("dynamic", "int8, whose products are of integers", form)
    _check(model)
    _check_experts(model)
    _check_device(model, form)
    small, tokens = _changed(model, how, change, texts, instruction, form, dynamic)
    mark(small[0].decoder, form, dynamic)
    _note(small, f"quantized by {how} to {form}{', inputs too' * dynamic}{tokens}")
    return small


def smaller(model: SentenceTransformer, layers: int | float, keep: str = "first") -> SentenceTransformer:
    """The model with fewer blocks: what one has simply by taking a smaller model, as a baseline of equal bytes.

    Args:
        model: An embedder whose first module is a Decoder; it stays as it is.
        layers: Number of blocks that stay; or the share of them, a float between 0 and 1.
        keep: Which: the ``first``, or blocks spread ``evenly`` from the first to the last.

    Raises:
        UnknownNameError: Another ``keep``.
        InvalidValueError: A model that does not begin with a Decoder, or more blocks than there are.
    """
    if keep not in ("first", "evenly"):
        raise UnknownNameError("choice of blocks", keep, ("first", "evenly"))
    _check(model)
    there = len(model[0].decoder.layers)
    if isinstance(layers, float) and 0 < layers < 1:
        layers = max(1, round(layers * there))
    layers = whole("layers", layers, 1, there, of="blocks")
    spread = torch.linspace(0, there - 1, layers).round().int().tolist()
    kept = [*range(layers)] if keep == "first" else spread
    small = copy.deepcopy(model)
    decoder = small[0].decoder
    decoder.layers = nn.ModuleList(decoder.layers[number] for number in kept)
    for number, block in enumerate(decoder.layers):
        for part in block.modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = number
    if getattr(decoder.config, "layer_types", None):
        decoder.config.layer_types = [decoder.config.layer_types[number] for number in kept]
    decoder.config.num_hidden_layers = layers
    _note(small, f"cut to {layers} of {there} blocks ({keep})")
    return small


def sensitivity(
    model: SentenceTransformer,
    how: str = "wanda",
    sparsity: str | float | None = None,
    form: str | None = None,
    texts: Sequence[str] | None = None,
    held_out: Sequence[str] | None = None,
    instruction: str | None = None,
) -> pd.DataFrame:
    """Which block breaks first: one block at a time is compressed, all others stay whole.

    Args:
        model: An embedder whose first module is a Decoder; it stays as it is.
        how: One of :data:`CRITERIA` or :data:`ROUNDINGS`, or :data:`CONTROL`.
        sparsity: For a criterion; None for ``2:4``.
        form: For a rounding; None for ``int8``.
        texts: Calibration texts; see :func:`prune`.
        held_out: Texts whose vectors are compared; None for 32 documents of the docs corpus, of its split ``dev``.
        instruction: The bare instruction with which both are read, or None.

    Returns:
        One row per block: ``block`` (from 0) and ``drift``; see :func:`~.measures.drift`.

    Raises:
        UnknownNameError, InvalidValueError: As :func:`alone`.
    """
    _asked(model, how, sparsity, form)  # refused before anything is read
    if held_out is None:
        from ..corpora.docs import load_docs

        held_out = load_docs().split("dev").sort_values("id")["document"].head(32).tolist()
    was = vectors(model, held_out, instruction)

    def look(work: SentenceTransformer) -> float:
        return turned(was, vectors(work, held_out, instruction))

    found = alone(model, look, how, sparsity, form, texts, instruction)
    return pd.DataFrame([(block, drift) for block, _, drift in found], columns=["block", "drift"])


def alone(
    model: SentenceTransformer,
    look: Callable[[SentenceTransformer], _T],
    how: str = "wanda",
    sparsity: str | float | None = None,
    form: str | None = None,
    texts: Sequence[str] | None = None,
    instruction: str | None = None,
    layers: bool = False,
) -> list[tuple[int, str, _T]]:
    """What a function says of a model in which one block at a time is compressed, or one linear layer.

    Args:
        model: An embedder whose first module is a Decoder; it stays as it is.
        look: Function of the changed model, which is the same object each time.
        how, sparsity, form, texts, instruction: See :func:`sensitivity`.
        layers: Whether it is one linear layer that is compressed, rather than all of a block.

    Returns:
        For each block (from 0), or in its place for each of its layers: the block, the layer's name in it (empty for
        the whole block), and what was said.

    Raises:
        UnknownNameError, InvalidValueError: As :func:`prune` and :func:`quantize`; or a sparsity for a rounding, or a
            format for a criterion.
    """
    change = _asked(model, how, sparsity, form)
    work, found = copy.deepcopy(model), []

    def tried(number: int, block: nn.Module, inputs: dict[str, Inputs]) -> None:
        parts = linears(block)
        groups = [(one, {one: part}) for one, part in parts.items()] if layers else [("", parts)]
        for name, chosen in groups:
            weights = {one: linear.weight.data for one, linear in chosen.items()}
            for one, linear in chosen.items():
                made = change(linear, inputs.get(one))
                made = made.dequantized() if isinstance(made, Quantized) else made
                linear.weight.data = made.to(weights[one].dtype)
            found.append((number, name, look(work)))
            for one, linear in chosen.items():
                linear.weight.data = weights[one]

    _each_block(work, how, texts, instruction, tried)
    return found


def _asked(model: SentenceTransformer, how: str, sparsity: str | float | None, form: str | None) -> _Change:
    """The change of a layer that is asked for, of a model that can be changed so."""
    if how in ROUNDINGS:
        if sparsity is not None:
            raise InvalidValueError("sparsity", f"nothing with {how}, which rounds", sparsity)
        change = _rounding(how, form or "int8")
    else:
        change = _pruning(how, sparsity or "2:4")
        if form is not None:
            raise InvalidValueError("form", f"nothing with {how}, which prunes", form)
    _check(model, None if how in ROUNDINGS else sparsity or "2:4")
    _check_experts(model)
    return change


def _pruning(how: str, sparsity: str | float) -> _Change:
    if how not in (CONTROL, *CRITERIA):
        raise UnknownNameError(
            "criterion", how, (CONTROL, *CRITERIA), f"To quantize, name one of {', '.join(ROUNDINGS)}."
        )
    matrices.parsed(sparsity)
    drawn = torch.Generator().manual_seed(0)

    def change(linear: nn.Linear, inputs: Inputs | None) -> torch.Tensor:
        weight = linear.weight.data
        if how == "sparsegpt":
            return matrices.sparsegpt(weight, inputs.hessian, sparsity)
        if how == "wanda":
            return weight * matrices.mask(matrices.wanda(weight, inputs.norms), sparsity)
        if how == "magnitude":
            return weight * matrices.mask(matrices.magnitude(weight), sparsity, "matrix")
        return weight * matrices.mask(torch.rand(weight.shape, generator=drawn).to(weight.device), sparsity, "matrix")

    return change


def _rounding(how: str, form: str) -> _Change:
    if how not in ROUNDINGS:
        raise UnknownNameError("rounding", how, ROUNDINGS, f"To prune, name one of {', '.join(CRITERIA)}.")
    dtype_of(form)

    def change(linear: nn.Linear, inputs: Inputs | None) -> Quantized:
        weight = linear.weight.data
        return (
            matrices.round_to_nearest(weight, form) if inputs is None else matrices.gptq(weight, inputs.hessian, form)
        )

    return change


def _changed(
    model: SentenceTransformer,
    how: str,
    change: _Change,
    texts: Sequence[str] | None,
    instruction: str | None,
    form: str = "",
    dynamic: bool = False,
) -> tuple[SentenceTransformer, str]:
    """A changed copy, and a note on its calibration."""
    small = copy.deepcopy(model)

    def compressed(_: int, block: nn.Module, inputs: dict[str, Inputs]) -> None:
        for name, linear in linears(block).items():
            made = change(linear, inputs.get(name))
            if isinstance(made, Quantized):
                block.set_submodule(name, QuantizedLinear.of(linear, made, form, dynamic))
            else:
                linear.weight.data = made.to(linear.weight.dtype)

    return small, _each_block(small, how, texts, instruction, compressed)


def _each_block(
    model: SentenceTransformer,
    how: str,
    texts: Sequence[str] | None,
    instruction: str | None,
    act: Callable[[int, nn.Module, dict[str, Inputs]], None],
) -> str:
    """Act on each block of a model that is our own; returns a note on the calibration."""
    blocks = model[0].decoder.layers
    model.eval()
    if how in _UNCALIBRATED:
        for number, block in enumerate(blocks):
            act(number, block, {})
        return ""
    widest = max(linear.in_features for block in blocks for linear in linears(block).values())
    if texts is None:
        texts = default_texts(model, widest if how in _HESSIAN else NORMS, instruction)
    calibration = Calibration(model, texts, instruction)
    calibration.require(widest, how, NORMS if how not in _HESSIAN else None)
    for number, block, inputs in calibration.blocks(how in _HESSIAN):
        act(number, block, inputs)
    return f", calibrated on {len(texts):,} texts of {calibration.tokens:,} tokens"


def _check(model: SentenceTransformer, sparsity: str | float | None = None) -> None:
    """Refuse a model before anything is computed."""
    decoder = decoder_of(model).decoder
    if is_quantized(decoder):
        hint = "Prune, cut and train first, and quantize last."
        raise InvalidValueError("model", "one that is not quantized", decoder.config.quantization_config, hint)
    for number, block in enumerate(getattr(decoder, "layers", ())):
        if not (found := linears(block)):
            kinds = sorted({type(part).__name__ for part in block.modules()})
            raise InvalidValueError("model", "blocks with linear layers", kinds)
        of = matrices.parsed(sparsity)[1] if sparsity is not None else 0
        for name, linear in found.items():
            if of and linear.in_features % of:
                raise InvalidValueError(
                    "sparsity", f"a pattern that divides the {linear.in_features} columns of {name} in block {number}",
                    sparsity, "Take a share, such as 0.5, or another pattern.",
                )  # fmt: skip


def _check_experts(model: SentenceTransformer) -> None:
    """Refuse a mixture whose experts are one tensor: they would stay as they are."""
    for block in model[0].decoder.layers:
        if fused := [name for name, weight in block.named_parameters() if weight.ndim == 3 and "experts" in name]:
            raise InvalidValueError(
                "model", "one whose weights are those of linear layers", fused,
                "A mixture's experts, stored as one tensor, would stay as they are, and they are most of its weights.",
            )  # fmt: skip


def _check_device(model: SentenceTransformer, form: str) -> None:
    try:
        torch.zeros(1, device=model.device).to(FORMATS[form]).float()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InvalidValueError(
            "form", f"a format that {model.device} holds", form, "Take int8, or move the model to the CPU."
        ) from error


def _note(model: SentenceTransformer, what: str) -> None:
    card = card_of(model)
    card.compression.append(what)
    card.scores = []
