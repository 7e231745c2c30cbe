"""Shared parts of the charts: levels of a tidy frame, panels of a figure, one legend."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from ..errors import InvalidValueError, UnknownNameError
from .style import DASHES, suptitle

Baseline = float | Mapping[str, float | Mapping[Hashable, float]] | None
"""Levels to draw across: one, several by label, or under a label one by panel (by the value in the panel's column)."""

_LETTER = 0.065
"""Mean width of a letter in inches, at the 8 pt of labels and legends."""
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
_ACROSS = {1: "left", 0: "center", -1: "right"}
_ALONG = {1: "bottom", 0: "center", -1: "top"}


def check_columns(frame: pd.DataFrame, *columns: str | None) -> None:
    """Check that a frame has rows and the named columns.

    Args:
        frame: The frame.
        *columns: Names of columns, or None for those that are not used.

    Raises:
        InvalidValueError: Not a frame, or one without rows.
        UnknownNameError: A column is absent.
    """
    if not isinstance(frame, pd.DataFrame) or frame.empty:
        raise InvalidValueError("frame", "a DataFrame with at least one row", frame)
    for column in filter(None, columns):
        if column not in frame.columns:
            raise UnknownNameError("column", column, map(str, frame.columns))


def levels(frame: pd.DataFrame, column: str | None) -> list[Hashable]:
    """Values of a column in order of first appearance; a single one if no column is named.

    Args:
        frame: Tidy rows.
        column: Name of a column, or None.
    """
    return [""] if column is None else list(frame[column].unique())


def rows_of(frame: pd.DataFrame, column: str | None, level: Hashable) -> pd.DataFrame:
    """The rows of one level; all if no column is named.

    Args:
        frame: Tidy rows.
        column: Name of a column, or None.
        level: A value of it.
    """
    return frame if column is None else frame[frame[column] == level]


def cycle(items: Sequence, place: int):
    """The item at a place, starting again after the last.

    Args:
        items: At least one.
        place: From 0.
    """
    return items[place % len(items)]


def split_panels(
    frame: pd.DataFrame, column: str | None, size: tuple[float, float], title: str, *, sharey: bool = True
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """A figure with one axes per level of ``column``, in the house style.

    Args:
        frame: Tidy rows.
        column: Column whose values get a panel each; None for one panel.
        size: Width and height of the figure in inches.
        title: Title above all panels.
        sharey: Whether panels share the limits of their heights, as they do those of the horizontal axis.

    Returns:
        The figure, and per panel its axes and its rows.
    """
    names = levels(frame, column)
    fig = Figure(figsize=size, layout="constrained")
    grid = fig.subplots(1, len(names), sharex=True, sharey=sharey, squeeze=False)[0]
    for axes, level in zip(grid, names, strict=True):
        axes.set_title(title if column is None else str(level))
    if column is not None:
        suptitle(fig, title)
    return fig, [(axes, rows_of(frame, column, level)) for axes, level in zip(grid, names, strict=True)]


def draw_baselines(axes: Axes, baseline: Baseline, panel: Hashable = "") -> None:
    """Draw a level across the axes, or several with their labels.

    Args:
        axes: The axes.
        baseline: See :data:`Baseline`.
        panel: The panel's value, whose levels are drawn.

    Raises:
        InvalidValueError: Levels by panel, without one for this panel.
    """
    if baseline is None:
        return
    named = baseline if isinstance(baseline, Mapping) else {"_nolegend_": baseline}
    for (label, level), dash in zip(named.items(), itertools.cycle(DASHES[1:])):
        if isinstance(level, Mapping):
            if panel not in level:
                raise InvalidValueError(f"baseline {label!r}", f"a level for panel {panel!r}", [*level])
            level = level[panel]
        axes.axhline(level, color="#555555", linewidth=1.1, linestyle=dash, label=label, zorder=1.5)


def wrapped(names: Sequence, inches: float) -> list[str]:
    """Names as labels of one axis, broken at blanks and hyphens so that they fit beside each other.

    Args:
        names: Labels.
        inches: Width of the axis in inches.
    """
    fill = partial(textwrap.fill, width=max(1, int(0.9 * inches / len(names) / _LETTER)), break_long_words=False)
    return ["\n".join(fill(line) for line in str(name).split("\n")) for name in names]


def finish(fig: Figure, panels: list[tuple[Axes, pd.DataFrame]], ylabel: str, *, legend: bool) -> None:
    """Add the label of the shared vertical axis, and one legend below the panels, where it hides nothing.

    Args:
        fig: The figure.
        panels: From :func:`split_panels`.
        ylabel: Label of the shared axis.
        legend: Whether there is one.
    """
    panels[0][0].set_ylabel(ylabel)
    write_legend(fig, dict(_legend_entries(panels[0][0])) if legend else {})


def write_legend(fig: Figure, handles: Mapping[str, Artist]) -> None:
    """Write a legend below all panels, in as many columns as its widest entry allows; none if it has no entry.

    Args:
        fig: The figure.
        handles: What is drawn for each entry, by its words.
    """
    if not handles:
        return
    inches = 0.5 + _LETTER * max(map(len, handles))  # of the widest entry
    most = max(1, math.floor(fig.get_figwidth() / inches))
    columns = math.ceil(len(handles) / math.ceil(len(handles) / most))  # rows as full as one another
    fig.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns, handlelength=2.6)


def write_names(fig: Figure, panels: list[tuple[Axes, pd.DataFrame]]) -> None:
    """Write a name beside each point, on the first of eight sides where it covers neither a point nor another name.

    If all are taken it goes farther away, at the end of a thin line; if that does not help, inside the axes where it
    covers the fewest.

    Args:
        fig: The figure, finished but for the names.
        panels: Axes, and their points: horizontal place, height and name.
    """
    fig.draw_without_rendering()  # the layout has to stand before anything can be measured
    for axes, points in panels:
        places = axes.transData.transform(points.iloc[:, :2].to_numpy(float))
        taken = [Bbox.from_extents(x - 4, y - 4, x + 4, y + 4) for x, y in places]
        for x, y, name in points.itertuples(index=False):
            text = axes.annotate(
                str(name),
                (x, y),
                (0, 0),
                textcoords="offset points",
                fontsize=7,
                in_layout=False,
                parse_math=False,
                zorder=1.8,  # lines that pass beneath make way
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
            tried = []
            for away, (right, up) in itertools.product((1, 2, 4, 7), _SIDES):
                text.set(position=(5 * away * right, 4 * away * up), ha=_ACROSS[right], va=_ALONG[up])
                box = text.get_window_extent()
                outside = not all(axes.bbox.contains(*corner) for corner in box.corners())
                tried.append((outside, box.count_overlaps(taken), away, len(tried), text.get_position(), right, up))
                if not any(tried[-1][:2]):
                    break
            _, _, away, _, position, right, up = min(tried)
            text.set(position=position, ha=_ACROSS[right], va=_ALONG[up])
            if away > 2:
                line = {"arrowstyle": "-", "color": "#555555", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
                axes.annotate("", (x, y), position, textcoords="offset points", arrowprops=line, in_layout=False)
            taken.append(text.get_window_extent())


def _legend_entries(axes: Axes) -> Iterator[tuple[str, object]]:
    handles, labels = axes.get_legend_handles_labels()
    return ((label, handle) for label, handle in zip(labels, handles, strict=True) if label)
