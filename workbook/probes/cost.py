"""Costs of training, embedding and search: tokens, bytes and time; and the front of quality against cost.

Time is :func:`clock`'s: of one thread on a CPU that of this process, so that other work on the machine does not count.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from sentence_transformers.util import batch_to_device
from sklearn.feature_extraction import DictVectorizer

from ..errors import InvalidValueError, UnknownNameError, whole
from ..vocabulary.sparse import sparse
from .states import decoder_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..training.recipe import Stage

BITS = {"float32": 32, "float16": 16, "int8": 8, "binary": 1}
"""Bits per number of a vector, by storage format."""
OF_ONE_RUN = "Of turns in one run: another run or machine may differ by more than the interval says."
"""What limits every timing, as the caveat of a quantity."""

POSTING_BYTES = 8
"""Bytes of a weight in a sparse index: four for the number, four for the cluster it belongs to."""

_CPU = torch.device("cpu")


def clock(device: torch.device) -> float:
    """Seconds from some moment on: of this process, where one thread of a CPU computes; else of the wall.

    Args:
        device: Where the work is done; what it was given before is waited for.
    """
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return time.process_time()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def encoding_cost(
    models: Mapping[str, SentenceTransformer], texts: Sequence[str], turns: int = 5, instruction: str | None = None
) -> pd.DataFrame:
    """Time to encode the same texts with several models in turn, so that a slow moment affects all of them.

    Args:
        models: Embedders by name.
        texts: Strings.
        turns: Timed rounds, after one to warm up.
        instruction: The bare task instruction in front of every text, or None.

    Returns:
        One row per turn (from 0) and model: ``turn``, ``model``, ``tokens`` (that the decoder reads for all texts,
        without padding), ``seconds``.

    Raises:
        InvalidValueError: No texts, no positive number of turns, or a model that does not begin with a Decoder.

    Source: LLM2Vec, appendix E.2 and table 6, which gives hours; Causal2Vec, figure 2.
    """
    turns = whole("turns", turns)
    read = {name: decoder_of(model, texts).encode_texts(texts, instruction) for name, model in models.items()}
    tokens = {name: sum(len(text.input_ids) for text in encoded) for name, encoded in read.items()}
    rows = []
    for turn in range(-1, turns):
        for name, model in models.items():
            began = clock(model.device)
            model.encode(list(texts), prompt=instruction, show_progress_bar=False)
            rows.append((turn, name, tokens[name], clock(model.device) - began))
    return _timed(rows)


def training_cost(
    models: Mapping[str, SentenceTransformer], stages: Mapping[str, Stage], turns: int = 3
) -> pd.DataFrame:
    """Time of one batch forward and backward by several models in turn, as in the stage that trains each of them.

    The batch is the first rows of the stage's data, the same for all that read the same data. There is no step of the
    optimizer and no teacher: the models are left as they were.

    Args:
        models: Chains that begin with a Decoder, by name; they may share one.
        stages: By the same names: objective, data, rows (of a micro-batch if there are several), adapters.
        turns: Timed rounds, after one to warm up.

    Returns:
        One row per turn (from 0) and model: ``turn``, ``model``, ``tokens`` (that the decoder reads in the batch,
        without padding, counted as often as they are read), ``seconds``.

    Raises:
        InvalidValueError: A number of turns that is not positive, no stage for a model, a model that does not begin
            with a Decoder, or as `workbook.training.train`.
        UnknownNameError: As `workbook.training.train`.

    Source: LLM2Vec, appendices D and G, and Anchor, table 7, which give hours.
    """
    from ..data.rows import load  # here, since its imports take seconds

    turns = whole("turns", turns)
    if absent := [name for name in models if name not in stages]:
        raise InvalidValueError("stages", "one for each of the models", sorted(stages), f"Add {', '.join(absent)}.")
    batches = {}
    for name, model in models.items():
        module, stage = decoder_of(model, [name]), stages[name]
        data = load(**stage.reading(), tokenizer=module.tokenizer)
        source, rows = next(iter(data.datasets.items()))
        batches[name] = rows[: stage.batch_size // stage.accumulation], data.prompts[source]
    with warnings.catch_warnings():
        # peft's and transformers' own calls of what transformers renamed.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        rows = [
            (turn, name, *_forward_and_backward(model, stages[name], *batches[name]))
            for turn in range(-1, turns)
            for name, model in models.items()
        ]
    return _timed(rows)


def index_cost(queries: np.ndarray, documents: np.ndarray, tops: Sequence[int | None]) -> pd.DataFrame:
    """Cost and quality of search in lexicon vectors that are cut to their largest weights; queries stay whole.

    Args:
        queries: (queries, dim); the document in the same row is the right one.
        documents: (documents, dim), as many as queries or more.
        tops: Numbers of weights kept per document, in a sparse index; None for whole vectors, by a matrix product.

    Returns:
        One row per top and query: ``top`` (the width for None), ``query`` (its row), ``reciprocal_rank`` (of the right
        document, x 100; equal scores count against it), ``bytes`` (per document: four for a weight and four for the
        number of its cluster, but at most those of the whole vector) and ``milliseconds`` (per query).

    Raises:
        InvalidValueError: Fewer documents than queries, vectors of different widths, or a top below 1.
    """
    if queries.shape[1:] != documents.shape[1:] or len(queries) > len(documents):
        got = f"{queries.shape} and {documents.shape}"
        raise InvalidValueError("queries, documents", "rows of one width, a document or more for each query", got)
    frames, gold = [], np.arange(len(queries))
    for top in tops:
        asked, index, size = queries, documents, _dense_bytes(documents.shape[1])
        if top is not None:
            rows = [sparse(queries, queries.shape[1]), sparse(documents, top)]
            table = DictVectorizer(dtype=np.float32).fit([*rows[0], *rows[1]])
            asked, index = map(table.transform, rows)
            size = _sparse_bytes(rows[1], documents.shape[1])
        began = clock(_CPU)
        scores = asked @ index.T
        spent = clock(_CPU) - began
        scores = scores if top is None else scores.toarray()
        ranks = (scores >= scores[gold, gold][:, None]).sum(axis=1)
        found = {"top": top or documents.shape[1], "query": gold, "reciprocal_rank": 100 / ranks, "bytes": size}
        frames.append(pd.DataFrame(found | {"milliseconds": 1000 * spent / len(queries)}))
    return pd.concat(frames, ignore_index=True)


def index_bytes(vectors: np.ndarray, tops: Sequence[int] = ()) -> pd.DataFrame:
    """Bytes of documents' vectors in an index, by storage format.

    Only the numbers are counted, not the ids, nor what a search structure adds.

    Args:
        vectors: (documents, dim).
        tops: For lexicon vectors: numbers of the largest weights kept per document, in a sparse index.

    Returns:
        One row per format, whole vectors first: ``form`` (a key of :data:`BITS`; ``top 8`` for vectors that are cut)
        and ``bytes`` (mean per document; of cut vectors as in :func:`index_cost`).

    Raises:
        InvalidValueError: No vectors, a top below 1, or tops for vectors with numbers below 0.

    Examples:
        >>> index_bytes(np.ones((2, 576)), tops=(8,))["bytes"].tolist()
        [2304.0, 1152.0, 576.0, 72.0, 64.0]
    """
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or not vectors.size:
        raise InvalidValueError("vectors", "numbers (documents, dim)", vectors.shape)
    dim = vectors.shape[1]
    rows = [(form, _dense_bytes(dim, form)) for form in BITS]
    rows += [(f"top {top}", _sparse_bytes(sparse(vectors, top), dim)) for top in tops]
    return pd.DataFrame(rows, columns=["form", "bytes"])


def pareto(rows: pd.DataFrame, cost: str, score: str) -> pd.Series:
    """The rows on the front of quality against cost.

    A row is on the front if no other is better in cost or score and at least as good in the other.

    Args:
        rows: One row per choice, such as a method.
        cost: Column to be small.
        score: Column to be large.

    Returns:
        Bools with the index of the rows, True on the front; equal rows are all on it, or none.

    Raises:
        UnknownNameError: No such column.
        InvalidValueError: A number that is not finite.

    Examples:
        >>> pareto(pd.DataFrame({"bytes": [1, 2, 3], "score": [40, 60, 50]}), "bytes", "score").tolist()
        [True, True, False]
    """
    for column in (cost, score):
        if column not in rows:
            raise UnknownNameError("column", column, map(str, rows))
        if not np.isfinite(rows[column].to_numpy(float)).all():
            raise InvalidValueError(column, "finite numbers", rows[column].tolist(), "Leave out what was not measured.")
    costs, scores = (rows[column].to_numpy(float) for column in (cost, score))
    as_good = (costs <= costs[:, None]) & (scores >= scores[:, None])  # the column's row against the row's
    better = as_good & ((costs < costs[:, None]) | (scores > scores[:, None]))
    return pd.Series(~better.any(axis=1), index=rows.index, name="front")


def _forward_and_backward(
    model: SentenceTransformer, stage: Stage, columns: Mapping[str, list], prompts: Mapping[str, str]
) -> tuple[int, float]:
    """Number of tokens that the decoder reads, and seconds."""
    from ..objectives import get
    from ..training.prepare import prepared

    device, dtype, read = model.device, model[0].decoder.dtype, []
    with prepared(model, stage, seed=0):
        loss = get(stage.objective)(model.train(), **stage.options)
        batch = [
            batch_to_device(model.preprocess(texts, prompt=prompts.get(column)), device)
            for column, texts in columns.items()
        ]
        counter = model.register_forward_pre_hook(lambda _, given: read.append(given[0]["attention_mask"].sum()))
        began = clock(device)
        with torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
            made = loss(batch, None)
        made.backward()
        spent = clock(device) - began
        counter.remove()
        model.zero_grad()
    return int(sum(read)), spent


def _timed(rows: Sequence[tuple[int, str, int, float]]) -> pd.DataFrame:
    """The frame without the warm-up round."""
    frame = pd.DataFrame(rows, columns=["turn", "model", "tokens", "seconds"])
    return frame[frame["turn"] >= 0].reset_index(drop=True)


def _dense_bytes(dim: int, form: str = "float32") -> float:
    return float(np.ceil(dim * BITS[form] / 8))


def _sparse_bytes(rows: Sequence[Mapping[int, float]], dim: int) -> float:
    """Mean bytes of cut vectors, at most those of whole ones."""
    return min(_dense_bytes(dim), POSTING_BYTES * sum(map(len, rows)) / len(rows))
