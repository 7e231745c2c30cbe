"""The experiments of notebook 08: what is timed and counted, and what fewer bits and numbers do to a ranking."""

from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch

import workbook
from workbook.corpora.authored import instruction_of
from workbook.corpora.docs import load_docs
from workbook.evaluation.outcomes import Outcomes
from workbook.experiments import efficiency
from workbook.experiments.equal_budget import COMPARED
from workbook.scale import get_scale

SIZES = get_scale("quick").model_copy(update={"queries": 6, "documents": 12, "probe_texts": 4, "max_length": 160})


def test_every_method_reads_the_same_texts_and_a_kept_prefix_is_not_counted(monkeypatch):
    monkeypatch.setattr(efficiency, "TURNS", 1)
    model = workbook.build("mean", "smollm2-135m")
    rows = efficiency.in_turn(model, SIZES).assign(source="recorded")
    assert {*COMPARED} < {*rows["model"]}
    assert rows.groupby(["model", "side", "metric"]).size().eq(1).all()
    assert (rows["score"] > 0).all()
    queries, documents = (efficiency.prices(rows, "tokens", side).iloc[0] for side in ("queries", "documents"))
    for side in (queries, documents):
        assert side["causal2vec"] == side[efficiency.SAME_PROMPT] + 1 == side[efficiency.UNMASKED] + 1
        assert side["anchor"] == side[efficiency.SAME_CLOSE]
        assert side["echo"] > 2 * side["mean"] - 20
    # One instruction stands once in Echo, three examples in front of queries alone.
    assert documents["echo"] > 2 * documents["mean"]
    assert queries["icl"] > 3 * queries["last-token"]
    kept = {name.removesuffix(efficiency.KEPT) for name in queries.index if name.endswith(efficiency.KEPT)}
    assert kept == {one for one in COMPARED if workbook.METHODS[one].chain.attention == "causal"}
    bare = efficiency.models("smollm2-135m")
    texts = load_docs().split("test")
    texts = texts[texts["document"].str.split().str.len() <= 100].head(2)["query"].tolist()
    for name in kept:
        laid_out = bare[name][0].encode_texts(texts, instruction_of("DocsRetrieval"))
        saved = np.mean([one.prefix for one in laid_out])
        assert saved > 0
        assert queries[name] - queries[name + efficiency.KEPT] == pytest.approx(saved, rel=2e-3)


def test_prices_and_ratios_are_of_batches():
    rows = pd.DataFrame(
        {
            "source": "recorded",
            "metric": "milliseconds",
            "model": ["b", "a", "b", "a"],
            "side": ["queries", "queries", "documents", "documents"],
            "outcomes": [Outcomes.of_values(values, range(2)) for values in ([3, 4], [1, 2], [30, 44], [10, 20])],
        }
    )
    both = efficiency.prices(rows, "milliseconds")
    assert [*both] == ["b", "a"]
    assert both["a"].to_dict() == {("queries", 0): 1, ("queries", 1): 2, ("documents", 0): 10, ("documents", 1): 20}
    assert efficiency.prices(rows, "milliseconds", "queries")["b"].tolist() == [3, 4]
    found = efficiency.ratios(both, {"b of a": ("b", "a"), "itself": ("a", "a")}).set_index("label")
    assert found.loc["b of a", "score"] == pytest.approx((3 + 2 + 3 + 2.2) / 4)
    assert found.loc["b of a", "low"] < found.loc["b of a", "score"] < found.loc["b of a", "high"]
    assert found.loc["itself", ["score", "low", "high"]].tolist() == [1, 1, 1]


def test_forms_rank_with_fewer_bits_and_numbers_and_leave_the_model_alone():
    model = workbook.build("mean", "tiny-llama", dtype="float32")
    before = deepcopy(model.state_dict())
    rows = efficiency.forms(model, SIZES)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    ranks = rows[rows["metric"] == "mrr"].set_index(["weights", "form", "width"])
    dim = model.get_embedding_dimension()
    pairs = load_docs().split("test").head(SIZES.documents)
    model.max_seq_length = SIZES.max_length
    asked = model.encode(pairs["query"].head(SIZES.queries).tolist(), prompt=instruction_of("DocsRetrieval"))
    cosines = model.similarity(asked, model.encode(pairs["document"].tolist())).numpy()
    naive = [
        1 / (1 + sum(cosine >= row[at] for j, cosine in enumerate(row) if j != at)) for at, row in enumerate(cosines)
    ]
    whole = ranks.loc[("float32", "float32", dim)]
    assert whole["outcomes"].values == pytest.approx(100 * np.array(naive), rel=1e-3)
    assert whole["items"] == SIZES.queries
    assert whole["bytes"] == 4 * dim == 32 * ranks.loc[("float32", "binary", dim), "bytes"]
    assert {"INT8, stored", "INT8, dynamic"} < {*ranks.reset_index()["weights"]}
    about = rows[rows["metric"] == "milliseconds"].set_index("weights")
    assert about.loc["float32", "cosine"] == pytest.approx(1, abs=1e-5)
    assert 0.9 < about.loc["INT8, dynamic", "cosine"] < 1
    assert about.loc["INT8, stored", "megabytes"] < about.loc["float32", "megabytes"]
    seeds = pd.concat([rows.assign(source="recorded", seed=seed, trained=True) for seed in range(2)])
    found = efficiency.gaps(seeds).set_index(["weights", "form", "width"])
    assert found.loc[("float32", "float32", dim), ["points", "low", "high"]].tolist() == [0, 0, 0]
    binary = ranks.loc[("float32", "binary", dim), "outcomes"].values - whole["outcomes"].values
    assert found.loc[("float32", "binary", dim), "points"] == pytest.approx(binary.mean(), abs=0.01)
