"""From tokens to floating-point operations, time and money, by the size of a model; and what of a batch is padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import InvalidValueError, whole
from .cost import clock


class Size(NamedTuple):
    """What decides how much a transformer computes for a text.

    Attributes:
        weights: Numbers in the matrices of its blocks, each of which meets every token once. Embeddings do not count:
            they are looked up. Nor does a language-model head, which an embedder does not run.
        layers: Blocks.
        width: Heads times the dim of a head.
    """

    weights: int
    layers: int
    width: int

    @classmethod
    def of(cls, transformer: PreTrainedModel) -> Self:
        """The size of a loaded model, a decoder or an encoder, without its head.

        Args:
            transformer: A transformers model.

        Raises:
            InvalidValueError: A model whose blocks have no linear layers.
        """
        weights = sum(layer.weight.numel() for layer in transformer.modules() if isinstance(layer, nn.Linear))
        if not weights:
            raise InvalidValueError("transformer", "blocks of linear layers", type(transformer).__name__)
        config = transformer.config
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(weights, config.num_hidden_layers, config.num_attention_heads * head)

    def flops(self, tokens: float, front: float = 0) -> float:
        """Floating-point operations of one text, forward: ``2 x weights x n + 4 x layers x width x n x (n + front)``.

        Each weight multiplies and adds once for each token. In each layer every token's query meets every key (a
        product and a sum of ``width`` numbers), and its attention every value (as many). The causal half that a mask
        hides is counted, as kernels without a special case compute it. Norms, activations and rotations, well under a
        hundredth, are not counted.

        Args:
            tokens: Tokens n that are read.
            front: Tokens in front that are not read, since their keys and values are kept; they are attended to.

        Source: Kaplan et al. 2020, *Scaling laws for neural language models*, table 1, there with half the attention.
        """
        return 2 * self.weights * tokens + 4 * self.layers * self.width * tokens * (tokens + front)


def _llama(layers: int, width: int, inner: int, keys: int) -> Size:
    """A decoder with a gated feed-forward part and a narrower width for keys and for values."""
    return Size(layers * (2 * width * width + 2 * width * keys + 3 * width * inner), layers, width)


SIZES = {
    "SmolLM2-135M": _llama(30, 576, 1536, 192),
    "S-LLaMA-1.3B": _llama(24, 2048, 5504, 2048),
    "LLaMA-2-7B": _llama(32, 4096, 11008, 4096),
    "Mistral-7B": _llama(32, 4096, 14336, 1024),
    "BERT-base": Size(12 * (4 * 768**2 + 2 * 768 * 3072), 12, 768),
}
"""The papers' backbones, from their published configurations, this project's, and Causal2Vec's encoder."""


class Bill(NamedTuple):
    """What it takes to embed texts.

    Attributes:
        tokens: That are read.
        flops: Floating-point operations.
        seconds: Of one device.
        money: In the currency of the price.
    """

    tokens: float
    flops: float
    seconds: float
    money: float


def estimate(
    size: Size,
    tokens: float | Sequence[float] | np.ndarray,
    texts: float = 1,
    *,
    front: float = 0,
    peak: float,
    utilisation: float,
    price: float = 0.0,
) -> Bill:
    """What embedding a collection takes, from tokens a text.

    ``flops = texts x mean of Size.flops``, ``seconds = flops / (peak x utilisation)``, ``money = seconds / 3600 x
    price``. The front is read once, which is left out: of many texts it is nothing.

    Args:
        size: One of :data:`SIZES`, or :meth:`Size.of` a model.
        tokens: Tokens a text; or those of each text of a sample, since attention grows with their square.
        texts: Texts of the collection.
        front: Tokens of a beginning that is kept; see :meth:`Size.flops`.
        peak: Floating-point operations a second of the device at most, in the dtype at hand.
        utilisation: Share of the peak that is reached, above 0, at most 1. Measure it: short texts reach little.
        price: Money an hour of the device.

    Raises:
        InvalidValueError: A number that is not finite or out of its range, or no tokens.

    Examples:
        >>> bill = estimate(SIZES["Mistral-7B"], 100, 1_000_000, peak=1e14, utilisation=0.5, price=2.0)
        >>> f"{bill.flops:.2e} operations, {bill.seconds / 3600:.1f} hours, {bill.money:.0f} in money"
        '1.40e+18 operations, 7.8 hours, 16 in money'
    """
    lengths = np.atleast_1d(np.asarray(tokens, dtype=float))
    for name, values, least, most in (
        ("tokens", lengths, 0, math.inf), ("texts", texts, 0, math.inf), ("front", front, 0, math.inf),
        ("peak", peak, np.finfo(float).tiny, math.inf), ("utilisation", utilisation, np.finfo(float).tiny, 1),
        ("price", price, 0, math.inf),
    ):  # fmt: skip
        found = np.asarray(values, dtype=float)
        if not (found.size and np.isfinite(found).all() and (found >= least).all() and (found <= most).all()):
            expected = "above 0, at most 1" if name == "utilisation" else f"finite, {'above' if least else 'from'} 0"
            raise InvalidValueError(name, f"a number, {expected}", values)
    flops = texts * float(size.flops(lengths, front).mean())
    seconds = flops / (peak * utilisation)
    return Bill(texts * float(lengths.mean()), flops, seconds, seconds / 3600 * price)


def utilisation(decoder: PreTrainedModel, batches: Sequence[tuple[int, int]], turns: int = 5) -> pd.DataFrame:
    """Share of a device's peak that a decoder reaches, the peak being that of a bare product of matrices.

    The product is of 1,024 rows by a matrix of the model's width by four times that, in the decoder's dtype, timed in
    turn with the batches; the fastest one is the peak, since what else a machine does only adds time.

    Args:
        decoder: A transformers decoder.
        batches: Texts and tokens a text of each batch; there is no padding.
        turns: Timed rounds, after one to warm up.

    Returns:
        One row per turn (from 0) and batch: ``turn``, ``texts``, ``tokens``, ``seconds``, ``peak`` (operations a second
        of the fastest product) and ``utilisation`` (:meth:`Size.flops` a second, over the peak).

    Raises:
        InvalidValueError: Numbers that are not positive whole ones.
    """
    turns, size, wide = whole("turns", turns), Size.of(decoder), decoder.config.hidden_size
    kind = {"device": decoder.device, "dtype": decoder.dtype}
    left, right = torch.ones(1024, wide, **kind), torch.ones(wide, 4 * wide, **kind)
    products, rows = [], []
    with torch.no_grad():
        for turn in range(-1, turns):
            products.append(_seconds(lambda: left @ right, decoder.device))
            for texts, tokens in batches:
                shape = whole("texts", texts), whole("tokens", tokens)
                ids = torch.ones(shape, dtype=torch.long, device=decoder.device)
                spent = _seconds(lambda ids=ids: decoder(input_ids=ids, use_cache=False), decoder.device)
                rows.append((turn, *shape, spent, texts * size.flops(tokens) / spent))
    frame = pd.DataFrame(rows, columns=["turn", "texts", "tokens", "seconds", "reached"])
    frame["peak"] = 2 * left.numel() * right.shape[1] / min(products)
    frame["utilisation"] = frame.pop("reached") / frame["peak"]
    return frame[frame["turn"] >= 0].reset_index(drop=True)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    began = clock(device)
    work()
    return clock(device) - began


def padding_share(lengths: Sequence[int], batch_size: int) -> float:
    """Share of what a model reads that is padding, if each batch is padded to its longest text.

    Args:
        lengths: Tokens of each text, in the order in which they are batched.
        batch_size: Texts a batch.

    Returns:
        0 to below 1.

    Raises:
        InvalidValueError: No lengths, one that is not a positive whole number, or such a batch size.

    Examples:
        >>> padding_share([1, 9, 1, 9], 2), padding_share(sorted([1, 9, 1, 9]), 2)
        (0.4444444444444444, 0.0)
    """
    if not len(lengths):
        raise InvalidValueError("lengths", "at least one", lengths)
    real = [whole("lengths", int(one), of="tokens") for one in lengths]
    batches = [real[at : at + batch_size] for at in range(0, len(real), whole("batch_size", batch_size))]
    return 1 - sum(real) / sum(len(batch) * max(batch) for batch in batches)
