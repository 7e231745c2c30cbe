"""What the charts share: levels of a tidy frame, panels of a figure, one legend."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import InvalidValueError, UnknownNameError
from .style import DASHES, suptitle


def check_columns(frame: pd.DataFrame, *columns: str | None) -> None:
    """Columns that exist, in a frame that has rows."""
    if not isinstance(frame, pd.DataFrame) or frame.empty:
        raise InvalidValueError("frame", "a DataFrame with at least one row", frame)
    for column in filter(None, columns):
        if column not in frame.columns:
            raise UnknownNameError("column", column, map(str, frame.columns))


def levels(frame: pd.DataFrame, column: str | None) -> list[Hashable]:
    """Values of a column in order of first appearance; a single one where no column is named."""
    return [""] if column is None else list(frame[column].unique())


def rows_of(frame: pd.DataFrame, column: str | None, level: Hashable) -> pd.DataFrame:
    """The rows of one level; all where no column is named."""
    return frame if column is None else frame[frame[column] == level]


def cycle(items: Sequence, place: int):
    """The item at a place, from the first again after the last."""
    return items[place % len(items)]


def split_panels(
    frame: pd.DataFrame, column: str | None, size: tuple[float, float], title: str
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """A figure with one axes per level of ``column``, sharing their limits, in the house style."""
    names = levels(frame, column)
    fig = Figure(figsize=size, layout="constrained")
    grid = fig.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
    for axes, level in zip(grid, names, strict=True):
        axes.set_title(title if column is None else str(level))
    if column is not None:
        suptitle(fig, title)
    return fig, [(axes, rows_of(frame, column, level)) for axes, level in zip(grid, names, strict=True)]


def draw_baselines(axes: Axes, baseline: float | Mapping[str, float] | None) -> None:
    """A level across the axes, or several by label."""
    if baseline is None:
        return
    named = baseline if isinstance(baseline, Mapping) else {"_nolegend_": baseline}
    for (label, level), dash in zip(named.items(), itertools.cycle(DASHES[1:])):
        axes.axhline(level, color="#555555", linewidth=1.1, linestyle=dash, label=label, zorder=1.5)


def finish(fig: Figure, panels: list[tuple[Axes, pd.DataFrame]], ylabel: str, *, legend: bool) -> None:
    """The label of the shared vertical axis, and one legend below the panels, where it hides nothing."""
    panels[0][0].set_ylabel(ylabel)
    handles = dict(_legend_entries(panels[0][0])) if legend else {}
    if handles:
        inches = 0.5 + 0.065 * max(map(len, handles))  # of the widest entry, at 8 pt
        most = max(1, math.floor(fig.get_figwidth() / inches))
        columns = math.ceil(len(handles) / math.ceil(len(handles) / most))  # rows as full as one another
        fig.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns, handlelength=2.6)


def _legend_entries(axes: Axes) -> Iterator[tuple[str, object]]:
    handles, labels = axes.get_legend_handles_labels()
    return ((label, handle) for label, handle in zip(labels, handles, strict=True) if label)
