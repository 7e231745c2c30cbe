"""What the experiments of notebook 05 measure, on a tiny backbone."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import log_softmax
from scipy.stats import ttest_1samp
from training_tools import write_encoder

import workbook
from workbook import evaluation, papers, probes
from workbook.corpora.authored import instructions
from workbook.corpora.docs import load_docs
from workbook.evaluation import SUITES, effect
from workbook.evaluation.outcomes import Outcomes
from workbook.evaluation.run import cut_to
from workbook.experiments import EXPERIMENTS, Record, causal2vec, choices, ladder, sinks
from workbook.experiments.suite import held_out_loss
from workbook.scale import get_scale

SIZES = get_scale("quick").model_copy(
    update={"max_length": 200, "queries": 8, "documents": 12, "texts": 12, "probe_texts": 6}
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    encoder = write_encoder(tmp_path_factory.mktemp("encoder"), SIZES.max_length)
    return workbook.build("causal2vec", "tiny-llama", max_length=SIZES.max_length, encoder=encoder)


@pytest.fixture(scope="module")
def rows(model):
    return causal2vec.evaluate_variant(model, SIZES, by_half=True)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_halves_are_slices_of_the_whole(model):
    whole = model.encode(["a text", "another one"])
    assert all(np.abs(half[0] - half[1]).max() > 1e-3 for half in (whole[:, :32], whole[:, 32:]))
    alone = {name: half.encode(["a text", "another one"]) for name, half in causal2vec.halves(model).items()}
    np.testing.assert_allclose(alone["context"], whole[:, :32], atol=1e-6)
    np.testing.assert_allclose(alone["eos"], whole[:, 32:], atol=1e-6)
    balanced = np.concatenate([unit(whole[:, :32]), unit(whole[:, 32:])], axis=1)
    np.testing.assert_allclose(alone["equal lengths"], balanced, atol=1e-5)


def test_halves_of_bi_eos_are_its_own(tmp_path_factory):
    encoder = write_encoder(tmp_path_factory.mktemp("encoder"), SIZES.max_length)
    options = {"encoder": encoder, "pooling_options": {"representation": "bi-eos"}}
    model = workbook.build("causal2vec", "tiny-llama", max_length=SIZES.max_length, **options)
    whole = model.encode(["a text", "another one"])
    alone = {name: half.encode(["a text", "another one"]) for name, half in causal2vec.halves(model).items()}
    assert [*alone] == ["encoder", "eos", "equal lengths"]
    np.testing.assert_allclose(np.hstack([alone["encoder"], alone["eos"]]), whole, atol=1e-6)
    balanced = np.hstack([unit(alone["encoder"]), unit(alone["eos"])])
    np.testing.assert_allclose(alone["equal lengths"], balanced, atol=1e-5)
    rows = causal2vec.evaluate_variant(model, SIZES)
    for metric, parts in {"score": {"whole", *alone}, "norm": {"encoder", "eos"}}.items():
        assert {*rows.loc[rows["metric"] == metric, "part"]} == parts


def test_scores_of_the_parts_are_those_of_models_by_themselves(model, rows):
    scores = rows[rows["metric"] == "score"]
    assert scores["part"].unique().tolist() == ["whole", "context", "eos", "equal lengths"]
    for part, one in {"whole": model, **causal2vec.halves(model)}.items():
        alone = evaluation.evaluate(one, scale=SIZES, instructions="docs", progress=False).set_index("task")
        ours = scores[scores["part"] == part].set_index("task")
        assert ours["score"].tolist() == pytest.approx(alone["score"].tolist(), abs=1e-3)


def test_lengths_are_those_of_the_halves(model, rows):
    norms = rows[rows["metric"] == "norm"].set_index(["task", "part"])["score"]
    for kind, (texts, instruction) in causal2vec.texts_by_kind(SIZES).items():
        assert len(texts) == 6
        whole = model.encode(texts, prompt=instruction)
        for part, half in (("context", whole[:, :32]), ("eos", whole[:, 32:])):
            assert norms[kind, part] == pytest.approx(np.mean([np.sqrt((row**2).sum()) for row in half]), rel=1e-4)


def test_spreads_are_the_shares_of_the_halves_in_the_variance(model, rows):
    spread = rows.query("metric == 'spread'").set_index(["task", "part"])["score"]
    for kind, (texts, instruction) in causal2vec.texts_by_kind(SIZES).items():
        with cut_to(model, SIZES.max_length):
            vectors = unit(model.encode(texts, prompt=instruction))
        variances = vectors.var(axis=0)
        for part, half in (("context", slice(32)), ("eos", slice(32, None))):
            assert spread[kind, part] == pytest.approx(100 * variances[half].sum() / variances.sum(), rel=1e-3)


def test_whether_the_last_state_listens_is_measured_with_the_tokens_of_others(model, rows):
    pairs = load_docs().split("test").head(SIZES.probe_texts)
    [asked] = instructions("docs").query("task == 'DocsRetrieval'")["instruction"]
    queries, documents = pairs["query"].tolist(), pairs["document"].tolist()
    with cut_to(model, SIZES.max_length):
        tokens = probes.contextual_tokens(model, documents)
        given, own = probes.vectors_given(model, queries, tokens, asked), model.encode(queries, prompt=asked)
        found = unit(model.encode(documents)[:, 32:])
    given, own = unit(given.numpy()[:, 32:]), unit(own[:, 32:])
    heard = rows[rows["metric"].isin(["moved", "heard"])].set_index(["metric", "task"])
    assert {*heard["part"]} == {"eos"}
    assert [*heard.loc["moved"].index] == ["own", "swap", "mean", "zero", "oracle"]
    assert heard.loc[("moved", "own"), "score"] == pytest.approx(0, abs=1e-4)
    assert heard.loc[("moved", "oracle"), "score"] == pytest.approx(100 * (1 - (given * own).sum(1)).mean(), rel=1e-3)
    cosines = given @ found.T
    ranks = (cosines >= cosines.diagonal()[:, None] - 1e-6).sum(1)
    assert heard.loc[("heard", "oracle"), "score"] == pytest.approx(100 * (1 / ranks).mean(), rel=1e-3)
    assert "moved" not in {*causal2vec.evaluate_variant(model, SIZES)["metric"]}


def test_few_texts_have_the_interval_of_student(model, rows):
    norms = rows[rows["metric"] == "norm"].set_index(["task", "part"])
    for kind, (texts, instruction) in causal2vec.texts_by_kind(SIZES).items():
        lengths = np.linalg.norm(model.encode(texts, prompt=instruction)[:, 32:], axis=1)
        low, high = ttest_1samp(lengths, 0).confidence_interval(0.95)
        assert norms.loc[(kind, "eos"), ["low", "high"]].tolist() == pytest.approx([low, high], rel=1e-3)


def test_the_held_out_loss_is_infonce(model):
    pairs = load_docs().split("test").head(10)
    [asked] = instructions("docs").query("task == 'DocsRetrieval'")["instruction"]
    queries, documents = model.encode(pairs["query"].tolist(), prompt=asked), model.encode(pairs["document"].tolist())
    losses = []
    for start in (0, 5):
        cosines = unit(queries[start : start + 5]) @ unit(documents[start : start + 5]).T
        losses += [-log_softmax(row / 0.1)[place] for place, row in enumerate(cosines)]
    found = held_out_loss(model, batches=2, size=5, temperature=0.1)
    assert found.values.tolist() == pytest.approx(losses, abs=1e-3)
    assert found.score == pytest.approx(np.mean(losses), abs=1e-3)


def test_only_concatenated_vectors_have_halves(rows):
    one = causal2vec.evaluate_variant(workbook.build("last-token", "tiny-llama", max_length=200), SIZES)
    assert one["part"].unique().tolist() == ["whole"]
    assert one["metric"].unique().tolist() == ["score", "loss", "recency"]
    for frame, parts in ((one, ["whole"]), (rows, ["whole", "context", "eos"])):
        recency = frame.query("metric == 'recency'")
        assert recency["part"].tolist() == parts
        assert recency["score"].between(0, 100).all()


def test_recency_of_a_half_is_that_of_the_half_alone(model, rows):
    found = rows.query("metric == 'recency'").set_index("part")["score"]
    documents = load_docs().split("test")["document"]
    long = documents[documents.str.split().str.len().between(25, 60)].head(SIZES.probe_texts).tolist()
    for part in ("context", "eos"):
        moved = probes.recency(causal2vec.halves(model)[part], long).pivot(
            index="text", columns="window", values="movement"
        )
        assert found[part] == pytest.approx((100 * moved[4] / (moved[0] + moved[4])).mean(), rel=1e-3)
    assert found["context"] != pytest.approx(found["eos"], abs=1e-3)


def test_printed_differences_are_those_of_the_tables():
    """Table 2 prints 64.00, 64.24 and 64.72 for the small backbone, 67.23, 67.60 and 67.79 for the large one."""
    tables = [papers.published(f"causal2vec_{name}") for name in ("components", "representation")]
    found = ladder.bounds(pd.concat(tables)).round(2)
    assert [*found.index] == [
        name for name, pair in ladder.COMPARED.items() if not {ladder.ONE_LENGTH, ladder.TRAINED_SO} & {*pair}
    ]
    assert found.loc["C in the input - last token"].tolist() == [0.24, 0.37]
    assert found.loc["both states - C in the input"].tolist() == [0.19, 0.48]
    assert found.loc["Bi-EOS - C in the input"].tolist() == [0.08, 0.15]  # table 10: 64.39 and 67.68
    assert found.loc["both states - last token"].tolist() == [0.56, 0.72]


def test_halves_at_one_length_are_a_variant_of_their_own():
    rows = pd.DataFrame(
        [
            {
                "variant": variant,
                "part": part,
                "metric": metric,
                "seed": 0,
                "trained": True,
                "source": "night",
                "score": n,
            }
            for n, (variant, part, metric) in enumerate(
                (variant, part, metric)
                for variant in ("Bi-EOS", "causal2vec")
                for part in ("whole", "eos", "equal lengths")
                for metric in ("score", "loss")
            )
        ]
    )
    alone = rows.head(1).drop(columns="part").assign(variant="encoder alone", score=9)
    found = ladder.wholes(pd.concat([rows, alone]))[["variant", "score"]].to_numpy().tolist()
    assert found == [["Bi-EOS", 0], ["causal2vec", 6], ["encoder alone", 9], [ladder.ONE_LENGTH, 4]]


def test_the_whole_and_the_half_of_c_are_measured_while_they_train(model):
    evaluator = ladder.along(SIZES)
    found = evaluator.measure(model)
    assert [name for name in found if not name.endswith(" outcomes")] == [
        *("retrieval, whole", "loss, whole"),
        *("retrieval, half of C", "loss, half of C"),
    ]
    few = SIZES.model_copy(update={"documents": SIZES.queries})
    for part, one in {"whole": model, "half of C": causal2vec.halves(model)["context"]}.items():
        alone = evaluation.evaluate(one, ["DocsRetrieval"], scale=few, instructions="docs", progress=False)
        assert found[f"retrieval, {part}"] == pytest.approx(alone["score"].item(), abs=1e-3)
        with cut_to(one, SIZES.max_length):
            assert found[f"loss, {part}"] == pytest.approx(held_out_loss(one).score, abs=1e-4)
    last = workbook.build("last-token", "tiny-llama", max_length=200)
    assert {name.removesuffix(" outcomes") for name in evaluator.measure(last)} == {"retrieval, whole", "loss, whole"}


def test_the_course_is_the_difference_from_the_last_token_at_each_step():
    draw = np.random.default_rng(5)
    rows, raw = [], {}
    for variant in ladder.LADDER.variants:
        for seed in range(3):
            for step in (0, 13):
                raw[variant.name, seed, step] = values = draw.random(40)
                outcomes = Outcomes.of_values(values, range(40), factor=100)
                rows.append((variant.name, seed, step, 1000.0 * step, "retrieval, whole", outcomes.score, outcomes))
                rows.append((variant.name, seed, step, 1000.0 * step, "loss, whole", 3.0, None))
    frame = pd.DataFrame(rows, columns=["variant", "seed", "step", "tokens", "task", "score", "outcomes"])
    found = ladder.course(frame.assign(metric="curve", trained=True, source="night")).set_index(["variant", "step"])
    assert len(found) == 2 * len(ladder.AGAINST_LAST)
    for (name, step), row in found.iterrows():
        own = ladder.AGAINST_LAST[name]
        gaps = [100 * (raw[own, seed, step] - raw[sinks.LAST, seed, step]).mean() for seed in range(3)]
        assert row["points"] == pytest.approx(np.mean(gaps))
        assert row["low"] < row["points"] < row["high"]
        assert row["tokens"] == step


def test_an_untrained_encoder_is_another_and_always_the_same():
    built = [
        workbook.build("causal2vec", "tiny-llama", encoder_options={"pretrained": known}) for known in (True, False)
    ]
    again = workbook.build("causal2vec", "tiny-llama", encoder_options={"pretrained": False})
    weights = [model[0].encoder.embeddings.word_embeddings.weight for model in (*built, again)]
    assert weights[0].shape == weights[1].shape
    assert not torch.allclose(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])
    assert not any(parameter.requires_grad for parameter in built[1][0].encoder.parameters())
    assert not built[1][0].encoder.training


def test_variants_differ_in_what_they_say_they_do():
    experiment = ladder.LADDER
    prints = [experiment.fingerprint(one, 0, "cpu", "smollm2-135m") for one in experiment.variants]
    assert len({*prints}) == len(prints)
    recipes = {one.trained_by("cpu", "smollm2-135m").fingerprint() for one in experiment.variants}
    assert len(recipes) == 1  # all are trained alike


LOST = "{} did not learn: its loss on held-out pairs{} is 3.40 (chance 3.47)."


@pytest.mark.parametrize(
    ("losses", "scored", "why"),
    [
        ({"whole": 1.5}, [], ""),  # the last token: no half
        ({"whole": 3.4}, [], LOST.format("V", "")),
        ({"whole": 1.5, "context": 2.9}, ["context"], ""),
        ({"whole": 1.5, "context": 3.4}, ["context"], LOST.format("V", " by its contextual half")),
        ({"whole": 1.5, "encoder": 3.4}, ["encoder"], LOST.format("V", " by its contextual half")),
        ({"whole": 1.5, "eos": 3.4, "context": 2.0}, ["eos", "context"], ""),  # the claim is not about EOS
        ({"whole": 3.4, "context": 2.0}, ["context"], LOST.format("V", "")),
        ({"whole": 1.5}, ["context"], "Whether its contextual half learned was not measured."),
    ],
)
def test_a_whole_whose_contextual_half_did_not_learn_is_told(losses, scored, why):
    rows = [("loss", part, loss + move, seed) for part, loss in losses.items() for seed, move in enumerate((-0.1, 0.1))]
    rows += [("score", part, 50.0, 0) for part in ["whole", *scored]]
    frame = pd.DataFrame(rows, columns=["metric", "part", "score", "seed"]).assign(variant="V", source="recorded")
    other = frame.assign(variant="W", score=1.0)
    live = frame.assign(source="this run", score=1.0)
    expected = "Whether its contextual half learned was not measured." if why.startswith("Whether") else ""
    assert causal2vec.parts_learned(pd.concat([frame, other, live])) == {"V": why, "W": expected}


def test_a_half_that_learned_on_average_alone_is_told():
    losses = {"all": (2.0, 2.1, 2.2), "most": (2.0, 4.1, 2.2), "none": (3.4, 3.5, 2.9), "no half": ()}
    rows = [
        ("loss", "context", loss, seed, name) for name, of_one in losses.items() for seed, loss in enumerate(of_one)
    ]
    rows += [("loss", "whole", 3.4, seed, name) for name in losses for seed in (0, 1)]
    frame = pd.DataFrame(rows, columns=["metric", "part", "score", "seed", "variant"]).assign(source="recorded")
    told = causal2vec.unevenly_learned(pd.concat([frame, frame.assign(source="this run", score=1.0)]))
    assert told == {"most": "In 1 of 3 trainings the contextual half of most did not learn."}


GAPS = choices.printed({table: papers.published(f"causal2vec_{table}") for table in choices.STANDARD})


@pytest.fixture(scope="module")
def chosen():
    """Rows of the choices, and of what they differ from, as they are recorded."""
    length, choice = (
        Record(EXPERIMENTS[name], "night").load().assign(source="night") for name in ("05_length", "05_choices")
    )
    return choices.with_standard(length, choice)


def test_a_choice_changes_the_mean_over_tasks_and_common_seeds(chosen):
    found = choices.effects(chosen, GAPS).set_index(["pair", "panel"])
    assert len(found) == 3 * len(choices.CHOICES.variants)
    score = chosen[chosen["metric"] == "score"].set_index(["variant", "part", "seed", "task"])["score"]
    for suite in ("docs", "other"):
        tasks = list(SUITES[suite].tasks)
        arms = (choices.BEFORE, sinks.WHOLE_EOS, choices.AGAIN)
        before, first, again = (score.loc[one, "whole", [0, 1, 2], tasks].mean() for one in arms)
        effect = found.xs(f"whole, {suite}", level="panel")["effect"]
        assert effect[choices.BEFORE] == pytest.approx(before - (first + again) / 2, abs=1e-3)
        assert effect[choices.AGAIN] == pytest.approx(again - first, abs=1e-3)
    half = score.loc["random encoder", "context", [0, 1, 2], "DocsRetrieval"]
    assert half.max() < 5, "at chance, so that its half is below the other's"
    assert found.loc[("random encoder", "half of C, docs"), "high"] < 0
    starred = {one for one in found["label"] if one.endswith("*")}
    assert starred == {"8 tokens*", "random encoder*", "torch's length*"}, "their halves of C did not learn"


def test_choices_stand_beside_what_the_paper_prints(chosen):
    """By hand from tables 3 to 5: trained 64.72 and 67.66 against frozen 64.43 and 67.79, and so on."""
    found = choices.effects(chosen, GAPS).set_index(["pair", "panel"])[["paper_low", "paper_high"]].round(2)
    wanted = {choices.BEFORE: [-0.16, -0.09], choices.TRAINED: [-0.13, 0.29], "8 tokens": [-0.17, -0.17]}
    for variant, bounds in wanted.items():
        assert list(found.loc[variant, "whole, other"]) == bounds
        assert found.loc[variant, "half of C, docs"].isna().all()
    assert found.loc["chat form"].isna().all(axis=None)


def test_choices_and_components_by_kind_stand_beside_the_papers(chosen):
    """By hand from tables 2 and 12: with S-LLaMA both states gain 0.06 in STS, *before* 0."""
    tables = {table: papers.published(f"causal2vec_{table}") for table in choices.STANDARD}
    found = choices.by_kind(chosen, tables)
    assert list(found.index) == [choices.BEFORE, choices.TRAINED, "2 tokens", "4 tokens", "8 tokens"]
    score = chosen[(chosen["metric"] == "score") & (chosen["part"] == "whole") & (chosen["task"] == "ParaphraseLadder")]
    score = score[score["seed"] < 3].groupby("variant")["score"].mean()
    gap = score[choices.BEFORE] - (score[sinks.WHOLE_EOS] + score[choices.AGAIN]) / 2
    here, _, paper = found.loc[choices.BEFORE, "STS"].partition(" | ")
    assert float(here.partition(" [")[0]) == pytest.approx(gap, abs=0.06)
    assert paper in ("0.0", "-0.0")
    whole = ladder.wholes(Record(EXPERIMENTS["05_ladder"], "night").load().assign(source="night"))
    found = ladder.by_kind(whole, pd.concat([tables["components"], tables["representation"]]))
    assert "|" not in found.loc[[one for one in found.index if "one length" in one]].to_string()
    assert found.loc["both states - last token", "STS"].endswith(" | 0.1")


def test_listening_is_what_another_token_changes_in_the_ranks(chosen):
    found = choices.listening(chosen).set_index(["variant", "token"])
    assert len(found) == 4 * len(choices.CHOICES.variants)
    heard = chosen[chosen["metric"] == "heard"].groupby(["variant", "task"])["score"].mean()
    for variant, token, replacement in (("chat form", "its document's", "oracle"), ("2 tokens", "the mean", "mean")):
        one = found.loc[variant, token]
        assert one["points"] == pytest.approx(heard[variant, replacement] - heard[variant, "own"], abs=1e-3)
        assert one["low"] < one["points"] < one["high"]


def test_what_examples_add_is_counted_with_the_contextual_token_and_without():
    rows = Record(EXPERIMENTS["05_examples"], "night").load().assign(source="night")
    averages = papers.published("causal2vec_mteb").query("task_type == 'average' and model == 'Mistral-7B'")
    found = choices.by_examples(rows, averages.set_index("method")["score"]).set_index(["pair", "task"])
    paper = found["paper"].xs("docs", level="task").round(2)  # 66.85, 66.10, 66.08 and 64.67
    assert paper.tolist() == [0.75, 1.41, -0.66, 0.77, 1.43, 0.02]
    assert len(found) == 2 * 6
    score = rows[rows["metric"] == "score"].set_index(["variant", "part", "task"])["score"].sort_index()
    tasks, points = list(SUITES["other"].tasks), {}
    for name, method in (("examples, with C", "causal2vec"), ("examples, without C", "last token")):
        means = [score.loc[f"{method}, {kind}", "whole", tasks].mean() for kind in ("examples", "no examples")]
        points[name] = found.loc[(name, "other"), "points"]
        assert points[name] == pytest.approx(means[0] - means[1], abs=1e-3)
    token = found.loc[["C, with examples", "C, without examples"], "points"].xs("other", level="task")
    interaction = points["examples, with C"] - points["examples, without C"]
    assert token.iloc[0] - token.iloc[1] == pytest.approx(interaction)
    assert found.loc[("examples: with C - without", "other"), "points"] == pytest.approx(interaction)
    assert (found["low"] < found["points"]).all()
    assert (found["points"] < found["high"]).all()


def test_a_choice_whose_contextual_half_did_not_learn_is_not_tested(chosen):
    nothing = chosen.head(0)
    found = choices.claimed(chosen, nothing, nothing)
    assert {*found} == {"before", "after", "one", "eight", "trained_encoder", "frozen_encoder"}
    assert [name for name, one in found.items() if one.why] == ["eight"]
    lower = chosen["score"].where((chosen["metric"] != "loss") | (chosen["part"] != "context"), 2.0)
    assert not choices.claimed(chosen.assign(score=lower), nothing, nothing)["eight"].why


def test_a_claim_on_a_choice_is_paired_with_both_trainings(chosen):
    nothing = chosen.head(0)
    found = {name: one.on(SUITES["docs"].tasks) for name, one in choices.claimed(chosen, nothing, nothing).items()}
    gap = effect({"before": 1.0, "after": -1.0}, found)
    drawn = choices.effects(chosen, GAPS).set_index(["pair", "panel"]).loc[choices.BEFORE, "whole, docs"]
    assert (gap.value, gap.low, gap.high) == pytest.approx(tuple(drawn[["effect", "low", "high"]]), abs=1e-3)
    assert (gap.items, gap.seeds) == (600, 3)


def test_a_record_of_choices_that_is_not_whole_says_less(chosen):
    nothing = chosen.head(0)
    alone = chosen[~chosen["variant"].isin([choices.AGAIN, "2 tokens"])]
    assert {*choices.claimed(alone, nothing, nothing)} == {"before", "trained_encoder", "eight"}
    assert choices.effects(alone, GAPS).empty
    fewer = choices.effects(chosen[chosen["variant"] != "2 tokens"], GAPS)
    assert {*fewer["pair"]} == {one.name for one in choices.CHOICES.variants} - {"2 tokens"}


def test_claims_on_examples_and_encoders_are_of_their_own_records():
    names = ("05_encoders", "05_examples")
    encoders, shown = (Record(EXPERIMENTS[name], "night").load().assign(source="night") for name in names)
    found = choices.claimed(shown.head(0), encoders, shown)
    assert {*found} == {"weak_encoder", "better_encoder", "no_examples", "with_examples", "last_token_examples"}
    tasks = SUITES["other"].tasks
    for name, rows, variant in (
        ("better_encoder", encoders, "MiniLM, 6 layers"),
        ("last_token_examples", shown, "last token, examples"),
    ):
        scores = rows[(rows["metric"] == "score") & (rows["part"] == "whole") & (rows["variant"] == variant)]
        mean = scores[scores["task"].isin(tasks)]["score"].mean()
        assert effect({"it": 1.0}, {"it": found[name].on(tasks)}).value == pytest.approx(mean, abs=1e-3)


def test_encoders_differ_in_what_they_know_alone():
    variants = choices.ENCODERS.variants
    given = [dict(one.options["encoder_options"]) for one in variants]
    assert [one.get("layers") for one in given] == [0, 2, 4, None]
    assert {one["length"] for one in given} == {"word"}
    assert {one.options["suffix"] for one in variants} == {"eos"}
    trainings = {one.trained_by("night", "smollm2-135m").fingerprint() for one in (*variants, *sinks.LENGTH.variants)}
    assert len(trainings) == 1
    prints = [choices.ENCODERS.fingerprint(one, 0, "night", "smollm2-135m") for one in variants]
    assert len({*prints}) == 4
    again = choices.CHOICES.variant(choices.AGAIN)
    assert prints[-1] == choices.CHOICES.fingerprint(again, 0, "night", "smollm2-135m")


def test_doses_are_differences_from_the_embeddings_alone():
    rows = Record(EXPERIMENTS["05_encoders"], "night").load().assign(source="night")
    found = choices.doses(rows).set_index(["label", "panel"])["effect"]
    score = rows[rows["metric"] == "score"].set_index(["variant", "part", "task"])["score"].sort_index()
    tasks = list(SUITES["other"].tasks)
    for name, part in (("whole", "whole"), ("half of C", "context")):
        most, least = (score.loc[f"MiniLM, {count} layers", part] for count in (6, 0))
        assert found["6 layers, other", name] == pytest.approx(
            most.loc[tasks].mean() - least.loc[tasks].mean(), abs=1e-3
        )
        gap = most.loc["ParaphraseLadder"].mean() - least.loc["ParaphraseLadder"].mean()
        assert found["6 layers, STS", name] == pytest.approx(gap, abs=1e-3)
