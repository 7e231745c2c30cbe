"""Matrices in colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.markers import CARETDOWN
from matplotlib.text import Text
from pandas.api.types import is_numeric_dtype

from ..errors import InvalidValueError, UnknownNameError
from .style import FULL, MARKERS, styled, suptitle


def heatmap(
    values: pd.DataFrame | np.ndarray,
    *,
    rows: Sequence | None = None,
    columns: Sequence | None = None,
    title: str = "",
    **options,
) -> Figure:
    """One matrix in colour.

    Args:
        values: Matrix of shape (rows, columns); a frame has its own labels.
        rows: Labels of the rows.
        columns: Labels of the columns.
        title: The quantity.
        **options: See `heatmaps`.

    Raises:
        InvalidValueError: Not a matrix with at least one finite value, or labels of another length.
        UnknownNameError: As `heatmaps`.
    """
    matrix = pd.DataFrame(values, index=rows, columns=columns) if not isinstance(values, pd.DataFrame) else values
    return heatmaps({"": matrix}, title=title, **options)


@styled
def heatmaps(
    panels: Mapping[str, pd.DataFrame],
    *,
    signed: bool = False,
    limits: tuple[float, float] | None = None,
    title: str = "",
    unit: str = "",
    xlabel: str = "",
    ylabel: str = "",
    annotate: bool | None = None,
    bottom_up: bool = False,
    split: int | None = None,
    marks: Mapping[str, Sequence] | None = None,
    size: tuple[float, float] = FULL,
) -> Figure:
    """Matrices side by side on one colour scale.

    Columns that are too narrow to be printed are drawn as groups of neighbours, in each row in the colour of the value
    farthest from 0, so that no peak gets lost.

    Args:
        panels: Matrix by panel title; index and columns label the rows and columns.
        signed: Use diverging colours centred at 0 (``RdBu_r``) in place of ``cividis``.
        limits: Lowest and highest value of the scale; from the data if not given.
        title: The quantity.
        unit: Label of the colour bar.
        xlabel: Label of the columns.
        ylabel: Label of the rows.
        annotate: Write the values into the cells; None for up to 12 columns and 12 rows.
        bottom_up: Draw the first row at the bottom, as for layers.
        split: Number of rows in the first of two groups, which a line separates.
        marks: Labels of columns that a triangle above the panel points at, by panel title.
        size: Width and height in inches.

    Raises:
        InvalidValueError: No panel, one that is not a matrix with at least one finite value, or a split outside one.
        UnknownNameError: Marks for a panel or column that is not there.
    """
    if not panels:
        raise InvalidValueError("panels", "at least one matrix", panels)
    for name, matrix in panels.items():
        if not isinstance(matrix, pd.DataFrame) or not np.isfinite(matrix.to_numpy(float)).any():
            raise InvalidValueError(f"panel {name!r}", "a DataFrame with at least one finite number", matrix)
        if split is not None and not 0 < split < len(matrix):
            raise InvalidValueError("split", f"a number of rows from 1 to {len(matrix) - 1}", split)
    for name, columns in (marks or {}).items():
        if name not in panels:
            raise UnknownNameError("panel", name, panels)
        for column in columns:
            if column not in panels[name].columns:
                raise UnknownNameError(f"column of panel {name!r}", column, map(str, panels[name].columns))
    low, high = limits or (
        min(np.nanmin(matrix.to_numpy(float)) for matrix in panels.values()),
        max(np.nanmax(matrix.to_numpy(float)) for matrix in panels.values()),
    )
    if signed:
        low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
    scale = Normalize(low, high if high > low else low + 1)
    colours = mpl.colormaps["RdBu_r" if signed else "cividis"]
    fig = Figure(figsize=size, layout="constrained")
    grid = fig.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    width = size[0] / len(panels) * 0.72
    for axes, (name, matrix) in zip(grid, panels.items(), strict=True):
        numbers = matrix.to_numpy(float)
        image = axes.imshow(
            _peaks(numbers, math.floor(width * 120)),
            cmap=colours,
            norm=scale,
            aspect="auto",
            interpolation="nearest",
            origin="lower" if bottom_up else "upper",
        )
        digits = 1 if max(abs(low), abs(high)) >= 10 else 2
        small = max(numbers.shape) <= 12 and numbers.shape[1] * len(panels) <= 14
        if small if annotate is None else annotate:
            for (row, column), value in np.ndenumerate(numbers):
                dark = np.dot(colours(scale(value))[:3], (0.299, 0.587, 0.114)) < 0.5
                axes.text(
                    column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=7, color="wk"[not dark]
                )
        if split is not None:
            axes.axhline(split - 0.5, color="w", linewidth=1.5)
        for place in matrix.columns.get_indexer(list((marks or {}).get(name, ()))):
            above = axes.get_xaxis_transform()
            axes.plot(place, 1, "k", marker=CARETDOWN, ms=6, mew=0, clip_on=False, transform=above)
        longest = max(len(str(label)) for label in matrix.columns) if is_numeric_dtype(matrix.columns) else 0
        _label(axes.set_xticks, matrix.columns, width, max(0.17, 0.03 + 0.062 * longest))
        _label(axes.set_yticks, matrix.index, size[1] * 0.72, 0.17)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        if len(panels) > 4:
            axes.tick_params(axis="x", labelsize=7)
        axes.set_title(name if len(panels) > 1 else title, pad=9 if marks else None)
    grid[0].set_ylabel(ylabel)
    fig.colorbar(image, ax=list(grid), label=unit, pad=0.02, aspect=25)
    if len(panels) > 1:
        suptitle(fig, title)
        fig.supxlabel(xlabel, fontsize=9)
    else:
        grid[0].set_xlabel(xlabel)
    _turn(fig, [axes.get_xticklabels() for axes in grid])
    return fig


@styled
def contours(
    values: pd.DataFrame,
    *,
    levels: Sequence[float],
    points: pd.DataFrame | None = None,
    limits: tuple[float, float] | None = None,
    title: str = "",
    unit: str = "",
    xlabel: str = "",
    ylabel: str = "",
    size: tuple[float, float] = FULL,
) -> Figure:
    """A quantity over two others that span orders of magnitude, with lines where it is equal, and points on it.

    Args:
        values: Its values; the index is the vertical axis and the columns the horizontal one, positive and rising.
        levels: Values along which a line is drawn, rising.
        points: Columns ``x``, ``y`` (on the axes), ``name`` (written upright beside the point; may be empty) and
            ``kind`` (a marker for each).
        limits: Lowest and highest value of the colours; from the data if not given.
        title: The quantity.
        unit: Label of the colour bar.
        xlabel: Label of the columns.
        ylabel: Label of the index.
        size: Width and height in inches.

    Raises:
        InvalidValueError: Axes that do not rise from above 0, values that are not finite, no level, or points without
            these columns.
    """
    across, up = (np.asarray(axis, dtype=float) for axis in (values.columns, values.index))
    for name, axis in (("columns", across), ("index", up)):
        if len(axis) < 2 or not axis[0] > 0 or not (np.diff(axis) > 0).all():
            raise InvalidValueError(name, "two positive numbers or more that rise", axis.tolist())
    numbers = values.to_numpy(float)
    if not np.isfinite(numbers).all() or not len(levels):
        raise InvalidValueError("values and levels", "finite numbers, and a level or more", list(levels))
    if points is not None and (absent := [name for name in ("x", "y", "name", "kind") if name not in points]):
        raise InvalidValueError("points", "columns x, y, name and kind", f"no {absent[0]}")
    fig = Figure(figsize=size, layout="constrained")
    axes = fig.subplots()
    axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel, title=title)
    axes.set(xlim=(across[0], across[-1]), ylim=(up[0], up[-1]))
    scale = Normalize(*(limits or (numbers.min(), numbers.max())))
    image = axes.pcolormesh(across, up, numbers, cmap="cividis", norm=scale, shading="gouraud", rasterized=True)
    colours = ["w" if scale(level) < 0.55 else "k" for level in levels]
    lines = axes.contour(across, up, numbers, levels=list(levels), colors=colours, linewidths=0.8)
    axes.clabel(lines, fmt="%g", fontsize=7, inline_spacing=2)
    kinds = [] if points is None else points["kind"].unique()
    for marker, kind in zip(MARKERS, kinds, strict=False):
        own = points[points["kind"] == kind]
        look = {"markerfacecolor": "w", "markeredgecolor": "k", "markersize": 5}
        axes.plot(own["x"], own["y"], linestyle="", marker=marker, label=kind, clip_on=False, **look)
    for point in () if points is None else points.itertuples():
        above = point.y**2 < up[0] * up[-1]  # a name is written towards the middle
        axes.annotate(
            point.name,
            (point.x, point.y),
            (0, 6 if above else -6),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="bottom" if above else "top",
            fontsize=6.5,
            bbox={"facecolor": "w", "alpha": 0.75, "linewidth": 0, "pad": 0.8},
        )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    fig.colorbar(image, ax=axes, label=unit, pad=0.02, aspect=25)
    if len(kinds):
        fig.legend(loc="outside lower center", ncols=min(4, len(kinds)))
    return fig


def _peaks(numbers: np.ndarray, most: int) -> np.ndarray:
    """The matrix with its columns in at most ``most`` groups of neighbours, each with one value per row."""
    group = math.ceil(numbers.shape[1] / most)
    starts = np.arange(0, numbers.shape[1], group)
    high, low = np.fmax.reduceat(numbers, starts, axis=1), np.fmin.reduceat(numbers, starts, axis=1)
    return np.where(high >= -low, high, low).repeat(group, axis=1)[:, : numbers.shape[1]]


def _turn(fig: Figure, panels: Sequence[Sequence[Text]]) -> None:
    """Turn the labels below the panels if some of them would touch each other."""
    fig.draw_without_rendering()
    boxes = [[label.get_window_extent() for label in labels] for labels in panels]
    if any(left.x1 >= right.x0 for row in boxes for left, right in pairwise(row)):
        for label in chain(*panels):
            label.set(rotation=35, ha="right", rotation_mode="anchor")


def _label(set_ticks, labels: Sequence, inches: float, pitch: float) -> None:
    """Tick labels, as many as fit: every second, fifth, tenth ... when there are too many."""
    fits = max(1, inches / pitch)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if len(labels) <= step * fits)
    set_ticks(range(0, len(labels), step), [str(label) for label in labels[::step]])
