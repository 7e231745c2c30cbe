"""The outcome of each item of an mteb task, from which a score's interval and paired differences come."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mteb
import numpy as np
import pandas as pd
from mteb.abstasks.aggregated_task import AbsTaskAggregate

from ..errors import MissingDataError
from ..files import writing
from .local import file_names
from .outcomes import Outcomes, average_precision, units

if TYPE_CHECKING:
    from .encoder import Encoder
    from .kept import Kept

logger = logging.getLogger(__name__)


def outcomes_of(task: Any, encoder: Encoder, kept: Kept | None = None) -> tuple[Outcomes, float]:
    """The outcomes of a task's items, and the seconds that it took: what is kept, or else computed now.

    Args:
        task: An mteb task.
        encoder: The model.
        kept: Where results are kept, if they are.

    Raises:
        MissingDataError: The data of the task are not on this machine and can't be fetched.
        InvalidValueError: Vectors that are not finite.
        OutputError: What is kept can't be written.
    """
    if kept is None:
        began = time.perf_counter()
        return _run(task, encoder, None), time.perf_counter() - began
    encoder.mteb_model_meta = kept.meta(task)
    path = kept.path(task, encoder.mteb_model_meta)
    if before := kept.load(path):
        logger.info("task %s: from the cache", task.metadata.name)
        return before
    logger.info("task %s: not in the cache, is computed", task.metadata.name)
    began = time.perf_counter()
    with writing(path):
        result = _run(task, encoder, kept.cache)
    seconds = time.perf_counter() - began
    kept.save(path, result, seconds)
    return result, seconds


def _run(task: Any, encoder: Encoder, cache: mteb.ResultCache | None) -> Outcomes:
    """Run one task and keep what mteb would have written to disk: the outcome of each item."""
    kept: dict[str, Any] = {"runs": 0}
    scores_of_task = getattr(task, "task_specific_scores", None)

    def keep_predictions(predictions: Any, *args: Any, **kwargs: Any) -> None:
        kept["predictions"] = predictions
        kept["runs"] += 1

    def keep_queries(scores: dict, *args: Any, **kwargs: Any) -> dict:
        kept["queries"] = scores
        return scores_of_task(scores, *args, **kwargs)

    # mteb hands over the outcomes of items on the way to a prediction file; this takes them and writes no file.
    task._save_task_predictions = keep_predictions
    if scores_of_task:
        task.task_specific_scores = keep_queries
    aggregate = isinstance(task, AbsTaskAggregate)
    parts = task.metadata.tasks if aggregate else [task]
    absent = [part for part in parts if not part.data_loaded]
    for part in absent:
        _load(part)
    result = mteb.evaluate(
        encoder,
        task,
        cache=cache,
        # A result of mteb's says nothing of items. Of several tasks in one, there are none to be had.
        overwrite_strategy="only-missing" if aggregate else "always",
        co2_tracker=False,
        show_progress_bar=False,
        prediction_folder=None if aggregate else Path("unused"),
        encode_kwargs={"batch_size": 1024, "show_progress_bar": False},
    ).task_results[0]
    found = _items(task, result, kept) if kept["runs"] == 1 else _NO_ITEMS
    for part in absent:
        part.unload_data()
    made = Outcomes(100 * float(result.get_score()), *found, encoder.digest(), factor=100.0)
    if made.reproduces_score():
        return made
    why = f"mteb's score of {task.metadata.name} can't be taken apart into items."
    return Outcomes.none(made.score, why, made.items)


def _load(task: Any) -> None:
    """Load the data of an mteb task; an error says what is missing."""
    name, path = task.metadata.name, task.metadata.dataset["path"]
    try:
        task.load_data()
    except Exception as error:  # the Hub, its cache, the network and the disk each raise their own errors
        files = file_names(name)
        local = f", in the files {files} of the folder that WORKBOOK_DATA names" if files else ""
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise MissingDataError(
            f"The data of task {name} were looked for in the Hugging Face cache and on the Hub as {path}{local}: "
            f"{reason}. Ways out: connect to the network (and unset HF_HUB_OFFLINE); copy the Hugging Face cache from "
            "a machine that has them and set HF_HOME; or evaluate on suite docs, which needs no data."
        ) from error


_NO_ITEMS = ("none", np.zeros(0), None, None, 0, "")


def _items(
    task: Any, result: Any, kept: dict[str, Any]
) -> tuple[str, np.ndarray, np.ndarray | None, np.ndarray | None, int, str]:
    """Statistic, values, gold, groups, number and units of a task's items, as :class:`Outcomes` has them."""
    split, kind, metric = task.eval_splits[0], task.metadata.type, task.metadata.main_score
    data = (task.dataset.get("default") or task.dataset)[split]
    predictions = kept["predictions"]
    if "queries" in kept:
        key = metric.replace("ndcg_at", "ndcg_cut").replace("map_at", "map_cut")
        values = [kept["queries"].get(query, {}).get(key, np.nan) for query in data["queries"]["id"]]
        return "mean", np.array(values), None, None, len(values), units(data["queries"]["text"])
    if kind == "STS":
        gold, (groups, texts) = _column(data, "score", float), _groups(data, task.column_names[0])
        return "spearman", np.array(predictions["cosine_scores"]), gold, groups, len(gold), units(texts)
    if kind == "PairClassification":
        gold = _column(data, task.label_column_name, float)
        groups, texts = _groups(data, task.input1_column_name)
        return "average_precision", _best_similarity(predictions, gold, metric), gold, groups, len(gold), units(texts)
    if kind == "Classification" and metric == "accuracy":
        right = np.array(predictions) == np.array(data[task.label_column_name])
        return "mean", right.mean(axis=0), None, None, right.shape[1], units(data[task.input_column_name])
    measures = result.scores[split][0].get("v_measures")
    if isinstance(measures, list):  # the first form of mteb's clustering: many sets, each clustered once
        return "mean", np.array(measures), None, None, len(measures), units(data[task.input_column_name])
    if isinstance(measures, dict) and len(measures) == 1:  # the second: resamples of one set, one level of labels
        (values,) = measures.values()
        return "replicates", np.array(values), None, None, len(data), units(data[task.input_column_name])
    return _NO_ITEMS


def _column(data: Any, name: str, dtype: type) -> np.ndarray:
    """A column of a data set; the oldest ones hold it as a list in a single row."""
    return np.array(data[name][0] if isinstance(data[name][0], list) else data[name], dtype=dtype)


def _groups(data: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Groups of equal texts in a column: each text's group number, int (items,), and the text of each group."""
    return pd.factorize(_column(data, name, object))


def _best_similarity(predictions: dict[str, Any], gold: np.ndarray, metric: str) -> np.ndarray:
    """Cosine; for mteb's ``max_`` metrics the similarity that ranks the pairs best."""
    similarities = [np.array(predictions["cosine_scores"])]
    if metric.startswith("max_"):
        similarities += [
            np.array(predictions["dot_scores"]),
            -np.array(predictions["euclidean_distances"]),
            -np.array(predictions["manhattan_distances"]),
        ]
    once = np.ones((1, len(gold)))
    return max(similarities, key=lambda values: average_precision(once, values, gold)[0])
