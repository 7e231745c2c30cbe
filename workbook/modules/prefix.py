"""Beginnings that texts share, such as instructions and examples, read once by a causal decoder and kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, compress
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

BYTES = 2**29
"""Most bytes of keys, values and states that a model keeps, 512 MiB; of what is more, the longest unused goes first."""
SHORTEST = 4
"""Tokens from which on a beginning is kept. Reading fewer, such as BOS alone, again and again costs next to nothing.

With SmolLM2-135M in float32 on one thread and documents of some 40 tokens, what is kept saves about its share of the
tokens, down to the shortest: encoding is 1.02 times as fast with 1 token kept, 1.07 with 3, and 1.13 with 5.
"""


class _Behind(DynamicLayer):
    """One layer's keys and values of a beginning. Each pass reads them in front of its own, and leaves none here."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple:
        """Keys and values of the beginning and of the pass, (batch, heads, tokens, dim)."""
        kept, new = (self.keys, self.values), (key_states, value_states)
        return tuple(torch.cat([a.expand(len(b), -1, -1, -1), b], dim=-2) for a, b in zip(kept, new, strict=True))


class Prefix:
    """What a causal decoder makes of a beginning, for any texts behind it.

    Args:
        decoder: A transformers decoder with causal attention.
        ids: Token ids of the beginning.
    """

    def __init__(self, decoder: PreTrainedModel, ids: Sequence[int]):
        past = DynamicCache()
        read = torch.tensor([ids], device=decoder.device)
        made = decoder(input_ids=read, attention_mask=None, past_key_values=past, use_cache=True)
        self.states = made.last_hidden_state[0]
        past.layers = [_Behind(layer.keys, layer.values) for layer in past.layers]
        self.past = past

    def __len__(self) -> int:
        return len(self.states)

    @property
    def bytes(self) -> int:
        """Bytes of its tensors."""
        tensors = [self.states, *chain.from_iterable((layer.keys, layer.values) for layer in self.past.layers)]
        return sum(one.numel() * one.element_size() for one in tensors)


class PrefixCache:
    """The beginnings that a decoder read last, until a weight, dtype, device or kernel of it changes.

    A copy, in this process or in another, is empty.
    """

    def __init__(self):
        self._kept: dict[tuple[int, ...], Prefix] = {}
        self._state: Any = None

    def __reduce__(self) -> tuple:
        return type(self), ()

    def clear(self) -> None:
        """Keep nothing any more."""
        self._kept = {}

    @property
    def bytes(self) -> int:
        """Bytes that are kept; see :data:`BYTES`."""
        return sum(one.bytes for one in self._kept.values())

    def get(self, decoder: PreTrainedModel, ids: tuple[int, ...]) -> Prefix:
        """A beginning, read now if it is not kept.

        Args:
            decoder: The decoder, in evaluation mode.
            ids: Token ids of the beginning.
        """
        if (state := _state(decoder)) != self._state:
            self._kept, self._state = {}, state
        found = self._kept.pop(ids, None) or Prefix(decoder, ids)
        self._kept[ids] = found  # the last used is the last
        while self._kept and self.bytes > BYTES:
            self._kept.pop(next(iter(self._kept)))
        return found


def _state(decoder: PreTrainedModel) -> tuple:
    """What decides a decoder's keys and values besides ids."""
    device = decoder.device.type
    half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    weights = [
        (one.data_ptr(), one.device, one.dtype, one._version) for one in chain(decoder.parameters(), decoder.buffers())
    ]
    settings = [getattr(decoder.config, name, None) for name in ("_attn_implementation", "sliding_window")]
    return half, settings, weights


def watched(decoder: nn.Module) -> bool:
    """True if a layer has hooks, or a ``forward`` of its own: it may look for any position of a text.

    Args:
        decoder: A transformers decoder; hooks of its own see what it is given, and do not count.
    """
    for module in decoder.modules():
        hooks = chain(module._forward_hooks.values(), module._forward_pre_hooks.values())
        foreign = (getattr(hook, "__module__", "") != "transformers.utils.output_capturing" for hook in hooks)
        if module is not decoder and ("forward" in vars(module) or any(foreign)):
            return True
    return False


def by_beginning(ids: torch.Tensor, marked: torch.Tensor, a_pass: int) -> list[tuple[tuple[int, ...], list[int]]]:
    """Rows of a batch by the beginning that they share; those that are read whole have an empty one.

    A beginning of some of the rows needs a pass of its own, and is shared where that costs less than its tokens.

    Args:
        ids: int64 (batch, tokens).
        marked: (batch, tokens), 1 at the tokens of the beginning.
        a_pass: What a pass costs besides its tokens, as a number of tokens.

    Examples:
        >>> ids = torch.arange(10).expand(2, 10)
        >>> by_beginning(ids, (ids < 9).long(), a_pass=32)
        [((0, 1, 2, 3, 4, 5, 6, 7, 8), [0, 1])]
    """
    found = defaultdict(list)
    for place, (row, inside) in enumerate(zip(ids.tolist(), marked.tolist(), strict=True)):
        found[tuple(compress(row, inside))].append(place)
    groups = defaultdict(list)
    for beginning, places in found.items():
        pays = len(places) == len(ids) or len(beginning) * len(places) >= a_pass
        groups[beginning if pays and len(beginning) >= SHORTEST else ()] += places
    return list(groups.items())
