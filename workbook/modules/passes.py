"""From rows of tokens to states: padded to a batch, those of like length in one pass, what they share read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from .. import attention as attention_modes
from ..templates import Encoded
from .prefix import Prefix, PrefixCache, by_beginning

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# What a pass costs besides its tokens, as a number of tokens: on a CPU as measured when SmolLM2-135M trains in float32
# (in bfloat16, where tokens cost less, a hundred); elsewhere an estimate, from the kernels that a pass starts.
_PASS = {"cpu": 32}
_PASS_ELSEWHERE = 4096


def batch_of(
    rows: Sequence[Encoded], tokenizer: PreTrainedTokenizerBase
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Rows as a batch, padded on the tokenizer's side.

    Args:
        rows: The rows.
        tokenizer: Their tokenizer.

    Returns:
        ``input_ids``, ``attention_mask`` and ``pooling_mask``, int64 (batch, tokens); and a mask of the same shape, 1
        at the tokens in front of what is a text's own.
    """
    width = max((len(row.input_ids) for row in rows), default=0)
    left = tokenizer.padding_side == "left"
    padding = tokenizer.pad_token_id
    ids = torch.full((len(rows), width), 0 if padding is None else padding)  # masked, so any id will do
    attention_mask, pooling_mask, prefix_mask = (torch.zeros_like(ids) for _ in range(3))
    for index, row in enumerate(rows):
        length = len(row.input_ids)
        columns = slice(width - length, width) if left else slice(0, length)
        ids[index, columns] = torch.tensor(row.input_ids)
        attention_mask[index, columns] = 1
        pooling_mask[index, columns] = torch.tensor(row.pooling_mask)
        prefix_mask[index, columns.start : columns.start + row.prefix] = 1
    return {"input_ids": ids, "attention_mask": attention_mask, "pooling_mask": pooling_mask}, prefix_mask


def last_states(
    decoder: PreTrainedModel,
    inputs: dict[str, torch.Tensor],
    mask: torch.Tensor,
    attention: str,
    prefix: Prefix | None = None,
) -> torch.Tensor:
    """Last hidden states; positions count from the first real token, so that padding on the left has no effect.

    Args:
        decoder: A transformers decoder.
        inputs: ``input_ids`` or ``inputs_embeds``, (batch, tokens, ..), and ``position_ids`` if others are asked for.
        mask: (batch, tokens), 1 at real tokens.
        attention: The mode of this pass.
        prefix: A beginning that stands in front of every row, or None.

    Returns:
        (batch, tokens, dim), in the decoder's dtype.

    Raises:
        UnknownNameError: No such attention mode.
        AttentionError: Another attention than the decoder's own, with flash attention.
    """
    if prefix:
        front = mask.new_ones(len(mask), len(prefix))
        return decoder(
            **inputs,
            position_ids=len(prefix) + (mask.cumsum(dim=1) - 1).clamp(min=0),
            attention_mask=None if bool(mask.all()) else torch.cat([front, mask], dim=1),
            past_key_values=prefix.past,
        ).last_hidden_state
    numbered = inputs.get("position_ids")
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0) if numbered is None else numbered
    if attention != attention_modes.get_mode(decoder):
        read = inputs.get("inputs_embeds")
        read = decoder.get_input_embeddings()(inputs["input_ids"]) if read is None else read
        own = attention_modes.mask_of(decoder, attention, read, mask)
        made = decoder(inputs_embeds=read, attention_mask=own, position_ids=positions, use_cache=False)
        return made.last_hidden_state
    padded = not bool(mask.all())
    return decoder(
        **inputs | {"position_ids": positions if padded else numbered},
        attention_mask=mask if padded else None,
        use_cache=False,
    ).last_hidden_state


def behind_prefixes(
    decoder: PreTrainedModel,
    prefixes: PrefixCache,
    inputs: dict[str, torch.Tensor],
    mask: torch.Tensor,
    ids: torch.Tensor,
    marked: torch.Tensor,
) -> torch.Tensor:
    """States as of :func:`in_groups`, with those of shared beginnings taken from the cache.

    Args:
        decoder: A transformers decoder with causal attention.
        prefixes: The cache.
        inputs: Tensors by name, each (batch, tokens, ..).
        mask: (batch, tokens), 1 at real tokens.
        ids: int64 (batch, tokens).
        marked: (batch, tokens), 1 at the tokens of a beginning.
    """
    made, order = [], []
    for beginning, rows in by_beginning(ids, marked, _PASS.get(mask.device.type, _PASS_ELSEWHERE)):
        prefix = prefixes.get(decoder, beginning) if beginning else None
        own, inside = {name: value[rows] for name, value in inputs.items()}, marked[rows]
        states = partial(last_states, decoder, attention="causal", prefix=prefix)
        part = in_groups(states, own, mask[rows] - inside if prefix else mask[rows])
        if prefix:
            part[inside.bool()] = prefix.states.to(part.dtype).repeat(len(rows), 1)
        made.append(part)
        order += rows
    if len(made) == 1:
        return made[0]
    return torch.cat(made)[torch.tensor(order, device=mask.device).argsort()]


def in_groups(
    states: Callable[[dict[str, torch.Tensor], torch.Tensor], torch.Tensor],
    inputs: dict[str, torch.Tensor],
    mask: torch.Tensor,
) -> torch.Tensor:
    """States of a batch, (batch, tokens, dim), computed in groups of similar length, so that little is padding.

    Args:
        states: Function of inputs and mask that returns states (batch, tokens, dim); those of padding are not kept.
        inputs: Tensors by name, each (batch, tokens, ..).
        mask: (batch, tokens), 1 at real tokens.
    """
    groups = groups_of_like_length(mask.sum(dim=1).tolist(), _PASS.get(mask.device.type, _PASS_ELSEWHERE))
    if len(groups) == 1 and bool(mask.any(dim=0).all()):
        return states(inputs, mask)
    # Real tokens first, on whichever side the padding is.
    order = mask.argsort(dim=1, descending=True, stable=True)
    made = None
    for rows, width in groups:
        rows = torch.tensor(rows, device=mask.device).unsqueeze(1)
        places = rows, order[rows.squeeze(1), :width]
        part = states({name: value[places] for name, value in inputs.items()}, mask[places])
        if made is None:
            made = part.new_zeros(*mask.shape, part.shape[-1])
        made[places] = part
    return made


def groups_of_like_length(lengths: Sequence[int], a_pass: int) -> list[tuple[list[int], int]]:
    """The groups of rows, of all there are, that cost least when each group is padded to its longest row.

    Args:
        lengths: Tokens of each row.
        a_pass: What a group costs besides its tokens, as a number of tokens.

    Returns:
        Row numbers and the length of the longest of them, by group, the shortest first.

    >>> groups_of_like_length([3, 50, 2, 48], a_pass=10)
    [([2, 0], 3), ([3, 1], 50)]
    """
    order = np.argsort(lengths, kind="stable")
    widths, counts = np.unique(lengths, return_counts=True)  # rows of one length are never parted
    ends = np.concatenate([[0], counts.cumsum()])
    # Of the rows up to each width, the least cost, and where the last group of it begins.
    least, begins = np.zeros(len(ends)), np.zeros(len(ends), dtype=int)
    for end in range(1, len(ends)):
        costs = least[:end] + a_pass + (ends[end] - ends[:end]) * widths[end - 1]
        begins[end] = costs.argmin()
        least[end] = costs[begins[end]]
    groups, end = [], len(widths)
    while end:
        begin = begins[end]
        groups.append((order[ends[begin] : ends[end]].tolist(), int(widths[end - 1])))
        end = begin
    return groups[::-1]
