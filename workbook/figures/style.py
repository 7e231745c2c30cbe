"""The house style, and saving a figure the same to the byte on every run."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageChops, ImageStat

from ..errors import InvalidValueError
from ..files import atomic_file
from .words import titles

FULL = (6.4, 3.2)
"""Width and height of a full-width figure, inches."""
HALF = (3.1, 2.6)
"""Width and height of a half-width figure, inches."""
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000", "#F0E442")
"""Eight colours that colour-blind readers can tell apart; neighbours differ in lightness too."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1)),
    (0, (1, 3)),
    (0, (6, 1, 1, 1)),
)
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++", "||||")


class Look(NamedTuple):
    """How a kind of finding is shown, told apart without colour by its signs.

    Attributes:
        fill: Colour of its tiles, labels and markers.
        ink: Colour of what is written on that.
        sign: A letter for tiles and labels.
        marker: Matplotlib's marker for charts; the diamond is kept for the papers' own numbers.
    """

    fill: str
    ink: str
    sign: str
    marker: str


VERDICTS = {
    "supported": Look(OKABE_ITO[0], "white", "\N{CHECK MARK}", "o"),
    "contradicted": Look(OKABE_ITO[3], "black", "\N{BALLOT X}", "X"),
    "inconclusive": Look(OKABE_ITO[7], "black", "?", "s"),
    "not tested": Look("#A6A6A6", "black", "\N{EN DASH}", "v"),
    "not run": Look("#FFFFFF", "black", "", "^"),
}
"""The look of each verdict, in every figure and page: dark if a claim was decided, pale if it was not."""

STYLE = {
    "figure.figsize": FULL,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": "#D9D9D9",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.7,
    "axes.prop_cycle": mpl.cycler(color=OKABE_ITO),
    "image.cmap": "cividis",
    "pdf.fonttype": 42,
    "svg.hashsalt": "workbook",
}
_UNDATED = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}

styled = mpl.rc_context(STYLE)
"""Decorator: draws in the house style whatever the defaults are."""


def use_style() -> None:
    """Make the house style the default of every matplotlib figure from here on."""
    mpl.rcParams.update(STYLE)


ENDINGS = ("pdf", "svg", "png", "csv")
"""Endings of a figure's files."""


def save(fig: Figure, name: str, data: pd.DataFrame, folder: str | Path) -> dict[str, Path]:
    """Write a figure as PDF, SVG and PNG, each with its title, and its values as CSV: the same bytes every time.

    Args:
        fig: The figure.
        name: File name without ending: letters, digits, ``_``, ``-`` and ``.``.
        data: The plotted values; the index is written only if it is more than a row count.
        folder: The folder, created if absent.

    Returns:
        The four paths by ending: ``pdf``, ``svg``, ``png``, ``csv``.

    Raises:
        InvalidValueError: ``name`` is not a plain file name, or ``data`` not a frame.
        OutputError: The folder can't be written.
    """
    if not re.fullmatch(r"\w[\w.-]*", str(name)):
        raise InvalidValueError("name", "a file name of letters, digits, '_', '-' and '.'", name)
    if not isinstance(data, pd.DataFrame):
        raise InvalidValueError(
            "data", "the plotted values as a pandas DataFrame", data, "Pass the frame you drew from."
        )
    paths = {ending: Path(folder) / f"{name}.{ending}" for ending in ENDINGS}
    title = titles(fig)
    with mpl.rc_context(STYLE):
        for ending, metadata in _UNDATED.items():
            drawn = io.BytesIO()  # on a full disk matplotlib's own PDF writer raises another error
            fig.savefig(drawn, format=ending, metadata=metadata | ({"Title": title} if title else {}))
            with atomic_file(paths[ending]) as temporary:
                temporary.write_bytes(drawn.getvalue())
    with atomic_file(paths["csv"]) as temporary:
        data.to_csv(temporary, index=not isinstance(data.index, pd.RangeIndex), lineterminator="\n")
    return paths


def png(fig: Figure, *, small: bool = True) -> tuple[bytes, dict[str, int]]:
    """A figure as PNG for screens: sharp on dense ones, in its own size, small, the same bytes every time.

    Args:
        fig: The figure.
        small: False for a file of twice the size in half the time, for a panel that answers a slider.

    Returns:
        The image, and its width and height in points of the screen.
    """
    drawn, made = io.BytesIO(), io.BytesIO()
    if small:
        fig.savefig(drawn, format="png", dpi=144, metadata=_UNDATED["png"])
        whole = Image.open(drawn).convert("RGB")
        red, *others = whole.split()
        grey = not any(ImageChops.difference(red, other).getbbox() for other in others)
        # By coverage, not by area: the few pixels of a marker keep their colour.
        image = whole.quantize(24 if grey else 64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        moved = ImageStat.Stat(ImageChops.difference(whole, image.convert("RGB"))).mean
        if sum(moved) / 3 > 2:  # pale bands would take each other's colour
            image = whole.quantize(128, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        image.save(made, format="png", optimize=True)
    else:
        fig.set_dpi(144)
        canvas = FigureCanvasAgg(fig)
        canvas.draw()  # once; savefig draws twice
        Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(made, format="png", compress_level=1)
    width, height = (round(100 * inches) for inches in fig.get_size_inches())
    return made.getvalue(), {"width": width, "height": height}


def suptitle(fig: Figure, title: str) -> None:
    """Write the title of a figure with several panels.

    Args:
        fig: The figure.
        title: The title.
    """
    if title:
        fig.suptitle(title, x=0.01, ha="left", fontsize=9, fontweight="bold")
