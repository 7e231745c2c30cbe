"""Causal or bidirectional: switching a decoder's attention, and measuring what it really is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from transformers.masking_utils import create_masks_for_generate

from .errors import AttentionError, UnknownNameError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

MODES = ("causal", "bidirectional")

MASKED = ("eager", "sdpa")
"""Attention implementations that take a mask of their own for each pass; see :func:`mask_of`."""


def set_mode(decoder: PreTrainedModel, mode: str) -> None:
    """Switch a decoder between causal and bidirectional attention, in place and reversibly.

    The switch lives in the configuration (``is_causal``), from which transformers builds every mask, so it holds with
    and without padding, in eager, sdpa and flash attention, and is saved in ``config.json``. A sliding window that
    covers every layer (Mistral) is not applied to bidirectional attention, as in the published code of LLM2Vec and
    NV-Embed. Where local layers alternate with global ones (Gemma), they stay local and look both ways.

    Args:
        decoder: A transformers decoder with or without its language-model head.
        mode: ``causal`` or ``bidirectional``.

    Raises:
        UnknownNameError: No such mode.

    Source: LLM2Vec, section 2.1; NV-Embed, section 3.1.
    """
    _configure(decoder.config, mode)
    for module in decoder.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = decoder.config.is_causal


def _configure(config: PreTrainedConfig, mode: str) -> None:
    if mode not in MODES:
        raise UnknownNameError("attention mode", mode, MODES)
    config.is_causal = mode == "causal"
    if getattr(config, "layer_types", None) is None:
        if mode == "bidirectional" and getattr(config, "sliding_window", None) is not None:
            config.causal_sliding_window, config.sliding_window = config.sliding_window, None
        elif mode == "causal" and getattr(config, "causal_sliding_window", None) is not None:
            config.sliding_window, config.causal_sliding_window = config.causal_sliding_window, None


def get_mode(decoder: PreTrainedModel) -> str:
    """The mode that a decoder's configuration asks for; :func:`probe` measures the real one."""
    return MODES[0] if getattr(decoder.config, "is_causal", True) else MODES[1]


@contextmanager
def switched(decoder: PreTrainedModel, mode: str) -> Iterator[None]:
    """Switch a decoder's attention while the block runs, and back afterwards.

    Not for training with gradient checkpointing, which computes a pass again after the block has ended: give such a
    pass its own attention by :func:`mask_of`.

    Args:
        decoder: A transformers decoder with or without its language-model head.
        mode: ``causal`` or ``bidirectional``.

    Raises:
        UnknownNameError: No such mode.
    """
    before = get_mode(decoder)
    set_mode(decoder, mode)
    try:
        yield
    finally:
        set_mode(decoder, before)


def mask_of(
    decoder: PreTrainedModel, mode: str, embeddings: torch.Tensor, padding: torch.Tensor
) -> torch.Tensor | dict[str, torch.Tensor]:
    """The mask that gives one forward pass an attention, whatever the decoder's own is.

    It is the mask that transformers would make for a decoder switched to that mode, local layers and sliding windows
    included. It is written out in full, so that the pass does not depend on the decoder's mode, not even when gradient
    checkpointing computes it again.

    Args:
        decoder: A transformers decoder without its language-model head, with an attention of :data:`MASKED`.
        mode: ``causal`` or ``bidirectional``.
        embeddings: (batch, tokens, dim), for its shape, dtype and device.
        padding: (batch, tokens), 1 at real tokens.

    Returns:
        A mask for the decoder's ``attention_mask``, which is added to the attention scores: (batch, 1, tokens, tokens)
        in the dtype of ``embeddings``. Where layers are of several kinds, one such mask by kind.

    Raises:
        UnknownNameError: No such mode.
        AttentionError: Flash attention, which takes no such mask.
    """
    kernel = decoder.config._attn_implementation
    if kernel not in MASKED:
        raise AttentionError(
            f"Expected attention 'eager' or 'sdpa', which read a mask of their own in each pass, got {kernel!r}. "
            "Load the backbone with attn_implementation='sdpa'."
        )
    config = deepcopy(decoder.config)
    config._attn_implementation = "eager"  # for which the mask is always written out
    _configure(config, mode)
    made = create_masks_for_generate(config, embeddings, padding, past_key_values=None)
    batch, tokens, _ = embeddings.shape
    # Where nothing is hidden transformers makes no mask, and a decoder that gets none would make its own.
    nothing_hidden = embeddings.new_zeros(batch, 1, tokens, tokens)
    if isinstance(made, dict):
        return {kind: nothing_hidden if mask is None else mask for kind, mask in made.items()}
    return nothing_hidden if made is None else made


_MEASURED: dict[tuple, str] = {}  # the mode that was measured for decoders of each kind


def measured_mode(decoder: PreTrainedModel) -> str:
    """The result of :func:`probe`, measured once per process for decoders of one kind.

    Decoders are of one kind if they agree in all that should decide attention: modules with flags, windows and kernels,
    configuration and name, dtype and device. Weights should not matter; after changing them call :func:`probe`. A
    decoder with hooks or with a ``forward`` of its own, which may do anything, is probed every time.

    Args:
        decoder: A transformers decoder with or without its language-model head.

    Returns:
        ``causal`` or ``bidirectional``.

    Raises:
        AttentionError: As :func:`probe`; a decoder that failed is measured again the next time.
    """
    modules = list(decoder.modules())
    if any(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) for module in modules):
        return probe(decoder)
    settings = decoder.config.to_json_string(use_diff=False), decoder.dtype, decoder.device
    kind = (*settings, *map(_kind, modules))
    if kind not in _MEASURED:
        _MEASURED[kind] = probe(decoder)
    return _MEASURED[kind]


def _kind(module: nn.Module) -> tuple:
    """The properties of a module that can decide a decoder's attention."""
    kernel = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return type(module), kernel, *(repr(getattr(module, name, None)) for name in ("is_causal", "sliding_window"))


@torch.no_grad()
def probe(decoder: PreTrainedModel) -> str:
    """Measure a decoder's attention: do earlier states move when the last token changes?

    Causal means that none does, bidirectional that the first one does, in every text. Measured for one text and for
    several, without a mask, with a mask of ones, padded left and padded right, because attention that turns causal in
    just one of these cases is the field's most reported defect.

    Args:
        decoder: A transformers decoder with or without its language-model head.

    Returns:
        ``causal`` or ``bidirectional``.

    Raises:
        AttentionError: The cases disagree, attention is neither, or states are not finite; the message lists what each
            case measured.
    """
    trunk = getattr(decoder, decoder.base_model_prefix, decoder)
    training = trunk.training
    trunk.eval()
    try:
        measured = {name: _measure(trunk, *case) for name, case in _cases(trunk).items()}
    finally:
        trunk.train(training)
    if len(set(measured.values())) > 1 or not set(measured.values()) <= set(MODES):
        seen = ", ".join(f"{name}: {mode}" for name, mode in measured.items())
        raise AttentionError(
            f"Expected one kind of attention in every case, measured {seen}. "
            f"Switch it with workbook.attention.set_mode and load with attn_implementation 'sdpa' or 'eager' "
            f"(now {decoder.config._attn_implementation!r})."
        )
    return next(iter(measured.values()))


def _cases(trunk: PreTrainedModel) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
    """Pairs of ids and mask by name. Ids are in the lower half of the vocabulary, away from added tokens."""
    vocabulary = trunk.get_input_embeddings().num_embeddings
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, max(4, vocabulary // 2), (3, 6), generator=generator)
    ones = torch.ones_like(ids)
    left, right = ones.clone(), ones.clone()
    left[1:, :2] = 0
    right[1:, -2:] = 0
    return {
        "one text": (ids[:1], None),
        "one text, mask of ones": (ids[:1], ones[:1]),
        "one text, padded left": (ids[1:2], left[1:2]),
        "one text, padded right": (ids[1:2], right[1:2]),
        "three texts": (ids, None),
        "three texts, padded left": (ids, left),
        "three texts, padded right": (ids, right),
    }


def _measure(trunk: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor | None) -> str:
    """The attention measured on one batch: ``causal``, ``bidirectional``, or a word for anything else."""
    real = torch.ones_like(ids) if mask is None else mask
    rows = torch.arange(len(ids))
    first = real.argmax(dim=1)
    last = real.shape[1] - 1 - real.flip(1).argmax(dim=1)
    changed = ids.clone()
    changed[rows, last] = ids[rows, last] - 1
    pairs = [(ids, mask), (changed, mask)]
    if len(ids) > 1:  # a batch of several texts could show both; a batch of one could not
        pairs = [(torch.cat([ids, changed]), None if mask is None else torch.cat([mask, mask]))]
    device = trunk.device
    states = [
        trunk(
            input_ids=tokens.to(device), attention_mask=None if real is None else real.to(device), use_cache=False
        ).last_hidden_state
        for tokens, real in pairs
    ]
    before, after = torch.cat(states).float().cpu().view(2, *ids.shape, -1)
    moved = (before - after).abs().amax(dim=-1)  # (texts, tokens)
    if not moved[real.bool()].isfinite().all():
        return "not finite"
    moved = moved > 1e-6 * before.abs().amax()
    earlier = real.bool() & (torch.arange(ids.shape[1]) < last.unsqueeze(1))
    if not moved[earlier].any():
        return "causal"
    return "bidirectional" if moved[rows, first].all() else "partly causal"
