"""What notebook 04's own measurement counts, against the probe that shows it text by text."""

import pytest

import workbook
from workbook import papers, probes
from workbook.corpora.authored import instruction_of
from workbook.corpora.docs import load_docs
from workbook.errors import UnknownNameError
from workbook.evaluation.run import cut_to
from workbook.experiments.lens import CONTENT, keywords, published_gaps
from workbook.experiments.suite import held_out_loss
from workbook.scale import get_scale

SIZES = get_scale("quick").model_copy(update={"queries": 12, "max_length": 200})


def test_keywords_counts_what_the_probe_shows():
    model = workbook.build("lens", "tiny-llama", pooling_options={"clusters": 40})
    rows = keywords(model, SIZES, top=6, shown=2)
    queries = load_docs().split("dev")["query"].head(12).tolist()
    shown = probes.keyword_kinds(model, queries, instruction_of("DocsRetrieval"), top=6)
    counted = rows[rows["metric"] == "kind"].set_index("task")
    for kind in probes.KEYWORD_KINDS:
        own = [int((shown.loc[shown["text"] == text, "kind"] == kind).sum()) for text in range(12)]
        assert counted.loc[kind, "outcomes"].values.tolist() == own
        assert (counted.loc[kind, "items"], counted.loc[kind, "score"]) == (12, pytest.approx(100 * sum(own) / 72))
    assert counted.loc[[*probes.KEYWORD_KINDS], "score"].sum() == pytest.approx(100)
    both = counted.loc[["own content word", "expansion"], "score"].sum()
    assert counted.loc[CONTENT, "score"] == pytest.approx(both)
    [loss] = rows.loc[rows["metric"] == "loss", "outcomes"]
    with cut_to(model, SIZES.max_length):
        assert loss.score == held_out_loss(model).score
    texts = rows[rows["metric"] == "named"]
    assert texts["items"].tolist() == [0, 1]
    for text, named in zip(texts["items"], texts["text"], strict=True):
        kinds = shown.loc[shown["text"] == text, "kind"]
        assert named.count("*") >= (kinds == "own content word").sum()  # a name may hold a star, too
        assert len(named.split()) >= len(kinds)


def test_published_gaps_are_those_of_the_tables():
    """Tables 2 and 6 by hand; table 9 by its rows."""
    tables = {name: papers.published(f"lens-{name}") for name in ("mteb", "datasets", "air-bench", "hybrid")}
    rows = published_gaps(tables, {"SICK-trial": "SICK-R"}).set_index("label")
    scores = tables["datasets"].query("task == 'SICK-R'").set_index("model")["score"]
    gaps = [scores[f"LENS-{k}"] - scores["BGE-en-ICL"] for k in (4000, 8000)]
    assert rows.loc["lexicon - dense: SICK-trial", ["paper_low", "paper_high"]].tolist() == pytest.approx(sorted(gaps))
    assert rows.loc["lexicon - dense: AIR-Bench", "paper_low"] == pytest.approx(50.28 - 52.93)
    assert rows.loc["lexicon - dense: AIR-Bench", "paper_high"] == pytest.approx(52.75 - 52.93)
    assert rows.loc["both - lexicon: Retrieval", "paper_low"] == pytest.approx(63.00 - 61.86)
    assert rows.loc["both - dense: Retrieval", "paper_high"] == pytest.approx(63.00 - 61.67)
    assert (rows["paper_low"] <= rows["paper_high"]).all()
    with pytest.raises(UnknownNameError, match="table 9"):
        published_gaps(tables, {"SICK-trial": "no such set"})
