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


def test_keywords_counts_what_the_probe_shows(model):
    rows = keywords(model, SIZES, top=6, shown=2).query("order == 'heaviest'")
    queries = load_docs().split("dev")["query"].head(12).tolist()
    [instruction] = instructions("docs").query("task == 'DocsRetrieval'")["instruction"]
    probed = probes.top_clusters(model, queries, instruction, top=6).groupby("text")["own"].sum()
    assert rows["correct"].tolist() == probed.tolist()
    assert probed.nunique() > 1
    stars = rows["named"].str.count(r"\*").tolist()
    assert stars == [*probed.tolist()[:2], *[0] * 10]


def test_telling_clusters_are_above_their_mean(model):
    rows = keywords(model, SIZES, top=3).query("order == 'telling'")
    queries = load_docs().split("dev")["query"].head(12).tolist()
    [instruction] = instructions("docs").query("task == 'DocsRetrieval'")["instruction"]
    weights = model.encode(queries, prompt=instruction)
    best = np.argsort(weights.mean(0) - weights, axis=1)[:, :3]
    ids = model[0].tokenizer(queries, add_special_tokens=False)["input_ids"]
    own = [{*model[1].clusters[row].tolist()} for row in ids]
    assert rows["correct"].tolist() == [
        sum(cluster in held for cluster in row) for row, held in zip(best.tolist(), own, strict=True)
    ]
