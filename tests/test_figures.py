"""Figures: what is plotted is what was given, the same bytes on every run, and bad frames named."""

import io
import itertools
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from PIL import Image

from workbook import figures
from workbook.errors import InvalidValueError, OutputError, UnknownNameError
from workbook.files import ROOT
from workbook.methods import describe

SCORES = pd.DataFrame(
    {
        "pooling": ["mean", "last", "mean", "last"],
        "attention": ["causal", "causal", "bidirectional", "bidirectional"],
        "score": [37.0, 18.0, 16.0, 10.0],
        "low": [35.0, 16.0, 13.0, 9.0],
        "high": [40.0, 21.0, 18.0, 12.0],
    }
)
LAYERS = pd.DataFrame({"layer": [*range(31)] * 2, "cosine": np.linspace(1, 0, 62), "text": ["a"] * 31 + ["b"] * 31})
HISTORY = pd.DataFrame(
    {"stage": ["mntp"] * 4 + ["simcse"] * 2, "step": [1, 2, 3, 4, 1, 2], "loss": [9, 7, 6, 5, 2, 1.5]}
)
CHOICES = pd.DataFrame(
    {
        "method": ["mean", "lens $5 $", "echo", "icl"],
        "bytes": [2304, 512, 2304, 4608],
        "score": [50.0, 44.0, 49.0, 48.0],
        "front": [True, True, False, False],
    }
).assign(low=lambda frame: frame["score"] - 1, high=lambda frame: frame["score"] + 2)
DECIDED = pd.DataFrame(
    {"paper": ["P", "P", "Q", "P"], "verdict": ["contradicted", "supported", "contradicted", "supported"]}
)
MATRIX = pd.DataFrame([[0.1, 0.9], [0.4, np.nan]], index=["layer 0", "layer 1"], columns=["the", "cat"])
HEADS = {f"head {n}": pd.DataFrame(np.random.default_rng(n).random((20, 512)) / 10) for n in range(1, 9)}
SURFACE = pd.DataFrame(
    {k: 1 - (1 - 1 / k) ** np.array([1, 7, 31, 127]) for k in (2, 8, 32, 128)}, index=[2, 8, 32, 128]
)
POINTS = pd.DataFrame({"x": [2, 77], "y": [128, 16], "name": ["Imdb", "Banking77"], "kind": ["paper", "here"]})

ATLAS = pd.DataFrame(
    {
        "x": [0.0, 1, 2, 3, 0, 4],
        "y": [0.0, 2, 1, 3, 4, 0],
        "name": ["guys, guy", "dude", "stars, star", "a, b", "c", "d $"],
        "printed": ["guy", "guy", "star", "", np.nan, ""],
        "k": [3, 3, 3, 3, 9, 9],
    }
)

DRAW = {
    "bars": lambda: figures.bars(
        SCORES, "pooling", "score", hue="attention", low="low", high="high", baseline={"chance": 5}, values=True
    ),
    "lines": lambda: figures.lines(LAYERS, "layer", "cosine", hue="text", baseline=0),
    "distributions": lambda: figures.distributions(
        pd.concat([LAYERS, LAYERS.assign(cosine=LAYERS.cosine / 2)]).assign(m=["x"] * 62 + ["y"] * 62),
        "m",
        "cosine",
        hue="text",
    ),
    "scatter": lambda: figures.scatter(LAYERS, "layer", "cosine", hue="text"),
    "front": lambda: figures.scatter(
        CHOICES, "bytes", "score", names="method", low="low", high="high", front="front", logx=True
    ),
    "heatmap": lambda: figures.heatmap(MATRIX, signed=True, unit="cosine"),
    "heads": lambda: figures.heatmaps(HEADS, xlabel="latent", split=10, marks={"head 3": [0, 400], "head 8": [511]}),
    "estimates": lambda: figures.estimates(
        pd.concat([SCORES.assign(source="recorded"), SCORES[:1].assign(source="this run", score=36.0)]),
        "pooling",
        "score",
        hue="attention",
        hollow="source",
        baseline={"chance": 5},
    ),
    "contours": lambda: figures.contours(SURFACE, levels=[0.2, 0.5, 0.9], points=POINTS, unit="chance", title="A map"),
    "atlas": lambda: figures.atlas(ATLAS, panel="k", title="Clusters"),
    "losses": lambda: figures.losses(HISTORY, {"mntp": 10.8, "simcse": 2.1}),
    "tiles": lambda: figures.tiles(DECIDED, "paper", "verdict", kinds=figures.VERDICTS, title="Claims"),
    "forest": lambda: figures.forest(
        SCORES.assign(effect=SCORES["score"], threshold=15, paper_low=80, paper_high=90, detectable=4, upper=30),
        title="Scores",
        xlabel="points",
        label="attention",
        panel="pooling",
    ),
    "anatomy": lambda: figures.anatomy(describe("causal2vec", "lens", backbone="tiny-llama"), title="Two methods"),
    "panels": lambda: figures.bars(SCORES, "pooling", "score", panel="attention"),
}


def test_bars_show_the_values_intervals_and_baseline():
    axes = DRAW["bars"]().axes[0]
    heights = [bar.get_height() for bars in axes.containers if hasattr(bars, "patches") for bar in bars.patches]
    assert heights == [37, 18, 16, 10]
    whiskers = [tuple(segment[:, 1]) for part in axes.collections for segment in part.get_segments()]
    assert whiskers == [(35, 40), (16, 21), (13, 18), (9, 12)]
    assert [line.get_ydata()[0] for line in axes.lines if line.get_label() == "chance"] == [5]
    assert {bar.get_hatch() for bars in axes.containers for bar in getattr(bars, "patches", ())} == {"", "////"}


@pytest.mark.parametrize("draw", [figures.bars, figures.lines, figures.estimates])
def test_a_panel_has_its_own_level_of_a_baseline_and_no_other(draw):
    frame = SCORES.assign(place=[0, 1, 0, 1])
    chance = {"chance": {"causal": 5, "bidirectional": 7}, "both": 1}
    fig = draw(frame, "place", "score", low="low", high="high", panel="attention", baseline=chance)
    for axes, level in zip(fig.axes, (5, 7), strict=True):
        drawn = {line.get_label(): line.get_ydata() for line in axes.lines if line.get_label() in chance}
        assert {label: [*ends] for label, ends in drawn.items()} == {"chance": [level] * 2, "both": [1, 1]}
    assert [text.get_text() for text in fig.legends[0].get_texts()][-2:] == ["chance", "both"]
    with pytest.raises(InvalidValueError, match="baseline 'chance': expected a level for panel 'bidirectional', got"):
        draw(frame, "place", "score", panel="attention", baseline={"chance": {"causal": 5}}, low="low", high="high")


def test_a_map_has_its_lines_where_the_values_are_equal_and_its_points_where_they_are():
    fig = DRAW["contours"]()
    axes = fig.axes[0]
    lines = next(part for part in axes.collections if hasattr(part, "levels"))
    assert [*lines.levels] == [0.2, 0.5, 0.9]
    half = lines.get_paths()[1].vertices
    assert len(half) > 2
    for x, y in half:  # between the four values around it
        column, row = np.searchsorted(SURFACE.columns, x), np.searchsorted(SURFACE.index, y)
        around = SURFACE.iloc[max(row - 1, 0) : row + 1, max(column - 1, 0) : column + 1].to_numpy()
        assert around.min() - 1e-9 <= 0.5 <= around.max() + 1e-9
    marked = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert marked == {"paper": [[2, 128]], "here": [[77, 16]]}
    assert [text.get_text() for text in axes.texts if text.get_rotation() == 90] == ["Imdb", "Banking77"]
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["paper", "here"]
    for values, levels, points, message in (
        (SURFACE[[8, 2]], [0.5], None, "columns: expected two positive numbers or more that rise"),
        (SURFACE.replace(SURFACE.iloc[0, 0], np.nan), [0.5], None, "finite numbers"),
        (SURFACE, [], None, "a level or more"),
        (SURFACE, [0.5], POINTS.drop(columns="kind"), "no kind"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            figures.contours(values, levels=levels, points=points)


def test_panels_of_other_quantities_have_labels_and_heights_of_their_own():
    frame = pd.DataFrame({"layer": [0, 1] * 2, "value": [0.1, 0.2, 30, 50], "curve": ["share"] * 2 + ["norm"] * 2})
    labels = {"share": "share of attention", "norm": "norm (x 1)"}
    one, other = figures.lines(frame, "layer", "value", panel="curve", ylabel=labels).axes
    assert [axes.get_ylabel() for axes in (one, other)] == [*labels.values()]
    assert one.get_ylim()[1] < 1 < 30 < other.get_ylim()[1]
    shared = figures.lines(frame, "layer", "value", panel="curve").axes
    assert shared[0].get_ylim() == shared[1].get_ylim()
    with pytest.raises(InvalidValueError, match="ylabel: expected a label for panel 'norm'"):
        figures.lines(frame, "layer", "value", panel="curve", ylabel={"share": "share"})


def test_an_atlas_shows_every_point_and_marks_groups_and_joins_them_to_their_first():
    axes, other = DRAW["atlas"]().axes
    grey, guy, star = axes.collections
    assert grey.get_offsets().tolist() == [[0, 0], [1, 2], [2, 1], [3, 3]]
    assert guy.get_offsets().tolist() == [[0, 0], [1, 2]]
    assert star.get_offsets().tolist() == [[2, 1]]
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[0, 0], [1, 2]]]
    assert [text.get_text() for text in axes.texts] == ["guys, guy", "stars, star"]
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["guy", "star"]
    assert not other.texts
    assert other.collections[0].get_offsets().tolist() == [[0, 4], [4, 0]]
    many = pd.DataFrame({"x": range(15), "y": range(15), "printed": [f"{n:02}" for n in range(15)]})
    looks = figures.atlas(many, names=False).axes[0].collections[1:]
    assert len({(str(one.get_facecolor()), str(one.get_paths()[0].vertices)) for one in looks}) == 15
    with pytest.raises(UnknownNameError, match="name"):
        figures.atlas(many)


def test_missing_bar_leaves_its_place_empty():
    axes = figures.bars(SCORES.iloc[1:], "pooling", "score", hue="attention").axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["last", "mean"]
    assert np.isnan(axes.patches[1].get_height())


@pytest.mark.parametrize("draw", [figures.bars, figures.estimates])
def test_long_names_of_groups_stand_beside_each_other(draw):
    names = [
        "bidirectional, mean",
        "weighted-mean",
        "MNTP, of the budget",
        "last token, closed",
        "causal, lexicon",
        "a",
    ]
    frame = pd.DataFrame({"method": names, "score": 5.0, "low": 4.0, "high": 6.0})
    fig = draw(frame, "method", "score", low="low", high="high")
    fig.draw_without_rendering()
    boxes = [text.get_window_extent() for text in fig.axes[0].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    own = draw(frame.assign(method=["a\nb", *names[1:]]), "method", "score", low="low", high="high")
    assert own.axes[0].get_xticklabels()[0].get_text() == "a\nb"


def test_lines_are_sorted_and_told_apart_without_colour():
    axes = figures.lines(LAYERS.sample(frac=1, random_state=0), "layer", "cosine", hue="text").axes[0]
    assert list(axes.lines[0].get_xdata()) == list(range(31))
    assert len({(line.get_linestyle(), line.get_marker()) for line in axes.lines}) == 2


def test_estimates_show_values_and_intervals_and_later_sources_hollow():
    axes = DRAW["estimates"]().axes[0]
    points = {bar.get_label(): bar for bar in axes.containers}
    assert [*points] == ["causal", "causal, this run", "bidirectional"]
    assert list(points["causal"].lines[0].get_ydata()) == [37, 18]
    (whiskers,) = points["causal"].lines[2]
    assert [tuple(segment[:, 1]) for segment in whiskers.get_segments()] == [(35, 40), (16, 21)]
    assert [points[name].lines[0].get_markerfacecolor() == "white" for name in points] == [False, True, False]
    assert points["causal"].lines[0].get_marker() != points["bidirectional"].lines[0].get_marker()
    places = np.concatenate([bar.lines[0].get_xdata() for bar in points.values()])
    assert len(set(places)) == 5  # no point hides another
    assert sorted(places.astype(float).round()) == [0, 0, 0, 1, 1]


def test_a_legend_shows_an_interval_only_where_one_is_drawn():
    frame = pd.DataFrame({"method": list("abab"), "mask": ["on", "on", "off", "off"], "score": 5.0})
    for low, bars in ((4.0, [True, True]), ([4, 4, None, None], [True, False]), (None, [False, False])):
        drawn = frame.assign(low=low, high=6.0).astype({"low": float})
        fig = figures.estimates(drawn, "method", "score", low="low", high="high", hue="mask")
        assert [one.has_yerr for one in fig.axes[0].containers] == bars


def test_the_front_is_filled_and_joined_by_steps_and_every_point_has_its_interval():
    axes = DRAW["front"]().axes[0]
    step, points = axes.lines[0], axes.collections[-1]
    assert (step.get_drawstyle(), step.get_xydata().tolist()) == ("steps-post", [[512, 44], [2304, 50]])
    drawn = dict(zip(map(tuple, points.get_offsets().tolist()), points.get_facecolor().tolist(), strict=True))
    hollow = {place for place, colour in drawn.items() if colour == [1, 1, 1, 1]}
    assert hollow == {(2304, 49), (4608, 48)}
    assert [*drawn][-2:] == [(2304, 50), (512, 44)], "the front lies on top"
    bars = [part.get_segments() for part in axes.collections if isinstance(part, LineCollection)]
    assert [bar.tolist() for bar in bars[0]] == [
        [[x, y - 1], [x, y + 2]] for x, y in CHOICES[["bytes", "score"]].to_numpy()
    ]
    assert axes.get_xscale() == "log"
    assert axes.xaxis.get_major_formatter()(1000) == "1000"


def test_the_legend_of_a_front_shows_filled_markers_whichever_point_comes_first():
    frame = CHOICES.assign(form=["a", "b"] * (len(CHOICES) // 2))
    fig = figures.scatter(frame.sort_values("front"), "bytes", "score", hue="form", front="front")
    legend = fig.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["front (filled)", "a", "b"]
    markers = [one for one in legend.legend_handles if not hasattr(one, "get_xydata")]
    assert [mpl.colors.to_hex(one.get_facecolor()[0]).upper() for one in markers] == [*figures.OKABE_ITO[:2]]


def test_names_stand_beside_their_points_and_cover_neither_each_other_nor_points():
    draw = np.random.default_rng(0)
    close = pd.DataFrame({"x": draw.random(16), "y": draw.random(16), "who": [f"text {n}" for n in range(16)]})
    for fig, count in ((DRAW["front"](), 4), (figures.scatter(close, "x", "y", names="who"), 16)):
        fig.draw_without_rendering()
        axes = fig.axes[0]
        assert [text.get_text() for text in axes.texts][:2] in (["mean", "lens $5 $"], ["text 0", "text 1"])
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) == count
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        points = axes.transData.transform(axes.collections[-1].get_offsets())
        for box in boxes:
            assert not any(box.contains(*point) for point in points)
            assert axes.bbox.contains(box.x0, box.y0)
            assert axes.bbox.contains(box.x1, box.y1)
        for text, box in zip(axes.texts, boxes, strict=True):
            at = axes.transData.transform(text.xy)
            nearest = np.clip(at, box.p0, box.p1)
            assert np.hypot(*(at - nearest)) < 12


def test_names_in_a_crowd_go_twice_as_far_away():
    rows = [(0, 0, "middle")]
    rows += [(x, y, "") for x in (-0.06, 0, 0.06) for y in (-0.05, 0, 0.05) if x or y]  # on each of its eight sides
    rows += [(x, y, "") for x in (-1, 1) for y in (-1, 1)]
    frame = pd.DataFrame(rows, columns=["x", "y", "who"])
    fig = figures.scatter(frame, "x", "y", names="who")
    fig.draw_without_rendering()
    axes = fig.axes[0]
    [name] = [text for text in axes.texts if text.get_text() == "middle"]
    box = name.get_window_extent()
    points = axes.transData.transform(frame[["x", "y"]].to_numpy())
    assert not any(box.contains(*point) for point in points)
    assert np.abs(name.get_position()).max() in (8, 10)  # points of type; beside a point alone it is 4 or 5


def test_without_names_intervals_or_a_front_a_scatter_is_points_alone():
    axes = DRAW["scatter"]().axes[0]
    assert len(axes.collections) == 2
    assert not axes.lines
    assert not axes.texts


def test_losses_have_their_chance_level_in_a_panel_each():
    fig = DRAW["losses"]()
    assert [axes.get_title(loc="left") for axes in fig.axes] == ["mntp", "simcse"]
    for axes, chance in zip(fig.axes, (10.8, 2.1), strict=True):
        _, level = axes.lines
        assert level.get_ydata()[0] == chance
        assert axes.get_ylim()[0] == 0 < chance < axes.get_ylim()[1]
    assert list(fig.axes[1].lines[0].get_ydata()) == [2, 1.5]
    with pytest.raises(InvalidValueError, match="simcse"):
        figures.losses(HISTORY, {"mntp": 10.8})


def test_tiles_are_sorted_by_kind_and_told_apart_by_mark():
    fig = DRAW["tiles"]()
    (axes,) = fig.axes
    marks = {(text.get_position(), text.get_text()) for text in axes.texts}
    assert marks == {((0, 0), "\u2713"), ((1, 0), "\u2713"), ((2, 0), "\u2717"), ((0, 1), "\u2717")}
    assert len(axes.patches) == 4
    assert [text.get_text() for text in axes.get_yticklabels()] == ["P (3)", "Q (1)"]
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["\u2713 supported: 2", "\u2717 contradicted: 2"]
    with pytest.raises(UnknownNameError, match="value of verdict 'contradicted'"):
        figures.tiles(DECIDED, "paper", "verdict", kinds={"supported": figures.VERDICTS["supported"]})
    with pytest.raises(InvalidValueError, match="kinds: expected the look of each kind"):
        figures.tiles(DECIDED, "paper", "verdict", kinds=("supported", "contradicted"))


def luminance(color):
    """Relative luminance of a colour, from 0 for black to 1 for white, by WCAG 2."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in mpl.colors.to_rgb(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_verdicts_are_told_apart_in_greyscale_and_their_signs_can_be_read():
    looks = figures.VERDICTS.values()
    assert [*figures.VERDICTS] == ["supported", "contradicted", "inconclusive", "not tested", "not run"]
    for signs in ({look.sign for look in looks}, {look.marker for look in looks}):
        assert len(signs) == len(looks)
    assert "D" not in {look.marker for look in looks}, "the diamond is the papers'"
    greys = sorted(luminance(look.fill) for look in looks)
    assert all(lighter > 1.25 * darker for darker, lighter in itertools.pairwise(greys))
    for look in looks:
        pale, dark = sorted((luminance(look.fill), luminance(look.ink)), reverse=True)
        assert (pale + 0.05) / (dark + 0.05) >= 4.5, look  # the contrast that WCAG asks of text


def test_tiles_have_the_look_of_their_kind():
    (axes,) = DRAW["tiles"]().axes
    drawn = [mpl.colors.to_hex(tile.get_facecolor(), keep_alpha=False).upper() for tile in axes.patches]
    assert drawn == [figures.VERDICTS[name].fill for name in ("supported", "supported", "contradicted", "contradicted")]


def test_distributions_are_halves_and_need_two():
    fig = DRAW["distributions"]()
    assert sum(half.get_hatch() == "////" for half in fig.axes[0].collections) == 3  # two violins and the legend
    with pytest.raises(InvalidValueError, match="two levels"):
        figures.distributions(LAYERS.assign(text="a"), "text", "cosine", hue="text")


def test_panels_share_limits():
    left, right = DRAW["panels"]().axes
    assert left.get_ylim() == right.get_ylim()
    other = MATRIX * 10
    images = [axes.images[0] for axes in figures.heatmaps({"a": MATRIX, "b": other}).axes[:2]]
    assert {image.get_clim() for image in images} == {(0.1, 9.0)}


def test_names_of_columns_are_turned_where_they_would_cover_each_other():
    names = ["causal2vec", "weighted-mean", "last-token", "nv-embed", "anchor", "echo", "lens", "icl"]
    for count, turned in ((2, {0}), (8, {35})):
        fig = figures.heatmap(pd.DataFrame(np.eye(count), names[:count], names[:count]))
        fig.draw_without_rendering()
        labels = fig.axes[0].get_xticklabels()
        assert {label.get_rotation() for label in labels} == turned
        (left, *_), right = [label.get_window_extent() for label in labels], fig.axes[0].get_yticklabels()[-1]
        assert not left.overlaps(right.get_window_extent())
    assert {label.get_rotation() for label in figures.heatmap(np.eye(8)).axes[0].get_xticklabels()} == {0}


def test_signed_heatmap_is_centred_at_zero():
    image = DRAW["heatmap"]().axes[0].images[0]
    assert image.get_clim() == (-0.9, 0.9)
    assert image.get_cmap().name == "RdBu_r"


def test_tick_labels_are_thinned_to_fit():
    axes = figures.heatmap(np.random.default_rng(0).random((31, 200))).axes[0]
    assert len(axes.get_xticks()) <= 30
    assert len(axes.get_yticks()) <= 16


def test_marks_point_at_columns_and_a_line_parts_the_rows():
    axes = DRAW["heads"]().axes[:8]
    assert [line.get_ydata() for one in axes for line in one.lines[:1]] == [[9.5, 9.5]] * 8
    marks = [[(*line.get_xdata(), *line.get_ydata()) for line in one.lines[1:]] for one in axes]
    assert marks == [[], [], [(0, 1), (400, 1)], [], [], [], [], [(511, 1)]]
    assert {(one.get_xlim(), one.get_ylim()) for one in axes} == {((-0.5, 511.5), (19.5, -0.5))}
    frame = MATRIX.iloc[:1]
    (mark,) = figures.heatmap(frame, marks={"": ["cat"]}).axes[0].lines
    assert mark.get_xdata()[0] == 1


def test_steps_below_narrow_panels_keep_apart():
    rows = pd.DataFrame([(seed, step) for seed in "abcd" for step in range(0, 25, 4)], columns=["seed", "step"])
    fig = figures.lines(rows.assign(loss=1.0), "step", "loss", panel="seed")
    fig.canvas.draw()
    for axes in fig.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert all(left.x1 + 3 < right.x0 for left, right in itertools.pairwise(boxes)), [box.x0 for box in boxes]


def test_tick_labels_of_narrow_panels_keep_apart():
    fig = DRAW["heads"]()
    fig.draw_without_rendering()
    labels = [text for one in fig.axes[:8] for text in one.get_xticklabels()]
    titles = fig.findobj(lambda part: isinstance(part, mpl.text.Text) and part.get_text().startswith("head "))
    assert [text.get_text() for text in labels] == ["0", "200", "400"] * 8
    for texts in (labels, titles):
        boxes = [text.get_window_extent() for text in texts]
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


@pytest.mark.parametrize("peak", [0.9, -0.9])
def test_no_peak_gets_lost_where_columns_are_too_narrow(peak):
    heads = {name: matrix.copy() for name, matrix in HEADS.items()}
    heads["head 2"].iloc[4, 301] = peak
    heads["head 2"].iloc[5, 296:304] = np.nan
    drawn = figures.heatmaps(heads).axes[1].images[0].get_array()
    assert drawn.shape == (20, 512)
    assert (drawn[4] == peak).sum() == 8
    assert drawn[5].mask.sum() == 8
    assert drawn[3, 301] == heads["head 2"].iloc[3, 296:304].max()
    wide = figures.heatmap(heads["head 2"]).axes[0].images[0].get_array()
    np.testing.assert_array_equal(wide.filled(np.nan), heads["head 2"].to_numpy())


@pytest.mark.parametrize("name", DRAW)
def test_style_does_not_depend_on_defaults(name, tmp_path):
    before = dict(mpl.rcParams)
    first = figures.save(DRAW[name](), "x", SCORES, tmp_path / "a")
    assert dict(mpl.rcParams) == before
    with mpl.rc_context({"font.size": 20, "axes.spines.top": True, "lines.linewidth": 5, "svg.hashsalt": None}):
        second = figures.save(DRAW[name](), "x", SCORES, tmp_path / "b")
    assert [path.suffix for path in first.values()] == [".pdf", ".svg", ".png", ".csv"]
    assert [path.read_bytes() for path in first.values()] == [path.read_bytes() for path in second.values()]


@pytest.mark.journey
def test_same_bytes_in_another_process(tmp_path):
    """Hash seeds and clocks differ between processes; the files don't."""
    program = "import sys, tests.test_figures as t; t.figures.save(t.DRAW['bars'](), 'x', t.SCORES, sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "b")], check=True, cwd=ROOT)
    paths = figures.save(DRAW["bars"](), "x", SCORES, tmp_path / "a")
    assert all(path.read_bytes() == (tmp_path / "b" / path.name).read_bytes() for path in paths.values())
    assert b"matplotlib.org" not in paths["pdf"].read_bytes() + paths["png"].read_bytes()


def test_on_a_screen_a_figure_has_its_own_size_and_the_same_bytes():
    (image, size), again = figures.png(DRAW["bars"]()), figures.png(DRAW["bars"]())
    assert (image, size) == again
    assert size == {"width": 640, "height": 320}
    shown = Image.open(io.BytesIO(image))
    assert (shown.format, *shown.size) == ("PNG", int(6.4 * 144), int(3.2 * 144))


def test_small_images_keep_the_colour_of_every_marker():
    """A few pixels of colour on much white: a palette by area would merge them."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.normal(size=400), "y": random.normal(size=400), "name": "n", "printed": ""})
    frame.loc[:15, "printed"] = [f"group {n % 8}" for n in range(16)]
    image, _ = figures.png(figures.atlas(frame, names=False))
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB")).reshape(-1, 3).astype(int)
    for colour in figures.OKABE_ITO[:8]:
        wanted = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)])
        assert np.abs(pixels - wanted).max(axis=1).min() <= 24, colour  # they are 63 and more apart


def test_pale_bands_keep_their_own_colours_in_a_small_file():
    levels = {name: 0.1 * n for n, name in enumerate("abcd")}
    rows = [(x, name, y + 0.01 * x * n) for n, (name, y) in enumerate(levels.items()) for x in range(5)]
    frame = pd.DataFrame(rows, columns=["x", "name", "y"])
    frame = frame.assign(low=frame["y"] - 0.05, high=frame["y"] + 0.05)
    fig = figures.lines(frame, "x", "y", hue="name", low="low", high="high")
    small, whole = (Image.open(io.BytesIO(figures.png(fig, small=kept)[0])).convert("RGB") for kept in (True, False))
    moved = np.abs(np.asarray(small).astype(int) - np.asarray(whole))
    assert np.percentile(moved.max(axis=2), 99) < 8


def test_a_quick_image_is_the_same_but_for_its_bytes():
    (small, size), (quick, same) = figures.png(DRAW["bars"]()), figures.png(DRAW["bars"](), small=False)
    assert size == same
    one, other = (np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), dtype=int) for image in (small, quick))
    assert one.shape == other.shape
    assert np.abs(one - other).mean() < 2  # of 255: the small one has few colours
    assert quick == figures.png(DRAW["bars"](), small=False)[0]


def test_csv_holds_what_is_plotted(tmp_path):
    path = figures.save(DRAW["bars"](), "x", SCORES, tmp_path)["csv"]
    pd.testing.assert_frame_equal(pd.read_csv(path), SCORES)
    path = figures.save(DRAW["heatmap"](), "y", MATRIX, tmp_path)["csv"]
    pd.testing.assert_frame_equal(pd.read_csv(path, index_col=0), MATRIX)


def test_bad_input_is_named(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'score'"):
        figures.bars(SCORES, "pooling", "scor")
    with pytest.raises(InvalidValueError, match="at least one row"):
        figures.lines(LAYERS[:0], "layer", "cosine")
    with pytest.raises(InvalidValueError, match="finite"):
        figures.heatmap(np.full((2, 2), np.nan))
    with pytest.raises(InvalidValueError, match="at least one matrix"):
        figures.heatmaps({})
    with pytest.raises(InvalidValueError, match="split: expected a number of rows from 1 to 1, got 2"):
        figures.heatmap(MATRIX, split=2)
    with pytest.raises(UnknownNameError, match=r"panel 'haed 1'\. Did you mean 'head 1'"):
        figures.heatmaps(HEADS, marks={"haed 1": [0]})
    with pytest.raises(UnknownNameError, match="Unknown column of panel 'head 1' 512"):
        figures.heatmaps(HEADS, marks={"head 1": [512]})
    with pytest.raises(InvalidValueError, match="file name"):
        figures.save(DRAW["bars"](), "../x", SCORES, tmp_path)
    with pytest.raises(InvalidValueError, match="DataFrame"):
        figures.save(DRAW["bars"](), "x", [1, 2], tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        figures.save(DRAW["bars"](), "x", SCORES, tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_line_of_one_point_shows_its_interval():
    frame = pd.DataFrame({"x": [1, 2, 3], "y": [1.0, 2.0, 5.0], "low": 0.5, "high": 6.0, "kind": ["a", "a", "b"]})
    figure = figures.lines(frame, "x", "y", hue="kind", low="low", high="high")
    bars = [part for part in figure.axes[0].collections if isinstance(part, LineCollection)]
    assert [bar.get_segments()[0].tolist() for bar in bars] == [[[3.0, 0.5], [3.0, 6.0]]]
