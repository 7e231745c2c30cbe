"""What the experiments of notebook 02 measure, on a tiny backbone."""

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import workbook
from workbook import evaluation, probes
from workbook.corpora import tables
from workbook.corpora.authored import future_tokens
from workbook.corpora.roles import load_roles
from workbook.evaluation import effect, offline
from workbook.evaluation.outcomes import Outcomes
from workbook.experiments import llm2vec
from workbook.experiments.suite import curve, read_once
from workbook.objectives.mntp import MNTP, mask_tokens
from workbook.scale import get_scale

SIZES = get_scale("quick").model_copy(update={"max_length": 200, "queries": 8, "documents": 12, "texts": 12})


@pytest.fixture(scope="module")
def model():
    return workbook.build("llm2vec", "tiny-llama")


def test_by_pooling_gives_what_each_pooling_gives_by_itself(model):
    rows = llm2vec.by_pooling(model, SIZES)
    assert rows["pooling"].dropna().unique().tolist() == list(llm2vec.POOLINGS)
    for pooling, template in (("mean", "plain"), ("weighted_mean", "plain"), ("last_token", "eos")):
        alone = workbook.build("mean", "tiny-llama", attention="bidirectional", pooling=pooling, template=template)
        scores = evaluation.evaluate(alone, scale=SIZES, instructions="docs", progress=False)
        ours = rows[(rows["pooling"] == pooling.replace("_", "-")) & (rows["metric"] == "score")]
        assert ours["task"].tolist() == scores["task"].tolist()
        assert ours["score"].tolist() == pytest.approx(scores["score"].tolist(), abs=1e-3)
        assert all(one.reproduces_score() for one in ours["outcomes"])
    losses = rows[rows["metric"] == "loss"]
    assert losses["pooling"].tolist() == list(llm2vec.POOLINGS)


def test_the_best_pooling_is_chosen_on_each_suite():
    suites = {suite: evaluation.SUITES[suite].tasks for suite in evaluation.OFFLINE_SUITES}
    heights = {("mean", "docs"): 40, ("mean", "other"): 60, ("last-token", "docs"): 50, ("last-token", "other"): 30}
    frame = pd.DataFrame(
        [
            {"variant": "Uni", "pooling": pooling, "task": task, "score": level,
             "outcomes": Outcomes.of_values([level - 1, level + 1], "ab")}
            for (pooling, suite), level in heights.items()
            for task in suites[suite]
        ]
    ).assign(source="recorded", seed=0, trained=False)  # fmt: skip
    wanted = {"best": ("Uni", "best"), "mean": ("Uni", "mean"), "absent": ("Bi", "best")}
    found = llm2vec.pooled(frame, wanted)
    assert [*found] == ["best", "mean"]
    levels = {
        (name, suite): effect({name: 1.0}, {name: one.on(tasks)}).value
        for name, one in found.items()
        for suite, tasks in suites.items()
    }
    assert levels == {("best", "docs"): 50, ("best", "other"): 60, ("mean", "docs"): 40, ("mean", "other"): 60}


def test_a_second_pooling_of_the_same_texts_costs_no_second_reading(model):
    decoder, calls = model[0].decoder, []
    handle = decoder.layers[0].register_forward_hook(lambda *_: calls.append(1))
    before = decoder.forward
    try:
        with read_once(decoder):
            first = model.encode(["a text", "another one"])
            once = len(calls)
            weighted = workbook.build("weighted-mean", model, attention="bidirectional")
            built = len(calls)
            second = weighted.encode(["a text", "another one"])
            assert len(calls) == built
    finally:
        handle.remove()
    assert once > 0
    assert not np.allclose(first, second)
    assert decoder.forward == before
    np.testing.assert_array_equal(weighted.encode(["a text", "another one"]), second)


@pytest.mark.parametrize(("measure", "shifted"), [(llm2vec.words, False), (llm2vec.shifted_words, True)])
def test_words_are_counted_by_sentence(model, measure, shifted):
    [row] = measure(model, SIZES).itertuples()
    roles = load_roles()
    scored = probes.word_probe(model, roles.split("train")[:48], roles.split("test")[:24], shifted=shifted)
    assert row.score == pytest.approx(100 * scored["correct"].mean())
    by_sentence = scored.groupby("sentence")["correct"].agg(["sum", "size"])
    assert row.outcomes.values.tolist() == by_sentence["sum"].tolist()
    assert row.outcomes.gold.tolist() == by_sentence["size"].tolist()
    assert (row.items, row.outcomes.statistic) == (len(by_sentence), "ratio")


def test_inside_holds_the_prefix_test_and_the_layers(model):
    rows = llm2vec.inside(model, SIZES).set_index("task")
    expected = probes.prefix_test(model, future_tokens())
    for task, column, factor in (("prefix", "correct", 100), ("margin", "margin", 1)):
        assert rows.loc[task, "outcomes"].values.tolist() == pytest.approx(expected[column].tolist(), abs=1e-6)
        assert rows.loc[task, "score"] == pytest.approx(factor * expected[column].mean(), abs=1e-4)
    layers = rows.loc["layer"]
    moved = probes.layer_cosine(model, llm2vec.paragraphs(SIZES)).query("position > 0 and layer > 0")
    each = moved.groupby(["layer", "text"])[["cosine", "control"]].mean().groupby("layer").mean()
    depth = model[0].decoder.config.num_hidden_layers
    assert layers["layer"].tolist() == each.index.tolist() == list(range(1, depth + 1))
    np.testing.assert_allclose(layers[["score", "control"]].to_numpy(float), each.to_numpy(), atol=1e-6)


def test_the_same_tokens_are_hidden_from_every_model(model):
    found, texts = llm2vec.hidden_tokens(model, SIZES), llm2vec.paragraphs(SIZES)
    objective = MNTP(model)
    head, draws = objective.projection()[0], torch.Generator().manual_seed(0)
    with torch.no_grad():
        for text, loss in zip(texts, found.values, strict=True):
            features = model.preprocess([text])
            ids, labels = mask_tokens(
                features["input_ids"], objective.maskable(features), generator=draws,
                mask_token_id=model.tokenizer.convert_tokens_to_ids("_"), vocabulary=len(model.tokenizer),
            )  # fmt: skip
            states, [places] = model({**features, "input_ids": ids})["token_embeddings"][0], labels[0:1] != -100
            logits = states[places.nonzero().flatten() - 1].float() @ head.float().T
            assert loss == pytest.approx(F.cross_entropy(logits, labels[0][places]).item(), rel=1e-4)
    assert found.items == len(texts)
    assert (llm2vec.hidden_tokens(model, SIZES).values == found.values).all()


def test_layers_are_compared_on_paragraphs_as_in_notebook_01():
    texts = llm2vec.paragraphs(SIZES)
    assert len(texts) == SIZES.probe_texts
    assert all(25 <= len(text.split()) <= 35 for text in texts)


def test_the_watch_measures_retrieval_and_similarity(model):
    evaluator = llm2vec.retrieval_and_sts(SIZES)
    kept = curve(pd.DataFrame([evaluator.measure(model) | {"step": 0, "tokens": 0}])).set_index("task")
    assert kept.index.tolist() == ["retrieval", "sts"]
    few = SIZES.model_copy(update={"queries": 4, "documents": 6, "pairs": 100})
    alone = evaluation.evaluate(model, ["DocsRetrieval", "ParaphraseLadder"], scale=few, instructions="docs")
    assert kept["score"].tolist() == pytest.approx(alone["score"].tolist())
    assert [one.items for one in kept["outcomes"]] == alone["items"].tolist()
    assert evaluator.every == 2


@pytest.mark.parametrize("experiment", llm2vec.EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_experiments_say_what_they_measure_on(experiment, model, monkeypatch):
    """What is opened below data/, and the corpora that are loaded, are those declared: else no record goes stale."""
    opened = set()

    def spied(name, true):
        def spy(*parts):
            opened.add(name or "/".join(parts))
            return true(*parts)

        return spy

    monkeypatch.setattr(tables, "data_path", spied("", tables.data_path))
    monkeypatch.setattr(offline, "load_docs", spied("docs", offline.load_docs))
    monkeypatch.setattr(llm2vec, "load_docs", spied("docs", llm2vec.load_docs))
    monkeypatch.setattr(llm2vec, "load_roles", spied("roles", llm2vec.load_roles))
    experiment.measure(model, SIZES) if experiment.measure else experiment.evaluator(SIZES).measure(model)
    assert opened == set(experiment.inputs)
