"""The ledger: every claim once, with what was measured of it, and bad verdicts refused by name."""

import json
import math
import re

import pandas as pd
import pytest
from bs4 import BeautifulSoup

from workbook import figures
from workbook.errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError
from workbook.files import ROOT
from workbook.papers import claims, ledger
from workbook.runs import report, runner

CLAIMS = claims.load()


def judged(claim_id, notebook, values=None, *, scale="cpu", spread=0.01):
    """A verdict on the numbers of the paper's first model, or on other ones, with intervals of that half width."""
    claim = CLAIMS[claim_id]
    values = values or next(iter(claim.published.values()))
    measured = {name: (value, value - spread, value + spread) for name, value in values.items()}
    return claims.judge(claim, measured, scale=scale, notebook=notebook)


@pytest.fixture
def run(tmp_path):
    """A run folder with six verdicts of four notebooks on five claims."""
    verdicts = [
        judged("llm2vec-weighted-mean", "01_attention", scale="quick"),
        judged("llm2vec-mntp", "02_llm2vec", {"mntp_mean": 10, "causal_best": 7, "bidirectional_mean": 9}),
        judged("llm2vec-mntp", "07_compare", {"mntp_mean": 10, "causal_best": 11, "bidirectional_mean": 12}),
        judged("lens-against-dense", "04_lens", {"lexicon": 50, "dense": 60}),
        judged("nv-embed-two-stages", "03_nv_embed", scale="quick"),
        judged("llm2vec-simcse", "02_llm2vec", spread=math.nan),
    ]
    claims.write(verdicts, tmp_path / "claims.json")
    return tmp_path


def test_every_claim_stands_there_once(run):
    rows = ledger.table(run).set_index("claim")
    assert set(rows.index) == set(CLAIMS)
    assert rows.index.is_unique
    assert list(rows["paper"].unique()) == list(dict.fromkeys(claim.paper for claim in CLAIMS.values()))
    assert (rows["paper"] != rows["paper"].shift()).sum() == 5  # paper by paper
    verdicts = rows.loc[rows["verdict"] != "not run", "verdict"].to_dict()
    assert verdicts == {
        "llm2vec-weighted-mean": "reproduced",
        "llm2vec-mntp": "partly",  # one notebook says so, another does not
        "lens-against-dense": "not reproduced",
        "nv-embed-two-stages": "not tested at this scale",
        "llm2vec-simcse": "not tested without an interval",
    }
    assert rows.loc["llm2vec-mntp", "notebook"] == "02_llm2vec, 07_compare"
    assert rows.loc["nv-embed-two-stages", "scale"] == "quick"
    assert rows.loc["lens-hybrid", ["scale", "notebook"]].tolist() == ["cpu", ""]


def test_who_did_not_learn_is_said(run):
    numbers = {"one": 10, "eight": 9}
    made = claims.judge(CLAIMS["causal2vec-one-token"], numbers, scale="cpu", notebook="05_x", did_not_learn=["eight"])
    claims.write([made], run / "claims.json")
    rows = ledger.table(run).set_index("claim", drop=False)
    assert rows["did_not_learn"].to_dict() == dict.fromkeys(CLAIMS, "") | {made.id: "eight"}
    told = ledger.readable(rows)["measured"]
    assert (told[made.id], told["lens-hybrid"]) == ("did not learn: eight", "-")


def test_a_notebook_that_could_not_test_a_claim_does_not_speak_for_one_that_did(run):
    held = judged("lens-hybrid", "04_lens")
    untaught = claims.judge(
        CLAIMS["lens-hybrid"], held.measured, scale="cpu", notebook="07_compare", did_not_learn=["dense"]
    )
    bare = {name: (-one.value, math.nan, math.nan) for name, one in held.measured.items()}
    unsure = claims.judge(CLAIMS["lens-hybrid"], bare, scale="gpu", notebook="08_other")
    claims.write([held, untaught, unsure], run / "claims.json")
    row = ledger.table(run).set_index("claim").loc["lens-hybrid"]
    least = min(effect.value for effect in held.effects().values())
    assert (row["verdict"], row["effect"], row["scale"], row["did_not_learn"]) == ("reproduced", least, "cpu", "")


def test_the_comparison_that_made_the_verdict_is_shown(run):
    claim = CLAIMS["anchor-both-directions"]
    names, (unsure, sure) = claim.names(), claim.rule
    measured = dict.fromkeys(names, (10.0, 9.9, 10.1))
    for clause, gap in ((unsure, (2.0, -1.0, 5.0)), (sure, (0.5, 0.4, 0.6))):
        measured[clause.replace(" > ", " - ")] = gap
    claims.write([claims.judge(claim, measured, scale="cpu", notebook="06_anchor")], run / "claims.json")
    row = ledger.table(run).set_index("claim").loc[claim.id]
    assert row[["verdict", "comparison", "effect"]].tolist() == ["partly", unsure, 2.0]


def test_an_effect_is_that_of_the_comparison_that_holds_least(run):
    rows = ledger.table(run).set_index("claim")
    numbers = ["effect", "low", "high", "published_low", "published_high", "models"]
    assert rows.loc["lens-against-dense", numbers].tolist() == pytest.approx([-10, -10.02, -9.98, 0.39, 0.39, 1])
    assert rows.loc["llm2vec-mntp", "comparison"] == "mntp_mean > bidirectional_mean"
    assert rows.loc["llm2vec-mntp", numbers[:3]].tolist() == pytest.approx([-2, -2.02, -1.98])
    printed = [
        numbers["mntp_mean"] - numbers["bidirectional_mean"] for numbers in CLAIMS["llm2vec-mntp"].published.values()
    ]
    assert rows.loc["llm2vec-mntp", numbers[3:]].tolist() == pytest.approx([min(printed), max(printed), 3])
    assert rows.loc["llm2vec-simcse", numbers[:3]].isna().tolist() == [False, True, True]
    assert rows.loc[["nv-embed-two-stages", "lens-hybrid"], numbers[:3]].isna().all(axis=None)
    # What the paper prints stands there whether or not the claim was run.
    assert rows.loc["lens-hybrid", "published_low"] == pytest.approx(63.00 - 61.86)
    unprinted = rows[rows["models"] == 0]
    assert set(unprinted.index) == {claim.id for claim in CLAIMS.values() if not claim.published}
    assert unprinted["published_low"].isna().all()


def test_counts_and_text(run):
    rows = ledger.table(run)
    counts = ledger.counts(rows)
    assert list(counts.columns) == [*ledger.VERDICTS, "all"]
    assert counts.loc["all"].tolist() == [1, 1, 1, 1, 1, len(CLAIMS) - 5, len(CLAIMS)]
    assert counts.loc["LENS", "not reproduced"] == 1
    assert (counts[list(ledger.VERDICTS)].sum(axis=1) == counts["all"]).all()
    text = ledger.readable(rows).set_index("claim")
    assert text.loc["lens-against-dense", ["measured", "published"]].tolist() == ["-10 [-10, -9.98]", "+0.39"]
    assert text.loc["llm2vec-weighted-mean", "published"] == "+1.01 to +2.02 (3)"
    assert text.loc["llm2vec-simcse", "measured"] == "+10.3"
    assert text.loc["lens-clusters", ["measured", "published"]].tolist() == ["-", "-"]


def test_written_files_hold_the_table_and_all_verdicts(run):
    rows = ledger.write(run)
    pd.testing.assert_frame_equal(
        pd.read_csv(run / "ledger.csv", dtype={"notebook": str, "did_not_learn": str}).fillna(
            {"notebook": "", "did_not_learn": ""}
        ),
        rows,
        check_dtype=False,
    )
    entries = {entry["id"]: entry for entry in json.loads((run / "ledger.json").read_text(encoding="utf-8"))}
    assert list(entries) == list(rows["claim"])
    assert [one["notebook"] for one in entries["llm2vec-mntp"]["verdicts"]] == ["02_llm2vec", "07_compare"]
    assert entries["lens-hybrid"]["verdicts"] == []
    assert entries["lens-hybrid"]["rule"] == list(CLAIMS["lens-hybrid"].rule)
    assert {path.name for path in (run / "figures").iterdir()} == {f"claims.{e}" for e in ("pdf", "svg", "png", "csv")}
    before = (run / "ledger.json").read_bytes()
    ledger.write(run)
    assert (run / "ledger.json").read_bytes() == before


def test_a_folder_without_verdicts_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"claims\.json, found none\. Run the notebooks"):
        ledger.table(tmp_path / "absent")


def without_comparisons(text, verdict="not reproduced"):
    """The verdicts, that on lens-against-dense without the comparison that made it."""
    entries = json.loads(text)
    (entry,) = (one for one in entries if one["id"] == "lens-against-dense")
    entry.update(clauses={}, verdict=verdict)
    return json.dumps(entries)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda text: text[:-40], DamagedFileError, r"Expected JSON in .*claims\.json"),
        (lambda text: "{}", DamagedFileError, r"JSON list in .*claims\.json, found dict"),
        (lambda text: text.replace('"verdict": "not rep', '"verdict": "no rep'), DamagedFileError, "Expected verdicts"),
        (lambda text: text.replace("lexicon > dense", "lexicon >> dense"), DamagedFileError, "Expected verdicts"),
        (lambda text: text.replace('"dense": {', '"dens": {'), DamagedFileError, "Expected verdicts"),
        (
            lambda text: text.replace("lens-against-dense", "lens-against-dens"),
            UnknownNameError,
            r"claim in .*claims\.json 'lens-against-dens'. Did you mean 'lens-against-dense'.* notebook 04_lens again",
        ),
        (
            lambda text: text.replace("lexicon > dense", "lexicon > dense + 5"),
            DamagedFileError,
            r"claims\.json: expected .*'lens-against-dense' by its rule \['lexicon > dense'\] .*, got .*04_lens again",
        ),
        (
            lambda text: text.replace('"not reproduced"', '"reproduced"').replace('"fails"', '"holds"'),
            DamagedFileError,
            r"Expected verdicts in .*'reproduced' .* its numbers say 'not reproduced'.* run again",
        ),
        (without_comparisons, DamagedFileError, "its numbers say 'not tested at this scale'"),
        (
            lambda text: without_comparisons(text, "not tested at this scale"),
            DamagedFileError,
            r"'lens-against-dense' by its rule .* at scale cpu, got 'not tested at this scale' by \[\].*04_lens again",
        ),
    ],
    ids=["truncated", "no list", "no verdict", "unreadable", "unmeasured", "unknown", "another rule", "turned round",
         "without comparisons", "as if untested"],
)  # fmt: skip
def test_bad_verdicts_are_refused_and_nothing_is_lost(run, change, error, message):
    path = run / "claims.json"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    kept = path.read_bytes()
    with pytest.raises(error, match=message):
        ledger.write(run)
    assert [found.name for found in run.iterdir()] == ["claims.json"]
    assert path.read_bytes() == kept


def test_a_rule_that_can_not_be_read_is_named_with_its_file(run, monkeypatch, tmp_path):
    text = (ROOT / "data" / "claims.json").read_text(encoding="utf-8")
    path = tmp_path / "data" / "claims.json"
    path.parent.mkdir()
    path.write_text(text.replace('"lexicon > dense"', '"lexicon >> dense"'), encoding="utf-8")
    monkeypatch.setattr("workbook.files.ROOT", tmp_path)
    with pytest.raises(InvalidValueError, match=r"rule of claim 'lens-against-dense' in .*data/claims\.json: expected"):
        ledger.table(run)


def test_the_report_counts_the_claims_and_shows_the_rest_where_it_can_not(run):
    with runner.Session(run, {}) as session:
        assert [*session.run([])] == []
    page = report.write(run).read_text(encoding="utf-8")
    assert '<td>all</td><td class="number">1</td>' in page
    assert f'<td class="number">{len(CLAIMS)}</td></tr>' in page
    assert page.count("data:image/png;base64,") == 1
    path = run / "claims.json"
    path.write_text(path.read_text(encoding="utf-8").replace("lens-against-dense", "lens"), encoding="utf-8")
    page = report.write(run).read_text(encoding="utf-8")
    assert "Unknown claim in" in page
    assert "6 claims judged" in page
    assert "<td>all</td>" not in page
    assert 'class="ledger"' not in page
    assert "No claim was judged" not in page
    assert "data:image/png;base64," not in page  # the earlier ledger's figure
    path.write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    page = report.write(run).read_text(encoding="utf-8")
    assert "Expected JSON in" in page
    assert "0 claims judged" in page


def test_the_report_has_a_row_for_each_judged_claim_under_its_paper_whatever_the_columns(run, monkeypatch):
    with runner.Session(run, {}) as session:
        assert [*session.run([])] == []

    def table():
        page = BeautifulSoup(report.write(run).read_text(encoding="utf-8"), "html.parser").find("table", "ledger")
        cells = [[cell.get_text().strip() for cell in row.find_all("td")] for row in page.select("tr:not(.paper)")]
        head = [cell.get_text() for cell in page.thead.find_all("th")]
        return page, head, [row for row in cells if row]

    rows = ledger.table(run)
    judged = rows[rows["verdict"] != ledger.NOT_RUN]
    page, head, cells = table()
    text = ledger.readable(judged)
    assert (head, cells) == (list(text.columns), text.to_numpy().tolist())
    assert [paper.get_text() for paper in page.select("tr.paper")] == list(judged["paper"].unique())
    assert [len(body.select("tr:not(.paper)")) for body in page.find_all("tbody")] == [3, 1, 1]
    assert {cell["colspan"] for cell in page.select("tr.paper th")} == {str(len(head))}

    words = {"claim": "a <b> claim of many words", "here": "+1.2 [0.4, 2.1]", "verdict": "contradicted", "why": "so"}
    monkeypatch.setattr(ledger, "readable", lambda rows: pd.DataFrame([words] * len(rows)))
    page, head, cells = table()
    sign = figures.VERDICTS["contradicted"].sign
    assert (head, cells) == ([*words], [[*(words | {"verdict": f"{sign} contradicted"}).values()]] * 5)
    assert page.find("b") is None
    assert [pill["class"] for pill in page.select(".word")] == [["word", "contradicted"]] * 5


def test_the_report_fits_its_window_and_has_the_figures_colours(run):
    with runner.Session(run, {}) as session:
        assert [*session.run([])] == []
    page = BeautifulSoup(report.write(run).read_text(encoding="utf-8"), "html.parser")
    style = page.style.get_text()
    assert re.search(r"\bth, td \{[^}]*overflow-wrap: break-word", style)
    for scrolls in ("overflow-x", "nowrap", "table-layout"):
        assert scrolls not in style
    assert set(re.findall(r"(?<![\w-])(?:min-)?width: ([^;}]+)", style)) == {"100%"}  # no fixed ones
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
        assert '<td>all</td><td class="number">1</td>' in page


def test_without_claims_the_report_says_why_and_a_run_does_not_begin(run, monkeypatch, tmp_path):
    with runner.Session(run, {}) as session:
        assert [*session.run([])] == []
    monkeypatch.setattr("workbook.files.ROOT", tmp_path / "elsewhere")
    assert "claims.json" in re.search(r'<p class="error">([^<]+)', report.write(run).read_text(encoding="utf-8"))[1]
    with pytest.raises(MissingDataError, match=r"claims\.json"), runner.Session(tmp_path / "new", {}):
        pass
    assert not (tmp_path / "new").exists()
