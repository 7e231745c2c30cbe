"""Evaluation through mteb: offline tasks of every type, the papers' suites, intervals, paired comparisons, rankings."""

from .along import along
from .effects import Estimate, Quantity, effect
from .rankings import agreement, complement, cosines, neighbours
from .run import average, compare, evaluate, instructions_of
from .suites import OFFLINE_SUITES, SUITES, tasks

__all__ = [
    "OFFLINE_SUITES",
    "SUITES",
    "Estimate",
    "Quantity",
    "agreement",
    "along",
    "average",
    "compare",
    "complement",
    "cosines",
    "effect",
    "evaluate",
    "instructions_of",
    "neighbours",
    "tasks",
]
