"""Figures of training runs and experiments: losses with chance, estimates with their intervals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import InvalidValueError
from .panels import Baseline, check_columns, cycle, draw_baselines, finish, levels, rows_of, split_panels, wrapped
from .style import FULL, MARKERS, OKABE_ITO, styled, suptitle


@styled
def estimates(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    low: str = "low",
    high: str = "high",
    hue: str | None = None,
    hollow: str | None = None,
    baseline: Baseline = None,
    panel: str | None = None,
    title: str = "",
    xlabel: str = "",
    ylabel: str | None = None,
    ylim: tuple[float, float] | None = None,
    size: tuple[float, float] = FULL,
) -> Figure:
    """Points with their intervals, side by side in groups, which differ in colour and marker.

    Args:
        frame: One row per point.
        x: Column of the groups, in order of first appearance; long names take several lines.
        y: Column of the heights.
        low: Column of the interval's lower ends, in the units of ``y``; NaN draws none.
        high: Column of the interval's upper ends.
        hue: Column that splits each group.
        hollow: Column of the sources of points: those of its first level are filled, all others hollow.
        baseline: A level to draw across, several by label, or under a label one by panel.
        panel: Column whose values get a panel each, with shared limits.
        title: The quantity, not the finding.
        xlabel: Label of the groups.
        ylabel: Label of the heights, with the unit; the column's name if not given.
        ylim: Limits of the heights; from the data if not given.
        size: Width and height in inches.

    Raises:
        UnknownNameError: A named column is absent.
        InvalidValueError: The frame is empty, or levels by panel lack one.
    """
    check_columns(frame, x, y, low, high, hue, hollow, panel)
    groups, hues, sources = levels(frame, x), levels(frame, hue), levels(frame, hollow)
    slots = len(hues) * len(sources)
    fig, panels = split_panels(frame, panel, size, title)
    for axes, part in panels:
        for place, level in enumerate(hues):
            for later, source in enumerate(sources):
                whole = rows_of(rows_of(frame, hue, level), hollow, source)
                if whole.empty:
                    continue  # in no panel: nothing for the legend either
                rows = rows_of(rows_of(part, hue, level), hollow, source)
                slot = place * len(sources) + later - (slots - 1) / 2
                color = cycle(OKABE_ITO, place)
                names = (level, source if later or (level == "" and len(sources) > 1) else "")
                axes.errorbar(
                    [groups.index(name) + slot * 0.7 / slots for name in rows[x]],
                    rows[y],
                    # Where no panel has an interval, the legend shows none.
                    None if whole[low].isna().all() else np.clip([rows[y] - rows[low], rows[high] - rows[y]], 0, None),
                    fmt=cycle(MARKERS, place),
                    color=color,
                    markerfacecolor="white" if later else color,
                    markersize=5.5,
                    elinewidth=1.2,
                    capsize=2,
                    label=", ".join(str(name) for name in names if name != ""),
                )
        axes.set_xticks(range(len(groups)), wrapped(groups, size[0] / len(panels)))
        axes.set_xlim(-0.5, len(groups) - 0.5)
        axes.grid(axis="y")
        axes.tick_params(axis="x", length=0)
        draw_baselines(axes, baseline, levels(part, panel)[0])
        axes.set_xlabel(xlabel)
        if ylim:
            axes.set_ylim(ylim)
    finish(fig, panels, ylabel or y, legend=slots > 1 or isinstance(baseline, Mapping))
    return fig


@styled
def losses(
    history: pd.DataFrame, chance: Mapping[str, float], *, title: str = "", size: tuple[float, float] = FULL
) -> Figure:
    """Loss by step, one panel per stage with axes of its own, and the loss of chance drawn across.

    Args:
        history: History of a training: columns stage, step and loss.
        chance: Loss at chance by stage.
        title: The quantity, not the finding.
        size: Width and height in inches.

    Raises:
        UnknownNameError: A column is absent.
        InvalidValueError: The history is empty, or a stage has no level in ``chance``.
    """
    check_columns(history, "stage", "step", "loss")
    stages = levels(history, "stage")
    if missing := [stage for stage in stages if stage not in chance]:
        raise InvalidValueError("chance", f"a level for each of the stages {stages}", sorted(chance), f"Add {missing}.")
    fig = Figure(figsize=size, layout="constrained")
    panels = list(zip(fig.subplots(1, len(stages), squeeze=False)[0], stages, strict=True))
    for place, (axes, stage) in enumerate(panels):
        rows = rows_of(history, "stage", stage)
        color = cycle(OKABE_ITO, place)
        axes.plot(rows["step"], rows["loss"], color=color, marker="o" if len(rows) < 30 else "")
        draw_baselines(axes, {"chance": chance}, stage)
        axes.set_ylim(0, 1.08 * max(rows["loss"].max(), chance[stage]))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.grid()
        axes.set(title=str(stage), xlabel="step")
    suptitle(fig, title)
    finish(fig, panels, "loss (nats)", legend=True)
    return fig
