"""What the grids of notebooks 03 and later measure: suite docs, in a part of each scale's own sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from .. import evaluation
from ..evaluation.suites import SUITES
from ..scale import Scale, get_scale

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_SMALLER = {
    "quick": {"queries": 8, "documents": 16, "texts": 24, "pairs": 48, "max_length": 48},
    "cpu": {"queries": 50, "documents": 100, "texts": 40, "pairs": 84, "max_length": 48},
}


def smaller(scale: str) -> Scale:
    """Sizes of evaluation: where a grid of many models would take a day on a CPU, a part of the scale's own."""
    return get_scale(scale).model_copy(update=_SMALLER.get(scale, {}))


def suite_docs(model: SentenceTransformer, sizes: Scale, others: tuple[str, ...] = ()) -> pd.DataFrame:
    """Suite docs, its average, and other offline tasks, which are not in the average.

    Returns:
        One row a task: task, type, score, low, high (points), items.
    """
    own = SUITES["docs"].tasks
    scores = evaluation.evaluate(model, [*own, *others], scale=sizes, instructions="docs", progress=False)
    scores = pd.concat([scores, evaluation.average(scores[scores["task"].isin(own)])])
    return scores[["task", "type", "score", "low", "high", "items"]].reset_index(drop=True)
