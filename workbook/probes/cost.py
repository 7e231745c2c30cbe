"""Costs of training and embedding, in tokens and time; and the front of quality against cost.

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

from ..errors import InvalidValueError, UnknownNameError, whole
from .states import decoder_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..training.recipe import Stage


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
    from ..corpora.scored import RETRIEVAL
    from ..data.rows import load  # here, since its imports take seconds

    turns = whole("turns", turns)
    if absent := [name for name in models if name not in stages]:
        raise InvalidValueError("stages", "one for each of the models", sorted(stages), f"Add {', '.join(absent)}.")
    batches = {}
    for name, model in models.items():
        module, stage = decoder_of(model, [name]), stages[name]
        data = load(**stage.reading() | {"scores": False}, tokenizer=module.tokenizer)
        # Where tasks are told apart, a batch of retrieval.
        source = min(data.datasets, key=lambda one: data.tasks.get(one, RETRIEVAL) != RETRIEVAL)
        rows = data.datasets[source]
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
    found = _on_front(*(rows[column].to_numpy(float) for column in (cost, score)))
    return pd.Series(found, index=rows.index, name="front")


def measured_front(costs: Sequence[float], values: np.ndarray, resamples: int = 2000, seed: int = 0) -> pd.DataFrame:
    """The front of quality against cost, with intervals, and how sure it is of each choice.

    Args:
        costs: Of each choice.
        values: What each choice reached on each of the same items, such as a reciprocal rank, (choices, items).
        resamples: Draws of as many items as there are, with replacement.
        seed: Of the draws.

    Returns:
        One row per choice, in the order given: ``cost``, ``score`` (the mean over items), ``low`` and ``high`` (its
        95 % interval), ``front`` (see :func:`pareto`), and ``sure``, the share of resamples in which it is on the
        front, 0 to 1. Intervals are of items alone: costs are taken as they are.

    Raises:
        InvalidValueError: Another shape, or numbers that are not finite.
    """
    costs, values = np.asarray(costs, dtype=float), np.asarray(values, dtype=float)
    if values.ndim != 2 or costs.shape != values.shape[:1] or not values.size:
        raise InvalidValueError("values", f"numbers (choices, items) for {len(costs)} choices", values.shape)
    found = pd.DataFrame({"cost": costs, "score": values.mean(axis=1)})
    found["front"] = pareto(found, "cost", "score")
    items = values.shape[1]
    draws = np.random.default_rng(seed).multinomial(items, np.full(items, 1 / items), size=resamples)
    scores = np.round(draws @ values.T / items, 9)  # sums in another order are no difference
    found["low"], found["high"] = np.percentile(scores, [2.5, 97.5], axis=0)
    found["sure"] = np.mean([_on_front(costs, of_draw) for of_draw in scores], axis=0)
    return found[["cost", "score", "low", "high", "front", "sure"]]


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


def _on_front(costs: np.ndarray, scores: np.ndarray) -> np.ndarray:
    as_good = (costs <= costs[:, None]) & (scores >= scores[:, None])  # the column's row against the row's
    better = as_good & ((costs < costs[:, None]) | (scores > scores[:, None]))
    return ~better.any(axis=1)
