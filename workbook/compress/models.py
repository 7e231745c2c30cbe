"""Compressing an embedder: its decoder's blocks pruned, stored in eight bits, or fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from numbers import Real

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from ..errors import InvalidValueError, UnknownNameError, whole
from ..modules.card import card_of
from ..quantized import FORMATS, QuantizedLinear, check_form, mark
from . import matrices
from .calibration import Block, blocks, decoder_of, layers_of
from .matrices import CRITERIA, ROUNDINGS, check_sparsity


def prune(
    model: SentenceTransformer,
    how: str = "wanda",
    sparsity: str | float = "2:4",
    texts: Sequence[str] | None = None,
    instruction: str | None = None,
) -> SentenceTransformer:
    """A model, half of whose weights or another share are 0: those of the linear layers in its decoder's blocks.

    Embeddings, norms, the language-model head and what follows the decoder stay as they are. Blocks are pruned in
    their order, by what goes into them behind the pruned ones.

    Args:
        model: A SentenceTransformer that begins with :class:`~workbook.modules.Decoder`; it stays as it is.
        how: One of :data:`CRITERIA`. ``magnitude`` reads no text.
        sparsity: A pattern of :data:`PATTERNS`, or the share of weights that go: of each row for ``wanda``, else of
            each layer.
        texts: Calibration texts, read through the model's own template; None for some of the docs corpus' split for
            training.
        instruction: The bare task instruction in front of each text, or None.

    Returns:
        A new model, on the same device and in the same dtype.

    Raises:
        UnknownNameError: No such criterion or pattern.
        InvalidValueError: Another kind of model, or one that is quantized; a share or a pattern that does not fit; too
            few texts; inputs that make a Hessian singular.

    Source: Sun et al. 2023 (Wanda); Frantar & Alistarh 2023 (SparseGPT); NV-Embed, appendix A.1.
    """
    if how not in CRITERIA:
        raise UnknownNameError("criterion", how, CRITERIA)
    check_layers(model, sparsity)
    model = copied(model)
    for _ in pruned_blocks(model, how, sparsity, texts, instruction):
        pass
    card_of(model).add_compression(f"pruned by {how}, {sparsity if isinstance(sparsity, str) else f'{sparsity:.0%}'}")
    return model


def quantize(
    model: SentenceTransformer,
    how: str = "rtn",
    form: str = "int8",
    texts: Sequence[str] | None = None,
    instruction: str | None = None,
) -> SentenceTransformer:
    """A model whose decoder's blocks store their linear layers' weights in eight bits; weights of 0 stay 0.

    Args:
        model: As of :func:`prune`; it stays as it is.
        how: One of :data:`ROUNDINGS`. ``rtn`` reads no text.
        form: A name of :data:`FORMATS`.
        texts, instruction: As of :func:`prune`.

    Returns:
        A new model, on the same device, for inference: its eight-bit weights can't be trained.

    Raises:
        UnknownNameError: No such rounding or form.
        InvalidValueError: As :func:`prune`, or a form that the model's device does not have.

    Source: Frantar et al. 2022 (GPTQ); NV-Embed, appendix A.3.
    """
    for kind, name, known in (("rounding", how, ROUNDINGS), ("form", form, FORMATS)):
        if name not in known:
            raise UnknownNameError(kind, name, known)
    check_layers(model)
    check_form(form, model.device)
    model = copied(model)
    for _ in quantized_blocks(model, how, form, texts, instruction):
        pass
    mark(model[0].decoder, form)
    card_of(model).add_compression(f"stored as {form}, rounded by {how}")
    return model


def smaller(model: SentenceTransformer, layers: int | float = 0.5) -> SentenceTransformer:
    """The same model without its decoder's last blocks: what compression competes with.

    Args:
        model: As of :func:`prune`; it stays as it is.
        layers: How many blocks stay, or which share of them, rounded to whole blocks.

    Raises:
        InvalidValueError: Another kind of model, or a number or share of blocks that it does not have.
    """
    count = len(decoder_of(model).decoder.layers)
    if isinstance(layers, Real) and 0 < layers < 1:
        layers = max(1, round(layers * count))
    layers = whole("layers", layers, most=count, of="blocks", hint="A share of them, such as 0.5, works too.")
    model = copied(model)
    decoder = model[0].decoder
    decoder.layers = decoder.layers[:layers]
    decoder.config.num_hidden_layers = layers
    if getattr(decoder.config, "layer_types", None):
        decoder.config.layer_types = decoder.config.layer_types[:layers]
    card_of(model).add_compression(f"its first {layers} blocks of {count}")
    return model


def pruned_blocks(
    model: SentenceTransformer, how: str, sparsity: str | float, texts: Sequence[str] | None, instruction: str | None
) -> Iterator[Block]:
    """The blocks of a model, each after it was pruned in place."""
    ways: dict[str, Callable[..., torch.Tensor]] = {
        "magnitude": lambda weight: weight * matrices.mask(matrices.magnitude(weight), sparsity, per_row=False),
        "wanda": lambda weight, squares: weight * matrices.mask(matrices.wanda(weight, squares.sqrt()), sparsity),
        "sparsegpt": lambda weight, hessian: matrices.sparsegpt(weight, hessian, sparsity),
    }
    needs = {"wanda": "norms", "sparsegpt": "hessian"}.get(how, "")
    for block in blocks(model[0], texts, instruction, needs=needs):
        for name, layer in block.layers.items():
            with torch.no_grad():
                layer.weight.copy_(ways[how](layer.weight, *block.of(name)))
        yield block


def quantized_blocks(
    model: SentenceTransformer, how: str, form: str, texts: Sequence[str] | None, instruction: str | None
) -> Iterator[Block]:
    """The blocks of a model, each after its layers were replaced by quantized ones."""
    way = matrices.gptq if how == "gptq" else matrices.round_to_nearest
    for block in blocks(model[0], texts, instruction, needs="hessian" if how == "gptq" else ""):
        for name, layer in block.layers.items():
            with torch.no_grad():
                stored, scale = way(layer.weight, *block.of(name), form)
            made = QuantizedLinear(stored, scale, layer.bias)
            put(model[0].decoder, name, made.train(layer.training))
        yield block


def check_layers(model: SentenceTransformer, sparsity: str | float | None = None) -> None:
    """Refuse a model that can't be compressed, before anything is computed.

    Args:
        model: A SentenceTransformer.
        sparsity: See :func:`prune`; None where nothing is pruned.

    Raises:
        UnknownNameError, InvalidValueError: As :func:`prune`.
    """
    for layers in layers_of(decoder_of(model)):
        for name, layer in layers.items():
            if isinstance(layer, QuantizedLinear):
                dtype = str(layer.weight.dtype).removeprefix("torch.")
                hint = "Prune first, then quantize; take the model from before it was quantized."
                raise InvalidValueError("model", "weights in 16 or 32 bits", f"{name} in {dtype}", hint)
            if sparsity is not None:
                check_sparsity(sparsity, layer.in_features, name)


def copied(model: SentenceTransformer) -> SentenceTransformer:
    """A copy of a model that shares no weights with it, in evaluation mode.

    Args:
        model: A SentenceTransformer.
    """
    return deepcopy(model).eval()


def put(decoder: nn.Module, name: str, layer: nn.Module) -> None:
    """Replace a layer.

    Args:
        decoder: The decoder that holds it.
        name: Its name there.
        layer: What takes its place.
    """
    parent, _, leaf = name.rpartition(".")
    setattr(decoder.get_submodule(parent), leaf, layer)
