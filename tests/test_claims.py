"""Claims: rules are read without running them, and the verdict follows from effects and their intervals."""

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from workbook.errors import DamagedFileError, InvalidValueError, OutputError, UnknownNameError
from workbook.evaluation.effects import Quantity
from workbook.evaluation.outcomes import Outcomes
from workbook.evaluation.suites import SUITES
from workbook.papers import claims, rules
from workbook.papers.verdicts import Claim, Verdict, judge

ITEMS = 25


def claim(*rule, scale="quick", **changes):
    return Claim(id="c", paper="P", place="table 1", statement="s", rule=rule, scale=scale, **changes)


def around(value, spread=1.0, **of_texts):
    """A quantity with that mean over 25 items, and a fifth of the spread as its standard error."""
    pattern = np.random.default_rng(len(of_texts)).permutation(np.linspace(-1, 1, ITEMS))
    pattern *= spread / pattern.std(ddof=1)
    return Quantity.of_values(value + pattern, **of_texts)


MEASURED = {"a": around(10, 0), "b": around(5), "c": around(9.9)}
"""Their standard errors are 0 and twice 0.2, so that intervals reach 0.41 to each side; of b - c it is 0 wide."""


def verdict(*rule, **changes):
    return judge(claim(*rule, **changes), MEASURED, scale="cpu").verdict


# Rules


@pytest.mark.parametrize(
    ("clause", "weights", "above", "below", "suite"),
    [
        ("a > b", {"a": 1, "b": -1}, 0, math.inf, ""),
        ("a < b", {"b": 1, "a": -1}, 0, math.inf, ""),
        ("a > b + 2", {"a": 1, "b": -1}, 2, math.inf, ""),
        ("b < a - 2", {"a": 1, "b": -1}, 2, math.inf, ""),
        ("a < 0.6 * b", {"b": 0.6, "a": -1}, 0, math.inf, ""),
        ("a >= (b + c) - 1", {"a": 1, "b": -1, "c": -1}, -1, math.inf, ""),
        ("share < 50", {"share": 1}, -math.inf, 50, ""),
        ("50 > share", {"share": 1}, -math.inf, 50, ""),
        ("0.5 < share", {"share": 1}, 0.5, math.inf, ""),
        ("-1 < a - b < 1", {"a": 1, "b": -1}, -1, 1, ""),
        ("1 > b - a > -2", {"b": 1, "a": -1}, -2, 1, ""),
        ("docs: a > b", {"a": 1, "b": -1}, 0, math.inf, "docs"),
    ],
)
def test_a_rule_is_an_effect_and_the_side_that_is_claimed(clause, weights, above, below, suite):
    found = rules.read(clause, "rule")
    assert (dict(found.weights), found.above, found.below, found.suite) == (weights, above, below, suite)


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        *(
            (clause, "comparisons with < or >")
            for clause in ("a", "a > ", "a == b", "a > b * b", "a > f(b)", "a.x > 1")
        ),
        *((clause, "comparisons with < or >") for clause in ("a > 'b'", "a > True", "a > b and b > c")),
        *((clause, "numbers alone decide nothing") for clause in ("1 > 0", "a > a - 1", "a > b > 1 > 0")),
        *((clause, "a chain about one effect") for clause in ("a > b > c", "0 < a < b")),
        *((clause, "a side that some effect is on") for clause in ("1 < a < 0.5", "a > 1 > a")),
        ("dosc: a > b", "Unknown suite in rule of claim 'c' 'dosc'. Did you mean 'docs'"),
        ("docs: a > b: c", "Unknown suite in rule of claim 'c' 'docs: a > b'."),
    ],
)
def test_a_rule_that_decides_nothing_is_a_named_error(clause, message):
    with pytest.raises((InvalidValueError, UnknownNameError), match="rule of claim 'c'") as error:
        rules.read(clause, "rule of claim 'c'")
    assert message in str(error.value)


# Verdicts


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("a > b", "supported"),
        ("a < b", "contradicted"),
        ("a > b + 4.5", "supported"),
        ("a > b + 5", "inconclusive"),
        ("a > b + 5.5", "contradicted"),
        ("b < a - 4.5", "supported"),
        ("a > 1.5 * b", "supported"),
        ("b > 4.5", "supported"),
        ("b > 4.7", "inconclusive"),
        ("b < 4.5", "contradicted"),
        ("-1 < a - c < 1", "supported"),
        ("-0.2 < a - c < 1", "inconclusive"),
        ("-1 < a - c < 0.4", "inconclusive"),
        ("-1 < a - b < 1", "contradicted"),
        ("-1 < b - a < 1", "contradicted"),
    ],
)
def test_a_verdict_takes_the_whole_interval_on_one_side(clause, expected):
    assert verdict(clause) == expected


def test_differences_are_paired_so_that_what_both_share_is_no_doubt():
    assert verdict("c > b + 4.8") == "supported"
    assert verdict("c > b + 5") == "contradicted"


def test_a_number_has_no_interval_of_its_own():
    numbers = {"a": 3.0, "b": 1, "c": 3.0}
    assert judge(claim("a > b"), numbers, scale="quick").verdict == "supported"
    assert judge(claim("a > c"), numbers, scale="quick").verdict == "inconclusive"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (["a > b", "c > b"], "supported"),
        (["a > b", "a > b + 5"], "inconclusive"),
        (["a > b", "a > b + 6"], "contradicted"),
        (["a > b", "a > unmeasured"], "not tested"),
        (["a > b + 5", "a > unmeasured"], "not tested"),
        (["a > b + 6", "a > unmeasured"], "contradicted"),
    ],
)
def test_a_claim_has_the_weakest_of_its_clauses(rule, expected):
    made = judge(claim(*rule), MEASURED, scale="quick")
    assert made.verdict == expected
    assert [made.findings[clause].verdict for clause in rule] == [verdict(clause) for clause in rule]


def test_to_contradict_a_claim_one_clause_of_several_needs_a_wider_interval():
    """The effect is 5 and its error 0.2: 5.45 is 2.25 of them away; t is 2.06 at 95 %, and 2.57 for three clauses."""
    assert verdict("a > b + 5.45") == "contradicted"
    made = judge(claim("a > b", "a > b + 1", "a > b + 5.45"), MEASURED, scale="cpu")
    assert (made.verdict, made.findings["a > b + 5.45"].verdict) == ("inconclusive", "contradicted")
    assert made.why() == "One clause is contradicted alone, but not after correction for 3 clauses."
    made = judge(claim("a > b", "a > b + 5.45", "a > b + 5.46"), MEASURED, scale="cpu")
    assert made.why() == "2 clauses are contradicted alone, but not after correction for 3 clauses."
    assert verdict("a > b", "a > b + 1", "a > b + 5.6") == "contradicted"


def test_too_small_a_scale_says_so():
    made = judge(claim("a > b", scale="gpu"), MEASURED, scale="cpu")
    assert (made.verdict, made.why()) == ("not tested", "Scale cpu is too small: it needs gpu or more.")
    assert made.findings["a > b"].effect.value == pytest.approx(5)
    assert judge(claim("a > b", scale="gpu"), MEASURED, scale="paper").verdict == "supported"
    with pytest.raises(UnknownNameError, match="Did you mean 'cpu'"):
        judge(claim("a > b"), MEASURED, scale="cpus")


def test_a_comparison_with_what_did_not_learn_is_no_test():
    stuck = {"b": replace(MEASURED["b"], why="B did not learn."), "z": replace(MEASURED["b"], why="Z did not learn.")}
    made = judge(claim("a > b", "c > b", "a > 9"), MEASURED | stuck, scale="cpu")
    assert [found.verdict for found in made.findings.values()] == ["not tested", "not tested", "supported"]
    assert (str(made), made.why()) == ("c: not tested", "B did not learn.")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Quantity.of(Outcomes.none(1.0, "Its record keeps none.")), "Its record keeps none."),
        (Quantity.of(Outcomes.none(math.nan, "It is empty.")), "It is empty."),
        (Quantity({0: {"": Outcomes.of_values(np.arange(25.0), range(25))}}), "It was trained with one seed only"),
        (Quantity.of_values(range(24)), "quantities on : expected the same items"),
        (around(1, texts=[*"abcdefghijklmnopqrstuvwxy"]), "quantities on : expected the same items"),
    ],
    ids=["no outcomes", "no score", "one seed", "fewer items", "other items"],
)
def test_what_can_not_be_compared_is_not_tested_and_says_why(other, why):
    made = judge(claim("a > b", "a > z"), MEASURED | {"z": other}, scale="cpu")
    assert made.verdict == made.findings["a > z"].verdict == "not tested"
    assert made.why().startswith(why)
    assert Verdict.model_validate(json.loads(json.dumps(made.model_dump(mode="json")))) == made


def test_a_clause_on_a_suite_takes_the_average_of_its_tasks():
    def model(in_domain, out_of_domain):
        levels = {"docs": in_domain, "other": out_of_domain}
        draw = np.random.default_rng(1)
        return Quantity.of(
            {
                task: Outcomes.of_values(level + draw.normal(size=9), [f"{task} {n}" for n in range(9)])
                for suite, level in levels.items()
                for task in SUITES[suite].tasks
            }
        )

    both = {"a": model(3, 1), "b": model(1, 3)}
    made = judge(claim("docs: a > b", "other: a > b"), both, scale="cpu")
    assert [found.verdict for found in made.findings.values()] == ["supported", "contradicted"]
    assert [found.effect.items for found in made.findings.values()] == [27, 27]
    alone = {name: one.on(SUITES["docs"].tasks) for name, one in both.items()}
    assert judge(claim("docs: a > b", "other: a > b"), alone, scale="cpu").why().startswith("Expected outcomes of ")


@pytest.mark.parametrize(
    ("published", "why"),
    [
        ({}, "The paper prints no effect to compare with."),
        ({"M": {"a": 3.0}}, "The paper prints no effect to compare with."),
        ({"M": {"a": 3.0, "b": 2.9}, "N": {"a": 3.0, "b": 3.2}}, "The paper's effect is too near the claim's bound"),
        ({"M": {"a": 3.0, "b": 3.2}}, "The paper's own effect is not on the claimed side."),
        (
            {"M": {"a": 3.0, "b": 2.9}, "N": {"a": 3.0, "b": 1.0}},
            "Some of the paper's effects are too near the claim's",
        ),
        ({"M": {"a": 3.0, "b": 1.0}}, "Effects of the paper's size would probably have been seen."),
    ],
)
def test_an_open_verdict_says_what_would_settle_it(published, why):
    """The interval is 0.41 to each side: effects from 0.58 on are seen with a power of 80 %."""
    made = judge(claim("a > b", published=published), {"a": around(5, 0), "b": around(5)}, scale="cpu")
    assert made.verdict == "inconclusive"
    assert made.findings["a > b"].effect.detectable == pytest.approx(0.58, abs=0.02)
    assert made.why().startswith(why)
    assert judge(claim("a > b", published=published), MEASURED, scale="cpu").why() == ""


@pytest.mark.parametrize(
    ("rule", "paper", "why"),
    [
        ("-1 < a - b < 1", 0.1, "Effects of the paper's size would probably have been seen."),
        ("-1 < a - b < 1", -0.9, "The paper's effect is too near the claim's bound"),
        ("-1 < a - b < 1", 4.0, "The paper's own effect is not on the claimed side."),
        ("a > b + 1", 1.1, "The paper's effect is too near the claim's bound"),
        ("a > b + 1", 4.0, "Effects of the paper's size would probably have been seen."),
        ("a > b + 1", 0.9, "The paper's own effect is not on the claimed side."),
    ],
)
def test_what_would_settle_a_claim_is_told_by_the_way_to_its_bound(rule, paper, why):
    """The effect is 1 with 0.41 to each side: the bound is inside."""
    made = judge(claim(rule, published={"M": {"a": paper, "b": 0.0}}), {"a": around(6, 0), "b": around(5)}, scale="cpu")
    assert made.verdict == "inconclusive"
    assert made.why().startswith(why)


def test_what_limits_a_number_is_said_with_its_verdict():
    old = {"a": replace(MEASURED["a"], caveat="Its record is old.")}
    made = judge(claim("a > b"), MEASURED | old, scale="cpu")
    assert (made.verdict, made.why()) == ("supported", "Its record is old.")
    assert Verdict.model_validate(json.loads(json.dumps(made.model_dump(mode="json")))) == made


def test_the_papers_effect_is_that_of_the_models_with_all_numbers():
    printed = claim("b < a", "a > 5", published={"M": {"a": 3, "b": 1}, "N": {"a": 3}})
    assert printed.published_effects("b < a") == {"M": 2}
    assert printed.published_effects("a > 5") == {"M": 3, "N": 3}
    assert printed.names() == ["a", "b"]


# The file of claims


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": ["a >"]}, "rule: Value error, rule: expected comparisons"),
        ({"rule": ["a > b > c"]}, "a chain about one effect"),
        ({"rule": ["2 > 1"]}, "numbers alone decide nothing"),
        ({"rule": ["1 < a < 0"]}, "a side that some effect is on"),
        ({"rule": ["dosc: a > b"]}, "Did you mean 'docs'"),
        ({"rule": []}, "rule"),
        ({"scale": "huge"}, "Unknown scale"),
        ({"remark": "x"}, "remark"),
        ({"paper": None}, "paper"),
    ],
)
def test_a_claim_that_can_not_be_used_is_named_and_the_rest_kept(tmp_path, monkeypatch, change, message):
    path = tmp_path / "data" / "claims.json"
    path.parent.mkdir()
    good = claim("a > b").model_dump(mode="json")
    path.write_text(json.dumps([good, good | {"id": "bad"} | change, "no claim", good | {"id": "other"}]))
    known = claims.read_claims(path)
    assert list(known) == ["c", "bad", "number 2", "other"]
    assert isinstance(known["bad"], InvalidValueError)
    assert "claim 'bad' in" in str(known["bad"])
    assert message in str(known["bad"])
    with pytest.warns(UserWarning, match=r"claim '(bad|number 2)' in .*claims\.json: expected the fields") as told:
        assert list(claims.load(path)) == ["c", "other"]
    assert len(told) == 2
    monkeypatch.setattr("workbook.files.ROOT", tmp_path)
    assert claims.get("other").id == "other"
    with pytest.raises(InvalidValueError, match="claim 'bad'"):
        claims.get("bad")


def test_an_id_used_twice_is_neither(tmp_path):
    path = tmp_path / "claims.json"
    path.write_text(json.dumps([claim("a > b").model_dump(mode="json")] * 2))
    with pytest.warns(UserWarning, match="expected an id used once, got 'c'"):
        assert claims.load(path) == {}


def test_an_unknown_claim_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'llm2vec-last-token-pooling'"):
        claims.get("llm2vec-last-token")


# The file of verdicts


def judged(rule="a > b", notebook=""):
    return judge(claim(rule), MEASURED, scale="quick", notebook=notebook)


@pytest.fixture
def known(tmp_path, monkeypatch):
    """The project's claims are ours, by the rule a > b; returns the path of a run's verdicts."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "claims.json").write_text(json.dumps([claim("a > b").model_dump(mode="json")]))
    monkeypatch.setattr("workbook.files.ROOT", tmp_path)
    return tmp_path / "run" / "claims.json"


def test_each_notebook_keeps_its_latest_verdict(known):
    first, again, second = judged(notebook="01_a"), judged(notebook="01_a"), judged(notebook="02_b")
    claims.write([second, first], known)
    claims.write([again], known)
    assert claims.read(known) == ([again, second], {})
    assert [path.name for path in known.parent.iterdir()] == ["claims.json"]
    claims.drop("01_a", known)
    assert claims.read(known) == ([second], {})
    claims.drop("01_a", known.with_name("absent.json"))
    assert not known.with_name("absent.json").exists()


def test_notebooks_that_judge_at_the_same_time_lose_no_verdict(known):
    notebooks = [f"{number:02d}_a" for number in range(16)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda notebook: claims.write([judged(notebook=notebook)], known), notebooks))
    assert [verdict.notebook for verdict in claims.read(known)[0]] == notebooks


def by_hand(**changes):
    def change(entry):
        (finding,) = entry["findings"].values()
        entry.update({name: value for name, value in changes.items() if name == "verdict"})
        finding.update({name: value for name, value in changes.items() if name in ("verdict", "why")})
        finding["effect"].update({name: value for name, value in changes.items() if name in finding["effect"]})

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda entry: entry.update(verdict="contradicted"),
            "'contradicted' for the claim, where its clauses say 'sup",
        ),
        (by_hand(verdict="contradicted"), "'contradicted' for 'a > b', where its numbers say 'supported'"),
        (by_hand(value=-5.0), "'supported' for 'a > b', where its numbers say 'contradicted'"),
        (by_hand(error=9.0), "where its numbers say 'inconclusive'"),
        (by_hand(error=None), "where its numbers say 'not tested'"),
        (by_hand(why="I say so."), "where its numbers say 'not tested'"),
        (by_hand(error=-1.0), "greater than or equal to 0"),
        (lambda entry: entry.update(findings={}), r"findings on \[\], where the rule has \['a > b'\]"),
        (lambda entry: entry.update(verdict="reproduced"), "Input should be 'supported', 'contradicted'"),
        (lambda entry: entry["claim"].update(rule=["a >> b"]), "expected comparisons"),
        (lambda entry: entry["claim"].update(id="d"), r"a verdict on 'd', which is no claim\. Run notebook 01_a again"),
    ],
)
def test_a_verdict_that_its_numbers_contradict_is_not_used(known, change, message):
    claims.write([judged(notebook="01_a"), judged(notebook="02_b")], known)
    entries = json.loads(known.read_text())
    change(entries[0])
    known.write_text(json.dumps(entries))
    found, problems = claims.read(known)
    assert [verdict.notebook for verdict in found] == ["02_b"]
    (problem,) = problems.values()
    assert re.search(message, problem)
    assert problem.endswith("Run notebook 01_a again.")


def test_a_verdict_by_an_earlier_rule_is_not_used(known):
    claims.write([judged("a > b + 1", notebook="01_a")], known)
    found, problems = claims.read(known)
    assert found == []
    assert problems["c"].endswith("a verdict on claim 'c' by an earlier rule. Run notebook 01_a again.")


def test_damaged_and_unwritable_files(tmp_path):
    path = tmp_path / "claims.json"
    for text in ('[{"id": "c"', "{}"):
        path.write_text(text)
        for use in (claims.read, lambda path: claims.write([], path), lambda path: claims.drop("01_a", path)):
            with pytest.raises(DamagedFileError, match=r"claims\.json"):
                use(path)
        assert path.read_text() == text
    with pytest.raises(OutputError, match="Could not write"):
        claims.write([], path / "claims.json")


def test_a_verdict_prints_without_numbers():
    assert repr(judged()) == "c: supported"
