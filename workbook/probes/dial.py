"""The dial: search in lexicon vectors by head, by relu's zero, by idf and by cut, on token states that are read once.

A decoder reads queries and documents once (:func:`collect`). A head gives each text its largest logits before the relu
(:func:`pooled_logits`). All that follows is arithmetic on these: where zero lies, whether what all texts share is taken
away, and how many weights of a document are kept (:func:`lexicon_search`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_matrix
from sentence_transformers.util import batch_to_device
from sklearn.preprocessing import normalize

from ..errors import InvalidValueError, UnknownNameError, whole
from ..modules.lexicon import pooled_positions
from ..modules.pooling import refuse_empty
from ..vocabulary.names import is_content_word
from ..vocabulary.sparse import above_mean
from ..vocabulary.tokens import token_text
from .heads import Head
from .index import POSTING_BYTES
from .states import decoder_of, reading

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase

IDF = ("off", "subtracted", "divided")
"""What is done with the collection's mean weight of each cluster."""
READ = 8
"""Heaviest weights of a document that count for how readable it is."""
IDF_DOCUMENTS = 10
"""The fewest for an idf: of fewer, more than a tenth of the mean is a document's own weight."""

_LOGITS = 2**24  # that are held at a time, 64 MiB in float32


class States(NamedTuple):
    """Token states of texts at the positions that LENS pools, one text after the other.

    Attributes:
        states: (positions, dim), in the decoder's dtype, on the CPU.
        lengths: Number of positions of each text.
        tokens: Ids of each text's own tokens, as they were read.
    """

    states: torch.Tensor
    lengths: list[int]
    tokens: list[list[int]]


class Collection(NamedTuple):
    """Queries and documents, read once; the document in the row of a query is the right one."""

    queries: States
    documents: States


class Pooled(NamedTuple):
    """The largest logits of queries and documents, float32 (queries, k) and (documents, k), before any relu."""

    queries: np.ndarray
    documents: np.ndarray


@torch.no_grad()
def collect(
    model: SentenceTransformer,
    queries: Sequence[str],
    documents: Sequence[str],
    instruction: str | None = None,
    batch_size: int = 32,
) -> Collection:
    """Read queries and documents once, and keep the states that LENS pools.

    Args:
        model: An embedder that begins with a Decoder; what follows that does not matter.
        queries: Strings; the document in the same place is the right one.
        documents: Strings, as many as queries or more.
        instruction: The bare task instruction in front of every query, or None.
        batch_size: Texts per forward pass, of like length.

    Raises:
        InvalidValueError: No texts, fewer documents than queries, a text without a token, or a model that does not
            begin with a Decoder.

    Source: LENS, section 3.2.2, for the positions.
    """
    decoder_of(model, queries, "queries")
    decoder_of(model, documents, "documents")
    if len(queries) > len(documents):
        raise InvalidValueError("documents", f"{len(queries)} or more, one for each query", len(documents))
    size = whole("batch_size", batch_size, of="texts")
    return Collection(_read(model, queries, instruction, size), _read(model, documents, None, size))


def _read(model: SentenceTransformer, texts: Sequence[str], instruction: str | None, size: int) -> States:
    module = model[0]
    states: list[torch.Tensor] = [torch.empty(0)] * len(texts)
    tokens: list[list[int]] = [[] for _ in texts]
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    with reading(module, module.attention):
        for start in range(0, len(order), size):
            places = order[start : start + size]
            features = batch_to_device(module.preprocess([texts[p] for p in places], instruction), model.device)
            mask = pooled_positions(features["pooling_mask"], features["attention_mask"], "max")
            refuse_empty(mask)
            made = module(features)["token_embeddings"]
            for row, place in enumerate(places):
                states[place] = made[row, mask[row]].cpu()
                tokens[place] = features["input_ids"][row, features["pooling_mask"][row].bool()].tolist()
    return States(torch.cat(states), [len(one) for one in states], tokens)


def pooled_logits(collection: Collection, head: Head) -> Pooled:
    """The largest logit of each row of a head over the positions of each text, before any relu.

    ``modules.projection`` gives the same above 0 alone; here zero is chosen later. The product has the states' dtype,
    as in a Lexicon.

    Args:
        collection: Texts, read once.
        head: The head.

    Raises:
        InvalidValueError: A head of another width than the states.
    """
    _check_width(collection, head)
    return Pooled(*(_largest(states, head.rows)[0] for states in collection))


def pooled_by_zero(collection: Collection, head: Head) -> tuple[Pooled, Pooled]:
    """:func:`pooled_logits` of a head without its mean row, and with it, in hardly more time than of one.

    Args:
        collection: Texts, read once.
        head: A head whose mean row is subtracted: its product with a state is added to all logits of that state.

    Raises:
        InvalidValueError: As :func:`pooled_logits`, or a head that has its mean row.
    """
    if head.mean is None:
        raise InvalidValueError("head", "one whose mean row is subtracted", "a head as it is", "Make it centred=True.")
    _check_width(collection, head)
    queries, documents = (_largest(states, head.rows, head.mean) for states in collection)
    return Pooled(queries[0], documents[0]), Pooled(queries[1], documents[1])


def _check_width(collection: Collection, head: Head) -> None:
    if head.rows.shape[1] != (width := collection.documents.states.shape[1]):
        raise InvalidValueError(
            "head", f"{width} columns, as wide as the token states", head.rows.shape[1],
            "Make the head from this decoder's own.",
        )  # fmt: skip


@torch.no_grad()
def _largest(texts: States, rows: torch.Tensor, mean: torch.Tensor | None = None) -> np.ndarray:
    """The largest logits, float32 (1, texts, k); with a mean (2, texts, k), the second with its product added."""
    found = np.empty((1 if mean is None else 2, len(texts.lengths), len(rows)), dtype=np.float32)
    columns, ends = rows.to(texts.states.dtype).T.contiguous(), np.cumsum([0, *texts.lengths])
    most = max(1, _LOGITS // len(rows))  # positions at a time
    first = 0
    while first < len(texts.lengths):
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + most, side="right")) - 1)
        states = texts.states[ends[first] : ends[last]]
        logits = states @ columns
        for number, pooled in enumerate(found):
            if number:
                logits = logits.float().add_((states.float() @ mean)[:, None])
            for place, part in zip(range(first, last), logits.split(texts.lengths[first:last]), strict=True):
                pooled[place] = part.amax(dim=0).float().numpy()
        first = last
    return found


def zero_at(pooled: Pooled, share: float) -> float:
    """The zero above which a share of the documents' largest logits lies.

    Args:
        pooled: Of :func:`pooled_logits`.
        share: Above 0, at most 1.

    Raises:
        InvalidValueError: Another share.
    """
    if not 0 < share <= 1:
        raise InvalidValueError("share", "a number above 0, at most 1", share)
    count = round(share * pooled.documents.size)
    place = pooled.documents.size - count - 1  # of the largest that is not above
    if place < 0:
        return float(np.nextafter(pooled.documents.min(), -np.inf))
    return float(np.partition(pooled.documents, place, axis=None)[place])


def weights(logits: np.ndarray, zero: float = 0.0) -> np.ndarray:
    """log(1 + relu(logit - zero)), of the shape and dtype of the logits.

    Args:
        logits: Any shape.
        zero: The logit from which on there is a weight.

    Source: LENS, equation 1, where it is 0.
    """
    above = np.maximum(logits - np.asarray(zero, logits.dtype), 0)
    return np.log1p(above, out=above)


def lexicon_vectors(pooled: Pooled, zero: float = 0.0, idf: str = "off") -> Pooled:
    """Vectors of length 1 (0 where nothing is left) of queries and documents.

    Args:
        pooled: Of :func:`pooled_logits`.
        zero: See :func:`weights`.
        idf: One of :data:`IDF`: the mean weight of each cluster over the documents is left, subtracted (see
            :func:`~workbook.vocabulary.sparse.above_mean`), or divides the weights.

    Raises:
        UnknownNameError: Another ``idf``.
        InvalidValueError: Fewer than ten documents for an idf.
    """
    if idf not in IDF:
        raise UnknownNameError("idf", idf, IDF)
    queries, documents = (normalize(weights(logits, zero), copy=False) for logits in pooled)
    if idf == "off":
        return Pooled(queries, documents)
    if len(documents) < IDF_DOCUMENTS:
        raise InvalidValueError(
            "documents", f"{IDF_DOCUMENTS} at least, to know what they have in common", len(documents),
            "Choose idf='off'.",
        )  # fmt: skip
    if idf == "subtracted":
        return Pooled(above_mean(queries, documents), above_mean(documents, documents))
    mean = documents.mean(axis=0)
    times = np.divide(1, mean, out=np.zeros_like(mean), where=mean > 0)  # what no document has finds none
    return Pooled(normalize(queries * times, copy=False), normalize(documents * times, copy=False))


def lexicon_search(
    pooled: Pooled,
    zero: float = 0.0,
    idf: str = "off",
    tops: Sequence[int | None] = (None,),
    own: Sequence[np.ndarray] | None = None,
) -> pd.DataFrame:
    """Search in lexicon vectors whose documents are cut to their largest weights; queries stay whole.

    Args:
        pooled: Of :func:`pooled_logits`; the document in the row of a query is the right one.
        zero: See :func:`weights`.
        idf: See :func:`lexicon_vectors`.
        tops: Numbers of weights kept per document, None for all.
        own: The clusters that count as readable in each document, such as of :func:`content_clusters`; None if rows
            stand for no tokens.

    Returns:
        One row per top and query: ``top`` (the width for None), ``query`` (its row), ``reciprocal_rank`` (of the right
        document, x 100; equal scores count against it), ``bytes`` (mean per document, as of
        :func:`~.cost.index_cost`: never more than the whole vector's), ``active`` (share of the documents' weights
        above 0, uncut), ``cosine`` (mean over all pairs of different documents, uncut), and ``readable`` (share of a
        document's :data:`READ` heaviest weights whose clusters are in ``own``; NaN for None).

    Raises:
        UnknownNameError, InvalidValueError: As :func:`lexicon_vectors`; a top below 1; or ``own`` for other documents.
    """
    tops = [None if top is None else whole("top", top) for top in tops]
    if own is not None and len(own) != len(pooled.documents):
        raise InvalidValueError("own", f"clusters of each of {len(pooled.documents)} documents", len(own))
    queries, documents = lexicon_vectors(pooled, zero, idf)
    width = documents.shape[1]
    values, clusters = _heaviest(documents, min(width, max(READ, *(top or 1 for top in tops))))
    about = {
        "active": np.count_nonzero(documents) / documents.size,
        "cosine": _mean_cosine(documents),
        "readable": _readable(clusters[:, :READ], values[:, :READ], own),
    }
    columns, ranks, sizes = np.ascontiguousarray(queries.T), [], []
    for top in tops:
        if top is None or top >= width:
            scores, kept = documents @ columns, np.count_nonzero(documents)
        else:
            shape, ends = documents.shape, np.arange(len(documents) + 1) * top
            cut = csr_matrix((values[:, :top].ravel(), clusters[:, :top].ravel(), ends), shape=shape)
            scores, kept = cut @ columns, np.count_nonzero(cut.data)
        sizes.append(min(4.0 * width, POSTING_BYTES * kept / len(documents)))
        ranks.append(_reciprocal_ranks(scores.T))
    found = {
        "top": np.repeat([min(top or width, width) for top in tops], len(queries)),
        "query": np.tile(np.arange(len(queries)), len(tops)),
        "reciprocal_rank": np.concatenate(ranks),
        "bytes": np.repeat(sizes, len(queries)),
    }
    return pd.DataFrame(found | about)


def searched(scores: np.ndarray) -> pd.DataFrame:
    """Reciprocal rank (x 100) of each query's own document, by row: columns ``query`` and ``reciprocal_rank``.

    Args:
        scores: (queries, documents); the document in the column of a query's row is the right one, and equal scores
            count against it.
    """
    return pd.DataFrame({"query": np.arange(len(scores)), "reciprocal_rank": _reciprocal_ranks(scores)})


def _reciprocal_ranks(scores: np.ndarray) -> np.ndarray:
    gold = np.arange(len(scores))
    return 100 / (scores >= scores[gold, gold][:, None]).sum(axis=1)


def content_clusters(texts: States, head: Head, tokenizer: PreTrainedTokenizerBase) -> list[np.ndarray] | None:
    """The clusters that hold a content word of each text; see `workbook.vocabulary.names.is_content_word`.

    Args:
        texts: Texts, read once.
        head: The head.
        tokenizer: The tokenizer that read them.

    Returns:
        int64 (clusters,) by text, sorted; None if the head's rows stand for no tokens.
    """
    if head.assignment is None:
        return None
    words = {id_: token_text(tokenizer, id_).strip() for ids in texts.tokens for id_ in ids}
    content = {id_ for id_, word in words.items() if is_content_word(word)}
    assignment = head.assignment.numpy()
    return [np.unique(assignment[[id_ for id_ in ids if id_ in content]]) for ids in texts.tokens]


def _heaviest(vectors: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest weights of each row, and their columns, (rows, top), the largest first."""
    values, columns = torch.from_numpy(vectors).topk(top, dim=1)
    return values.numpy(), columns.numpy()


def _mean_cosine(vectors: np.ndarray) -> float:
    """Mean product of two different rows."""
    count, total = len(vectors), vectors.sum(axis=0, dtype=np.float64)
    if count < 2:
        return float("nan")
    return float((total @ total - np.square(vectors, dtype=np.float64).sum()) / (count * (count - 1)))


def _readable(clusters: np.ndarray, values: np.ndarray, own: Sequence[np.ndarray] | None) -> float:
    if own is None or not (values > 0).any():
        return float("nan")
    # One number for each document and cluster.
    width = 1 + max(int(clusters.max()), max((int(mine.max()) for mine in own if len(mine)), default=0))
    places = np.arange(len(own)) * width
    held = np.concatenate([place + mine for place, mine in zip(places, own, strict=True)])
    return float(np.isin(places[:, None] + clusters, held)[values > 0].mean())
