"""Experiments: grids of variants and seeds, declared as data, recorded cell by cell, and computed live on demand."""

from __future__ import annotations

from ..errors import UnknownNameError
from . import (
    anchor,
    choices,
    compress,
    dial,
    dictionary,
    efficiency,
    equal_budget,
    faithful,
    gritlm,
    ladder,
    layers,
    lens,
    llm2vec,
    mixture,
    nv_embed,
    sinks,
    untrained,
)
from .compare import differences, judged, learned, levels, paired, quantities, quantity, side_by_side
from .curves import heights, steps_to_reach
from .grid import Experiment, Variant
from .records import RECORDED, Record
from .summary import over_seeds

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for module in (
        *(untrained, llm2vec, nv_embed, dictionary, lens, dial, faithful, mixture, sinks, ladder, choices),
        *(layers, anchor, equal_budget, efficiency, compress, gritlm),
    )
    for experiment in module.EXPERIMENTS
}
"""All experiments by name, in the order of their notebooks."""

__all__ = [
    "EXPERIMENTS",
    "RECORDED",
    "Experiment",
    "Record",
    "Variant",
    "differences",
    "find",
    "get",
    "heights",
    "judged",
    "learned",
    "levels",
    "over_seeds",
    "paired",
    "quantities",
    "quantity",
    "side_by_side",
    "steps_to_reach",
]


def get(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        UnknownNameError: No such experiment; the message lists all.
    """
    if name not in EXPERIMENTS:
        raise UnknownNameError("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def find(names: list[str]) -> list[Experiment]:
    """The experiments of those notebooks (``02``, ``2``) or names (``02_stages``), in the order of the list, each once.

    Args:
        names: Numbers of notebooks, or names of experiments.

    Raises:
        UnknownNameError: No experiment of that name or notebook; the message lists all.
    """
    chosen: dict[str, Experiment] = {}
    for name in names:
        matches = {k: one for k, one in EXPERIMENTS.items() if name == k or k.partition("_")[0] == name.zfill(2)}
        if not matches:
            raise UnknownNameError("experiment", name, EXPERIMENTS)
        chosen |= matches
    return list(chosen.values())
