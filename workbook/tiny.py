"""Tiny random backbones for tests: one of each architecture, and a tokenizer of bytes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TINY = ("tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma2", "tiny-gemma3")
"""Names of the tiny backbones."""


def tiny_config(name: str) -> Any:
    """Configuration of a two-layer, 32-wide random decoder of the named architecture."""
    from transformers import CONFIG_MAPPING

    architecture = name.removeprefix("tiny-")
    architecture = {"gemma3": "gemma3_text"}.get(architecture, architecture)
    sizes = {
        "vocab_size": len(tiny_tokenizer()),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        # Wide enough that one layer mixes tokens: with the usual 0.02 a random model barely attends at all.
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    if architecture in ("mistral", "gemma2", "gemma3_text"):
        sizes["sliding_window"] = 4
    return CONFIG_MAPPING[architecture](**sizes)


@cache
def tiny_tokenizer() -> PreTrainedTokenizerBase:
    """A byte-level tokenizer without merges: ``<unk>`` 0, ``<s>`` 1 (added in front), ``</s>`` 2 (pads too), bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )
