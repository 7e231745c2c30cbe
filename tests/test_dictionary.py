"""The dictionary laboratory: its instruments against naive second computations, its panel, its experiment."""

from dataclasses import replace

import ipywidgets as widgets
import numpy as np
import pandas as pd
import pytest
import torch
from training_tools import stage, tiny, trained

from workbook import build, experiments, probes
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.evaluation import SUITES
from workbook.evaluation.run import cut_to
from workbook.experiments import Record, dictionary
from workbook.experiments.suite import held_out_loss
from workbook.explore import DictionaryLab
from workbook.modules import LatentAttention
from workbook.modules.attention_pooling import PUBLISHED, from_published
from workbook.scale import SCALES
from workbook.training import Trained

TEXTS = ["Rain is due tonight.", "The bakery opens at six.", "Her bicycle has a flat tyre.", "Copper conducts heat."]
ONE = "A storm is on its way."
INSTRUCTION = "Find the note"


def filled(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return module


@pytest.fixture
def model():
    options = {"latents": 6, "heads": 2, "head_dimension": 8}
    made = build("nv-embed", "tiny-llama", pooling_options=options, dtype="float32", device="cpu")
    filled(made[1])
    return made


@torch.no_grad()
def attention_of(model, text, instruction=None):
    """(heads, tokens, latents), of pooled tokens: queries and keys written out."""
    features = model[0](model[0].preprocess([text], instruction))
    block, size = model[1], model[1].head_dimension
    keys = block.to_kv(block.context_norm(block.dictionary))[:, : 2 * size]
    queries = block.to_q(block.query_norm(features["token_embeddings"][0][features["pooling_mask"][0].bool()]))
    heads = [slice(head * size, (head + 1) * size) for head in range(block.heads)]
    return torch.stack([(queries[:, own] @ keys[:, own].T / size**0.5).softmax(-1) for own in heads]).double().numpy()


# Instruments


@pytest.mark.parametrize("instruction", [None, INSTRUCTION])
def test_perplexity_against_a_naive_loop(model, instruction):
    found = probes.perplexity(model, TEXTS, instruction)
    by_head = [[], []]
    for text in TEXTS:
        for head, tokens in enumerate(attention_of(model, text, instruction)):
            by_head[head] += [-sum(p * np.log(p) for p in row) for row in tokens]
    np.testing.assert_allclose(found, np.exp([np.mean(one) for one in by_head]), rtol=1e-4)
    assert ((found > 1) & (found < 6)).all()
    with torch.no_grad():
        model[1].to_q.weight.zero_()
    np.testing.assert_allclose(probes.perplexity(model, TEXTS), 6, rtol=1e-5)


def test_top_tokens_against_a_naive_loop(model):
    found = probes.top_tokens(model, TEXTS, 1, 4, INSTRUCTION, top=7)
    rows = []
    for index, text in enumerate(TEXTS):
        features = model[0].preprocess([text], INSTRUCTION)
        places = features["pooling_mask"][0].nonzero().flatten().tolist()
        for place, weight in zip(places, attention_of(model, text, INSTRUCTION)[1, :, 4], strict=True):
            rows.append((weight, index, place, model.tokenizer.decode([int(features["input_ids"][0, place])])))
    rows.sort(key=lambda row: -row[0])
    np.testing.assert_allclose(found["attention"], [row[0] for row in rows[:7]], atol=1e-5)
    assert found[["text", "position", "token"]].to_numpy().tolist() == [list(row[1:]) for row in rows[:7]]
    for head, latent in ((2, 0), (0, 6)):
        with pytest.raises(InvalidValueError):
            probes.top_tokens(model, TEXTS, head, latent)


def test_dead_latents_are_those_that_hardly_any_token_reads(model):
    attention = np.full((3, 2, 4), 0.3)
    attention[:, 0, 1] = [0.0, 0.01, 0.06]  # a mean of 0.023, where equal shares are 0.25
    attention[:, 1, 2] = [0.0, 0.0, 0.09]
    assert probes.dead(attention).tolist() == [[False, True, False, False], [False] * 4]
    assert probes.dead(attention, below=0.13).sum() == 2
    assert not probes.dead(probes.latent_attention(model, TEXTS), below=1e-9).any()


def test_movement_and_influence(model):
    other = filled(LatentAttention(32, latents=6, heads=2, head_dimension=8))
    assert probes.movement(model[1], other) == (0.0, 0.0)
    with torch.no_grad():
        other.dictionary[2, 3] += 0.75
        other.dictionary[0, 0] -= 0.25
    relative, largest = probes.movement(model[1], other)
    assert largest == pytest.approx(0.75)
    before = model[1].dictionary.detach().double().norm()
    assert relative == pytest.approx(float((0.75**2 + 0.25**2) ** 0.5 / before), rel=1e-5)
    with pytest.raises(InvalidValueError, match=r"a dictionary \(6, 32\)"):
        probes.movement(model[1], LatentAttention(32, latents=5))
    found = probes.influence(model, TEXTS)
    attention = np.mean([attention_of(model, text).mean(axis=1) for text in TEXTS], axis=0)
    values = model[1].to_kv(model[1].context_norm(model[1].dictionary))[:, 16:]
    for head in range(2):
        own = slice(8 * head, 8 * head + 8)
        lengths = (values[:, own] @ model[1].to_out.weight[:, own].T).norm(dim=1).detach().numpy()
        np.testing.assert_allclose(found[head], attention[head] * lengths, rtol=1e-4)


def test_silencing_gives_what_a_measurement_loses(model):
    def measure(one):
        return float(one.encode(TEXTS[:1])[0, 0])

    everything = [(head, latent) for head in range(2) for latent in range(6)]
    found = probes.silencing(model, [[], [(1, 3)], everything], measure)
    assert found["change"].iloc[0] == 0
    assert found["change"].iloc[1] != 0
    np.testing.assert_allclose(found["value"] - found["change"], measure(model))
    alone = LatentAttention(32, latents=0)
    alone.load_state_dict({name: value for name, value in model[1].state_dict().items() if name.startswith("mlp")})
    model[1] = alone
    assert found["value"].iloc[2] == pytest.approx(measure(model), abs=1e-5)
    with pytest.raises(InvalidValueError, match="a LatentAttention with latents"):
        probes.silencing(model, [[]], measure)


def test_the_dictionary_moves_less_than_adams_bound(own):
    """At every step of a real training, and not at all before the projection behind it has left 0."""
    far = []
    for steps in (1, 2, 5, 20):
        start = tiny("nv-embed", pooling_options={"latents": 8, "heads": 2})
        before = build("mean", start, pooling="latent_attention", attention="bidirectional",
                       pooling_options={"latents": 8, "heads": 2})  # fmt: skip
        one = stage(own, "contrastive", adapter=None, frozen=True, steps=steps, warmup_steps=1, decay_steps=40)
        done = trained(one, model=start)
        far.append(probes.movement(before[1], done.model[1])[1])
        assert far[-1] <= probes.adam_bound(done.history["learning_rate"].iloc[1:]) * (1 + 1e-3)
    assert far[0] == 0 < far[1] < far[2] < far[3]


def test_instruments_read_published_weights_too(model):
    ours = {name: layer for layer, name in PUBLISHED.items()}
    prefix, checkpoint = "latent_attention_model.", {}
    for name, value in model[1].state_dict().items():
        layer, _, kind = name.rpartition(".")
        checkpoint[f"{prefix}{ours[layer]}.{kind}" if layer else f"{prefix}latents"] = value
    expected = DictionaryLab(model, TEXTS).table(ONE)
    model[1] = from_published(checkpoint, heads=2)
    assert DictionaryLab(model, TEXTS).table(ONE).equals(expected)


# The panel


@pytest.fixture
def lab(model):
    return DictionaryLab(model, [*TEXTS, TEXTS[0]], INSTRUCTION, latents=5)


def test_the_lab_shows_the_latents_that_add_most(lab, model):
    added = probes.influence(model, TEXTS)
    assert [added[place] for place in lab.latents.values()] == sorted(added.ravel(), reverse=True)[:5]
    view = lab.view(ONE)
    expected = attention_of(model, ONE, INSTRUCTION)
    assert view.shape == (expected.shape[1], 5)
    for name, (head, latent) in lab.latents.items():
        assert name == f"{head}.{latent}"
        np.testing.assert_allclose(view[name], expected[head, :, latent], atol=1e-5)


def test_the_ranking_is_that_of_the_model_with_and_without_latents(lab, model):
    def cosines():
        query, documents = model.encode([ONE], prompt=INSTRUCTION), model.encode(TEXTS)
        return (query @ documents.T)[0]  # of length 1

    before = cosines()
    ranked = lab.ranking(ONE)
    assert ranked["document"].tolist() == [TEXTS[place] for place in np.argsort(-before)]
    assert ranked["rank"].tolist() == ranked["before"].tolist() == [1, 2, 3, 4]
    assert (ranked["change"] == 0).all()
    names = [*lab.latents][:3]
    with model[1].silenced([lab.latents[name] for name in names]):
        after = cosines()
    ranked = lab.ranking(ONE, names).set_index("document").loc[TEXTS]
    np.testing.assert_allclose(ranked["score"], after, atol=1e-5)
    np.testing.assert_allclose(ranked["change"], after - before, atol=1e-5)
    assert np.abs(after - before).max() > 1e-3
    assert ranked["rank"].tolist() == (np.argsort(np.argsort(-after)) + 1).tolist()
    np.testing.assert_array_equal(cosines(), before)


def test_the_table_and_the_panel(lab, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("VSCODE_PID", raising=False)
    table = lab.show(ONE)
    assert table["latent"].tolist() == [*lab.latents]
    for row in table.itertuples():
        ranked = lab.ranking(ONE, [row.latent])
        assert row.nearest == ranked["document"][0]
        assert abs(row.change) == pytest.approx(ranked["change"].abs().max(), abs=6e-5)
        assert row.tokens == ", ".join(map(repr, lab.tokens(row.latent, 3)["token"]))
    monkeypatch.setenv("VSCODE_PID", "1")
    panel = lab.show(ONE)
    assert isinstance(panel, widgets.VBox)
    text, silenced, answer = panel.children
    whole = answer.value
    assert "without" not in whole
    assert whole.count("<img") == 1
    silenced.value = [*lab.latents][2]
    assert f"without {silenced.value}" in answer.value
    text.value = " "
    assert answer.value.startswith("text: expected a string that is not blank")
    silenced.value, text.value = "none", ONE
    assert answer.value == whole


def test_mistakes(lab, model):
    with pytest.raises(UnknownNameError, match="latent"):
        lab.ranking(ONE, ["9.99"])
    for documents in (TEXTS[0], TEXTS[:1], [TEXTS[0], TEXTS[0]], [TEXTS[0], " "]):
        with pytest.raises(InvalidValueError):
            DictionaryLab(model, documents)
    with pytest.raises(InvalidValueError, match="latents"):
        DictionaryLab(model, TEXTS, latents=0)
    plain = build("mean", "tiny-llama", dtype="float32", device="cpu")
    with pytest.raises(InvalidValueError, match="a LatentAttention with latents"):
        DictionaryLab(plain, TEXTS)


# The experiment


def test_variants_differ_in_one_thing():
    found = {one.name: one for one in experiments.get("03_dictionary").variants}
    for latents in dictionary.LATENTS:
        one, other = found[dictionary.trained(latents)], found[dictionary.random(latents)]
        assert other.options["pooling_options"] == one.options["pooling_options"] | {"train_dictionary": False}
    assert all(one.start_from == dictionary.DECODER for one in found.values())
    assert not found["mean"].stages
    size = {}
    for name in ("mean + wider MLP", dictionary.trained(512), "mean + MLP"):
        chain = found[name].chain("night", "smollm2-135m")
        size[name] = sum(p.numel() for p in LatentAttention(576, **chain.pooling_options).parameters())
    assert size["mean + wider MLP"] > size[dictionary.trained(512)] > size["mean + MLP"]


def test_the_second_laboratory_differs_in_the_decoder_and_the_steps():
    first, second = (experiments.get(name) for name in ("03_dictionary", "03_released"))
    assert second.measures_like(first)
    without = "dictionary without MLP, 64"
    random, learned = second.variant(f"random {without}"), second.variant(without)
    drawn = {"pooling_options": learned.options["pooling_options"] | {"train_dictionary": False}}
    assert random == replace(learned, name=random.name, options=learned.options | drawn)
    for one in second.variants:
        if one is random:
            continue
        other = first.variant(one.name)
        assert (one.start_from, one.start_seed, one.options, one.stages) == (None, None, other.options, other.stages)
        for scale in SCALES:
            long, short = (variant.trained_by(scale, "smollm2-135m").stages for variant in (one, other))
            for more, less in zip(long, short, strict=True):
                times = 4 if scale in ("quick", "cpu", "night") else 1
                steps = {name: times * getattr(less, name) for name in ("steps", "warmup_steps")}
                assert more == less.model_copy(update=steps)


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_trains_the_pooling_alone(scale):
    variant = experiments.get("03_dictionary").variant(dictionary.trained(64))
    (one,) = variant.trained_by(scale, "smollm2-135m").stages
    assert (one.frozen, one.adapter, one.compiled) == (True, None, False)
    assert [one.name for one in dictionary.DECODER.trained_by(scale, "smollm2-135m").stages] == ["contrastive"]


@pytest.mark.journey
def test_a_cell_holds_what_the_instruments_say(model, docs, own):
    """On a small model; the look-up, dead latents and losses are found a second time."""
    sizes = SCALES["quick"].model_copy(update={"probe_texts": 3, "max_length": 300})
    built = build("mean", model, pooling="latent_attention", attention="bidirectional", template="nv-embed",
                  pooling_options={"latents": 6, "heads": 2, "head_dimension": 8})  # fmt: skip
    history = pd.DataFrame({"learning_rate": [0.1, 0.2, 0.3]})
    rows = dictionary.inside(built, Trained(model, history, pd.DataFrame(), {}), sizes).set_index(["metric", "task"])
    texts = docs.split("test")["document"].head(3).tolist()
    count = sum(p.numel() for p in model[1].parameters())
    assert rows.loc["parameters", "score"].tolist() == [count, count]
    moved = rows.loc["movement", "score"]
    assert moved["bound"] == pytest.approx(0.5)
    assert (moved["relative"], moved["largest"]) == probes.movement(built[1], model[1])
    with cut_to(model, 300):
        for when, one in (("before", built), ("after", model)):
            spread = rows.loc[("perplexity", when)].sort_values("head")["score"]
            np.testing.assert_allclose(spread, probes.perplexity(one, texts), rtol=1e-4)
            dead = probes.dead(probes.latent_attention(one, texts))
            assert rows.loc[("dead", when), "score"].item() == pytest.approx(100 * dead.mean())
        silenced = rows.loc["silenced"]
        assert silenced.index.value_counts().to_dict() == {"latent": 8, "head": 2, "all": 1}
        most = silenced.loc["latent"].iloc[0]
        with model[1].silenced([(int(most["head"]), int(most["latent"]))]):
            again = held_out_loss(model, batches=1)
    np.testing.assert_allclose(most["outcomes"].values, again.values, rtol=1e-3, atol=1e-4)
    assert (most["score"], most["items"]) == (pytest.approx(again.score, rel=1e-3), 32)
    without = dictionary.inside(built, Trained(build("mean", "tiny-llama"), history, pd.DataFrame(), {}), sizes)
    assert without["metric"].tolist() == ["parameters", "parameters"]


def test_the_latent_of_praise_is_chosen_on_other_reviews(model, monkeypatch):
    texts = dictionary.reviews()
    praise, known = texts["label"] == "positive", texts["split"] == "train"
    read = np.random.default_rng(0).uniform(0, 0.01, size=(len(texts), 2, 6))
    read[:, 1, 4] += np.where(praise & known, 0.5, 0) + np.where(praise & ~known, 0.002, 0)
    read[:, 0, 2] += np.where(praise & ~known, 0.9, 0)  # plain on the reviews that may not choose
    monkeypatch.setattr(probes, "latent_attention", lambda *_: read)
    sizes = SCALES["quick"].model_copy(update={"max_length": 300})
    rows = dictionary.praised(model, sizes).set_index("metric")
    part = read[~known, 1, 4] * 1000
    by_hand = part[praise[~known]].mean() - part[~praise[~known]].mean()
    assert rows.loc["attention", "score"] == pytest.approx(by_hand)
    assert rows.loc["attention", "items"] == (~known).sum() == 256
    assert rows.loc["attention", "outcomes"].values.mean() == pytest.approx(by_hand, rel=1e-2)
    assert rows.loc["latents", "score"] >= 1
    assert rows.loc["loss", "items"] == 32


@pytest.mark.parametrize("name", ["03_dictionary", "03_released"])
def test_figures_of_a_laboratory_are_differences_of_its_means(name):
    rows = Record(experiments.get(name), "night").load().assign(source="night")
    gains, apart = (made(rows).set_index(["label", "panel"])["effect"] for made in (dictionary.gains, dictionary.apart))
    without, linear = "dictionary without MLP, 64", "mean + linear"
    score = rows[rows["metric"] == "score"].set_index(["variant", "task"])["score"].sort_index()
    for suite in ("docs", "other"):
        tasks = list(SUITES[suite].tasks)
        by_hand = score.loc[linear].loc[tasks].mean() - score.loc["mean"].loc[tasks].mean()
        assert gains[f"{linear} - mean", suite] == pytest.approx(by_hand, abs=1e-2)
    loss = rows[rows["metric"] == "loss"].groupby("variant")["score"].mean()
    by_hand = loss[without] - loss[linear]
    assert apart["dictionary without MLP, 64 - linear", "loss"] == pytest.approx(by_hand, abs=1e-3)
    silent = rows[(rows["metric"] == "silenced") & (rows["task"] == "all")].groupby("variant")["score"].mean()
    assert apart[f"{without}, silenced", "loss"] == pytest.approx(silent[without] - loss[without], abs=1e-3)
    table = dictionary.instruments(pd.concat([rows, rows.assign(source="this run", score=0.0)]))
    np.testing.assert_allclose(table["loss", "held-out pairs"], loss[table.index], err_msg="the record's alone")
    assert table.loc[without, ("dead", "before")] == 0 < table.loc[without, ("movement", "largest")]
    changes = []
    for _, one in rows[rows["variant"] == without].groupby("seed"):
        added_most = one[(one["metric"] == "silenced") & (one["task"] == "latent")]["score"].iloc[0]
        changes.append(added_most - one[one["metric"] == "loss"]["score"].item())
    assert apart[f"{without}, strongest silenced", "loss"] == pytest.approx(np.mean(changes), abs=1e-3)
    assert not any(f", {latents} " in label for label, _ in gains.index for latents in (4, 16))


def test_all_seeds_start_from_one_decoder():
    experiment = experiments.get("03_dictionary")
    variant = experiment.variant(dictionary.trained(64))
    prints = {experiment.fingerprint(variant, seed, "quick", "smollm2-135m") for seed in (0, 1)}
    assert len(prints) == 2
    assert [variant.starts_at(seed) for seed in (0, 1)] == [0, 0]
    assert [seed for one, seed in experiment.cells(range(3)) if one.name == "mean"] == [0]
