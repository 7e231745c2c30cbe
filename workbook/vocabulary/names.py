"""Names of clusters, and the words that the vocabulary has as single tokens."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from .tokens import token_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHORTEST = 3
"""Letters of the shortest content word."""
_CONTRACTED = re.compile(r"(n['’]t|['’]\w+)$", re.IGNORECASE)


def name_of(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[int], top: int = 2) -> list[str]:
    """The first tokens as text, without their leading spaces, each text once.

    Args:
        tokenizer: The tokenizer.
        tokens: Their ids, those that name best first; no more are decoded than are needed.
        top: Largest number of texts. A token of spaces alone keeps them.

    Source: LENS, table 3, which names a cluster by two tokens.
    """
    found: dict[str, None] = {}
    for token in tokens:
        text = token_text(tokenizer, token)
        found[text.removeprefix(" ") or text] = None
        if len(found) == top:
            break
    return list(found)


def is_content_word(word: str) -> bool:
    """True for a word of letters alone, three or more, that is not on scikit-learn's list of English stop words.

    What an apostrophe cuts off does not count: ``don't`` is *do*, ``dog's`` is *dog*. Case does not matter.

    Args:
        word: A word without spaces.

    Examples:
        >>> [word for word in ("the", "Oxygen", "don't", "dog's", "12", ",", "ox") if is_content_word(word)]
        ['Oxygen', "dog's"]
    """
    bare = _CONTRACTED.sub("", word)
    return len(bare) >= SHORTEST and bare.isalpha() and bare.lower() not in ENGLISH_STOP_WORDS


def token_forms(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> Mapping[str, list[int]]:
    """Ids of the tokens by their text, leading space kept; special tokens are left out.

    Args:
        tokenizer: The tokenizer.
        vocabulary: Number of rows of the head, which may be more than the tokenizer has tokens.
    """
    return _token_forms(tokenizer, min(vocabulary, len(tokenizer)))


@lru_cache(maxsize=2)  # every view of the clusters asks again, and a vocabulary takes a second to decode
def _token_forms(tokenizer: PreTrainedTokenizerBase, size: int) -> Mapping[str, list[int]]:
    forms, special = defaultdict(list), {*tokenizer.all_special_ids}
    for token in range(size):
        if token not in special:
            forms[token_text(tokenizer, token)].append(token)
    return MappingProxyType(dict(forms))
