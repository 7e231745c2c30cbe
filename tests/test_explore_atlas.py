"""The panel of the atlas, without a browser."""

import pandas as pd
import pytest

from workbook import papers, probes
from workbook.backbones import load_tokenizer
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.explore import AtlasExplorer, atlas
from workbook.probes import heads
from workbook.vocabulary.clusters import clusters_of

PRINTED = pd.DataFrame(
    [(7, "c"), (7, "a"), (7, "b"), (3, "x"), (3, "y"), (5, "quickly"), (5, "rapid")], columns=["cluster", "token"]
)
"""Letters, which are tokens of the tiny backbone, and words, which are none."""


@pytest.fixture
def explorer():
    return AtlasExplorer("tiny-llama", PRINTED, rows=(64, 8))


def test_scores_are_those_of_the_printed_pairs(explorer):
    assert explorer.rows == [8, 64]
    table = explorer.show()
    assert table["k"].tolist() == [8, 64]
    assert table["pairs"].tolist() == [3 + 1] * 2
    tokenizer = load_tokenizer("tiny-llama")
    for k in explorer.rows:
        made = clusters_of("tiny-llama", k)
        owner = {word: made.assignment[tokenizer.convert_tokens_to_ids(word)].item() for word in "abcxy"}
        together = [float(owner[one] == owner[other]) for one, other in ("ca", "cb", "ab", "xy")]
        scores = explorer.scores(k)
        assert scores["printed"].tolist() == ["c", "x"]
        assert scores["pairs"].tolist() == [3, 1]
        assert scores["together"].tolist() == pytest.approx([sum(together[:3]) / 3, together[3]])
        found = table[table["k"] == k].iloc[0]
        assert found["together"] == pytest.approx(sum(together) / 4, abs=1e-4)
        expected = probes.printed_pairs(made.assignment, tokenizer, PRINTED).query("pairs > 0")
        assert found["chance"] == pytest.approx(expected["chance"].mean(), abs=1e-4)
        assert explorer.map(k).equals(probes.cluster_map(made, tokenizer, PRINTED))
    assert table["chance"].is_monotonic_decreasing


def test_words_that_share_every_cluster_score_one(explorer, monkeypatch):
    made = clusters_of("tiny-llama", 8)
    one = made.__class__(**{**vars(made), "assignment": made.assignment * 0})
    monkeypatch.setattr(explorer.heads, "clusters", lambda k: one)
    assert explorer.table()["together"].tolist() == [1, 1]


def test_what_was_computed_is_kept(explorer, monkeypatch):
    made, drawn = [], []
    clusters, mapped = heads.clusters_of, probes.cluster_map
    monkeypatch.setattr(heads, "clusters_of", lambda *given, **own: made.append(given) or clusters(*given, **own))
    monkeypatch.setattr(probes, "cluster_map", lambda *given: drawn.append(len(given[0])) or mapped(*given))
    explorer.table()
    assert (made, drawn) == ([("tiny-llama", 8), ("tiny-llama", 64)], [])
    slider, _ = explorer.panel().children
    for k in (64, 8, 64):
        slider.value = k
    assert (len(made), drawn) == (2, [8, 64])


def test_the_panel_answers_what_is_chosen(explorer):
    slider, line = explorer.panel().children
    assert (slider.options, slider.value) == ((8, 64), 8)
    said = line.value
    assert 'alt="map of 8 clusters"' in said
    assert "<td>c</td>" in said
    slider.value = 64
    assert 'alt="map of 64 clusters"' in line.value
    slider.value = 8
    assert line.value == said


def test_the_papers_clusters_are_the_default():
    explorer = AtlasExplorer("tiny-llama", rows=[8])
    assert explorer.printed.equals(papers.published("lens_clusters"))
    assert explorer.table()["pairs"].tolist() == [0]  # this backbone has no words


def test_bad_input():
    for rows in ([3], [10**6], [8.5]):
        with pytest.raises(InvalidValueError, match="rows: expected a whole number"):
            AtlasExplorer("tiny-llama", rows=rows)
    with pytest.raises(InvalidValueError, match="rows: expected at least one number of clusters"):
        AtlasExplorer("tiny-llama", rows=[])
    assert AtlasExplorer("tiny-llama").rows == [32]  # an eighth of a vocabulary too small for the usual numbers
    with pytest.raises(UnknownNameError):
        AtlasExplorer("no-such-model", rows=[8])
    with pytest.raises(InvalidValueError, match="printed: expected a frame with the columns cluster and token"):
        AtlasExplorer("tiny-llama", PRINTED.drop(columns="token"), [8]).table()


def test_the_papers_own_number_is_offered_once_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    monkeypatch.setattr(atlas, "ROWS", (8,))
    monkeypatch.setattr(atlas, "PRINTED", 24)

    def offered():
        explorer = AtlasExplorer("tiny-llama")
        assert explorer.table()["k"].tolist() == [8]  # the same on every machine
        return [*explorer.panel().children[0].options]

    assert offered() == [8]
    clusters_of("tiny-llama", 24)
    assert offered() == [8, 24]
    monkeypatch.setattr(atlas, "PRINTED", 400)  # more than half of this vocabulary
    assert offered() == [8]
