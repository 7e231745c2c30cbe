"""The ledger: every claim once, with what was measured of it, and bad verdicts not used but said."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from workbook import figures
from workbook.errors import DamagedFileError, MissingDataError
from workbook.evaluation.effects import Quantity
from workbook.evaluation.outcomes import Outcomes
from workbook.evaluation.suites import SUITES
from workbook.files import ROOT, data_path
from workbook.papers import claims, ledger
from workbook.papers.verdicts import Claim, judge
from workbook.runs import report, runner

CLAIMS = claims.load()
ITEMS = 16


def quantity(level, number, spread=0.04):
    """A quantity on a task of its own and on those of both suites, each over 16 items; its spread is its own."""
    pattern = np.random.default_rng(number).permutation(np.linspace(-1, 1, ITEMS))
    pattern *= spread / pattern.std(ddof=1)
    tasks = {"": ("",), "docs": SUITES["docs"].tasks, "other": SUITES["other"].tasks}
    return {
        suite: {task: Outcomes.of_values(level + pattern, range(ITEMS)) for task in tasks[suite]} for suite in tasks
    }


def judged(claim, notebook, values=None, *, scale="cpu", spread=0.04, trained=False, why=""):
    """A verdict on the numbers of the paper's first model, or on other ones."""
    claim = CLAIMS[claim] if isinstance(claim, str) else claim
    values = values or next(iter(claim.published.values()))
    suites = {rule.suite for rule in claim.clauses().values()}
    made = {name: quantity(value, number, spread) for number, (name, value) in enumerate(values.items())}
    measured = {
        name: Quantity({0: {task: one for suite in suites for task, one in parts[suite].items()}}, trained, why)
        for name, parts in made.items()
    }
    return judge(claim, measured, scale=scale, notebook=notebook)


@pytest.fixture
def run(tmp_path):
    """A run folder with six verdicts of four notebooks on five claims."""
    numbers = {"mntp_mean": 10, "causal_best": 7, "bidirectional_mean": 9}
    verdicts = [
        judged("llm2vec-weighted-mean", "01_attention", scale="quick"),
        judged("llm2vec-mntp", "02_llm2vec", numbers),
        judged("llm2vec-mntp", "07_compare", numbers, spread=5),
        judged("lens-against-dense", "04_lens", {"lexicon": 50, "dense": 60}),
        judged("nv-embed-two-stages", "03_nv_embed", scale="quick"),
        judged("llm2vec-simcse", "02_llm2vec", trained=True),
    ]
    claims.write(verdicts, tmp_path / "claims.json")
    return tmp_path


def test_every_clause_of_every_claim_stands_there_once(run):
    rows = ledger.table(run)
    assert dict(rows.groupby("claim")["clause"].agg(tuple)) == {name: claim.rule for name, claim in CLAIMS.items()}
    assert list(rows["paper"].unique()) == list(dict.fromkeys(claim.paper for claim in CLAIMS.values()))
    assert (rows["paper"] != rows["paper"].shift()).sum() == 5  # paper by paper
    verdicts = rows.set_index("claim")["verdict"]
    assert verdicts[verdicts != "not run"].to_dict() == {
        "llm2vec-weighted-mean": "supported",
        "llm2vec-mntp": "inconclusive",  # one notebook says so, another that it is supported
        "lens-against-dense": "contradicted",
        "nv-embed-two-stages": "not tested",
        "llm2vec-simcse": "not tested",
    }
    first = rows.drop_duplicates("claim").set_index("claim")
    assert first.loc["llm2vec-mntp", ["scale", "notebook"]].tolist() == ["cpu", "07_compare"]
    assert first.loc["lens-hybrid", ["scale", "notebook", "why"]].tolist() == ["cpu", "", ""]
    assert first.loc["nv-embed-two-stages", "why"] == "Scale quick is too small: it needs cpu or more."
    assert first.loc["llm2vec-simcse", "why"].startswith("It was trained with one seed only")


def test_a_notebook_that_could_not_test_a_claim_does_not_speak_for_one_that_did(run):
    held = judged("lens-hybrid", "04_lens")
    untaught = judged("lens-hybrid", "07_compare", why="It did not learn.")
    claims.write([held, untaught, judged("lens-hybrid", "08_other", scale="quick")], run / "claims.json")
    rows = ledger.table(run).query("claim == 'lens-hybrid'")
    assert rows[["verdict", "notebook", "found"]].to_numpy().tolist() == [["supported", "04_lens", "supported"]] * 2


def test_effects_stand_beside_those_of_the_paper():
    claim = CLAIMS["llm2vec-weighted-mean"]
    made = judged(claim, "01_attention", {"causal_mean": 40.0, "causal_weighted_mean": 42.0}, spread=0.5)
    row = ledger.effects([made]).iloc[0]
    effect = made.findings[claim.rule[0]].effect
    assert row[["effect", "low", "high", "detectable", "items", "seeds"]].tolist() == [
        *(effect.value, effect.low, effect.high, effect.detectable, 48, 1)
    ]
    assert row["effect"] == pytest.approx(2)
    assert row[["paper_low", "paper_high", "models"]].tolist() == pytest.approx([1.01, 2.02, 3])
    assert row[["label", "threshold", "inside"]].tolist() == ["docs: causal weighted mean - causal mean", 0, "some"]
    assert math.isnan(row["upper"])


@pytest.mark.parametrize(("values", "inside"), [((42.0, 40.0), "some"), ((60.0, 40.0), "no"), ((41.96, 40.0), "yes")])
def test_whether_the_papers_effects_lie_in_our_interval(values, inside):
    claim = CLAIMS["llm2vec-weighted-mean"].model_copy(deep=True)
    if inside == "yes":
        claim.published.pop("Mistral-7B")  # of which the effect is another
    numbers = dict(zip(("causal_weighted_mean", "causal_mean"), values, strict=True))
    assert set(ledger.effects([judged(claim, "", numbers, spread=0.5)])["inside"]) == {inside}


def test_what_the_paper_prints_stands_there_whether_or_not_it_was_run(run):
    rows = ledger.table(run).drop_duplicates("claim").set_index("claim")
    assert rows.loc["lens-hybrid", ["paper_low", "models", "inside"]].tolist() == [pytest.approx(63.0 - 61.86), 1, ""]
    assert rows.loc[["lens-hybrid"], ["effect", "low", "high", "detectable"]].isna().all(axis=None)
    unprinted = rows[rows["models"] == 0]
    assert {claim.id for claim in CLAIMS.values() if not claim.published} <= set(unprinted.index)
    assert unprinted["paper_low"].isna().all()


def test_counts(run):
    counts = ledger.counts(ledger.table(run))
    assert list(counts.columns) == [*ledger.VERDICTS, "all"]
    assert counts.loc["all"].to_dict() == {
        **{"supported": 1, "contradicted": 1, "inconclusive": 1, "not tested": 2},
        **{"not run": len(CLAIMS) - 5, "all": len(CLAIMS)},
    }
    assert counts.loc["LENS", "contradicted"] == 1
    assert (counts[list(ledger.VERDICTS)].sum(axis=1) == counts["all"]).all()


# In words


def claim(*rule, **changes):
    return Claim(id="c", paper="P", place="table 1", statement="a is more", rule=rule, scale="quick", **changes)


def words(*rule, values, spread=0.5, published=None, **options):
    made = judged(claim(*rule, published=published or {}), "", values, spread=spread, **options)
    (row,) = ledger.readable(ledger.effects([made])).to_dict("records")
    assert list(row) == ledger.WORDS
    return row


def test_a_claim_of_one_clause_in_words():
    row = words("a > b", values={"a": 5.0, "b": 3.0}, published={"M": {"a": 4, "b": 2.5}, "N": {"a": 4, "b": 1.7}})
    assert re.fullmatch(r"\+2 \[1\.\d+, 2\.\d+\]", row["here"])
    assert re.fullmatch(r"0\.\d+", row["could have seen"])
    assert row | {"here": "", "could have seen": ""} == {
        **{"claim": "a is more", "paper": "P, table 1", "here": "", "could have seen": "", "items and seeds": "16 x 1"},
        **{"published": "+1.5 to +2.3 (2 models), partly inside", "verdict": "supported", "why": "-"},
    }


def test_clauses_are_lines_of_a_cell_and_what_they_share_is_said_once():
    row = words("docs: a > b", "other: b > a", "docs: a > not_there + nor_this", values={"a": 5.0, "b": 3.0})
    first, second, third = row["here"].split("\n")
    assert re.fullmatch(r"docs: a - b: \+2 \[1\.\d+, 2\.\d+\] \(supported\)", first)
    assert re.fullmatch(r"other: b - a: -2 \[-2\.\d+, -1\.\d+\] \(contradicted\)", second)
    assert third == "docs: a - not there - nor this: not tested"
    assert row["items and seeds"] == "48 x 1\n48 x 1\n-"  # a line a clause, unless one says it for all
    assert (row["verdict"], row["published"]) == ("contradicted", "-")
    assert row["why"].startswith("Nothing was measured for not there, nor this.")


@pytest.mark.parametrize(
    ("clause", "values", "here"),
    [
        ("share < 0.5", {"share": 0.25}, "0.25, claimed under 0.5"),
        ("0.5 < share", {"share": 0.25}, "0.25, claimed over 0.5"),
        ("b < a - 2", {"a": 5.0, "b": 4.0}, "1, claimed over 2"),
        ("-1 < a - b < 1", {"a": 5.0, "b": 4.5}, "+0.5, claimed between -1 and 1"),
        ("a < 0.6 * b", {"a": 5000.0, "b": 10000.0}, "+1,000"),
    ],
)
def test_the_claimed_side_is_said_where_it_is_not_zero(clause, values, here):
    assert words(clause, values=values, spread=0)["here"] == here


def test_without_an_interval_there_is_a_number_and_the_reason():
    row = words("a > b", values={"a": 5.0, "b": 3.0}, trained=True)
    assert (row["here"], row["could have seen"], row["verdict"]) == ("+2", "-", "not tested")
    assert row["why"].startswith("It was trained with one seed only")


@pytest.mark.parametrize(
    ("weights", "suite", "text"),
    [
        ({"b": -1.0, "a_long": 1.0}, "", "a long - b"),
        ({"b": -0.6, "a": 2.0}, "docs", "docs: 2 x a - 0.6 x b"),
        ({"b": -1.0}, "", "-b"),
    ],
)
def test_an_effect_in_words(weights, suite, text):
    assert ledger.label(weights, suite) == text


def test_quantities_have_words_of_their_own():
    words = pd.read_csv(data_path("quantities.csv"))
    clauses = [clause for claim in CLAIMS.values() for clause in claim.clauses().values()]
    assert set(words["quantity"]) <= {name for clause in clauses for name in clause.weights}
    assert words["quantity"].is_unique
    assert not words["words"].str.contains("_| - |: ").any()
    for clause in clauses:
        several = {ledger.label({name: 1.0}) for name in clause.weights}
        assert len(several) == len(clause.weights), clause


# Files


def test_written_files_hold_the_table_and_all_claims(run):
    rows = ledger.write(run)
    text = dict.fromkeys(rows.select_dtypes(include=["object", "string"]), str)
    read = pd.read_csv(run / "ledger.csv", dtype=text, keep_default_na=False, na_values={"effect": ""})
    assert read[list(text)].to_numpy().tolist() == rows[list(text)].to_numpy().tolist()
    assert read["effect"].tolist() == pytest.approx(rows["effect"].tolist(), nan_ok=True)
    entries = {entry["id"]: entry for entry in json.loads((run / "ledger.json").read_text(encoding="utf-8"))}
    assert list(entries) == list(CLAIMS)
    assert entries["llm2vec-mntp"]["verdict"] == "inconclusive"
    assert list(entries["llm2vec-mntp"]["findings"]) == list(CLAIMS["llm2vec-mntp"].rule)
    assert entries["lens-hybrid"] == CLAIMS["lens-hybrid"].model_dump(mode="json") | {"verdict": "not run"}
    assert {path.name for path in (run / "figures").iterdir()} == {f"claims.{e}" for e in ("pdf", "svg", "png", "csv")}
    before = (run / "ledger.json").read_bytes()
    ledger.write(run)
    assert (run / "ledger.json").read_bytes() == before


def test_a_folder_without_verdicts_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"claims\.json, found none\. Run the notebooks"):
        ledger.table(tmp_path / "absent")


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('"verdict": "contradicted"', '"verdict": "supported"', "where its numbers say 'contradicted'"),
        ('"verdict": "contradicted"', '"verdict": "refuted"', "Input should be 'supported'"),
        ("lexicon > dense", "lexicon > dense + 5", "a verdict on claim 'lens-against-dense' by an earlier rule"),
        ("lexicon > dense", "lexicon >> dense", "expected comparisons"),
    ],
    ids=["turned round", "no verdict", "another rule", "unreadable"],
)
def test_a_verdict_edited_by_hand_counts_as_not_tested_and_says_why(run, before, after, why):
    path = run / "claims.json"
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    rows = ledger.write(run).query("claim == 'lens-against-dense'")
    assert set(rows["verdict"]) == {"not tested"}
    assert all(re.search(f"{why}.* Run notebook 04_lens again", one) for one in rows["why"])
    again = judged("lens-against-dense", "07_compare", {"lexicon": 50, "dense": 60})
    claims.write([again], path)
    assert set(ledger.table(run).query("claim == 'lens-against-dense'")["verdict"]) == {"contradicted"}


@pytest.mark.parametrize(
    ("change", "message"), [(lambda text: text[:-40], "JSON in"), (lambda text: "{}", "JSON list")]
)
def test_a_file_that_is_no_list_is_refused_and_left_alone(run, change, message):
    path = run / "claims.json"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    kept = path.read_bytes()
    with pytest.raises(DamagedFileError, match=rf"{message} .*claims\.json"):
        ledger.write(run)
    assert [found.name for found in run.iterdir()] == ["claims.json"]
    assert path.read_bytes() == kept


@pytest.mark.parametrize(
    "rule", [["lexicon > dense > 1"], ["2 > 1"], ["1 < lexicon < 0.5"], ["dosc: lexicon > dense"], ["lexicon >> dense"]]
)
def test_a_claim_that_can_not_be_used_is_not_tested_and_says_why(run, monkeypatch, tmp_path, rule):
    entries = json.loads((ROOT / "data" / "claims.json").read_text(encoding="utf-8"))
    next(entry for entry in entries if entry["id"] == "lens-against-dense")["rule"] = rule
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "claims.json").write_text(json.dumps(entries), encoding="utf-8")
    monkeypatch.setattr("workbook.files.ROOT", tmp_path)
    rows = ledger.table(run).set_index("claim")
    row = rows.loc["lens-against-dense"]
    assert row[["verdict", "paper", "statement"]].tolist() == ["not tested", "-", "A claim that can't be used."]
    assert re.match(r"claim 'lens-against-dense' in claims\.json: expected .* rule", row["why"])
    assert (rows["verdict"] == "supported").any()


# In the report


def test_the_report_counts_the_claims_and_shows_the_rest_where_it_can_not(run):
    with runner.Session(run, {}) as session:
        assert [*session.run([])] == []
    page = report.write(run).read_text(encoding="utf-8")
    assert '<th scope="row">all</th><td class="number">1</td>' in page
    assert f'<td class="number">{len(CLAIMS)}</td></tr>' in page
    assert page.count("data:image/png;base64,") == 1
    path = run / "claims.json"
    path.write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    page = report.write(run).read_text(encoding="utf-8")
    assert "Expected JSON in" in page
    assert "0 claims judged" in page
    assert '<th scope="row">all</th>' not in page
    assert 'class="claim"' not in page
    assert "data:image/png;base64," not in page  # the earlier ledger's figure


def test_the_report_has_a_card_for_each_judged_claim_under_its_paper_the_most_decided_first(run, monkeypatch):
    with runner.Session(run, {}) as session:
        assert [*session.run([])] == []
    rows = ledger.table(run)
    judged = rows[rows["verdict"] != ledger.NOT_RUN]

    def cards():
        page = BeautifulSoup(report.write(run).read_text(encoding="utf-8"), "html.parser")
        return page, page.select("section.paper > article.claim")

    page, found = cards()
    assert [one.h3.get_text() for one in page.select("section.paper")] == list(judged["paper"].unique())
    assert {one["id"] for one in found} == set(judged["claim"])
    assert len(found) == judged["claim"].nunique() == 5
    for section in page.select("section.paper"):
        verdicts = [ledger.VERDICTS.index(one["data-verdict"]) for one in section.select(".claim")]
        assert verdicts == sorted(verdicts)
    for card in found:
        (text,) = ledger.readable(judged[judged["claim"] == card["id"]]).to_dict("records")
        assert card.h4.get_text() == text["claim"]
        sign = figures.VERDICTS[text["verdict"]].sign
        assert card.select_one(".word").get_text() == f"{sign} {text['verdict']}"
        shown = {one.dt.get_text(): one.dd.get_text() for one in card.select("dl > div")}
        assert shown == {name: text[name] for name in shown}
        assert text["why"] == "-" or text["why"] in card.get_text()

    words = dict.fromkeys(ledger.WORDS, "-") | {"claim": "a <b> claim", "verdict": "contradicted", "paper": "A"}
    monkeypatch.setattr(ledger, "readable", lambda rows: pd.DataFrame([words] * rows["claim"].nunique()))
    page, found = cards()
    assert [card.h4.get_text() for card in found] == ["a <b> claim"] * 5
    assert page.find("b") is None
    assert page.find("dl").find("div") is None


def test_the_report_has_the_figures_colours(run):
    with runner.Session(run, {}) as session:
        assert [*session.run([])] == []
    page = BeautifulSoup(report.write(run).read_text(encoding="utf-8"), "html.parser")
    style = page.style.get_text()
    assert page.select("[style], [width], [nowrap], pre") == []
    for name, look in figures.VERDICTS.items():
        assert f".{name.replace(' ', '-')} {{ background: {look.fill}; color: {look.ink}; }}" in style
    assert "print-color-adjust: exact" in style  # a browser leaves backgrounds out where nothing is said


def test_a_damaged_manifest_is_named_and_the_rest_is_shown(run):
    with runner.Session(run, {}) as session:
        assert [*session.run([])] == []
    (run / "manifests").mkdir()
    for text in ("{", "[]", "{}"):
        (run / "manifests" / "04_lens.json").write_text(text)
        page = report.write(run).read_text(encoding="utf-8")
        assert re.search(r"04_lens\.json, got something else.* Run notebook 04_lens again", page)
        assert '<th scope="row">all</th><td class="number">1</td>' in page


def test_without_claims_the_report_says_why_and_a_run_does_not_begin(run, monkeypatch, tmp_path):
    with runner.Session(run, {}) as session:
        assert [*session.run([])] == []
    monkeypatch.setattr("workbook.files.ROOT", tmp_path / "elsewhere")
    assert "claims.json" in re.search(r'<p class="error">([^<]+)', report.write(run).read_text(encoding="utf-8"))[1]
    with pytest.raises(MissingDataError, match=r"claims\.json"), runner.Session(tmp_path / "new", {}):
        pass
    assert not (tmp_path / "new").exists()
