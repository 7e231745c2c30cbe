"""What it costs to embed and to search: tokens read, bytes kept, and time taken."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from sklearn.feature_extraction import DictVectorizer

from ..errors import InvalidValueError
from ..modules.sparse import sparse
from .states import decoder_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def encoding_cost(
    models: Mapping[str, SentenceTransformer], texts: Sequence[str], turns: int = 5, instruction: str | None = None
) -> pd.DataFrame:
    """Encode the same texts with several models in turn, so that a slow moment of the machine meets all of them.

    Args:
        models: Embedders by name.
        texts: Strings.
        turns: Timed rounds; one more goes before them, to warm up.
        instruction: The bare task instruction in front of every text, or None for none.

    Returns:
        One row per turn (from 0) and model: ``turn``, ``model``, ``tokens`` (that the decoder reads for all texts,
        without padding), ``seconds``.

    Raises:
        InvalidValueError: No texts, no positive number of turns, or a model that does not begin with a Decoder.

    Source: LLM2Vec, appendix E.2 and table 6, which gives hours; Causal2Vec, figure 2.
    """
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
        raise InvalidValueError("turns", "a whole number from 1", turns)
    read = {name: decoder_of(model, texts).encode_texts(texts, instruction) for name, model in models.items()}
    tokens = {name: sum(len(text.input_ids) for text in encoded) for name, encoded in read.items()}
    rows = []
    for turn in range(-1, turns):
        for name, model in models.items():
            began = time.perf_counter()
            model.encode(list(texts), prompt=instruction, show_progress_bar=False)
            rows.append((turn, name, tokens[name], time.perf_counter() - began))
    frame = pd.DataFrame(rows, columns=["turn", "model", "tokens", "seconds"])
    return frame[frame["turn"] >= 0].reset_index(drop=True)


def index_cost(queries: np.ndarray, documents: np.ndarray, tops: Sequence[int | None]) -> pd.DataFrame:
    """Search an index of lexicon vectors that are cut to their largest weights; queries stay whole.

    Args:
        queries: (queries, dim); the document in the same row is the right one.
        documents: (documents, dim), as many as queries or more.
        tops: How many weights of a document are kept, by a sparse index; None for whole vectors, by a matrix product.

    Returns:
        One row per top and query: ``top`` (the width for None), ``query`` (its row), ``reciprocal_rank`` (of the right
        document, x 100; equal scores don't count against it), ``bytes`` (a document: four for a weight, four for the
        number of its cluster, and never more than the whole vector takes) and ``milliseconds`` (a query).

    Raises:
        InvalidValueError: Fewer documents than queries, vectors of different widths, or a top below 1.
    """
    if queries.shape[1:] != documents.shape[1:] or len(queries) > len(documents):
        got = f"{queries.shape} and {documents.shape}"
        raise InvalidValueError("queries, documents", "rows of one width, a document or more for each query", got)
    frames, gold = [], np.arange(len(queries))
    for top in tops:
        asked, index, size = queries, documents, 4.0 * documents.shape[1]
        if top is not None:
            rows = [sparse(queries, queries.shape[1]), sparse(documents, top)]
            table = DictVectorizer(dtype=np.float32).fit([*rows[0], *rows[1]])
            asked, index = map(table.transform, rows)
            size = min(size, 8 * index.nnz / len(documents))
        began = time.perf_counter()
        scores = asked @ index.T
        spent = time.perf_counter() - began
        scores = scores if top is None else scores.toarray()
        ranks = 1 + (scores > scores[gold, gold][:, None]).sum(axis=1)
        found = {"top": top or documents.shape[1], "query": gold, "reciprocal_rank": 100 / ranks, "bytes": size}
        frames.append(pd.DataFrame(found | {"milliseconds": 1000 * spent / len(queries)}))
    return pd.concat(frames, ignore_index=True)
