"""Evaluation while a stage trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..training import Evaluator
from .run import average, evaluate
from .suites import tasks

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def along(suites: Sequence[str], every: int, scale: str) -> Evaluator:
    """A measurement for :func:`workbook.training.train`: the scores of suites.

    Args:
        suites: As of :func:`~.run.evaluate`.
        every: Steps between two measurements.
        scale: Name of the scale, which sizes the tasks.

    Returns:
        It measures the score of each task (points) by its name, and the average of each suite of several tasks by the
        suite's. As in training, a text is cut at the stage's ``max_length`` if that is the shorter.

    Raises:
        UnknownNameError, InvalidValueError: As :func:`~.run.evaluate`, of suites, scale, or ``every``.
    """
    tasks(suites, scale)

    def measure(model: SentenceTransformer) -> dict[str, float]:
        scores = evaluate(model, suites, scale=scale, progress=False)
        both = [scores, average(scores)]
        return {task: score for frame in both for task, score in zip(frame["task"], frame["score"], strict=True)}

    return Evaluator(f"{', '.join(suites)} at {scale}", every, measure)
