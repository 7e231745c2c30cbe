"""Strips of tiles, one for each of many small findings, such as claims by paper and verdict."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..errors import InvalidValueError, UnknownNameError
from .panels import check_columns, levels, write_legend
from .style import FULL, Look, styled


@styled
def tiles(
    frame: pd.DataFrame,
    row: str,
    kind: str,
    *,
    kinds: Mapping[str, Look],
    title: str = "",
    size: tuple[float, float] = FULL,
) -> Figure:
    """A strip of tiles per level of ``row``, with one tile per row of the frame, sorted by kind.

    Args:
        frame: One row per tile.
        row: Column of the strips, in order of first appearance.
        kind: Column of the kind of a tile.
        kinds: The look of every kind, in drawing order, such as `style.VERDICTS`. The legend has those that occur, with
            their number.
        title: The quantity, not the finding.
        size: Width and height in inches.

    Raises:
        UnknownNameError: A named column is absent, or a kind is not in ``kinds``.
        InvalidValueError: The frame is empty, or ``kinds`` no mapping.
    """
    check_columns(frame, row, kind)
    if not isinstance(kinds, Mapping):
        raise InvalidValueError("kinds", "the look of each kind by its name", kinds, "Pass a mapping.")
    for name in frame[kind].unique():
        if name not in kinds:
            raise UnknownNameError(f"value of {kind}", name, kinds)
    strips = levels(frame, row)
    longest = frame[row].value_counts().max()
    fig = Figure(figsize=size, layout="constrained")
    axes = fig.subplots()
    for place, name in enumerate(strips):
        start = 0
        found = frame.loc[frame[row] == name, kind].value_counts()
        for level, look in kinds.items():
            spots = range(start, start + found.get(level, 0))
            start = spots.stop
            axes.bar(spots, 0.86, 0.86, bottom=place - 0.43, color=look.fill, edgecolor="black", linewidth=0.6)
            for spot in spots:
                axes.text(spot, place, look.sign, color=look.ink, ha="center", va="center", fontweight="bold")
    totals = frame[kind].value_counts()
    legend = {
        f"{look.sign} {level}: {totals[level]}".strip(): Patch(facecolor=look.fill, edgecolor="black", linewidth=0.6)
        for level, look in kinds.items()
        if level in totals
    }
    axes.set_xlim(-0.6, longest - 0.4)
    axes.set_ylim(len(strips) - 0.45, -0.55)
    axes.set_yticks(range(len(strips)), [f"{name} ({(frame[row] == name).sum()})" for name in strips])
    axes.set_xticks([])
    axes.set_title(title)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    write_legend(fig, legend)
    return fig
