"""The glass box: its ranking and its split against the model's own cosines, its panel moved by code."""

import html
import re

import ipywidgets as widgets
import numpy as np
import pytest

from workbook import build, probes
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.explore import GlassBox
from workbook.vocabulary.sparse import above_mean

TEXTS = ["Rain is due tonight.", "The bakery opens at six.", "A tyre < a wheel & more.", "Copper conducts heat."]
ONE = "A storm is on its way."
INSTRUCTION = "Find the note"


@pytest.fixture(scope="module")
def model():
    return build("lens", "tiny-llama", pooling_options={"clusters": 40}, dtype="float32", device="cpu")


@pytest.fixture(params=[False, True])
def box(model, request):
    return GlassBox(model, [*TEXTS, TEXTS[0]], INSTRUCTION, above_mean=request.param, shown=5)


def vectors(box):
    query, documents = box.model.encode([ONE], prompt=INSTRUCTION), box.model.encode(TEXTS)
    if box.above_mean:
        query, documents = (above_mean(rows, documents) for rows in (query, documents))
    return query[0].astype(float), documents.astype(float)


def test_the_ranking_is_that_of_the_model_with_and_without_clusters(box):
    query, documents = vectors(box)
    scores = documents @ query
    ranked = box.ranking(ONE)
    assert ranked["document"].tolist() == [TEXTS[place] for place in np.argsort(-scores)]
    assert ranked["rank"].tolist() == ranked["before"].tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(np.sort(scores)[::-1], ranked["score"], atol=1e-5)
    assert (ranked["change"] == 0).all()
    off = box.split(ONE)["cluster"][:6].tolist()
    query[off] = 0
    after = documents @ query
    ranked = box.ranking(ONE, off).set_index("document").loc[TEXTS]
    np.testing.assert_allclose(ranked["score"], after, atol=1e-5)
    np.testing.assert_allclose(ranked["change"], after - scores, atol=1e-5)
    assert np.abs(after - scores).max() > 1e-3
    assert ranked["rank"].tolist() == (np.argsort(np.argsort(-after)) + 1).tolist()
    assert ranked["before"].tolist() == (np.argsort(np.argsort(-scores)) + 1).tolist()


def test_the_split_adds_up_to_the_score(box):
    ranked = box.ranking(ONE).set_index("document")
    for document in TEXTS:
        frame = box.split(ONE, document)
        assert frame["score"].sum() == pytest.approx(ranked["score"][document], abs=1e-6)
        assert frame["name"].tolist() == probes.cluster_names(box.model, frame["cluster"].tolist())
    assert box.split(ONE).equals(box.split(ONE, ranked.index[0]))
    if not box.above_mean:
        expected = probes.matches(box.model, ONE, TEXTS[1], INSTRUCTION)
        np.testing.assert_allclose(box.split(ONE, TEXTS[1])["score"], expected["score"], atol=1e-9)
        assert box.split(ONE, TEXTS[1])["document_token"].equals(expected["document_token"])


def test_both_texts_are_marked_where_the_score_comes_from(box):
    off = box.split(ONE, TEXTS[2])["cluster"][:3].tolist()
    said = box.marked(ONE, TEXTS[2], off)
    assert "<script" not in said
    frame = box.split(ONE, TEXTS[2])
    frame = frame[~frame["cluster"].isin(off)]
    for side, text, block in zip(("query", "document"), (ONE, TEXTS[2]), said.split("<div>")[1:], strict=True):
        tokens = re.findall(r'title="([\d.]+)% of the score" style="[^"]+, ([\d.]+)\)">([^<]*)<', block)
        assert html.unescape("".join(token for *_, token in tokens)) == text
        parts = frame.groupby(f"{side}_position")["share"].sum()
        assert sum(float(share) for share, *_ in tokens) == pytest.approx(100 * parts.sum(), abs=0.06 * len(tokens))
        assert max(float(shade) for _, shade, _ in tokens) == 1
        assert sorted(float(share) for share, *_ in tokens if float(share))[-1] == pytest.approx(
            100 * parts.max(), abs=0.06
        )
    assert "&lt; a wheel &amp;" not in said  # each token stands alone
    assert {"&lt;", "&amp;"} <= {*re.findall(r"&\w+;", said)}


def test_the_table_of_a_batch_run(box, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("VSCODE_PID", raising=False)
    table = box.show(ONE)
    frame = box.split(ONE)[:5]
    assert table["cluster"].tolist() == frame["cluster"].tolist()
    assert table["share"].tolist() == frame["share"].round(4).tolist()
    assert table["in query"].tolist() == [token.replace(" ", "␣") for token in frame["query_token"]]
    for row in table.itertuples():
        assert row[-1] == box.ranking(ONE, [row.cluster])["document"][0]


def test_the_panel_answers_what_is_typed_chosen_and_switched_off(box, monkeypatch):
    monkeypatch.setenv("VSCODE_PID", "1")
    panel = box.show(ONE)
    assert isinstance(panel, widgets.VBox)
    text, document, off, answer = panel.children
    first = answer.value
    clusters = [cluster for _, cluster in off.options]
    assert clusters == box.split(ONE)["cluster"][:5].tolist()
    assert "before" not in first
    off.value = clusters[:2]
    without = answer.value
    assert "<th>before</th>" in without
    for cluster in clusters[:2]:
        assert f"<td>{cluster}</td>" in first.split("<table")[1]
        assert f"<td>{cluster}</td>" not in without.split("<table")[1].split("<td>")[1::5]
    assert box.marked(ONE, off=clusters[:2]) in without
    document.value = TEXTS[2]
    assert off.value == ()
    assert [cluster for _, cluster in off.options] == box.split(ONE, TEXTS[2])["cluster"][:5].tolist()
    assert box.marked(ONE, TEXTS[2]) in answer.value
    text.value = "<i>x</i>"
    assert "<i>" not in answer.value
    text.value = " "
    assert answer.value.startswith("text: expected a string that is not blank")
    assert off.options == ()
    text.value, document.value = ONE, "the first"
    assert answer.value == first


def test_a_text_is_read_once(model, monkeypatch):
    box, read = GlassBox(model, TEXTS), []
    whole = probes.lexicon_readings
    monkeypatch.setattr(probes, "lexicon_readings", lambda m, texts, i=None: read.extend(texts) or whole(m, texts, i))
    panel = box.panel(ONE)
    _, document, off, _ = panel.children
    document.value = TEXTS[1]
    off.value = [off.options[0][1]]
    box.table(ONE)
    assert read == [ONE]


def test_mistakes(box, model):
    with pytest.raises(UnknownNameError, match="document"):
        box.split(ONE, "Rain")
    for off in ([40], [-1]):
        with pytest.raises(InvalidValueError, match="off: expected numbers of clusters, 0 to 39"):
            box.ranking(ONE, off)
    for text in (" ", None, 3):
        with pytest.raises(InvalidValueError, match="text: expected a string that is not blank"):
            box.table(text)
    for documents in (TEXTS[0], TEXTS[:1], [TEXTS[0], TEXTS[0]], [TEXTS[0], " "]):
        with pytest.raises(InvalidValueError):
            GlassBox(model, documents)
    with pytest.raises(
        InvalidValueError, match=r"at least 3 that differ, .* got 2\. Give more, or leave above_mean out"
    ):
        GlassBox(model, TEXTS[:2], above_mean=True)
    assert len(GlassBox(model, TEXTS[:2]).ranking(ONE)) == 2
    with pytest.raises(InvalidValueError, match="shown"):
        GlassBox(model, TEXTS, shown=0)
    with pytest.raises(InvalidValueError, match=r"instruction \(prompt\): expected a string"):
        GlassBox(model, TEXTS, 3)
    with pytest.raises(InvalidValueError, match="a Decoder and a Lexicon"):
        GlassBox(build("mean", "tiny-llama", dtype="float32", device="cpu"), TEXTS)
