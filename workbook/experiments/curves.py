"""Curves of convergence as quantities: the mean height of a curve, and the step at which it reaches a level."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..errors import InvalidValueError
from ..evaluation.effects import Quantity
from ..evaluation.outcomes import Outcomes
from .compare import caveat_of, judged, tested


def heights(
    rows: pd.DataFrame, variants: Mapping[str, str], learning: Mapping[str, str] | None = None
) -> dict[str, Quantity]:
    """The mean height of the curve of each variant over its measurements.

    Args:
        rows: Rows of one task of the metric ``curve``, as from ``Run.experiment``: columns source, variant, seed, step,
            outcomes and trained.
        variants: Variants by the names of the quantities; those that were not measured are left out.
        learning: See :func:`~.compare.quantities`.

    Returns:
        Quantities with a task per step. Two are compared if they were measured at the same steps.
    """
    return {
        name: tested(Quantity(curves, caveat=caveat_of(part)), variants[name], learning)
        for name, (curves, part) in _curves(rows, variants).items()
    }


def steps_to_reach(
    rows: pd.DataFrame, variants: Mapping[str, str], baseline: str, learning: Mapping[str, str] | None = None
) -> dict[str, Quantity]:
    """The step at which the curve of each variant first reaches the end of the baseline's, under the same seed.

    Between two measurements a curve is a straight line, and the step is where that crosses the level, so it need not be
    whole. A curve that begins above the level reaches it at its first step; for one that never does its last step
    stands. It does not matter whether a curve falls below the level again. Curve and level are resampled together.

    Args:
        rows: See :func:`heights`; higher is better.
        variants: See :func:`heights`.
        baseline: Variant whose last measurement is the level.
        learning: See :func:`~.compare.quantities`.

    Raises:
        InvalidValueError: The baseline was not measured under a seed of the others.
    """
    ends, level = _curves(rows, {"": baseline}).get("", ({}, rows[:0]))
    found = {}
    for name, (curves, part) in _curves(rows, variants).items():
        if absent := sorted(set(curves) - set(ends)):
            raise InvalidValueError("baseline", f"a variant with the seeds of {name}", f"{baseline} without {absent}")
        crossings = {seed: {"steps": _crossing(curve, ends[seed])} for seed, curve in curves.items()}
        made = Quantity(crossings, caveat=caveat_of(part) or caveat_of(level))
        found[name] = tested(made, variants[name], learning)
    return found


def _curves(
    rows: pd.DataFrame, variants: Mapping[str, str]
) -> dict[str, tuple[dict[int, dict[str, Outcomes]], pd.DataFrame]]:
    """By name, outcomes by seed and step, in the order of the steps, and the rows that they are from."""
    rows = judged(rows).sort_values("step")
    parts = {name: rows[rows["variant"] == variant] for name, variant in variants.items()}
    return {
        name: (
            {
                int(seed): {f"{step:.0f}": one for step, one in zip(curve["step"], curve["outcomes"], strict=True)}
                for seed, curve in part.groupby("seed")
            },
            part,
        )
        for name, part in parts.items()
        if len(part)
    }


def _crossing(curve: Mapping[str, Outcomes], baseline: Mapping[str, Outcomes]) -> Outcomes:
    """The step at which a curve reaches the end of another, and the same in every resample of both."""
    points, end, steps = list(curve.values()), [*baseline.values()][-1], np.array([*curve], dtype=float)
    score = _reached(steps, np.array([[one.score] for one in points]), np.array([end.score]))[0]
    if missing := [one.why for one in (*points, end) if one.statistic == "none"]:
        return Outcomes.none(score, missing[0])
    resampled = _reached(steps, np.stack([one.resampled() for one in points]), end.resampled())
    return Outcomes(score, "replicates", resampled, items=end.items, units=end.units, digest=end.digest)


def _reached(steps: np.ndarray, heights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The first step at which each curve, (steps, curves), reaches its level, (curves,)."""
    found = []
    for curve, level in zip(heights.T, levels, strict=True):
        above = curve >= level
        place = int(above.argmax()) if above.any() else len(steps) - 1
        before = slice(place - 1, place + 1)
        found.append(float(np.interp(level, curve[before], steps[before])) if place and above.any() else steps[place])
    return np.array(found)
