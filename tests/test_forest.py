"""Forest plots: every effect, interval, bound and number of the papers stands where it belongs."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import FillBetweenPolyCollection

from workbook import figures
from workbook.errors import InvalidValueError

NAN = float("nan")
ROWS = pd.DataFrame(
    [
        ("weighted mean over last token", 4.0, 1.0, 7.0, 0, NAN, 1.0, 2.0, 3.0, "supported"),
        ("MNTP over plain", 0.5, -2.0, 2.5, 0, NAN, 2.0, 2.0, 3.5, "inconclusive"),
        ("lexicon over dense", -3.0, -5.0, -1.0, 0, NAN, NAN, NAN, NAN, "contradicted"),
        ("one token as good as eight", 0.2, -0.7, 1.1, -2, 2, -0.1, 0.3, 0.9, "supported"),
    ],
    columns=[
        "label",
        "effect",
        "low",
        "high",
        "threshold",
        "upper",
        "paper_low",
        "paper_high",
        "detectable",
        "verdict",
    ],
)


def draw(rows=ROWS, **options):
    return figures.forest(rows, **{"title": "Differences", "xlabel": "points"} | options)


def marks(axes, marker):
    """Horizontal places of a marker, from top to bottom, with their heights and their filling."""
    found = [(line.get_ydata(), line.get_xdata(), line) for line in axes.lines if line.get_marker() == marker]
    places = [
        (float(y), float(x), line.get_markerfacecolor()) for ys, xs, line in found for y, x in zip(ys, xs, strict=True)
    ]
    return sorted(places)


def ours(axes):
    """Effects of ours from top to bottom, of any verdict."""
    looks = {look.marker for look in figures.VERDICTS.values()}
    return sorted(itertools.chain.from_iterable(marks(axes, marker) for marker in looks))


def spans(axes, color):
    """Left and right ends, and heights, of the lines in a colour that run across, from top to bottom."""
    lines = [line.get_xydata() for line in axes.lines if line.get_color() == color and line.get_linestyle() == "-"]
    across = [points for points in lines if len(points) == 2 and points[0, 1] == points[1, 1]]
    return sorted((points[0, 1], *points[:, 0]) for points in across)


def areas(axes, *, hatched):
    found = [area for area in axes.collections if isinstance(area, FillBetweenPolyCollection)]
    return [area.get_datalim(axes.transData) for area in found if bool(area.get_hatch()) == hatched]


def test_effects_stand_in_the_order_of_the_rows_with_their_intervals_and_the_look_of_their_verdict():
    (axes,) = draw().axes
    drawn = ours(axes)
    assert [x for _, x, _ in drawn] == ROWS["effect"].tolist()
    assert [fill for _, _, fill in drawn] == [figures.VERDICTS[name].fill for name in ROWS["verdict"]]
    assert [x for _, x, _ in marks(axes, "o")] == [4.0, 0.2]
    assert [span[1:] for span in spans(axes, "black")] == list(ROWS[["low", "high"]].itertuples(index=False, name=None))
    assert [span[0] for span in spans(axes, "black")] == [y for y, _, _ in drawn]
    heights = axes.get_yticks().tolist()
    assert heights == sorted(heights)
    assert axes.get_ylim()[0] > heights[-1] > heights[0] > axes.get_ylim()[1] == 0  # from top to bottom
    assert [text.get_text().replace("\n", " ") for text in axes.get_yticklabels()] == ROWS["label"].tolist()


def test_the_papers_effects_are_diamonds_below_ours_and_joined_over_several_models():
    (axes,) = draw().axes
    diamonds = marks(axes, "D")
    assert [x for _, x, _ in diamonds] == [1.0, 2.0, 2.0, -0.1, 0.3]
    joined = [span[1:] for span in spans(axes, "#555555")]
    assert joined == [(1.0, 2.0), (-0.1, 0.3)]
    assert diamonds[0][0] > axes.get_yticks()[0] > ours(axes)[0][0]
    assert ours(axes)[2][0] == axes.get_yticks()[2]  # none of the paper's: in the middle


def test_bounds_margins_and_what_is_too_small_to_see():
    (axes,) = draw().axes
    bands = [(box.x0, box.x1) for box in areas(axes, hatched=False)]
    assert bands == [(-3, 3), (-3.5, 3.5), (-2.9, -1.1), (1.1, 2.9)]
    (margin,) = areas(axes, hatched=True)
    assert (margin.x0, margin.x1) == (-2, 2)
    upright = [line.get_xydata() for line in axes.lines if len(set(line.get_xdata())) == 1 < len(line.get_xdata())]
    assert [points[0, 0] for points in upright] == [0, 0, 0, -2, 2]
    assert upright[0][0, 1] == pytest.approx(upright[1][1, 1])  # one line through rows that share their threshold
    boxes = areas(axes, hatched=False)
    assert all(boxes[0].y0 < place[0] < boxes[0].y1 for place in (ours(axes)[0], marks(axes, "D")[0]))


def test_the_legend_has_what_occurs_and_nothing_else():
    def words(rows):
        return [text.get_text() for text in draw(rows).legends[0].get_texts()]

    band, margin = "too small to see (80 % power)", "margin of the claim"
    assert words(ROWS) == ["supported", "contradicted", "inconclusive", "paper", margin, band]
    assert words(ROWS[:1].drop(columns=["upper", "detectable"])) == ["supported", "paper"]
    plain = ROWS[["label", "effect", "low", "high", "threshold"]]
    assert words(plain) == ["here, with interval"]
    assert words(ROWS[2:3].assign(low=NAN, high=NAN)) == ["contradicted", "no interval"]
    assert draw(plain.assign(effect=NAN, low=NAN, high=NAN)).legends == []


def test_an_effect_without_an_interval_is_hollow_and_a_row_without_an_effect_says_its_verdict():
    rows = ROWS.assign(verdict=["supported", "not tested", "contradicted", "not run"])
    rows.loc[0, ["low", "high"]] = NAN
    rows.loc[[1, 3], ["effect", "low", "high"]] = NAN
    (axes,) = draw(rows).axes
    assert [(x, fill) for _, x, fill in ours(axes)] == [(4.0, "white"), (-3.0, figures.VERDICTS["contradicted"].fill)]
    assert [(text.get_text(), text.get_position()[0]) for text in axes.texts] == [("not tested", 0), ("not run", -2)]


def test_papers_effects_far_from_ours_are_arrows_with_their_numbers():
    near = draw(ROWS[:3]).axes[0].get_xlim()
    rows = ROWS[:3].assign(paper_low=[40.0, -60.0, 2.0], paper_high=[40.0, -50.5, 33.25])
    (axes,) = draw(rows).axes
    assert axes.get_xlim() == near  # ours stay readable
    assert [x for _, x, _ in marks(axes, "D")] == [2.0]
    assert [x for _, x, _ in marks(axes, ">")] == [near[1]] * 2
    assert [x for _, x, _ in marks(axes, "<")] == [near[0]]
    told = {text.get_text(): text.xy[0] for text in axes.texts}
    assert told == {"+40": near[1], "\u221260 to \u221250.5": near[0], "+33.2": near[1]}
    assert spans(axes, "#555555")[-1][1:] == (2.0, near[1])
    (axes,) = draw(ROWS[:3].assign(paper_low=9.0, paper_high=9.0)).axes  # not far: the axis grows
    assert len(marks(axes, "D")) == 3
    assert axes.get_xlim()[1] > 9


def test_an_interval_many_times_as_wide_as_the_others_is_cut_and_says_its_ends():
    near = draw().axes[0].get_xlim()
    rows = ROWS.copy()
    rows.loc[1, ["low", "high", "detectable"]] = [-48, 39, 60]
    (axes,) = draw(rows).axes
    left, right = axes.get_xlim()
    assert (left, right) == pytest.approx(near, abs=0.5)
    assert {text.get_text() for text in axes.texts} == {"\u221248", "+39"}
    assert spans(axes, "black")[1][1:] == (left, right)


def test_panels_share_their_axis_where_they_share_its_label():
    rows = pd.concat([ROWS[:2].assign(on="docs"), ROWS[1:3].assign(on="other", effect=0.0, low=-20.0, high=20.0)])
    left, right = draw(rows, panel="on").axes
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["docs", "other"]
    assert left.get_xlim() == right.get_xlim()
    assert left.get_yticks().tolist() == right.get_yticks().tolist()
    assert len(left.get_yticks()) == 3
    assert ours(left)[1][0] == ours(right)[0][0]  # the same comparison at the same height
    left, right = draw(rows, panel="on", xlabel={"docs": "points", "other": "%"}).axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("points", "%")
    assert left.get_xlim()[1] < 20 < right.get_xlim()[1]


def test_long_labels_are_broken_and_no_row_touches_another():
    words = (
        "latent attention over mean pooling of the same decoder with the same number of candidates and $5 $ parameters"
    )
    fig = draw(pd.concat([ROWS.assign(label=[f"{words}, {n}" for n in range(4)]), ROWS]))
    fig.draw_without_rendering()
    (axes,) = fig.axes
    assert "".join(axes.get_yticklabels()[0].get_text().split()) == "".join(f"{words}, 0".split())
    assert not any(text.get_parse_math() for text in axes.get_yticklabels())
    boxes = [text.get_window_extent() for text in axes.get_yticklabels()]
    assert all(upper.y0 > lower.y1 for upper, lower in itertools.pairwise(boxes))
    assert all(box.x0 > 0 and box.x1 < axes.bbox.x0 for box in boxes)
    assert axes.bbox.width > 0.5 * fig.bbox.width
    assert fig.get_figwidth() == 6.4
    short, long = draw().get_figheight(), fig.get_figheight()
    assert long > 2 * short - 1
    assert draw(size=(5, 4)).get_size_inches().tolist() == [5, 4]


def test_a_single_number_has_an_axis():
    rows = ROWS[:1].assign(effect=0.0, low=0.0, high=0.0, detectable=NAN, paper_low=NAN, paper_high=NAN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (axes,) = draw(rows).axes
    left, right = axes.get_xlim()
    assert left < 0 < right
    assert np.isfinite([left, right]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:0], "rows: expected a DataFrame with at least one row"),
        (lambda rows: rows.to_dict(), "rows: expected a DataFrame"),
        (lambda rows: rows.drop(columns=["low", "threshold"]), r"the columns label, effect, low.*Add low, threshold\."),
        (lambda rows: rows.assign(effect="much"), "numbers in effect, low"),
        (
            lambda rows: rows.assign(low=rows["high"] + 1),
            "row 0, 'weighted mean over last token': expected low at most",
        ),
        (lambda rows: rows.assign(low=NAN), "both ends of an interval, or none"),
        (lambda rows: rows.assign(effect=NAN), "an effect where there is an interval"),
        (lambda rows: rows.assign(threshold=NAN), "a threshold"),
        (lambda rows: rows.assign(upper=-9), "upper at least threshold"),
        (lambda rows: rows.drop(columns="paper_high"), "both paper_low and paper_high"),
        (lambda rows: rows.assign(paper_low=99, paper_high=98), "paper_low at most paper_high"),
        (lambda rows: rows.assign(detectable=-1), "at least 0"),
        (lambda rows: rows.assign(high=np.inf), "finite numbers"),
        (lambda rows: rows.assign(label="same"), "a label once in each panel"),
        (lambda rows: rows.assign(verdict="reproduced"), "verdict: expected one of supported, .*'reproduced'"),
    ],
)
def test_bad_rows_are_named(change, message):
    with pytest.raises(InvalidValueError, match=message):
        draw(change(ROWS))


def test_a_panel_without_a_label_of_its_axis_is_named():
    with pytest.raises(InvalidValueError, match=r"xlabel: expected a label for each of the panels .*Add \['b'\]"):
        draw(ROWS.assign(on=["a", "a", "b", "b"]), panel="on", xlabel={"a": "points"})
