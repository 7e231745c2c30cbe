"""Figures in words, for those who do not see them: a line of the gallery, else the figure's own title.

The lines stand in ``figures/README.md`` alone, where they are read beside the figures.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from ..files import ROOT


def described(name: str) -> str:
    """The line of the gallery on a figure; empty if it does not show the figure.

    Args:
        name: File name without ending, such as ``01_layer_map``.
    """
    return _gallery(ROOT / "figures" / "README.md").get(name, "")


def titles(fig: Figure) -> str:
    """The title of a figure, and those of its panels.

    Args:
        fig: The figure.
    """
    written = [fig.get_suptitle(), *(axes.get_title(place) for axes in fig.axes for place in ("left", "center"))]
    return "; ".join(dict.fromkeys(filter(None, (" ".join(one.split()) for one in written))))


def saved_titles(path: Path) -> str:
    """The titles that `workbook.figures.save` wrote into a PNG; empty in a file that holds none.

    Args:
        path: The image.
    """
    try:
        with Image.open(path) as image:
            return str(image.info.get("Title", ""))
    except OSError:
        return ""


@cache
def _gallery(page: Path) -> dict[str, str]:
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return {name: line for line, name in re.findall(r"!\[([^\]]+)\]\((\w+)\.png\)", text)}
