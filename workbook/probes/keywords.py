"""Whether the heaviest clusters of a text are keywords: content words, its own and others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from ..vocabulary.names import is_content_word, token_forms
from ..vocabulary.tokens import token_text
from .lexicon import cluster_names, lexicon_parts, top_clusters

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

OWN, FUNCTION, EXPANSION, OTHER = KEYWORD_KINDS = (
    "own content word",
    "own function word or punctuation",
    "expansion",
    "other",
)
"""The kinds of :func:`keyword_kinds`."""
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


def keyword_kinds(
    model: SentenceTransformer, texts: Sequence[str], instruction: str | None = None, top: int = 5
) -> pd.DataFrame:
    """The heaviest clusters of each text by what they hold: words of the text, words beyond it, or neither.

    A content word has three letters or more, nothing but letters, and is not on scikit-learn's list of English stop
    words (`workbook.vocabulary.names.is_content_word`). The first kind that fits counts:

    - ``own content word``: the cluster holds a token of a content word of the text, if only a piece of two letters or
      more, or the whole word in another case.
    - ``own function word or punctuation``: it holds another token of the text.
    - ``expansion``: at least half of its tokens are content words, none of them of the text. A token is a word if the
      vocabulary has it with a leading space, which pieces of words mostly lack.
    - ``other``: pieces of words, punctuation and function words that the text does not hold.

    Args:
        model: An embedder whose pooling is a lexicon.
        texts: Strings.
        instruction: The bare task instruction in front of every text, or None.
        top: Largest number of clusters per text.

    Returns:
        One row per text and cluster, the heaviest first: ``text``, ``cluster``, ``weight`` and ``token`` as in
        `workbook.probes.top_clusters`, ``name`` (`workbook.probes.cluster_names`) and ``kind``, one of
        :data:`KEYWORD_KINDS`.

    Raises:
        InvalidValueError: As `workbook.probes.top_clusters`.

    Source: LENS, table 3 and section 4.3, which speak of keywords and of knowledge beyond the text; the rule is this
        project's.
    """
    module, lexicon = lexicon_parts(model, texts)
    frame = top_clusters(model, texts, instruction, top)
    cluster_of, tokenizer = lexicon.clusters.tolist(), module.tokenizer
    whole_words = {
        text[1:].lower() for text in token_forms(tokenizer, len(cluster_of)) if text[:1] == " " and " " not in text[1:]
    }
    held = {}  # content words of each cluster that is shown, by its number, and how many of its tokens are such
    for cluster, tokens in zip(frame["cluster"], frame["words"], strict=True):
        words = [token.removeprefix(" ").lower() for token in tokens]
        content = [word for word in words if is_content_word(word) and word in whole_words]
        held[cluster] = ({*content}, len(content) / len(words))
    kinds = []
    for index, encoded in enumerate(module.encode_texts(texts, instruction)):
        own = [token for token, marked in zip(encoded.input_ids, encoded.pooling_mask, strict=True) if marked]
        pieces = [token_text(tokenizer, token) for token in own]
        words, parts = _content(pieces)
        of_words, of_text = {cluster_of[own[place]] for place in parts}, {cluster_of[token] for token in own}
        for cluster in frame.loc[frame["text"] == index, "cluster"]:
            content, share = held[cluster]
            if cluster in of_words or content & words:
                kinds.append(OWN)
            elif cluster in of_text:
                kinds.append(FUNCTION)
            else:
                kinds.append(EXPANSION if share >= 0.5 else OTHER)
    named = dict(zip(held, cluster_names(model, [*held]), strict=True)) if held else {}
    frame = frame.assign(name=frame["cluster"].map(named), kind=kinds)
    return frame[["text", "cluster", "weight", "name", "token", "kind"]]


def _content(pieces: Sequence[str]) -> tuple[set[str], list[int]]:
    """The content words of a text in lower case, and the places of the tokens with two letters of them or more."""
    ends, text = [], ""
    for piece in pieces:
        text += piece
        ends.append(len(text))
    words = [match for match in _WORD.finditer(text) if is_content_word(match[0])]
    inside = {place for match in words for place in range(*match.span())}
    spans = zip([0, *ends[:-1]], ends, strict=True)
    parts = [place for place, span in enumerate(spans) if len(inside.intersection(range(*span))) > 1]
    return {match[0].lower() for match in words}, parts
