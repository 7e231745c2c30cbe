"""A drawing of methods: their tokens, what each token sees, what is pooled, and what trains."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.text import Text

from ..errors import UnknownNameError
from .panels import check_columns
from .style import FULL, OKABE_ITO, styled

MASKS = {"causal": np.tril, "bidirectional": np.asarray}
"""By attention, what a matrix of ones becomes: row i has the tokens that token i sees."""

_POOLED, _SEEN = OKABE_ITO[0], "#B3D4E8"
_LOOKS = {
    "pooled": {"facecolor": _POOLED, "edgecolor": "black"},
    "read": {"facecolor": "white", "edgecolor": "black"},
    "trained": {"facecolor": OKABE_ITO[1], "edgecolor": "black"},
    "frozen": {"facecolor": "#EFEFEF", "edgecolor": "#555555", "linestyle": (0, (2, 1.2))},
}
"""Boxes by state, told apart without colour: bold letters where something happens, a dashed edge where not."""

# In inches: left edges of the columns; widths of a token, a cell and a pooling; heights of a token and of a stage; and
# in each strip the space above and below these.
_TOKENS, _MASK, _POOLING, _VECTOR, _TRAINING = 0.22, 1.12, 2.42, 3.62, 3.88
_WIDTH, _CELL, _BOX = 0.84, 0.14, 1.06
_ROW, _STAGE, _ABOVE, _BELOW = 0.155, 0.355, 0.27, 0.1


@styled
def anatomy(frame: pd.DataFrame, *, title: str = "", headings: bool = True) -> Figure:
    """A strip per method, from left to right: tokens, attention mask, pooling, and the stages of its training.

    Beside each token is its row of the mask: the tokens that it sees, in the same order. Pooled tokens are filled, and
    lines lead from their rows to the pooling. Under each stage are the parts with weights, trained or frozen.

    Args:
        frame: Rows of `workbook.methods.describe`, of one method or several.
        title: The quantity, not the finding.
        headings: Whether to name the columns, and to explain the colours below.

    Returns:
        A figure of the full width, as high as its methods need.

    Raises:
        UnknownNameError: A column is absent, or an attention or a state is not known.
        InvalidValueError: The frame is empty, or no frame.
    """
    check_columns(frame, "method", "shows", "stage", "name", "detail", "state")
    attentions = frame.loc[frame["shows"] == "attention", "name"]
    for kind, names, known in (("attention", attentions, [*MASKS]), ("state", frame["state"], ["", *_LOOKS])):
        for name in names:
            if name not in known:
                raise UnknownNameError(kind, name, known)
    methods = [dict(iter(rows.groupby("shows", sort=False))) for _, rows in frame.groupby("method", sort=False)]
    heights = [_height(parts) for parts in methods]
    tops = np.cumsum([0.24 if headings else 0.03, *heights])
    height = tops[-1] + (0.24 if headings else 0)
    whole = height + (0.3 if title else 0)
    fig = Figure(figsize=(FULL[0], whole))
    axes = fig.add_axes((0, 0, 1, height / whole), xlim=(0, FULL[0]), ylim=(height, 0))
    axes.set_axis_off()
    axes.set_title(title, x=0.1 / FULL[0])
    if headings:
        _explain(axes, height - 0.13)
    for parts, top, bottom in zip(methods, tops[:-1], tops[1:], strict=True):
        axes.plot([0.1, FULL[0] - 0.1], [top, top], color="#BBBBBB", linewidth=0.6)
        _draw(axes, parts, top, bottom - _BELOW)
    return fig


def _height(parts: Mapping[str, pd.DataFrame]) -> float:
    tokens = _ROW * len(parts["token"]) + (0.24 if "context" in parts else 0)
    return _ABOVE + max(tokens, _STAGE * len(parts.get("stage", ())), 0.62) + _BELOW


def _explain(axes: Axes, y: float) -> None:
    columns = {_TOKENS: "tokens", _MASK: "each token sees", _POOLING: "pooling to a vector", _TRAINING: "training"}
    for left, words in columns.items():
        _write(axes, left, 0.1, words, fontsize=8, color="#555555")
    for place, state in enumerate(_LOOKS):
        _box(axes, "only read" if state == "read" else state, state, _TOKENS + 0.74 * place, y, 0.66)
    _write(axes, _TRAINING, y, "mask: triangle causal, square bidirectional")


def _draw(axes: Axes, parts: Mapping[str, pd.DataFrame], top: float, bottom: float) -> None:
    """One method, in a strip from ``top`` to ``bottom``."""
    title, tokens, y = parts["method"].iloc[0], parts["token"], top + _ABOVE
    _write_behind(axes, _write(axes, 0.1, top + 0.13, title["name"], fontsize=9, fontweight="bold"), title["detail"])
    pooled = np.flatnonzero(tokens["state"] == "pooled")
    lowest = bottom - (0.34 if "dictionary" in parts else 0.16)
    middle = max(y + 0.18, min(y + _ROW * (pooled.mean() + 0.5), lowest))
    right = _draw_tokens(axes, tokens, parts["attention"]["name"].iloc[0], y)
    turn = _POOLING - 0.14
    for line in y + _ROW * (pooled + 0.5):
        axes.plot([right, turn, turn], [line, line, middle], color=_POOLED, linewidth=1)
    _arrow(axes, (turn, middle), (_POOLING, middle), _POOLED)
    _draw_pooling(axes, parts, middle)
    if "context" in parts:
        _draw_context(axes, parts["context"], y, tokens["name"].tolist())
    for place, stage in enumerate(parts["stage"].itertuples() if "stage" in parts else ()):
        line, left = y + _STAGE * place, _TRAINING
        label = _write(axes, left, line + 0.055, f"{place + 1} {stage.stage}", fontsize=7.5, fontweight="bold")
        _write_behind(axes, label, stage.detail)
        for where in ("decoder", "context", "dictionary"):
            for part in parts[where].query("stage == @stage.stage").itertuples() if where in parts else ():
                left = _box(axes, part.name, part.state, left, line + 0.205)
            left += 0.05


def _draw_tokens(axes: Axes, tokens: pd.DataFrame, attention: str, y: float) -> float:
    """Tokens below each other, beside each its row of the mask; returns the right edge of the mask."""
    mask = MASKS[attention](np.ones((len(tokens), len(tokens)), int))
    cell = min(_CELL, (_POOLING - _MASK - 0.24) / len(tokens))
    for place, token in enumerate(tokens.itertuples()):
        line = y + _ROW * place
        _box(axes, token.name, token.state, _TOKENS, line + _ROW / 2, _WIDTH)
        colours = ("white", _POOLED if token.state == "pooled" else _SEEN)
        for column, seen in enumerate(mask[place]):
            look = {"facecolor": colours[seen], "edgecolor": "#777777", "label": "seen" if seen else "hidden"}
            axes.add_patch(Rectangle((_MASK + cell * column, line), cell, _ROW, linewidth=0.5, **look))
    return _MASK + cell * len(tokens)


def _draw_pooling(axes: Axes, parts: Mapping[str, pd.DataFrame], y: float) -> None:
    """The pooling, its dictionary if it has one, and the vector."""
    look = {"boxstyle": "round,pad=0,rounding_size=0.05", "facecolor": "white", "edgecolor": "black"}
    axes.add_patch(FancyBboxPatch((_POOLING, y - 0.16), _BOX, 0.32, linewidth=0.8, **look))
    words = parts["pooling"]["detail"].iloc[0]
    _write(axes, _POOLING + _BOX / 2, y, words, ha="center", va="center", linespacing=1.1)
    if "dictionary" in parts:
        part = next(parts["dictionary"].itertuples())
        _box(axes, f"{part.detail} {part.name}".strip(), part.state, _POOLING + 0.18, y + 0.25, _BOX - 0.36)
    _arrow(axes, (_POOLING + _BOX, y), (_VECTOR, y))
    for place in range(5):
        corner = (_VECTOR, y - 0.2 + 0.08 * place)
        axes.add_patch(Rectangle(corner, 0.08, 0.08, facecolor="#444444", edgecolor="white", linewidth=0.5))


def _draw_context(axes: Axes, made: pd.DataFrame, y: float, tokens: list[str]) -> None:
    """The way of the text into the contextual token, below the tokens, from right to left."""
    below, target = y + _ROW * (len(tokens) + 0.5) + 0.08, y + _ROW * (0.5 + tokens.index("context token"))
    axes.plot([_TOKENS, 0.1, 0.1], [below, below, target], color="black", linewidth=0.8)
    _arrow(axes, (0.1, target), (_TOKENS, target))
    left = _TOKENS
    for part in made.drop_duplicates("name")[::-1].itertuples():
        if left > _TOKENS:
            _arrow(axes, (left + 0.16, below), (left, below))
            left += 0.16
        left = _box(axes, f"{part.detail} {part.name}".strip(), part.state, left, below)
    _write(axes, left + 0.05, below, "of the text")


def _box(axes: Axes, label: str, state: str, left: float, y: float, width: float | None = None) -> float:
    """A box around a label, centred at ``y`` and as wide as that needs; returns its right edge."""
    strong = state in ("pooled", "trained")
    width = 0.09 + (0.061 if strong else 0.056) * len(label) if width is None else width
    height = _ROW - 0.02
    axes.add_patch(Rectangle((left, y - height / 2), width, height, linewidth=0.7, label=state, **_LOOKS[state]))
    weight, color = "bold" if strong else "normal", "white" if state == "pooled" else "black"
    _write(axes, left + width / 2, y, label, ha="center", fontweight=weight, color=color)
    return left + width


def _write(axes: Axes, x: float, y: float, words: str, **look) -> Text:
    return axes.text(x, y, words, **{"fontsize": 7, "va": "center_baseline", "parse_math": False} | look)


def _write_behind(axes: Axes, name: Text, words: str) -> None:
    """Words on the line of a name, behind it."""
    axes.annotate(words, (1, 0), (5, 0.6), xycoords=name, textcoords="offset points", fontsize=7, va="bottom")


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str = "black") -> None:
    look = {"arrowstyle": "-|>", "mutation_scale": 6, "shrinkA": 0, "shrinkB": 0, "linewidth": 0.8, "color": color}
    axes.add_patch(FancyArrowPatch(start, end, **look))
