"""A map of the clusters of a head, with some of them marked."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from .panels import check_columns, cycle, finish, split_panels, write_names
from .style import FULL, MARKERS, OKABE_ITO, styled


@styled
def atlas(
    frame: pd.DataFrame,
    *,
    mark: str = "printed",
    panel: str | None = None,
    names: bool = True,
    title: str = "",
    size: tuple[float, float] = (FULL[0], 4.6),
) -> Figure:
    """Points in grey, and those of each marked group in a colour and marker of their own, joined by thin lines.

    Lines lead to the point of the group that is first in the frame: short ones say that a group is in one place. A
    group of one point has none.

    Args:
        frame: One row per point: ``x``, ``y``, the column of the groups, and ``name`` if names are written, such as
            from `workbook.probes.cluster_map`.
        mark: Column of the group of each point, empty for points without one.
        panel: Column whose values get a panel each, such as ``k``.
        names: Whether to write the name of the first point of each group beside it.
        title: The quantity, not the finding.
        size: Width and height in inches.

    Raises:
        UnknownNameError: A named column is absent.
        InvalidValueError: The frame is empty.
    """
    check_columns(frame, "x", "y", mark, panel, "name" if names else None)
    fig, panels = split_panels(frame, panel, size, title)
    groups = sorted(group for group in frame[mark].dropna().unique() if group)
    firsts = []
    for axes, part in panels:
        axes.scatter(
            part["x"], part["y"], s=2, marker="s", color="#B0B0B0", linewidth=0, rasterized=True, antialiased=False
        )
        shown = []
        for place, group in enumerate(groups):
            rows = part[part[mark] == group]
            # A colour that comes again has another marker.
            color = cycle(OKABE_ITO, place)
            marker = cycle(MARKERS, place + place // len(OKABE_ITO))
            for row in rows[1:].itertuples():
                axes.plot([rows["x"].iloc[0], row.x], [rows["y"].iloc[0], row.y], color=color, linewidth=0.6, alpha=0.6)
            look = {"marker": marker, "facecolor": color, "edgecolor": "black", "linewidth": 0.4, "zorder": 3}
            axes.scatter(rows["x"], rows["y"], s=20, label=str(group), **look)
            shown.append(rows[:1])
        firsts.append((axes, pd.concat([part[:0], *shown])))
        axes.tick_params(labelbottom=False, labelleft=False, length=0)
        axes.set_xlabel("first axis of the map")
    finish(fig, panels, "second axis of the map", legend=bool(groups))
    if names:
        write_names(fig, [(axes, rows[["x", "y", "name"]]) for axes, rows in firsts if len(rows)])
    return fig
