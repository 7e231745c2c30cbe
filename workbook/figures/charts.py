"""Bars, lines, distributions and points, drawn from tidy frames."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogFormatter, MaxNLocator, NullLocator, StrMethodFormatter

from ..errors import InvalidValueError
from .panels import (
    Baseline,
    check_columns,
    cycle,
    draw_baselines,
    finish,
    levels,
    rows_of,
    split_panels,
    wrapped,
    write_names,
)
from .style import DASHES, FULL, HATCHES, MARKERS, OKABE_ITO, styled


@styled
def bars(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    hue: str | None = None,
    low: str | None = None,
    high: str | None = None,
    baseline: Baseline = None,
    panel: str | None = None,
    title: str = "",
    xlabel: str = "",
    ylabel: str | None = None,
    ylim: tuple[float, float] | None = None,
    values: bool = False,
    size: tuple[float, float] = FULL,
) -> Figure:
    """Grouped bars with intervals, which differ in colour and hatch, so that they can be read in greyscale.

    Args:
        frame: One row per bar.
        x: Column of the groups, in order of first appearance; long names take several lines.
        y: Column of the heights.
        hue: Column that splits each group.
        low: Column of the interval's lower ends, in the units of ``y`` (not distances from it).
        high: Column of the interval's upper ends.
        baseline: A level to draw across (chance, an untrained model, a published number), several by label, or under a
            label one by panel.
        panel: Column whose values get a panel each, with shared limits.
        title: The quantity, not the finding.
        xlabel: Label of the groups.
        ylabel: Label of the heights, with the unit; the column's name if not given.
        ylim: Limits of the heights; from the data if not given.
        values: Write each height above its bar.
        size: Width and height in inches.

    Raises:
        UnknownNameError: A named column is absent.
        InvalidValueError: The frame is empty, or levels by panel lack one.
    """
    check_columns(frame, x, y, hue, low, high, panel)
    groups, hues = levels(frame, x), levels(frame, hue)
    width = 0.8 / len(hues)
    fig, panels = split_panels(frame, panel, size, title)
    for axes, part in panels:
        for place, level in enumerate(hues):
            rows = rows_of(part, hue, level).drop_duplicates(x).set_index(x).reindex(groups)
            at = np.arange(len(groups)) + (place - (len(hues) - 1) / 2) * width
            axes.bar(
                at,
                rows[y],
                width * 0.92,
                label=str(level),
                color=cycle(OKABE_ITO, place),
                hatch=cycle(HATCHES, place),
                edgecolor="black",
                linewidth=0.6,
            )
            if low and high:
                errors = np.clip([rows[y] - rows[low], rows[high] - rows[y]], 0, None)
                axes.errorbar(at, rows[y], errors, fmt="none", ecolor="black", elinewidth=1, capsize=2)
            if values:
                tops = rows[high] if high else rows[y]
                for spot, top, value in zip(at, tops, rows[y], strict=True):
                    axes.annotate(
                        f"{value:.1f}", (spot, max(top, 0)), (0, 2), textcoords="offset points", ha="center", fontsize=7
                    )
        axes.set_xticks(range(len(groups)), wrapped(groups, size[0] / len(panels)))
        axes.axhline(0, color="black", linewidth=0.8)
        axes.grid(axis="y")
        axes.tick_params(axis="x", length=0)
        draw_baselines(axes, baseline, levels(part, panel)[0])
        axes.set_xlabel(xlabel)
        if ylim:
            axes.set_ylim(ylim)
    finish(fig, panels, ylabel or y, legend=bool(hue) or isinstance(baseline, Mapping))
    return fig


@styled
def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    hue: str | None = None,
    low: str | None = None,
    high: str | None = None,
    baseline: Baseline = None,
    panel: str | None = None,
    title: str = "",
    xlabel: str | None = None,
    ylabel: str | Mapping[Hashable, str] | None = None,
    ylim: tuple[float, float] | None = None,
    logx: bool = False,
    size: tuple[float, float] = FULL,
) -> Figure:
    """Lines with interval bands, which differ in colour, dash and marker.

    Args:
        frame: One row per point; ``x`` is numeric.
        x: Column along the horizontal axis.
        y: Column of the heights.
        hue: Column with one level per line.
        low: Column of the band's lower edge, in the units of ``y``.
        high: Column of the band's upper edge.
        baseline: A level to draw across, several by label, or under a label one by panel.
        panel: Column whose values get a panel each, with shared limits.
        title: The quantity, not the finding.
        xlabel: Label with the unit; the column's name if not given.
        ylabel: Label with the unit; the column's name if not given. One by panel, where panels have quantities of
            their own: then they don't share their limits.
        ylim: Limits of the heights; from the data if not given.
        logx: Logarithmic horizontal axis.
        size: Width and height in inches.

    Raises:
        UnknownNameError: A named column is absent.
        InvalidValueError: The frame is empty, or levels or labels by panel lack one.
    """
    check_columns(frame, x, y, hue, low, high, panel)
    labels = ylabel if isinstance(ylabel, Mapping) else {}
    if labels and (bare := [level for level in levels(frame, panel) if level not in labels]):
        raise InvalidValueError("ylabel", f"a label for panel {bare[0]!r}", [*labels])
    fig, panels = split_panels(frame, panel, size, title, sharey=not labels)
    for axes, part in panels:
        for place, level in enumerate(levels(frame, hue)):
            rows = rows_of(part, hue, level).sort_values(x)
            color = cycle(OKABE_ITO, place)
            axes.plot(
                rows[x],
                rows[y],
                color=color,
                linestyle=cycle(DASHES, place),
                marker=cycle(MARKERS, place),
                # at most a dozen markers per line, each line's at places of its own
                markevery=(place % max(1, len(rows) // 12), max(1, len(rows) // 12)),
                markeredgecolor="white",
                markeredgewidth=0.5,
                label=str(level),
            )
            if low and high and len(rows) > 1:
                axes.fill_between(rows[x], rows[low], rows[high], color=color, alpha=0.18, linewidth=0)
            elif low and high:  # a band around a single point would have no width
                axes.vlines(rows[x], rows[low], rows[high], color=color, linewidth=1.2)
        axes.grid()
        if logx:
            _logarithmic(axes, frame[x])
        elif pd.api.types.is_integer_dtype(frame[x]):
            few, room = sorted(frame[x].unique()), min(10, int(3 * size[0] / len(panels)))  # three labels an inch
            axes.xaxis.set_major_locator(FixedLocator(few) if len(few) < 6 else MaxNLocator(room, integer=True))
        draw_baselines(axes, baseline, levels(part, panel)[0])
        axes.set_xlabel(x if xlabel is None else xlabel)
        if ylim:
            axes.set_ylim(ylim)
    finish(fig, panels, "" if labels else ylabel or y, legend=bool(hue) or isinstance(baseline, Mapping))
    for axes, part in panels if labels else []:
        axes.set_ylabel(labels[levels(part, panel)[0]])
    return fig


@styled
def distributions(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    hue: str,
    panel: str | None = None,
    baseline: Baseline = None,
    title: str = "",
    xlabel: str = "",
    ylabel: str | None = None,
    ylim: tuple[float, float] | None = None,
    size: tuple[float, float] = FULL,
) -> Figure:
    """Pairs of distributions back to back, such as the similarities of positives and of negatives.

    Each half is a kernel density cut at the data's range, with its quartiles; the right half is hatched.

    Args:
        frame: One row per observation.
        x: Column of the groups (a model, an attention mode), in order of first appearance.
        y: Column of the observed values.
        hue: Column of exactly two levels, the two halves.
        panel: Column whose values get a panel each, with shared limits.
        baseline: A level to draw across, several by label, or under a label one by panel.
        title: The quantity, not the finding.
        xlabel: Label of the groups.
        ylabel: Label of the values, with the unit; the column's name if not given.
        ylim: Limits of the values; from the data if not given.
        size: Width and height in inches.

    Raises:
        UnknownNameError: A named column is absent.
        InvalidValueError: The frame is empty, levels by panel lack one, or ``hue`` does not have exactly two levels.

    Source:
        LLM2Vec, figure 4: cosine similarity of positive and negative continuations.
    """
    check_columns(frame, x, y, hue, panel)
    hues = levels(frame, hue)
    if len(hues) != 2:
        raise InvalidValueError(hue, "exactly two levels, one a half", hues)
    groups = levels(frame, x)
    fig, panels = split_panels(frame, panel, size, title)
    for axes, part in panels:
        sns.violinplot(
            part,
            x=x,
            y=y,
            hue=hue,
            order=groups,
            hue_order=hues,
            split=True,
            gap=0.06,
            inner="quart",
            cut=0,
            density_norm="width",
            palette=list(OKABE_ITO[:2]),
            saturation=1,
            linewidth=0.9,
            linecolor="black",
            legend=False,
            ax=axes,
        )
        for half in axes.collections:
            if np.allclose(half.get_facecolor()[0], mpl.colors.to_rgba(OKABE_ITO[1])):
                half.set_hatch(HATCHES[1])
        for place, level in enumerate(hues):
            axes.fill_between(
                [], [], [], facecolor=OKABE_ITO[place], hatch=HATCHES[place], edgecolor="black", label=str(level)
            )
        axes.grid(axis="y")
        axes.tick_params(axis="x", length=0)
        axes.set(xlabel=xlabel, ylabel="")
        draw_baselines(axes, baseline, levels(part, panel)[0])
        if ylim:
            axes.set_ylim(ylim)
    finish(fig, panels, ylabel or y, legend=True)
    return fig


@styled
def scatter(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    hue: str | None = None,
    names: str | None = None,
    low: str | None = None,
    high: str | None = None,
    front: str | None = None,
    panel: str | None = None,
    title: str = "",
    xlabel: str | None = None,
    ylabel: str | None = None,
    logx: bool = False,
    size: tuple[float, float] = FULL,
) -> Figure:
    """Points on two axes, which differ in colour and marker: maps of embeddings, one score against another.

    Args:
        frame: One row per point.
        x: Column along the horizontal axis.
        y: Column along the vertical axis.
        hue: Column with one level per group of points.
        names: Column of the text beside each point.
        low: Column of the lower ends of intervals of ``y``; NaN draws none.
        high: Column of their upper ends.
        front: Column of bools, such as from `workbook.probes.pareto`: these points are filled and joined by steps, the
            best score up to a cost; the others are hollow.
        panel: Column whose values get a panel each, with shared limits.
        title: The quantity, not the finding.
        xlabel: Label with the unit; the column's name if not given.
        ylabel: Label with the unit; the column's name if not given.
        logx: Logarithmic horizontal axis.
        size: Width and height in inches.

    Raises:
        UnknownNameError: A named column is absent.
        InvalidValueError: The frame is empty.
    """
    check_columns(frame, x, y, hue, names, low, high, front, panel)
    fig, panels = split_panels(frame, panel, size, title)
    for axes, part in panels:
        if front:
            steps = part[part[front]].sort_values(x)
            line = {"color": "#555555", "linewidth": 1.1, "label": "front (filled)"}
            axes.step(steps[x], steps[y], where="post", zorder=1.5, **line)
        for place, level in enumerate(levels(frame, hue)):
            rows = rows_of(part, hue, level)
            color = cycle(OKABE_ITO, place)
            if low and high:
                errors = np.clip([rows[y] - rows[low], rows[high] - rows[y]], 0, None)
                ink = color if hue else "black"
                axes.errorbar(rows[x], rows[y], errors, fmt="none", ecolor=ink, elinewidth=0.8, capsize=2)
            if front:
                rows = rows.sort_values(front, kind="stable")  # those on the front are drawn last, over the others
            filled = rows[front] if front else [True] * len(rows)
            look = {
                "s": 22,
                "marker": cycle(MARKERS, place),
                "edgecolor": "black" if front is None else color,
                "linewidth": 0.4 if front is None else 1.2,
                "alpha": 0.85 if front is None else 1,
                "zorder": 3,
            }
            if front:  # the legend shows the colour, whether the first point is hollow or not
                axes.scatter([], [], facecolor=color, label=str(level), **look)
            colours = [color if full else "white" for full in filled]
            axes.scatter(rows[x], rows[y], facecolor=colours, label=None if front else str(level), **look)
        axes.grid()
        if logx:
            _logarithmic(axes, frame[x])
        axes.set_xlabel(x if xlabel is None else xlabel)
    finish(fig, panels, ylabel or y, legend=bool(hue or front))
    if names:
        write_names(fig, [(axes, part[[x, y, names]].drop_duplicates()) for axes, part in panels])
    return fig


def _logarithmic(axes: Axes, values: pd.Series) -> None:
    """A logarithmic horizontal axis, with ticks at the values if they are few; it says 2000 in place of 2 x 10^3.

    Of values whose ticks would touch only the first has one.
    """
    axes.set_xscale("log")
    if (few := np.sort(values.unique())).size < 8:
        apart = few[:1].tolist()
        for value in few[1:]:
            if np.log(value / apart[-1]) > 0.1 * np.log(few[-1] / few[0]):
                apart.append(value)
        axes.xaxis.set(major_locator=FixedLocator(apart), major_formatter=StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        return
    axes.xaxis.set_major_formatter(LogFormatter())
    axes.xaxis.set_minor_formatter(LogFormatter())
