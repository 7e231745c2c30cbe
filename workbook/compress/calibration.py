"""Calibration: what goes into each linear layer of a decoder's blocks, one block after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import nn

from ..corpora.docs import load_docs
from ..errors import InvalidValueError
from ..modules import Decoder
from ..quantized import LINEAR, QuantizedLinear

_BATCH = 32
_COLUMNS_OF_A_TEXT = 12  # of the widest layer: texts of the docs corpus have some 50 tokens


class Block(NamedTuple):
    """A block of a decoder, ready to be compressed.

    Attributes:
        index: Its number, from 0.
        layers: Its linear layers by their names in the decoder.
        inputs: By the same names, of the inputs over all calibration tokens: X X^T, float32 (columns, columns), or its
            diagonal (columns,); empty without calibration.
    """

    index: int
    layers: dict[str, nn.Linear | QuantizedLinear]
    inputs: dict[str, torch.Tensor]

    def of(self, name: str) -> list[torch.Tensor]:
        """What there is of the inputs of a layer: one tensor, or none.

        Args:
            name: The layer's.
        """
        return [self.inputs[name]] if name in self.inputs else []


def decoder_of(model: SentenceTransformer) -> Decoder:
    """The decoder of a model, whose blocks are what is compressed.

    Args:
        model: A SentenceTransformer.

    Raises:
        InvalidValueError: Its first module is no decoder of this library, or one whose blocks have other layers.
    """
    first = next(iter(model), None) if isinstance(model, SentenceTransformer) else None
    if not isinstance(first, Decoder):
        hint = "workbook.build makes one; workbook.modules.load_embedder loads one."
        got = type(model).__name__ if first is None else f"one that begins with {type(first).__name__}"
        raise InvalidValueError("model", "a SentenceTransformer that begins with this library's Decoder", got, hint)
    if not all(set(LINEAR) <= {name.rpartition(".")[2] for name in one} for one in layers_of(first)):
        got = type(first.decoder).__name__
        raise InvalidValueError("model", f"a decoder whose blocks have the layers {', '.join(LINEAR)}", got)
    return first


def layers_of(decoder: Decoder) -> list[dict[str, nn.Linear | QuantizedLinear]]:
    """The linear layers of each block by their names in the decoder.

    Args:
        decoder: The first module of a model.
    """
    return [
        {
            f"layers.{index}.{name}": layer
            for name, layer in block.named_modules()
            if name.rpartition(".")[2] in LINEAR and isinstance(layer, nn.Linear | QuantizedLinear)
        }
        for index, block in enumerate(getattr(decoder.decoder, "layers", [nn.Module()]))
    ]


@torch.no_grad()
def blocks(
    decoder: Decoder, texts: Sequence[str] | None, instruction: str | None, *, needs: str = ""
) -> Iterator[Block]:
    """The blocks of a decoder in their order, each with what goes into its layers.

    While a block is out, its weights can be changed; what goes into the next one is computed behind them.

    Args:
        decoder: The first module of a model, in evaluation mode.
        texts: Calibration texts, read through the decoder's own template; None for :func:`default_texts`.
        instruction: The bare task instruction in front of each text, or None.
        needs: ``hessian`` for X X^T, ``norms`` for its diagonal, or nothing, in which case no text is read.

    Raises:
        InvalidValueError: No texts, what is no text, or with ``hessian`` fewer tokens than columns of a layer.

    Source: SparseGPT, section 3.3, and its published code.
    """
    layers = layers_of(decoder)
    if not needs:
        yield from (Block(index, one, {}) for index, one in enumerate(layers))
        return
    columns = max(layer.in_features for one in layers for layer in one.values())
    if texts is None:
        texts = default_texts(columns)
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise InvalidValueError("texts", "a list of calibration texts", texts)
    passes = _passes(decoder, list(texts), instruction)
    tokens = sum(int(one.real.sum()) for one in passes)
    if needs == "hessian" and tokens < columns:
        raise InvalidValueError(
            "texts", f"at least {columns} tokens, as many as the widest layer has columns", f"{tokens} tokens",
            "Give more calibration texts.",
        )  # fmt: skip
    for index, own in enumerate(layers):
        block = decoder.decoder.layers[index]
        yield Block(index, own, _inputs(block, index, own, passes, needs))
        for one in passes if index + 1 < len(layers) else ():
            one.states = one.through(block, index)


def default_texts(columns: int) -> list[str]:
    """Documents of the docs corpus' split for training: 128, or more where a layer has over 1536 columns.

    Args:
        columns: Of the widest layer.
    """
    return (
        load_docs().split("train").sort_values("id")["document"].head(max(128, columns // _COLUMNS_OF_A_TEXT)).tolist()
    )


class _Pass:
    """One pass of the decoder over a batch: the states so far, which of them are real, and what else blocks get."""

    def __init__(self, real: torch.Tensor | None):
        self.real, self.states = real, None
        self.options: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def through(self, block: nn.Module, index: int) -> torch.Tensor:
        positional, named = self.options[index]
        made = block(self.states, *positional, **named)
        return made[0] if isinstance(made, tuple) else made


def _passes(decoder: Decoder, texts: list[str], instruction: str | None) -> list[_Pass]:
    """The passes of the decoder over all texts, with the states that go into the first block."""
    passes: list[_Pass] = []

    def begin(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        passes.append(_Pass(options["attention_mask"]))

    def enter(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        options = dict(options)
        states, *others = args or (options.pop("hidden_states"),)
        if passes[-1].states is None:
            real, passes[-1].states = passes[-1].real, states
            passes[-1].real = torch.ones(states.shape[:2], device=states.device).bool() if real is None else real.bool()
        passes[-1].options.append((tuple(others), options))

    hooks = [decoder.decoder.register_forward_pre_hook(begin, with_kwargs=True)]
    hooks += [block.register_forward_pre_hook(enter, with_kwargs=True) for block in decoder.decoder.layers]
    try:
        ordered = sorted(texts, key=lambda text: len(text) if isinstance(text, str) else 0)  # little is padding
        for start in range(0, len(ordered), _BATCH):
            features = decoder.preprocess(ordered[start : start + _BATCH], instruction)
            decoder(batch_to_device(features, decoder.decoder.device))
    finally:
        for hook in hooks:
            hook.remove()
    return passes


def _inputs(
    block: nn.Module, index: int, layers: dict[str, nn.Module], passes: list[_Pass], needs: str
) -> dict[str, torch.Tensor]:
    """Of what goes into each layer of a block, X X^T or its diagonal, over all real tokens."""
    sums: dict[str, torch.Tensor | float] = dict.fromkeys(layers, 0.0)

    def add(module: nn.Module, args: tuple[torch.Tensor, ...], *, name: str, real: torch.Tensor) -> None:
        read = args[0][real].float()  # (tokens, columns)
        sums[name] = sums[name] + (read.T @ read if needs == "hessian" else read.square().sum(dim=0))

    for one in passes:
        hooks = [
            layer.register_forward_pre_hook(partial(add, name=name, real=one.real)) for name, layer in layers.items()
        ]
        try:
            one.through(block, index)
        finally:
            for hook in hooks:
                hook.remove()
    return sums
