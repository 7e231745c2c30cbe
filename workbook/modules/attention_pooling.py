"""Pooling by attention: before averaging, each token attends to a trained dictionary or to its own text."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, normalize, scaled_dot_product_attention

from ..errors import DamagedFileError, InvalidValueError, UnknownNameError, whole
from .pooling import pool
from .saving import SavedModule

MLPS = ("geglu", "gelu", "linear", "none")


class AttentionPooling(SavedModule):
    """The block that both attention poolings share: cross-attention and an MLP, each with a norm and a residual.

    With states h and context c: y = h + attention(norm(h), norm(c)), then y + mlp(norm(y)), then the mean over the
    tokens that ``pooling_mask`` marks, scaled to length 1. Instruction tokens go through the block too, but are not
    pooled.

    The block begins as plain mean pooling: both branches start at 0, so that training starts from the decoder's states
    as they are. The paper does not give the initialisation.

    Args:
        embedding_dimension: Width of the token states.
        heads: Number of attention heads.
        head_dimension: Width of one head; None for the width of the states, as published. So the number of heads need
            not divide that width.
        mlp: ``geglu``, gated, as in the released code; ``gelu``, two linear layers, as in the paper; ``linear``, one
            linear layer in its place; or ``none``.
        mlp_ratio: Width inside ``geglu`` and ``gelu``, as a multiple of that of the states.

    Raises:
        InvalidValueError: A size that is not a positive whole number.
        UnknownNameError: No such MLP.

    Source: NV-Embed, section 3.2; norms, residuals, widths and the gate are those of the released code.
    """

    config_keys = ("embedding_dimension", "heads", "head_dimension", "mlp", "mlp_ratio")
    tokens_apart = False
    """Whether the output of a token depends on no other token of its text."""

    def __init__(
        self,
        embedding_dimension: int,
        *,
        heads: int = 8,
        head_dimension: int | None = None,
        mlp: str = "geglu",
        mlp_ratio: int = 4,
    ):
        super().__init__()
        width = whole("embedding_dimension", embedding_dimension)
        self.embedding_dimension = width
        self.heads = whole("heads", heads)
        self.head_dimension = width if head_dimension is None else whole("head_dimension", head_dimension)
        if mlp not in MLPS:
            raise UnknownNameError("mlp", mlp, MLPS)
        inner = self.heads * self.head_dimension
        self.query_norm, self.context_norm, self.mlp_norm = (nn.LayerNorm(width) for _ in range(3))
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_kv = nn.Linear(width, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, width, bias=False)
        self.mlp, self.mlp_ratio = mlp, whole("mlp_ratio", mlp_ratio)
        inside = width * (1 if mlp == "linear" else self.mlp_ratio)
        gated = mlp in ("geglu", "none")  # with none as many numbers are drawn, so that a dictionary is the same
        self.mlp_in = nn.Linear(width, (2 if gated else 1) * inside) if mlp != "linear" else nn.Identity()
        self.mlp_out = nn.Linear(inside, width)
        for last in (self.to_out.weight, self.mlp_out.weight, self.mlp_out.bias):
            nn.init.zeros_(last)
        if mlp == "none":
            del self.mlp_norm, self.mlp_in, self.mlp_out

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, float32 (batch, dim), of length 1, to the features; see ``Module.forward``.

        Args:
            features: ``token_embeddings`` (batch, tokens, dim), ``attention_mask`` and, if any, ``pooling_mask``
                (batch, tokens).
            **kwargs: Ignored.

        Raises:
            InvalidValueError: A row without a token to pool; the Decoder makes none.
        """
        states, mask = features["token_embeddings"], features["attention_mask"]
        pooled = features.get("pooling_mask", mask)
        if self.tokens_apart:  # what is not pooled, instruction and padding, need not be read
            made = self.read(states[pooled.bool()].unsqueeze(0), mask).squeeze(0)
            read = made.new_zeros(*states.shape)
            read[pooled.bool()] = made
        else:
            read = self.read(states, mask)
        vectors = pool(read, pooled, "mean")
        features["sentence_embedding"] = normalize(vectors, dim=1)
        return features

    def read(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The block's output for every token, before the mean.

        Args:
            states: (batch, tokens, dim), any floating dtype; in half precision the block computes in it too.
            mask: (batch, tokens), 1 at real tokens.

        Returns:
            (batch, tokens, dim).
        """
        half = states.dtype in (torch.bfloat16, torch.float16)
        precision = torch.autocast(states.device.type, states.dtype) if half else contextlib.nullcontext()
        with precision:
            states = states + self._attend(states, mask)
            if self.mlp == "none":
                return states
            inner = self.mlp_in(self.mlp_norm(states))
            if self.mlp == "geglu":
                value, gate = inner.chunk(2, dim=-1)
                inner = value * gelu(gate)
            elif self.mlp == "gelu":
                inner = gelu(inner)
            return states + self.mlp_out(inner)

    @abstractmethod
    def _attend(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The output of the attention for every token, (batch, tokens, dim)."""

    def get_embedding_dimension(self) -> int:
        """Width of the vector."""
        return self.embedding_dimension


class LatentAttention(AttentionPooling):
    """Every token attends to a trained dictionary: the latents are keys and values, the states are queries.

    Keys and values don't depend on the text. So each head's projections are multiplied out first, and the cost of a
    token is that of its scores over the latents, however wide the heads are. Without gradients the products are kept
    until a weight changes; with gradients they are computed once per batch.

    Args:
        embedding_dimension: Width of the token states.
        latents: Number of entries of the dictionary. With 0 the attention is left out, and the MLP alone remains; it
            starts with the same weights as beside a dictionary.
        heads, head_dimension, mlp, mlp_ratio: See :class:`AttentionPooling`.
        train_dictionary: Whether training moves the dictionary itself; otherwise it stays as it was drawn, and only the
            projections from and to it train.

    Raises:
        InvalidValueError, UnknownNameError: As :class:`AttentionPooling`.

    Source: NV-Embed, section 3.2 and equation 1: 512 latents, 8 heads. Without attention, or with a random dictionary,
    it is a control that the paper does not have.
    """

    config_keys = (*AttentionPooling.config_keys, "latents", "train_dictionary")
    tokens_apart = True

    def __init__(
        self,
        embedding_dimension: int,
        *,
        latents: int = 512,
        heads: int = 8,
        head_dimension: int | None = None,
        mlp: str = "geglu",
        mlp_ratio: int = 4,
        train_dictionary: bool = True,
    ):
        options = {"heads": heads, "head_dimension": head_dimension, "mlp": mlp, "mlp_ratio": mlp_ratio}
        super().__init__(embedding_dimension, **options)
        drawn = torch.randn(whole("latents", latents, 0), embedding_dimension)
        self.train_dictionary = train_dictionary
        self.dictionary = nn.Parameter(drawn, requires_grad=train_dictionary)
        if not latents:  # made all the same, so that the MLP starts as it does beside a dictionary
            del self.dictionary, self.query_norm, self.context_norm, self.to_q, self.to_kv, self.to_out
        self._kept: tuple[Any, tuple[torch.Tensor, torch.Tensor] | None] = (None, None)
        self._silent: torch.Tensor | None = None

    @property
    def latents(self) -> int:
        """Number of entries of the dictionary."""
        return len(self.dictionary) if hasattr(self, "dictionary") else 0

    def attention(self, states: torch.Tensor) -> torch.Tensor:
        """Attention weights of each token: float32 (batch, heads, tokens, latents), every row a distribution.

        Args:
            states: The decoder's, (batch, tokens, dim).

        Source: NV-Embed, figure 2.
        """
        keys, _ = self._entries()
        scores = self._scores(self.query_norm(states.to(keys.dtype)), keys)
        return scores.float().softmax(dim=-1).transpose(1, 2)

    def _attend(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not self.latents:
            return states.new_zeros(())
        keys, values = self._entries()
        if self._silent is not None:
            values = values.masked_fill(self._silent.to(values.device), 0.0)
        return self._scores(self.query_norm(states), keys).softmax(dim=-1).flatten(2) @ values

    def added(self) -> torch.Tensor:
        """What each latent adds to a token that pays all of a head's attention to it: (heads, latents, dim)."""
        return self._multiplied()[1].unflatten(0, (self.heads, -1))

    @contextlib.contextmanager
    def silenced(self, places: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Within the block some latents add nothing to the tokens that read them.

        Their values are 0; the attention is as before, so that what the other latents add stays the same. With all of
        them silenced, mean pooling and the MLP remain.

        Args:
            places: Pairs of a head and a latent, from 0.

        Raises:
            InvalidValueError: No such head or latent.
        """
        silent, before = torch.zeros(self.heads, self.latents, dtype=torch.bool), self._silent
        for head, latent in places:
            silent[whole("head", head, 0, self.heads - 1), whole("latent", latent, 0, self.latents - 1)] = True
        self._silent = silent.flatten().unsqueeze(1)
        try:
            yield
        finally:
            self._silent = before

    def _scores(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, heads, latents)."""
        return (queries @ keys).unflatten(-1, (self.heads, -1))

    def _entries(self) -> tuple[torch.Tensor, torch.Tensor]:
        """:meth:`_multiplied`, kept while no gradient is needed and no weight, dtype or device has changed."""
        if torch.is_grad_enabled():
            return self._multiplied()
        used = (
            self.dictionary,
            self.to_q.weight,
            self.to_kv.weight,
            self.to_out.weight,
            *self.context_norm.parameters(),
        )
        half = torch.get_autocast_dtype(used[0].device.type) if torch.is_autocast_enabled(used[0].device.type) else None
        state = half, [(weight.data_ptr(), weight.device, weight.dtype, weight._version) for weight in used]
        if self._kept[0] != state:
            self._kept = state, self._multiplied()
        return self._kept[1]

    def _multiplied(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The dictionary as the states see it: keys (dim, heads * latents), values (heads * latents, dim)."""
        dictionary = self.dictionary.to(self.context_norm.weight.dtype)  # one that does not train may be in half
        k, v = self.to_kv(self.context_norm(dictionary)).unflatten(-1, (2, self.heads, -1)).unbind(1)
        q = self.to_q.weight.unflatten(0, (self.heads, -1))
        out = self.to_out.weight.unflatten(1, (self.heads, -1))
        keys = torch.einsum("hcd,rhc->dhr", q, k) * self.head_dimension**-0.5
        return keys.flatten(1), torch.einsum("rhc,dhc->hrd", v, out).flatten(0, 1)


class SelfAttention(AttentionPooling):
    """Every token attends to its own text: the block of latent attention with the states as their own context.

    It attends to all real tokens, those of the instruction too, and not to padding, whatever the decoder's mask.

    Args:
        embedding_dimension: Width of the token states.
        **options: See :class:`AttentionPooling`.

    Raises:
        InvalidValueError, UnknownNameError: As :class:`AttentionPooling`.

    Source: NV-Embed, tables 2 and 3. The paper does not describe the block: that of the released code is used.
    """

    def _attend(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q = self.to_q(self.query_norm(states)).unflatten(-1, (self.heads, -1))
        k, v = self.to_kv(self.context_norm(states)).unflatten(-1, (2, self.heads, -1)).unbind(2)
        real = mask.bool()[:, None, None, :]
        read = scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=real)
        return self.to_out(read.transpose(1, 2).flatten(2))


PUBLISHED = {
    "latents": "dictionary",
    "cross_attend_blocks.0.norm": "query_norm",
    "cross_attend_blocks.0.norm_context": "context_norm",
    "cross_attend_blocks.0.fn.to_q": "to_q",
    "cross_attend_blocks.0.fn.to_kv": "to_kv",
    "cross_attend_blocks.0.fn.to_out": "to_out",
    "cross_attend_blocks.1.norm": "mlp_norm",
    "cross_attend_blocks.1.fn.net.0": "mlp_in",
    "cross_attend_blocks.1.fn.net.2": "mlp_out",
}
"""Names of modules in the published checkpoint, and their names here."""
_PREFIX = "latent_attention_model."


def published_names(module: LatentAttention) -> dict[str, str]:
    """The published name of each tensor of a module, by its own name.

    Args:
        module: Latent attention with the gated MLP.
    """
    names = {own: published for published, own in PUBLISHED.items()}
    found = {}
    for name in module.state_dict():
        layer, _, kind = name.rpartition(".")
        found[name] = f"{_PREFIX}{names[layer]}.{kind}" if layer else f"{_PREFIX}{names[name]}"
    return found


def from_published(weights: dict[str, torch.Tensor], heads: int = 8) -> LatentAttention:
    """Latent attention with the weights of a published checkpoint.

    Args:
        weights: The tensors of a checkpoint by name, which are taken themselves, not copied; those outside the latent
            attention are ignored.
        heads: Number of heads, which the weights don't show.

    Raises:
        DamagedFileError: A tensor is missing, or of another shape.
        InvalidValueError: The heads don't divide the rows of the query projection.

    Source: the state dict of the released NV-Embed-v2.
    """
    dictionary, queries = (
        weights.get(f"{_PREFIX}{name}") for name in ("latents", "cross_attend_blocks.0.fn.to_q.weight")
    )
    if dictionary is None or queries is None:
        raise DamagedFileError(
            f"Expected tensors named {_PREFIX}latents and {_PREFIX}cross_attend_blocks..., got "
            f"{', '.join([*weights][:3]) or 'none'}. Give the tensors of a checkpoint in NV-Embed's layout."
        )
    (latents, width), inner = dictionary.shape, len(queries)
    if inner % whole("heads", heads):
        raise InvalidValueError("heads", f"a divisor of {inner}, the rows of the query projection", heads)
    with torch.device("meta"):  # no second copy of a block that takes 3 GB in float32
        module = LatentAttention(width, latents=latents, heads=heads, head_dimension=inner // heads)
    own = {name: weights[theirs] for name, theirs in published_names(module).items() if theirs in weights}
    module.load_weights(own, "the checkpoint", assign=True)
    return module
