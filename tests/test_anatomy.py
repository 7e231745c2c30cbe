"""The drawing of a method shows its template, mask, pooling and stages, and nothing covers anything."""

import itertools

import numpy as np
import pytest

from workbook import figures
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.methods import METHODS, describe

TINY = {"backbone": "tiny-llama"}


def boxes(fig, *labels):
    return [patch for patch in fig.axes[0].patches if patch.get_label() in labels]


def texts(fig):
    return [text for text in fig.axes[0].texts if text.get_text()]


def draw(method, **options):
    return figures.anatomy(describe(method, **TINY, **options), headings=False)


def trained(method, **options):
    """Trained parts by stage."""
    rows = describe(method, **TINY, **options).query("state == 'trained'")
    return {stage: [*parts] for stage, parts in rows.groupby("stage", sort=False)["name"]}


@pytest.mark.parametrize("method", METHODS)
def test_a_box_for_each_piece_of_the_template_and_each_pooled_one_filled(method):
    pieces = METHODS[method].chain.layout().instructed
    drawn = boxes(draw(method), "pooled", "read")
    assert len(drawn) == len(pieces)
    assert (np.diff([box.get_y() for box in drawn]) > 0).all()
    filled = [box.get_label() == "pooled" for box in drawn]
    if METHODS[method].chain.pooling in ("last_token", "contextual"):
        assert filled == [piece.string in ("{eos}", "{context}") for piece in pieces]
    else:
        assert filled == [piece.pooled for piece in pieces]
    colours = {box.get_label(): box.get_facecolor() for box in drawn}
    assert len({*colours.values()}) == 2


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_the_mask_is_a_triangle_or_a_square(attention):
    cells = boxes(draw("echo", attention=attention), "seen", "hidden")
    seen = np.array([cell.get_label() == "seen" for cell in cells]).reshape(7, 7)
    expected = np.ones((7, 7), bool)
    np.testing.assert_array_equal(seen, np.tril(expected) if attention == "causal" else expected)
    white = np.array([cell.get_facecolor() == (1, 1, 1, 1) for cell in cells]).reshape(7, 7)
    np.testing.assert_array_equal(white, ~seen)


def test_what_trains_is_what_a_training_changes():
    assert trained("llm2vec") == {stage: ["adapters"] for stage in ("mntp", "simcse", "contrastive")}
    assert trained("nv-embed") == {stage: ["adapters", "latents"] for stage in ("retrieval", "blended")}
    assert trained("lens") == {"distilled": ["adapters"]}
    assert trained("causal2vec") == {"contextual": ["adapters", "projection"]}
    assert trained("causal2vec", scale="paper") == {"contextual": ["adapters", "encoder", "projection"]}
    assert trained("anchor") == {"reconstruction": ["decoder"], "contrastive": ["adapters"]}
    assert trained("gritlm", scale="paper") == {"joint": ["decoder"]}
    assert trained("llm2vec", pooling="latent_attention")["mntp"] == ["adapters"], "chunks are not pooled"


@pytest.mark.parametrize(
    ("method", "options", "pooled"),
    [
        ("causal2vec", {"pooling_options": {"representation": "eos"}}, ["EOS"]),
        ("causal2vec", {"pooling_options": {"representation": "context"}}, ["context token"]),
        ("lens", {"pooling_options": {"pooling": "last"}}, ["EOS"]),
        ("anchor", {"suffix": "keywords"}, ["keywords"]),
        ("nv-embed", {}, ["text", "EOS"]),
    ],
)
def test_options_of_a_chain_are_drawn(method, options, pooled):
    rows = describe(method, **TINY, **options)
    assert rows.loc[rows["state"] == "pooled", "name"].tolist() == pooled
    assert {*pooled} <= {text.get_text() for text in texts(figures.anatomy(rows))}


def test_a_description_takes_no_random_numbers():
    import torch

    before = torch.get_rng_state()
    describe("nv-embed", **TINY)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_no_words_cover_others_or_leave_their_box(scale):
    fig = figures.anatomy(describe(scale=scale, **TINY), title="All methods")
    fig.draw_without_rendering()
    placed = {text: text.get_window_extent() for text in texts(fig)}
    assert min(text.get_fontsize() for text in placed) >= 7
    for box in placed.values():
        assert fig.bbox.contains(*box.p0)
        assert fig.bbox.contains(*box.p1)
    for (one, first), (other, second) in itertools.combinations(placed.items(), 2):
        assert not first.padded(-1).overlaps(second.padded(-1)), (one.get_text(), other.get_text())
    for patch in boxes(fig, "pooled", "read", "trained", "frozen"):
        edge = patch.get_window_extent()
        for text, box in placed.items():
            inside = edge.x0 < box.x0 and box.x1 < edge.x1
            assert inside or not edge.padded(-1).overlaps(box.padded(-1)), text.get_text()


def test_methods_stand_below_each_other_in_the_order_given():
    fig = figures.anatomy(describe("lens", "mean", **TINY), title="Two methods")
    names = [text.get_text() for text in texts(fig) if text.get_fontsize() == 9]
    assert names == ["LENS", "mean"]
    assert figures.titles(fig) == "Two methods"
    assert fig.get_figwidth() == figures.FULL[0]


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match=r"Unknown method 'lense'\. Did you mean 'lens'"):
        describe("lense")
    with pytest.raises(UnknownNameError, match="option 'atention'"):
        describe("mean", **TINY, atention="causal")
    rows = describe("mean", **TINY)
    with pytest.raises(UnknownNameError, match=r"attention 'sideways'\. Expected one of: causal, bidirectional"):
        figures.anatomy(rows.replace("causal", "sideways"))
    with pytest.raises(UnknownNameError, match="state 'melted'"):
        figures.anatomy(rows.replace("frozen", "melted"))
    with pytest.raises(UnknownNameError, match="column 'state'"):
        figures.anatomy(rows.drop(columns="state"))
    with pytest.raises(InvalidValueError, match="at least one row"):
        figures.anatomy(rows[:0])
