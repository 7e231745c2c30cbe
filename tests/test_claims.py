"""Claims: every rule can succeed and fail, and the verdict follows from the intervals."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from workbook import papers
from workbook.errors import DamagedFileError, InvalidValueError, OutputError, UnknownNameError
from workbook.experiments import area, steps_to_reach
from workbook.papers import claims
from workbook.papers.claims import Claim, Estimate, judge
from workbook.papers.tables import ANCHOR_VARIANTS as ANCHOR_TABLES
from workbook.papers.tables import ATTENTION, LEXICON_POOLING


def claim(*rule, scale="quick"):
    return Claim(id="c", paper="P", place="table 1", statement="s", rule=rule, scale=scale)


def verdict(rule, *, scale="quick", **measured):
    rule = [rule] if isinstance(rule, str) else rule
    return judge(claim(*rule), measured, scale=scale).verdict


NAN = float("nan")
APART = {"a": (10, 9, 11), "b": (5, 4, 6)}
TOUCHING = {"a": (10, 6, 14), "b": (9, 5, 13)}


@pytest.mark.parametrize(
    ("rule", "measured", "expected"),
    [
        ("a > b", APART, "reproduced"),
        ("a < b", APART, "not reproduced"),
        ("a > b", TOUCHING, "partly"),
        ("a < b", TOUCHING, "not reproduced"),
        ("a > b + 2", APART, "reproduced"),
        ("a > b + 4", APART, "partly"),
        ("a > b + 6", APART, "not reproduced"),
        ("b < a - 2", APART, "reproduced"),
        ("a > 8", {"a": (10, 9, 11)}, "reproduced"),
        ("a > 9.5", {"a": (10, 9, 11)}, "partly"),
        ("a > 12", {"a": (10, 9, 11)}, "not reproduced"),
        ("-2 < a - b < 2", {"a": 10.0, "b": 9.0}, "reproduced"),
        ("-2 < a - b < 2", TOUCHING, "partly"),
        ("-2 < a - b < 2", {"a": 10.0, "b": 5.0}, "not reproduced"),
        ("a > 1.5 * b", APART, "partly"),
    ],
)
def test_one_comparison(rule, measured, expected):
    assert verdict(rule, **measured) == expected


@pytest.mark.parametrize(
    ("a", "expected"), [((9, 8.5, 9.5), "reproduced"), ((5, 4.5, 5.5), "partly"), ((1, 0.5, 1.5), "not reproduced")]
)
def test_clauses_are_counted(a, expected):
    assert verdict(["a > 2", "a > 7"], a=a) == expected


def test_paired_difference_takes_precedence_whichever_way_it_is_written():
    assert verdict("a > b", **TOUCHING) == "partly"
    assert verdict("a > b", **TOUCHING, **{"a - b": (1, 0.5, 1.5)}) == "reproduced"
    assert verdict("a > b", **TOUCHING, **{"b - a": (-1, -1.5, -0.5)}) == "reproduced"
    assert verdict("a > b", **{"a - b": (-1, -1.5, -0.5)}) == "not reproduced"
    assert verdict("a > b + 2", **TOUCHING, **{"a - b": (1, 0.5, 1.5)}) == "not reproduced"


def test_too_small_a_scale_says_so():
    big = claim("a > b", scale="gpu")
    assert judge(big, {}, scale="cpu").verdict == "not tested at this scale"
    assert judge(big, APART, scale="paper").verdict == "reproduced"


def test_a_comparison_with_what_did_not_learn_is_no_test(tmp_path):
    made = judge(claim("a > b"), APART, scale="cpu", did_not_learn=["b", "a"])
    assert str(made) == "c: not tested at this scale (did not learn: a, b)"
    assert made.effects() == {}
    with pytest.raises(InvalidValueError, match=r"did_not_learn: expected a collection of names, got 'ab'"):
        judge(claim("a > b"), APART, scale="cpu", did_not_learn="ab")
    claims.write([made], tmp_path / "claims.json")
    assert claims.read(tmp_path / "claims.json") == [made]


@pytest.mark.parametrize("rule", ["a > b", "a < b", ["b > 4", "a > b"], ["a > 3", "b > 8"], "a - b > 0"])
def test_without_an_interval_nothing_is_tested(rule):
    assert verdict(rule, a=(10, NAN, NAN), b=5.0) == "not tested without an interval"


def test_the_interval_that_counts_is_that_of_the_paired_difference():
    assert verdict("a > b", a=(10, NAN, NAN), b=5.0, **{"a - b": (5, 4, 6)}) == "reproduced"
    assert verdict("a > b", **APART, **{"a - b": (5, NAN, NAN)}) == "not tested without an interval"


def test_a_verdict_without_an_interval_is_kept(tmp_path):
    made = judge(claim("a > 3"), {"a": (10, NAN, NAN)}, scale="quick")
    claims.write([made], tmp_path / "claims.json")
    assert claims.read(tmp_path / "claims.json") == [made]
    assert made.clauses == {"a > 3": "no interval"}


@pytest.mark.parametrize("rule", ["a", "a > ", "a == b", "a > b * b", "a > 'b'", "a > f(b)", "a > True", "a.x > 1"])
def test_unreadable_rule_names_the_claim(rule):
    with pytest.raises(InvalidValueError, match="rule of claim 'c'"):
        verdict(rule, a=1.0, b=1.0)


def test_what_is_measured_must_fit_the_rule():
    with pytest.raises(InvalidValueError, match="measured value for b"):
        verdict("a > b", a=1.0)
    with pytest.raises(UnknownNameError, match="last_tokn"):
        verdict("mean > last_token", mean=1.0, last_tokn=0.0)


@pytest.mark.parametrize("bad", [NAN, float("inf"), None, "12", (1, 2), (1, 3, 2), (1, NAN, 2), {"score": 1}])
def test_bad_estimates(bad):
    with pytest.raises(InvalidValueError, match="finite number"):
        Estimate.of(bad)


def test_estimate_from_a_row():
    assert Estimate.of({"score": 3, "low": 2, "high": 4, "task": "sts"}) == Estimate(value=3, low=2, high=4)


def test_unknown_claim_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'llm2vec-last-token-pooling'"):
        claims.get("llm2vec-last-token")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": ["a >"]}, "rule of claim 'c'"),
        ({"rule": []}, "claim 'c'"),
        ({"scale": "huge"}, "Unknown scale"),
        ({"note": "x"}, "claim 'c'"),
        ({"paper": None}, "claim 'c'"),
    ],
)
def test_bad_entry_is_named(tmp_path, change, message):
    path = tmp_path / "claims.json"
    path.write_text(json.dumps([claim("a > b").model_dump(mode="json") | change]))
    with pytest.raises((InvalidValueError, UnknownNameError), match=message):
        claims.load(path)


def test_same_id_twice(tmp_path):
    path = tmp_path / "claims.json"
    path.write_text(json.dumps([claim("a > b").model_dump(mode="json")] * 2))
    with pytest.raises(InvalidValueError, match="used once"):
        claims.load(path)


def found(entry, wanted, tries=2000):
    """Measured values on which the rule has the wanted verdict; None if none of many drawn ones has.

    Scores, ratios, losses and counts are positive, from hundredths to thousands: a rule that only a negative number
    could break is none.
    """
    rng = np.random.default_rng(0)
    for _ in range(tries):
        size = 10 ** rng.uniform(-2, 3)
        values = dict(zip(entry.names(), size * rng.uniform(0, 1, len(entry.names())), strict=True))
        if judge(entry, values, scale="paper").verdict == wanted:
            return values
    return None


@pytest.mark.parametrize("wanted", ["reproduced", "not reproduced"])
def test_every_claim_of_the_project_can_succeed_and_fail(wanted):
    assert [name for name, entry in claims.load().items() if not found(entry, wanted)] == []


@pytest.mark.parametrize(
    ("rule", "never"),
    [
        (["a > b - 1", "b > a - 1", "a + b > -1"], "not reproduced"),
        (["a > a - 1"], "not reproduced"),
        (["a > -1"], "not reproduced"),
        (["a > b", "b > a"], "reproduced"),
        (["a > b", "b > a"], "not reproduced"),
        (["a < 0"], "reproduced"),
        (["1 < a < 0.5"], "reproduced"),
    ],
)
def test_a_rule_that_can_not_fail_or_not_succeed_is_noticed(rule, never):
    assert found(claim(*rule), never) is None


def on_own_numbers(entry):
    """The verdicts on a claim by what its paper prints, of the models of which it prints all."""
    complete = [numbers for numbers in entry.published.values() if set(entry.names()) <= set(numbers)]
    return {judge(entry, {n: numbers[n] for n in entry.names()}, scale="paper").verdict for numbers in complete}


def test_rules_hold_on_the_papers_own_numbers():
    """Of one model at least; but for LLM2Vec, whose models differ, of all."""
    verdicts = {name: on_own_numbers(entry) for name, entry in claims.load().items() if on_own_numbers(entry)}
    assert len(verdicts) > 50
    assert [name for name, found in verdicts.items() if "reproduced" not in found] == []
    assert {claims.get(name).paper for name, found in verdicts.items() if len(found) > 1} <= {"LLM2Vec"}


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("a > b", (5, 3, 7)),
        ("b > a", (-5, -7, -3)),
        ("a > 1.5 * b + 1", (1.5, -1, 4)),
        ("0 < a < 12", (2, 1, 3)),
    ],
)
def test_an_effect_is_how_far_a_comparison_holds(clause, expected):
    assert claims.effect(clause, APART, "c") == Estimate.of(expected)


def test_effects_are_those_that_the_verdict_rests_on():
    made = judge(claim("a > b", "a > 20"), APART, scale="quick")
    assert made.effects() == {"a > b": Estimate.of((5, 3, 7)), "a > 20": Estimate.of((-10, -11, -9))}
    assert judge(claim("a > b", scale="gpu"), APART, scale="cpu").effects() == {}
    assert judge(claim("a > 3"), {"a": (10, NAN, NAN)}, scale="quick").effects()["a > 3"].low is None
    paired = judge(claim("a > b"), {**TOUCHING, "b - a": (-1, -1.5, -0.5)}, scale="quick")
    assert paired.effects() == {"a > b": Estimate.of((1, 0.5, 1.5))}
    printed = claim("a > b").model_copy(update={"published": {"M": {"a": 3, "b": 1}, "N": {"a": 3}}})
    assert printed.published_effects("a > b") == {"M": 2}
    assert printed.published_effects("a > 5") == {"M": -2, "N": -2}


QUOTED = {
    "causal_best": ("causal", "none", "weighted-mean"),
    "bidirectional_mean": ("bidirectional", "none", "mean"),
    "mntp_mean": ("bidirectional", "mntp", "mean"),
    "causal_simcse_best": ("causal", "simcse", "weighted-mean"),
    "bidirectional_simcse_mean": ("bidirectional", "simcse", "mean"),
    "mntp_simcse_mean": ("bidirectional", "mntp+simcse", "mean"),
    "mntp_simcse_weighted_mean": ("bidirectional", "mntp+simcse", "weighted-mean"),
    "mntp_simcse_last_token": ("bidirectional", "mntp+simcse", "last-token"),
    "supervised_causal": ("causal", "supervised", "weighted-mean"),
    "supervised_mntp": ("bidirectional", "mntp+supervised", "mean"),
    "supervised_mntp_simcse": ("bidirectional", "mntp+simcse+supervised", "mean"),
    "words_causal": ("causal", "none"),
    "words_bidirectional": ("bidirectional", "none"),
    "words_mntp": ("bidirectional", "mntp"),
    "words_mntp_simcse": ("bidirectional", "mntp+simcse"),
}


def test_llm2vec_numbers_are_those_of_the_published_tables():
    scores, tables = {}, [papers.published("llm2vec_mteb"), papers.published("llm2vec_words")]
    for row in tables[0].query("task_type == 'average'").itertuples():
        table = row.source.removeprefix("LLM2Vec, ")
        scores[table, row.model, (row.attention, row.training, row.pooling)] = row.score
    for row in tables[1].itertuples():
        scores["table 4", f"{row.model}, {row.task}", (row.attention, row.training)] = row.score
    seen = set()
    for entry in claims.load().values():
        table = re.search(r"table \d|$", entry.place)[0]
        for model, numbers in entry.published.items():
            for name, number in numbers.items():
                if entry.paper == "LLM2Vec" and name in QUOTED:
                    assert number == scores[table, model, QUOTED[name]], (entry.id, model, name)
                    seen.add(name)
    assert seen == set(QUOTED)


def test_llm2vec_best_poolings_and_times_follow_from_the_published_tables():
    frame = papers.published("llm2vec_mteb").query("benchmark == 'MTEB subset of 15' and attention == 'causal'")
    for training in ("none", "simcse"):
        rows = frame[frame["training"] == training]
        assert set(rows.loc[rows.groupby("model")["score"].idxmax(), "pooling"]) == {"weighted-mean"}
    hours = papers.published("llm2vec_hours").pivot(index="model", columns="method", values="hours")
    times = (hours["echo"] / hours["llm2vec"]).round(2)
    assert claims.get("llm2vec-echo-cost").published == {model: {"echo_time": time} for model, time in times.items()}


POOLED = {"last": "last-token", "mean": "mean", "latent": "latent-attention", "self": "self-attention"}
QUOTED_POOLINGS = {
    f"{name}_{attention}": (2, pooling, attention, "average")
    for name, pooling in POOLED.items()
    for attention in ATTENTION
} | {
    "latent_retrieval": (2, "latent-attention", "bidirectional", "Retrieval"),
    "mean_retrieval": (2, "mean", "bidirectional", "Retrieval"),
    "latent_stage1": (1, "latent-attention", "bidirectional", "average"),
    "latent_stage2": (2, "latent-attention", "bidirectional", "average"),
    "latent_classification1": (1, "latent-attention", "bidirectional", "Classification"),
    "latent_classification2": (2, "latent-attention", "bidirectional", "Classification"),
}
QUOTED_RECIPES = {
    "two_stage": ("two-stage", "average"),
    "single_stage": ("single-stage", "average"),
    "single_stage_in_batch": ("single-stage-in-batch", "average"),
    "reversed_order": ("reversed", "average"),
    "two_stage_retrieval": ("two-stage", "Retrieval"),
    "single_stage_retrieval": ("single-stage", "Retrieval"),
    "single_stage_classification": ("single-stage", "Classification"),
    "single_stage_in_batch_classification": ("single-stage-in-batch", "Classification"),
    "examples_clusters": ("examples", "Clustering"),
    "labels_clusters": ("labels", "Clustering"),
    "mined_retrieval": ("mining", "Retrieval"),
    "unmined_retrieval": ("no-mining", "Retrieval"),
}
NV_EMBED = [entry for entry in claims.load().values() if entry.paper == "NV-Embed" and entry.published]


def test_nv_embed_numbers_are_those_of_the_published_tables():
    poolings = papers.published("nv_embed_pooling")
    poolings = poolings.set_index(["model", "stage", "pooling", "attention", "task_type"])["score"]
    recipes = papers.published("nv_embed_training").set_index(["recipe", "task_type"])["score"]
    seen = set()
    for entry in NV_EMBED:
        for model, numbers in entry.published.items():
            assert set(numbers) == set(entry.names()), entry.id
            for name, number in numbers.items():
                pooled = name in QUOTED_POOLINGS
                assert pooled or model == "NV-Embed-v2", "table 4 is of v2"
                key = (model, *QUOTED_POOLINGS[name]) if pooled else QUOTED_RECIPES[name]
                assert number == (poolings if pooled else recipes)[key], (entry.id, model, name)
                seen.add(name)
    assert seen == {*QUOTED_POOLINGS, *QUOTED_RECIPES}


QUOTED_LENS = {
    f"{pooling}_{attention}": ("lens_attention_pooling", "LENS-8000", attention, pooling, "average")
    for pooling in LEXICON_POOLING
    for attention in ATTENTION
} | {
    "lexicon": ("lens_mteb", "LENS-8000", "average"),
    "dense": ("lens_mteb", "BGE-en-ICL", "average"),
    "hybrid_retrieval": ("lens_hybrid", "LENS + BGE", "average"),
    "lexicon_retrieval": ("lens_hybrid", "LENS-8000", "average"),
    "dense_retrieval": ("lens_hybrid", "BGE-en-ICL", "average"),
}
LENS_KEYS = {
    "lens_attention_pooling": ["model", "attention", "pooling", "task_type"],
    "lens_mteb": ["model", "task_type"],
    "lens_hybrid": ["model", "task"],
}
LENS = [entry for entry in claims.load().values() if entry.paper == "LENS" and entry.published]


def test_lens_numbers_are_those_of_the_published_tables():
    tables = {table: papers.published(table).set_index(keys)["score"] for table, keys in LENS_KEYS.items()}
    seen = set()
    for entry in LENS:
        assert set(entry.published) == {"LENS-8000"}
        numbers = entry.published["LENS-8000"]
        assert set(numbers) == set(entry.names()), entry.id
        for name, number in numbers.items():
            table, *key = QUOTED_LENS[name]
            assert number == tables[table][tuple(key)], (entry.id, name)
            seen.add(name)
    assert seen == set(QUOTED_LENS)


QUOTED_CAUSAL2VEC = {
    f"{name}{ending}": ("causal2vec_components", variant, task_type)
    for name, variant in (("last_token", "last-token"), ("causal2vec", "causal2vec"))
    for ending, task_type in (("", "average"), ("_retrieval", "Retrieval"), ("_sts", "STS"))
} | {
    "contextual": ("causal2vec_components", "contextual", "average"),
    "before": ("causal2vec_position", "before", "average"),
    "after": ("causal2vec_position", "after", "average"),
    "one": ("causal2vec_tokens", "1", "average"),
    "eight": ("causal2vec_tokens", "8", "average"),
    "encoder_concatenated": ("causal2vec_representation", "encoder+eos", "average"),
    "trained_encoder": ("causal2vec_freezing", "trained", "average"),
    "frozen_encoder": ("causal2vec_freezing", "frozen", "average"),
}
CAUSAL2VEC = [entry for entry in claims.load().values() if entry.paper == "Causal2Vec" and entry.published]


def test_causal2vec_numbers_are_those_of_the_published_tables():
    seen = set()
    for entry in CAUSAL2VEC:
        for model, numbers in entry.published.items():
            assert set(numbers) == set(entry.names()), entry.id
            model, _, what = model.partition(", ")
            if entry.id == "causal2vec-over-encoder":
                table = papers.published("causal2vec_encoders").set_index(["model", "encoder", "task_type"])["score"]
                assert numbers == {
                    "encoder": table["none", what, "average"],
                    "causal2vec": table[model, what, "average"],
                }
                continue
            if entry.id == "causal2vec-against-few-shot-cost":
                table = papers.published("causal2vec_efficiency").set_index(["method", "task"])
                for name, method in (("causal2vec", "Causal2Vec"), ("few_shot", "bge-en-icl (few-shot)")):
                    row = table.loc[method, what]
                    assert (numbers[f"{name}_tokens"], numbers[f"{name}_time"]) == (row.tokens, row.milliseconds)
                continue
            for name, number in numbers.items():
                table, *key = QUOTED_CAUSAL2VEC[name]
                scores = papers.published(table).set_index(["model", "variant", "task_type"])["score"]
                assert number == scores[(model, *key)], (entry.id, model, name)
                seen.add(name)
    assert seen == set(QUOTED_CAUSAL2VEC)


ANCHOR_VARIANTS = {
    "anchor": "anchor",
    "contrastive": "baseline",
    "only_q2d": "only-q2d",
    "only_d2q": "only-d2q",
    "untrained": "untrained",
    "reconstruction": "reconstruction",
}
"""Quantities of the rules, by their names in the tables."""
ANCHOR = [entry for entry in claims.load().values() if entry.paper == "Anchor" and entry.published]


def anchor_numbers():
    """What the tables have under the names of the rules, by claim, model and name."""
    tables = {name: papers.published(f"anchor_{name}") for name in ANCHOR_TABLES}
    short = {variant: name for name, variant in ANCHOR_VARIANTS.items()}
    averages = {name: tables[name].query("task_type == 'average'") for name in ("mteb", "objectives")}
    found = {}
    for claim_id, rows, ending in (
        ("over-contrastive", averages["mteb"], ""),
        ("over-contrastive-retrieval", tables["mteb"].query("task_type == 'Retrieval'"), "_retrieval"),
        *((name, averages["objectives"], "") for name in ("either-direction", "both-directions", "q2d-over-d2q")),
        ("stages", tables["stages"], ""),
    ):
        for row in rows.itertuples():
            found[claim_id, row.model, short[row.variant] + ending] = row.score
    early = tables["early"].query("variant in ['baseline', 'anchor']")
    for row in area(early, ["model", "variant"]).itertuples():
        found["early", row.model, f"{short[row.variant]}_area"] = round(row.score, 2)
    for model, rows in early.groupby("model"):
        level = rows.query("variant == 'baseline' and step == 125")["score"].item()
        for row in steps_to_reach(rows, level, ["variant"]).itertuples():
            found["fewer-steps", model, f"{short[row.variant]}_steps"] = round(row.steps, 1)
    for row in tables["steps"].itertuples():
        if row.first + row.second == 3000:
            name = "anchor" if row.first else "contrastive_longer"
            found["not-more-steps", row.model, name] = row.score
    for row in tables["alpha"].itertuples():
        found["alpha", "not named", f"alpha_{row.variant.replace('.', '')}"] = row.score
    for row in tables["llama2vec"].itertuples():
        found["over-llama2vec", "not named", f"{row.variant}_retrieval"] = row.score
    return found


def test_anchor_numbers_are_those_of_the_published_tables():
    tables, models = anchor_numbers(), {}
    for entry in ANCHOR:
        for model, numbers in entry.published.items():
            assert set(numbers) == set(entry.names()), entry.id
            own = entry.id.removeprefix("anchor-")
            assert numbers == {name: tables[own, model, name] for name in numbers}, entry.id
            models.setdefault(own, set()).add(model)
    assert models.keys() == {own for own, _, _ in tables}
    for own, named in models.items():
        assert named == {model for other, model, _ in tables if other == own}, own


def test_verdicts_merge_by_claim_and_come_back(tmp_path):
    path = tmp_path / "run" / "claims.json"
    lost, won = (judge(claim(rule), APART, scale="quick") for rule in ("a < b", "a > b"))
    other = won.model_copy(update={"id": "b"})
    claims.write([lost], path)
    claims.write([won, other], path)
    assert claims.read(path) == [other, won]
    assert [path.name for path in path.parent.iterdir()] == ["claims.json"]


def test_each_notebook_keeps_its_own_verdicts(tmp_path):
    path = tmp_path / "claims.json"
    first, second = (judge(claim("a > b"), APART, scale="quick", notebook=name) for name in ("01_a", "02_b"))
    claims.write([first, second], path)
    assert claims.read(path) == [first, second]
    claims.drop("01_a", path)
    assert claims.read(path) == [second]
    claims.drop("01_a", tmp_path / "absent.json")
    assert not (tmp_path / "absent.json").exists()


def test_notebooks_that_judge_at_the_same_time_lose_no_verdict(tmp_path):
    notebooks = [f"{number:02d}_a" for number in range(16)]

    def judges(notebook):
        claims.write([judge(claim("a > b"), APART, scale="quick", notebook=notebook)], tmp_path / "claims.json")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(judges, notebooks))
    assert [verdict.notebook for verdict in claims.read(tmp_path / "claims.json")] == notebooks


def test_verdict_prints_without_numbers():
    assert repr(judge(claim("a > b"), APART, scale="quick")) == "c: reproduced"


def test_damaged_and_unwritable_files(tmp_path):
    (tmp_path / "claims.json").write_text('[{"id": "c"')
    with pytest.raises(DamagedFileError, match=r"claims\.json"):
        claims.write([], tmp_path / "claims.json")
    (tmp_path / "claims.json").write_text('[{"id": "c"}]')
    with pytest.raises(DamagedFileError, match="run again"):
        claims.read(tmp_path / "claims.json")
    with pytest.raises(OutputError, match="Could not write"):
        claims.write([], tmp_path / "claims.json" / "claims.json")
