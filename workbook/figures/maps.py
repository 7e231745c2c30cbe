"""Matrices in colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ..errors import InvalidValueError
from .style import FULL, styled, suptitle


def heatmap(
    values: pd.DataFrame | np.ndarray,
    *,
    rows: Sequence | None = None,
    columns: Sequence | None = None,
    title: str = "",
    **options,
) -> Figure:
    """One matrix in colour; see `heatmaps` for the options.

    Args:
        values: Matrix of shape (rows, columns); a frame brings its own labels.
        rows: Labels of the rows.
        columns: Labels of the columns.
        title: The quantity.
        **options: As in `heatmaps`.

    Raises:
        InvalidValueError: Not a matrix with at least one finite value, or labels of another length.
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
    size: tuple[float, float] = FULL,
) -> Figure:
    """Matrices side by side on one colour scale.

    Args:
        panels: Matrix by panel title; index and columns label the rows and columns.
        signed: Diverging colours centred at 0 (``RdBu_r``) in place of ``cividis``.
        limits: Lowest and highest value of the scale; from the data if not given.
        title: The quantity.
        unit: Label of the colour bar.
        xlabel: What the columns are.
        ylabel: What the rows are.
        annotate: Write the values into the cells; by default up to 12 columns and 12 rows.
        bottom_up: Draw the first row at the bottom, as layers are.
        size: Width and height in inches.

    Raises:
        InvalidValueError: No panel, or one that is not a matrix with at least one finite value.
    """
    if not panels:
        raise InvalidValueError("panels", "at least one matrix", panels)
    for name, matrix in panels.items():
        if not isinstance(matrix, pd.DataFrame) or not np.isfinite(matrix.to_numpy(float)).any():
            raise InvalidValueError(f"panel {name!r}", "a DataFrame with at least one finite number", matrix)
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
    for axes, (name, matrix) in zip(grid, panels.items(), strict=True):
        numbers = matrix.to_numpy(float)
        image = axes.imshow(
            numbers,
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
        _label(axes.set_xticks, matrix.columns, size[0] / len(panels) * 0.72)
        _label(axes.set_yticks, matrix.index, size[1] * 0.72)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xlabel(xlabel)
        axes.set_title(name if len(panels) > 1 else title)
    grid[0].set_ylabel(ylabel)
    fig.colorbar(image, ax=list(grid), label=unit, pad=0.02, aspect=25)
    if len(panels) > 1:
        suptitle(fig, title)
    return fig


def _label(set_ticks, labels: Sequence, inches: float) -> None:
    """Tick labels, as many as fit: every second, fifth, tenth ... when there are too many."""
    fits = max(1, int(inches / 0.17))
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000, 10**9) if len(labels) <= step * fits)
    set_ticks(range(0, len(labels), step), [str(label) for label in labels[::step]])
