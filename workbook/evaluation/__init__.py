"""Evaluation through mteb: offline tasks of every type, the papers' suites, intervals, paired comparisons, rankings."""

from .rankings import agreement, complement, cosines, neighbours
from .run import average, compare, evaluate
from .suites import SUITES, tasks

__all__ = ["SUITES", "agreement", "average", "compare", "complement", "cosines", "evaluate", "neighbours", "tasks"]
