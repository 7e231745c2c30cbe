"""Evaluation through mteb: offline tasks of every type, the papers' suites, intervals, paired comparisons."""

from .run import average, compare, evaluate
from .suites import SUITES, tasks

__all__ = ["SUITES", "average", "compare", "evaluate", "tasks"]
