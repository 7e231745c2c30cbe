"""Forest plots: the effect of each comparison with its interval, beside the paper's and what could have been seen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..errors import InvalidValueError
from .panels import levels, rows_of, wrapped, write_legend
from .style import FULL, VERDICTS, Look, styled, suptitle

_NEEDED = ("effect", "low", "high", "threshold")
_OPTIONAL = ("upper", "paper_low", "paper_high", "detectable")
_PLAIN = Look("black", "white", "", "o")
_LABEL, _LINE, _ROW, _FRAME = 2.3, 0.14, 0.38, 1.25
"""Inches: width of the labels, height of a line of them, least height of a row, and of all around the rows."""
_OURS, _PAPER = -0.06, 0.1
"""Inches from the middle of a row down to our interval and to the paper's effect, so that neither hides the other."""
_FAR = 4.0
_BAND, _MARGIN, _SOFT = "#E6E6E6", "#8C8C8C", "#555555"


@styled
def forest(
    rows: pd.DataFrame,
    *,
    title: str,
    xlabel: str | Mapping[str, str],
    label: str = "label",
    panel: str | None = None,
    size: tuple[float, float] | None = None,
) -> Figure:
    """Effects with their intervals, one row a comparison from top to bottom, beside the paper's as diamonds.

    What lies off an axis is shown by an arrow at its edge with the number. An axis spans all bounds and effects of
    ours, and the intervals and bands that reach at most four times as far as the ends of the intervals in its panel do
    in the median. For the paper's effects it grows by up to half of that on each side.

    Args:
        rows: One row per comparison, with these columns, all in the units of the axis:

            - ``effect``: Ours. NaN for none: the verdict stands there in words.
            - ``low``, ``high``: Ends of its interval. NaN for none: the marker is hollow.
            - ``threshold``: Bound that the effect must pass: a thin line, through all rows that share it.
            - ``upper``: Optional, upper bound of a claim that the effect lies between two. The margin is hatched.
            - ``paper_low``, ``paper_high``: Optional, the least and largest effect in the paper over its models.
            - ``detectable``: Optional, smallest distance from a bound that would have been seen with a power of 80 %:
              a band of that half-width around every bound.
            - ``verdict``: Optional, one of `style.VERDICTS`: colour and marker.
        title: The quantity, not the finding.
        xlabel: Label of the axis with the unit. One for all panels, which then share their limits; or one per panel by
            its name, each with limits of its own.
        label: Column of the comparison in words, broken over several lines where it is long.
        panel: Column whose values get a panel each, side by side. Rows of the same label stand beside each other.
        size: Width and height in inches; 6.4 and what the rows need if not given.

    Raises:
        InvalidValueError: No row, an absent column, an interval with one end or with ``low`` above ``high``, a label
            twice in a panel, an unknown verdict, or a panel without ``xlabel``.

    Examples:
        >>> rows = pd.DataFrame({"label": ["b over a"], "effect": [1.2], "low": [0.3], "high": [2.0], "threshold": [0]})
        >>> [axes] = forest(rows, title="Difference", xlabel="points").axes
        >>> [text.get_text() for text in axes.get_yticklabels()]
        ['b over a']
    """
    rows = _checked(rows, label, panel)
    names = levels(rows, label)
    lines = [wrapped([name], _LABEL)[0] for name in names]
    heights = [max(_ROW, _LINE * (line.count("\n") + 1) + 0.12) for line in lines]
    ends = np.cumsum(heights)
    middles = dict(zip(names, ends - np.divide(heights, 2), strict=True))
    spans = dict(zip(names, heights, strict=True))
    parts = [(name, rows_of(rows, panel, name)) for name in levels(rows, panel)]
    labels = _labels(xlabel, [name for name, _ in parts])
    fig = Figure(figsize=size or (FULL[0], ends[-1] + _FRAME), layout="constrained")
    grid = fig.subplots(1, len(parts), sharey=True, squeeze=False)[0]
    for axes, (name, part), words in zip(grid, parts, labels, strict=True):
        axes.set_xlim(_limits(rows if isinstance(xlabel, str) else part))
        axes.set_xlabel(words)
        axes.set_title(str(name))
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0, pad=8)  # arrows reach over the edge
        for row in part.to_dict("records"):
            middle = middles[row[label]]
            _draw_bounds(axes, row, middle, spans[row[label]])
            _draw_paper(axes, row, middle + _PAPER)
            _draw_ours(axes, row, middle + (_OURS if np.isfinite(row["paper_low"]) else 0))
    grid[0].set_yticks(list(middles.values()), lines, parse_math=False)
    grid[0].set_ylim(ends[-1], 0)
    suptitle(fig, title)
    write_legend(fig, _legend(rows))
    return fig


def _checked(rows: pd.DataFrame, label: str, panel: str | None) -> pd.DataFrame:
    """The rows with all columns of numbers as floats, where those left out are NaN."""
    if not isinstance(rows, pd.DataFrame) or rows.empty:
        raise InvalidValueError("rows", "a DataFrame with at least one row", rows)
    needed = [label, *_NEEDED, *([panel] if panel else [])]
    if absent := [name for name in needed if name not in rows]:
        columns = list(map(str, rows.columns))
        raise InvalidValueError("rows", f"the columns {', '.join(needed)}", columns, f"Add {', '.join(absent)}.")
    numbers = rows.reindex(columns=[*_NEEDED, *_OPTIONAL])
    try:
        numbers = numbers.astype(float)
    except (TypeError, ValueError) as error:
        raise InvalidValueError("rows", f"numbers in {', '.join(numbers)}", str(error)) from error
    for wrong, expected in (
        (np.isinf(numbers).any(axis=1), "finite numbers, and NaN for what there is not"),
        (numbers["threshold"].isna(), "a threshold"),
        (numbers["low"].isna() != numbers["high"].isna(), "both ends of an interval, or none"),
        (numbers["low"].notna() & numbers["effect"].isna(), "an effect where there is an interval"),
        (numbers["low"] > numbers["high"], "low at most high"),
        (numbers["upper"] < numbers["threshold"], "upper at least threshold"),
        (numbers["paper_low"].isna() != numbers["paper_high"].isna(), "both paper_low and paper_high, or none"),
        (numbers["paper_low"] > numbers["paper_high"], "paper_low at most paper_high"),
        (numbers["detectable"] < 0, "a detectable effect of at least 0"),
        (rows.duplicated([label, panel] if panel else label), "a label once in each panel"),
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            got = numbers.iloc[first].dropna().to_dict()
            raise InvalidValueError(f"row {first}, {str(rows[label].iloc[first])!r}", expected, got)
    for verdict in rows.get("verdict", pd.Series(dtype=object)).unique():
        if verdict not in VERDICTS:
            raise InvalidValueError("verdict", f"one of {', '.join(VERDICTS)}", verdict)
    return rows.assign(**{name: numbers[name] for name in numbers})


def _labels(xlabel: str | Mapping[str, str], panels: list[str]) -> list[str]:
    if isinstance(xlabel, str):
        return [xlabel] * len(panels)
    if absent := [name for name in panels if name not in xlabel]:
        raise InvalidValueError("xlabel", f"a label for each of the panels {panels}", dict(xlabel), f"Add {absent}.")
    return [xlabel[name] for name in panels]


def _limits(rows: pd.DataFrame) -> tuple[float, float]:
    """Ends of an axis, by the rule in `forest`."""
    bounds, effect, detectable = rows[["threshold", "upper"]], rows["effect"], rows["detectable"]
    reach = rows[["low", "high"]].sub(effect, axis=0).abs()
    most = _FAR * np.nanmedian(reach) if reach.notna().any(axis=None) else np.inf
    band = detectable.where(detectable <= most)
    shown = [
        bounds,
        effect,
        rows[["low", "high"]].where(reach <= most),
        bounds.sub(band, axis=0),
        bounds.add(band, axis=0),
    ]
    values = np.concatenate([np.ravel(part) for part in shown])
    low, high = np.nanmin(values), np.nanmax(values)
    half = (high - low) / 2 or 1.0
    paper = np.ravel(rows[["paper_low", "paper_high"]])
    near = paper[(paper >= low - half) & (paper <= high + half)]
    low, high = min([low, *near]), max([high, *near])
    pad = 0.06 * (high - low) or 1.0
    return low - pad, high + pad


def _draw_bounds(axes: Axes, row: Mapping, middle: float, span: float) -> None:
    """A row's threshold, its margin if it has one, and the band in which effects are too small to be seen."""
    top, bottom = middle - span / 2, middle + span / 2
    bounds = [row["threshold"], row["upper"]]
    for bound in filter(np.isfinite, bounds):
        axes.plot([bound, bound], [bottom, top], color="black", linewidth=0.8, zorder=1.5)
        if np.isfinite(row["detectable"]):
            sides = bound - row["detectable"], bound + row["detectable"]
            axes.fill_betweenx([top + 0.03, bottom - 0.03], *sides, color=_BAND, linewidth=0, zorder=0.5)
    if np.isfinite(row["upper"]):
        axes.fill_betweenx([top + 0.03, bottom - 0.03], *bounds, **_HATCHED, zorder=0.8)


def _draw_paper(axes: Axes, row: Mapping, height: float) -> None:
    ends = list(dict.fromkeys(filter(np.isfinite, (row["paper_low"], row["paper_high"]))))
    left, right = axes.get_xlim()
    axes.plot(np.clip(ends, left, right), [height] * len(ends), color=_SOFT, linewidth=0.9, zorder=2)
    inside = [end for end in ends if left <= end <= right]
    axes.plot(inside, [height] * len(inside), **_DIAMOND, zorder=3)
    _draw_beyond(axes, ends, height, _SOFT)


def _draw_ours(axes: Axes, row: Mapping, height: float) -> None:
    if np.isnan(row["effect"]):
        words = row.get("verdict", "not measured")
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.text(row["threshold"], height, words, color=_SOFT, fontsize=7, ha="center", va="center", bbox=box)
        return
    ends = [end for end in (row["low"], row["high"]) if np.isfinite(end)]
    axes.plot(np.clip(ends, *axes.get_xlim()), [height] * len(ends), color="black", linewidth=1.3, zorder=2)
    _draw_beyond(axes, ends, height, "black", lift=7)  # above the line, on which the marker may be as near the edge
    axes.plot(row["effect"], height, **_marker(_look(row), hollow=not ends), zorder=4)


def _draw_beyond(axes: Axes, ends: list[float], height: float, color: str, lift: float = 0) -> None:
    """An arrow with the numbers, so many points higher, at each edge of the axis behind which some values lie."""
    left, right = axes.get_xlim()
    for edge, marker, side, beyond in (
        (left, "<", "left", [end for end in ends if end < left]),
        (right, ">", "right", [end for end in ends if end > right]),
    ):
        if beyond:
            axes.plot(edge, height, marker=marker, color=color, markersize=4.5, clip_on=False, zorder=3)
            axes.annotate(
                " to ".join(f"{end:+.3g}" for end in beyond).replace("-", "\N{MINUS SIGN}"),
                (edge, height),
                (6 if side == "left" else -6, lift),
                textcoords="offset points",
                color=color,
                fontsize=7,
                ha=side,
                va="center",
                zorder=3,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )


def _legend(rows: pd.DataFrame) -> dict[str, Artist]:
    """What is drawn, by its words; only what occurs."""
    measured = rows[rows["effect"].notna()]
    kinds = {name: look for name, look in VERDICTS.items() if name in set(measured.get("verdict", ()))}
    if "verdict" not in rows and len(measured):
        kinds = {"here, with interval": _PLAIN}
    line = {"color": "black", "linewidth": 1.3}
    entries = {name: Line2D([], [], **line, **_marker(look)) for name, look in kinds.items()}
    if measured["low"].isna().any():
        entries["no interval"] = Line2D([], [], linestyle="none", **_marker(_PLAIN, hollow=True))
    if rows["paper_low"].notna().any():
        entries["paper"] = Line2D([], [], **_DIAMOND)
    if rows["upper"].notna().any():
        entries["margin of the claim"] = Patch(**_HATCHED)
    if rows["detectable"].notna().any():
        entries["too small to see (80 % power)"] = Patch(color=_BAND, linewidth=0)
    return entries


_DIAMOND = {
    "linestyle": "none",
    "marker": "D",
    "markersize": 4.5,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 1.0,
}
_HATCHED = {"facecolor": "none", "edgecolor": _MARGIN, "hatch": "////", "linewidth": 0}


def _look(row: Mapping) -> Look:
    return VERDICTS[row["verdict"]] if "verdict" in row else _PLAIN


def _marker(look: Look, *, hollow: bool = False) -> dict[str, object]:
    return {
        "marker": look.marker,
        "markersize": 7,
        "markerfacecolor": "white" if hollow else look.fill,
        "markeredgecolor": "black",
        "markeredgewidth": 0.8,
    }
