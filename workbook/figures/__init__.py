"""Figures that can go into a paper: one style, drawn from tidy frames, saved the same to the byte on every run.

The drawing functions return a ``matplotlib.figure.Figure`` outside pyplot, so nothing is shown twice and nothing leaks;
``Run.figure`` of `workbook.runs.notebook` saves and shows it.

Distributions are seaborn's. The rest is drawn with matplotlib directly: seaborn's functions compute what they draw, and
have no place for intervals that were made elsewhere, for panels on one scale, or for markers that read in grey.
"""

from .anatomy import anatomy
from .atlas import atlas
from .charts import bars, distributions, lines, scatter
from .forest import forest
from .maps import contours, heatmap, heatmaps
from .runs import estimates, losses
from .style import DASHES, ENDINGS, FULL, HALF, HATCHES, MARKERS, OKABE_ITO, VERDICTS, Look, png, save, use_style
from .tiles import tiles
from .words import described, saved_titles, titles

__all__ = [
    "DASHES",
    "ENDINGS",
    "FULL",
    "HALF",
    "HATCHES",
    "MARKERS",
    "OKABE_ITO",
    "VERDICTS",
    "Look",
    "anatomy",
    "atlas",
    "bars",
    "contours",
    "described",
    "distributions",
    "estimates",
    "forest",
    "heatmap",
    "heatmaps",
    "lines",
    "losses",
    "png",
    "save",
    "saved_titles",
    "scatter",
    "tiles",
    "titles",
    "use_style",
]
