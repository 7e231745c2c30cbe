"""Tokens as text, and the pairs of them that are variants of one word."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase


def token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token as text with its leading space, which some tokenizers leave out at the start of a text.

    Args:
        tokenizer: Its tokenizer.
        token: Its id.
    """
    text = tokenizer.decode([token])
    piece = tokenizer.convert_ids_to_tokens(token) or ""
    return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text


def variants(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> pd.DataFrame:
    """Pairs of tokens that differ only by case, by a leading space, or by both.

    Special tokens, parts of characters (single bytes), and the single space are left out.

    Args:
        tokenizer: The tokenizer of the head.
        vocabulary: Number of rows of the head, which may be more than the tokenizer has tokens.

    Returns:
        One row per pair: ``first`` and ``second`` (ids, first < second); ``case`` and ``space``, True for what differs.

    Source: LENS, section 3.1: "What", "what" and " what".
    """
    import pandas as pd

    rows = []
    special = set(tokenizer.all_special_ids)
    for token in range(min(vocabulary, len(tokenizer))):
        text = token_text(tokenizer, token)
        bare = text.removeprefix(" ")
        if token not in special and bare and "\N{REPLACEMENT CHARACTER}" not in text:
            rows.append((token, bare.lower(), bare, text != bare))
    frame = pd.DataFrame(rows, columns=["id", "key", "bare", "space"])
    pairs = frame.merge(frame, on="key", suffixes=("", "_2")).query("id < id_2")
    return pd.DataFrame(
        {
            "first": pairs["id"],
            "second": pairs["id_2"],
            "case": pairs["bare"] != pairs["bare_2"],
            "space": pairs["space"] != pairs["space_2"],
        }
    ).reset_index(drop=True)
