"""Strips of tiles, one for each of many small findings, such as claims by paper and verdict."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..errors import InvalidValueError, UnknownNameError
from .panels import check_columns, levels
from .style import FULL, OKABE_ITO, styled

_BLUE, _, _, _VERMILION, _SKY, _, _, _YELLOW = OKABE_ITO
_LOOKS = (
    (_BLUE, "white", "\N{CHECK MARK}"),
    (_SKY, "black", "~"),
    (_VERMILION, "white", "\N{BALLOT X}"),
    (_YELLOW, "black", "?"),
    ("#EDEDED", "black", "\N{EN DASH}"),
    ("white", "black", ""),
)
"""Fill, ink and mark of each kind: dark if something was found, pale if nothing was, and never colour alone."""


@styled
def tiles(
    frame: pd.DataFrame,
    row: str,
    kind: str,
    *,
    kinds: Sequence[str],
    title: str = "",
    size: tuple[float, float] = FULL,
) -> Figure:
    """A strip of tiles per level of ``row``, with one tile per row of the frame, sorted by kind.

    Kinds differ in colour and mark.

    Args:
        frame: One row per tile.
        row: Column of the strips, in order of first appearance.
        kind: Column of the kind of a tile.
        kinds: All kinds in drawing order, at most six. The legend has those that occur, with their number.
        title: The quantity, not the finding.
        size: Width and height in inches.

    Raises:
        UnknownNameError: A named column is absent, or a kind is not in ``kinds``.
        InvalidValueError: The frame is empty, or there is no kind, or more than six.
    """
    check_columns(frame, row, kind)
    if not 0 < len(kinds) <= len(_LOOKS):
        raise InvalidValueError("kinds", f"1 to {len(_LOOKS)} of them", list(kinds))
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
        for level, (fill, ink, mark) in zip(kinds, _LOOKS, strict=False):
            spots = range(start, start + found.get(level, 0))
            start = spots.stop
            axes.bar(spots, 0.86, 0.86, bottom=place - 0.43, color=fill, edgecolor="black", linewidth=0.6)
            for spot in spots:
                axes.text(spot, place, mark, color=ink, ha="center", va="center", fontweight="bold")
    totals = frame[kind].value_counts()
    legend = [
        Patch(facecolor=fill, edgecolor="black", linewidth=0.6, label=f"{mark} {level}: {totals[level]}".strip())
        for level, (fill, _, mark) in zip(kinds, _LOOKS, strict=False)
        if level in totals
    ]
    axes.set_xlim(-0.6, longest - 0.4)
    axes.set_ylim(len(strips) - 0.45, -0.55)
    axes.set_yticks(range(len(strips)), [f"{name} ({(frame[row] == name).sum()})" for name in strips])
    axes.set_xticks([])
    axes.set_title(title)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    fig.legend(handles=legend, loc="outside lower center", ncols=3)
    return fig
