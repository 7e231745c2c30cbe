"""The experiment of notebook 05 on layers: which states search, and how documents are grouped by second sinks."""

import numpy as np
import pytest

import workbook
from workbook import probes
from workbook.corpora.authored import instruction_of
from workbook.corpora.docs import load_docs
from workbook.experiments import get, layers
from workbook.scale import get_scale

SIZES = get_scale("quick").model_copy(update={"queries": 8, "max_length": 160})


@pytest.mark.filterwarnings("ignore:The contextual token")
def test_states_search_layer_by_layer_and_groups_make_up_the_whole(monkeypatch):
    # Length as torch has it, and a threshold low enough that some documents of a tiny model count as sinks.
    model = workbook.build("causal2vec", "tiny-llama", encoder_options={"length": "torch"})
    pairs = load_docs().split("test").head(SIZES.queries)
    with workbook.evaluation.run.cut_to(model, SIZES.max_length):
        norms = probes.contextual_norms(model, pairs["document"].tolist())
        ranks = probes.layer_ranks(
            model, pairs["query"].tolist(), pairs["document"].tolist(), instruction_of("DocsRetrieval")
        )
    middle = norms[norms["layer"] == (norms["layer"].max()) // 2]
    monkeypatch.setattr(probes.contextual, "SINK", (middle["context"] / middle["words"]).median())
    rows = layers.by_layer(model, SIZES)
    share = rows[rows["metric"] == "sink"]["score"].item()
    assert 20 < share < 80
    found = rows[rows["metric"] == "mrr"].set_index(["token", "layer", "documents"])["score"]
    assert {*found.index.unique("layer")} == {0, model[0].decoder.config.num_hidden_layers}
    for (token, layer), part in found.groupby(["token", "layer"]):
        by = part.droplevel([0, 1])
        assert by["all"] == pytest.approx((share * by["sinks"] + (100 - share) * by["others"]) / 100, abs=0.05)
        naive = ranks[(ranks["token"] == token) & (ranks["layer"] == layer)]["reciprocal_rank"]
        assert by["all"] == pytest.approx(100 * np.mean(naive), abs=0.05)


def test_the_arms_differ_in_length_and_training():
    short, long, trained, learned = get("05_layers").variants
    made = {one.name: one.chain("night", "smollm2-135m") for one in (short, long, trained)}
    assert made[long.name] == made[trained.name]
    assert made[short.name].encoder_options["length"] == "torch"
    assert made[long.name].encoder_options.get("length", "word") == "word"  # the default
    assert not short.seeded
    assert not long.seeded
    assert trained.seeded
    own = learned.chain("night", "smollm2-135m")
    assert (own.suffix, own.pooling_options["representation"]) == ("eos", "concat")
    assert own.encoder_options["length"] == "word"
    assert learned.trained_by("night", "smollm2-135m") != trained.trained_by("night", "smollm2-135m")
