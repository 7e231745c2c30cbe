"""What notebook 04's own measurement counts, against the probe that shows it text by text."""

import numpy as np
import pytest

import workbook
from workbook import probes
from workbook.corpora.authored import instructions
from workbook.corpora.docs import load_docs
from workbook.experiments.lens import keywords
from workbook.scale import get_scale

SIZES = get_scale("quick").model_copy(update={"queries": 12, "max_length": 200})


@pytest.fixture(scope="module")
def model():
    return workbook.build("lens", "tiny-llama", pooling_options={"clusters": 40})


def of_order(rows, order):
    """The clusters that hold a token of each query, and the words that are shown."""
    rows = rows[rows["task"] == order].set_index("metric")
    return rows.loc["own", "outcomes"], rows.loc[["named"], "text"].tolist()


def test_keywords_counts_what_the_probe_shows(model):
    held, named = of_order(keywords(model, SIZES, top=6, shown=2), "heaviest")
    queries = load_docs().split("dev")["query"].head(12).tolist()
    [instruction] = instructions("docs").query("task == 'DocsRetrieval'")["instruction"]
    probed = probes.top_clusters(model, queries, instruction, top=6).groupby("text")["own"].sum()
    assert held.values.tolist() == probed.tolist()
    assert (held.items, held.score) == (12, pytest.approx(100 * probed.sum() / 72))
    assert probed.nunique() > 1
    assert [text.count("*") for text in named] == probed.tolist()[:2]


def test_telling_clusters_are_above_their_mean(model):
    held, _ = of_order(keywords(model, SIZES, top=3), "telling")
    queries = load_docs().split("dev")["query"].head(12).tolist()
    [instruction] = instructions("docs").query("task == 'DocsRetrieval'")["instruction"]
    weights = model.encode(queries, prompt=instruction)
    best = np.argsort(weights.mean(0) - weights, axis=1)[:, :3]
    ids = model[0].tokenizer(queries, add_special_tokens=False)["input_ids"]
    own = [{*model[1].clusters[row].tolist()} for row in ids]
    assert held.values.tolist() == [
        sum(cluster in one for cluster in row) for row, one in zip(best.tolist(), own, strict=True)
    ]
