"""What a decoder's linear layers read when texts pass, block by block, with the blocks before already compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from sentence_transformers.util import batch_to_device
from torch import nn

from ..errors import InvalidValueError
from ..modules import Decoder
from ..precision import without_autocast
from ..quantized import QuantizedLinear

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TEXTS = 128
"""Calibration texts by default, as many as in the papers' experiments."""
NORMS = 256
"""Tokens that are enough for the norms of a layer's inputs: of normal ones they are then known to 4 %."""


class Inputs:
    """What a linear layer reads, summed over tokens.

    Args:
        columns: Width of the input.
        hessian: Whether to sum X X^T, or only the squares of each feature.
        device: Where to.

    Attributes:
        tokens: Number of tokens seen.
    """

    def __init__(self, columns: int, hessian: bool, device: torch.device):
        shape = (columns, columns) if hessian else (columns,)
        self._sum = torch.zeros(shape, device=device)
        self.tokens = 0

    def add(self, states: torch.Tensor) -> None:
        """Add states (.., columns), all of real tokens."""
        flat = states.detach().reshape(-1, states.shape[-1]).float()
        self._sum += flat.T @ flat if self._sum.ndim == 2 else flat.square().sum(dim=0)
        self.tokens += len(flat)

    @property
    def norms(self) -> torch.Tensor:
        """Euclidean norm of each feature over the tokens, float32 (columns,)."""
        return (self._sum.diagonal() if self._sum.ndim == 2 else self._sum).sqrt()

    @property
    def hessian(self) -> torch.Tensor:
        """X X^T over the number of tokens, float32 (columns, columns)."""
        return self._sum / max(self.tokens, 1)

    @property
    def usable(self) -> bool:
        """Whether the sum is finite and not zero throughout; of any other no weight matters more than its neighbour."""
        return bool(self._sum.isfinite().all()) and bool(self._sum.any())


def linears(block: nn.Module) -> dict[str, nn.Linear | QuantizedLinear]:
    """The layers of a block that are compressed, by their name in it: all that are linear, whatever they are called.

    Args:
        block: A block of a decoder.
    """
    return {name: part for name, part in block.named_modules() if isinstance(part, nn.Linear | QuantizedLinear)}


def default_texts(model: SentenceTransformer, tokens: int, instruction: str | None = None) -> list[str]:
    """Documents of the docs corpus, of its split ``train`` alone; its ids are hashes, so they come in random order.

    :data:`TEXTS` of them, or twice as many until they have the tokens that are asked for, or all.

    Args:
        model: A model whose first module is a Decoder, by which they are counted.
        tokens: Least number of tokens: a layer of Mistral-7B has more columns than 128 documents have tokens.
        instruction: The bare instruction, or None.
    """
    from ..corpora.docs import load_docs

    documents, count = load_docs().split("train").sort_values("id")["document"].tolist(), TEXTS
    while count < len(documents):
        if sum(len(row.input_ids) for row in model[0].encode_texts(documents[:count], instruction)) >= tokens:
            break
        count *= 2
    return documents[:count]


class Calibration:
    """The texts on their way through a model's decoder, held in front of its next block.

    Each text is read alone, laid out by the model's own template, so that there is no padding.

    Args:
        model: A model whose first module is a Decoder.
        texts: Strings.
        instruction: The bare instruction, or None.

    Attributes:
        tokens: Number of tokens read.
        distinct: Of these, the tokens of texts that had not been read before.

    Raises:
        InvalidValueError: No texts, or one that can't be read.
    """

    def __init__(self, model: SentenceTransformer, texts: Sequence[str], instruction: str | None = None):
        if isinstance(texts, str) or len(texts) == 0:
            raise InvalidValueError("texts", "at least one, in a list", texts)
        module: Decoder = model[0]
        self._blocks = list(module.decoder.layers)
        self._states: list[torch.Tensor] = []
        self._options: list[list[dict[str, Any]]] = []
        with torch.no_grad(), without_autocast(model.device):
            for text in texts:
                features = batch_to_device(module.preprocess([text], prompt=instruction), model.device)
                with _called(self._blocks) as calls:
                    module(features)
                self._states.append(calls[0][0])
                self._options.append([options for _, options in calls])
        lengths = [states.shape[:-1].numel() for states in self._states]
        self.tokens, self.distinct = sum(lengths), sum(dict(zip(texts, lengths, strict=True)).values())

    def require(self, columns: int, criterion: str, enough: int | None = None) -> None:
        """Refuse fewer tokens, in distinct texts, than a layer has columns: of fewer a Hessian must be singular.

        Of more it may be so still: a token's state before the first block is the same in all texts. Such a Hessian is
        damped, as published; see :func:`~.matrices.sparsegpt`.

        Args:
            columns: Width of the widest layer.
            criterion: Name of the method, for the error.
            enough: Tokens that do for a wider layer too, for a method without a Hessian; None for one with.

        Raises:
            InvalidValueError: There are fewer.
        """
        least, why = columns, ", one a column of the widest layer"
        if enough is not None and enough < columns:
            least, why = enough, ", since norms of fewer tokens are chance"
        if self.distinct < least:
            repeated = " in distinct texts" if self.distinct < self.tokens else ""
            raise InvalidValueError(
                "texts", f"at least {least:,} tokens{repeated} for {criterion}{why}",
                f"{self.distinct:,} tokens", "Give more or longer texts.",
            )  # fmt: skip

    @torch.no_grad()
    def blocks(self, hessian: bool) -> Iterator[tuple[int, nn.Module, dict[str, Inputs]]]:
        """Each block with what its layers read; it may be changed before the next is asked for, and then counts so.

        Args:
            hessian: Whether to sum X X^T, which takes columns squared, or only the norms.

        Yields:
            Number of the block, the block, and what its layers read, by the names of :func:`linears`.

        Raises:
            InvalidValueError: A layer that no text reached, or whose inputs are zero throughout, infinite or NaN.
        """
        for number, block in enumerate(self._blocks):
            with _read(block, hessian) as inputs:
                self._pass(number, block)
            if unread := sorted({*linears(block)} - {*inputs}):
                hint = "A layer that not every token passes needs more or other texts."
                raise InvalidValueError("texts", f"some that reach every linear layer of block {number}", unread, hint)
            if useless := [name for name, one in inputs.items() if not one.usable]:
                wanted = f"some whose states are finite, and not all zero, before every linear layer of block {number}"
                hint = "Inputs of zeros or NaN say nothing of the weights; look at the model's own, or take float32."
                raise InvalidValueError("texts", wanted, useless, hint)
            yield number, block, inputs
            if number + 1 < len(self._blocks):
                self._states = self._pass(number, block)

    def _pass(self, number: int, block: nn.Module) -> list[torch.Tensor]:
        made = []
        for states, options in zip(self._states, self._options, strict=True):
            with without_autocast(states.device):
                out = block(states, **options[number])
            made.append(out[0] if isinstance(out, tuple) else out)
        return made


@contextmanager
def _called(blocks: list[nn.Module]) -> Iterator[list[tuple[torch.Tensor, dict[str, Any]]]]:
    """States and options with which each block is called in the ``with`` block, where only the first one computes.

    So every block is called with the states that the first one reads, and with options of its own.
    """
    calls, tuples, first = [], [], blocks[0].forward

    def passed(hidden_states: torch.Tensor, *others: Any, **options: Any) -> Any:
        if others:
            raise InvalidValueError("model", "blocks that take all but the states by name", f"{len(others) + 1} values")
        calls.append((hidden_states, options))
        if not tuples:  # in the form that the decoder expects
            tuples.append(isinstance(first(hidden_states, **options), tuple))
        return (hidden_states,) if tuples[0] else hidden_states

    with ExitStack() as held:
        for block in blocks:
            held.enter_context(mock.patch.object(block, "forward", passed))
        yield calls


@contextmanager
def _read(block: nn.Module, hessian: bool) -> Iterator[dict[str, Inputs]]:
    """What the layers of a block read in the ``with`` block; layers that read the same tensor share the sum."""
    inputs: dict[str, Inputs] = {}
    last: list[Any] = [None, None]

    def noting(name: str, linear: nn.Linear) -> Callable[..., None]:
        def note(_: nn.Module, given: tuple[torch.Tensor]) -> None:
            if given[0] is last[0]:
                inputs[name] = last[1]
                return
            if name not in inputs:
                inputs[name] = Inputs(linear.in_features, hessian, given[0].device)
            inputs[name].add(given[0])
            last[:] = given[0], inputs[name]

        return note

    with ExitStack() as held:
        for name, linear in linears(block).items():
            held.callback(linear.register_forward_pre_hook(noting(name, linear)).remove)
        yield inputs
