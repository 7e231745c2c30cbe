"""The notebook's frame: parameters checked, seed set, results kept."""

import json
import random
from dataclasses import replace
from typing import Annotated

import numpy as np
import pandas as pd
import pytest
import torch
from bs4 import BeautifulSoup
from IPython.core.interactiveshell import InteractiveShell
from pydantic import Field

from workbook import figures
from workbook.errors import InvalidValueError, ModelNotFoundError, OutputError, UnknownNameError
from workbook.evaluation.effects import Quantity
from workbook.evaluation.outcomes import Outcomes
from workbook.evaluation.suites import SUITES
from workbook.papers import claims, ledger
from workbook.runs import notebook

GOOD = {"scale": "quick", "backbone": "tiny-llama", "seed": 0, "rerun": False}
ALLOWED = {"pooling": ["mean", "last-token"], "layer": range(31), "rate": Annotated[float, Field(gt=0)]}
OWN = {"pooling": "mean", "layer": 12, "rate": 1e-4}


@pytest.fixture
def start(tmp_path):
    def start(allowed=None, **changes):
        return notebook.start("01_attention", **{**GOOD, "output_dir": tmp_path, **changes}, allowed=allowed)

    return start


@pytest.fixture
def shell():
    """A real IPython session of our own, as a kernel has one."""
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_a_good_start(start, tmp_path):
    run = start(ALLOWED, **OWN)
    assert (run.scale.name, run.backbone, run.seed, run.rerun) == ("quick", "tiny-llama", 0, False)
    assert run.output_dir == tmp_path
    manifest = json.loads((tmp_path / "manifests" / "01_attention.json").read_text())
    assert manifest["parameters"] == GOOD | OWN
    assert {"device", "python", "platform", "seconds", "backbone_sha256"} <= set(manifest)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scale": "qick"}, UnknownNameError, "Did you mean 'quick'"),
        ({"scale": "night"}, InvalidValueError, "one that runs live.*got 'night'.*record.*recorded=\"night\""),
        ({"seed": -1}, InvalidValueError, "seed: expected an integer from 0"),
        ({"seed": "3"}, InvalidValueError, "This is text; write the number itself, 3.0"),
        ({"seed": True}, InvalidValueError, "seed: expected an integer"),
        ({"rerun": "true"}, InvalidValueError, "expected True or False, got 'true'.*write True or False.*True"),
        ({"rerun": 1}, InvalidValueError, "expected True or False, got 1"),
        ({"backbone": " "}, InvalidValueError, "backbone: expected"),
        ({"backbone": None}, InvalidValueError, "backbone: expected"),
        ({"backbone": "smolm2-135m"}, UnknownNameError, "Did you mean 'smollm2-135m'"),
        ({"backbone": "nobody/nothing"}, ModelNotFoundError, "Three ways out"),
        ({"output_dir": 3}, InvalidValueError, "output_dir: expected a folder"),
        ({"pooling": "max"}, UnknownNameError, "Unknown pooling 'max'. Expected one of: mean, last-token"),
        ({"layer": 31}, InvalidValueError, "layer: expected an integer from 0 to 30, got 31"),
        ({"layer": 2.0}, InvalidValueError, "layer: expected an integer"),
        ({"rate": "1e-5"}, InvalidValueError, "write the number itself, 1e-05"),
        ({"rate": -1.0}, InvalidValueError, "rate: expected greater than 0, got -1.0"),
    ],
)
def test_bad_parameters_say_what_is_allowed(start, tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        start(ALLOWED, **{**OWN, **change})
    assert not any(tmp_path.iterdir())


def test_every_own_parameter_needs_a_rule(start):
    with pytest.raises(InvalidValueError, match="layer"):
        start(layer=3)
    with pytest.raises(InvalidValueError, match="layer"):
        start({"layer": range(3)})


def test_injected_parameters_that_nobody_declared(start, shell):
    shell.run_cell('# Parameters\nscale = "quick"\nscael = "cpu"\n', store_history=True)
    with pytest.raises(UnknownNameError, match=r"Unknown parameter 'scael'\. Did you mean 'scale'"):
        start()
    shell.run_cell('# Parameters\nscale = "quick"\nlayer = [1, 2]\n', store_history=True)
    start({"layer": list[int]}, layer=[1, 2])


def test_seed_reaches_every_generator(start):
    def draws():
        start(seed=7)
        return random.random(), np.random.random(), torch.rand(1).item()

    assert draws() == draws()


def test_figures_are_numbered_and_shown_once(start, tmp_path, shell, capsys):
    frame = pd.DataFrame({"x": ["a", "b"], "y": [1.0, 2.0]})
    assert start().figure(figures.bars(frame, "x", "y"), "scores", frame) is None
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"01_scores.{ending}" for ending in ("pdf", "svg", "png", "csv")
    }
    assert capsys.readouterr().out.count("<Figure") == 1


def around(level, *suites):
    """A quantity with that mean over the items of each task of the suites."""
    items = level + np.linspace(-0.5, 0.5, 20)
    tasks = [task for suite in suites for task in SUITES[suite].tasks] or [""]
    return Quantity.of({task: Outcomes.of_values(items, range(20)) for task in tasks})


def test_claims_are_recorded_and_shown(start, tmp_path):
    run = start()
    assert run.effects().empty
    assert run.verdicts().frame.columns.tolist() == ledger.WORDS
    measured = {"causal_mean": around(37, "docs", "other"), "bidirectional_mean": around(16, "docs", "other")}
    verdict = run.claim("llm2vec-untrained-bidirectional", **measured)
    assert verdict.verdict == "supported"
    assert claims.read(tmp_path / "claims.json") == ([verdict], {})
    assert verdict.notebook == "01_attention"
    pd.testing.assert_frame_equal(run.effects(), ledger.effects([verdict]))
    pd.testing.assert_frame_equal(run.verdicts().frame, ledger.readable(run.effects()))
    again = run.claim("llm2vec-untrained-bidirectional", **measured | {"causal_mean": 1.0})
    assert again.verdict == "contradicted"
    assert run.effects()["verdict"].tolist() == ["contradicted"] * 2, "the latest alone"


def test_claims_on_recorded_numbers_are_judged_at_the_scale_of_the_record(start):
    run = start()
    numbers = {"mntp_mean": around(30, "docs", "other"), "mntp_simcse_mean": around(40, "docs", "other")}
    assert run.claim("llm2vec-simcse", **numbers).why() == "Scale quick is too small: it needs cpu or more."
    assert run.claim("llm2vec-simcse", scale="cpu", **numbers).verdict == "supported"
    assert set(run.effects()["scale"]) == {"cpu"}
    stuck = numbers | {"mntp_mean": replace(numbers["mntp_mean"], why="MNTP did not learn.")}
    assert run.claim("llm2vec-simcse", scale="cpu", **stuck).why() == "MNTP did not learn."
    with pytest.raises(UnknownNameError, match="scale"):
        run.claim("llm2vec-simcse", scale="cpus", **numbers)


def test_the_scale_is_that_of_the_records_only_where_all_is_recorded(start):
    recorded, live = (pd.DataFrame({"source": [source]}) for source in ("recorded", "this run"))
    assert start().level("night", recorded, pd.concat([recorded, live])) == "night"
    assert start().level("night", recorded, live) == "quick"


def test_a_difference_claimed_both_ways_is_drawn_once(start, tmp_path):
    run = start()
    numbers = {name: around(level, "docs", "other") for name, level in (("causal_mean", 3), ("causal_last_token", 1))}
    for claim in ("llm2vec-last-token-pooling", "causal2vec-last-token-pooling"):
        run.claim(claim, **numbers, causal_weighted_mean=around(4, "docs", "other"))
    run.forest("Effects")
    assert len(run.effects()) == 8
    drawn = pd.read_csv(tmp_path / "figures" / "01_effects.csv")
    assert set(drawn["claim"]) == {"llm2vec-last-token-pooling"}
    assert len(drawn) == 4


def test_what_was_not_tested_is_not_drawn(start, tmp_path):
    run = start()
    numbers = {"mntp_mean": around(30, "docs", "other"), "mntp_simcse_mean": around(40, "docs", "other")}
    run.claim("llm2vec-simcse", scale="cpu", **numbers)
    untested = {"causal_mean": around(3, "docs", "other"), "causal_last_token": around(1, "docs", "other")}
    untested["causal_weighted_mean"] = replace(around(4, "docs", "other"), why="It did not learn.")
    run.claim("llm2vec-last-token-pooling", **untested)
    run.forest("Effects")
    assert {"not tested"} < set(run.effects()["found"])
    drawn = pd.read_csv(tmp_path / "figures" / "01_effects.csv")
    assert "not tested" not in set(drawn["found"])
    assert len(drawn) == (run.effects()["found"] != "not tested").sum()


def test_all_claims_of_a_notebook_are_judged_once(start):
    run = start()
    run.claim("llm2vec-layer-cosine", layer_cosine=around(0.4))
    measured = {"last_token_recency": around(60), "causal_mean": around(30)}
    measured["mean_recency"] = replace(around(55), why="It did not learn.")
    made = {one.id: one for one in run.claims(measured)}
    own = [claim.id for claim in claims.load().values() if claim.notebook == "01_attention"]
    assert [*made] == [name for name in own if name != "llm2vec-layer-cosine"]
    recency = made["nv-embed-recency-bias"].findings.values()
    assert [found.verdict for found in recency] == ["supported", "not tested"]
    assert "Nothing was measured for bidirectional margin." in made["llm2vec-future-tokens"].why()
    assert run.claims(measured) == []


def test_words_are_escaped_wrapped_and_kept_in_lines():
    words = notebook.Words(pd.DataFrame({"claim": ["a <b>& more", "two"], "here": ["x: +1\ny: +2", "-"]}))
    assert repr(words) == "a <b>& more | x: +1; y: +2\ntwo | -"
    assert repr(notebook.Words(words.frame, ["here", "claim"])) == "x: +1; y: +2 | a <b>& more\n- | two"
    assert "class=" not in words._repr_html_(), "no style asks for it"
    page = BeautifulSoup(words._repr_html_(), "html.parser")
    rows = [[cell.get_text() for cell in row.find_all("td")] for row in page.tbody.find_all("tr")]
    assert rows == [["a <b>& more", "x: +1\ny: +2"], ["two", "-"]]
    assert page.find("b") is None
    assert "#T_words td {\n  white-space: pre-line;" in page.style.get_text()
    assert page.find(id="T_words_row0_col0") is None, "an id for each cell takes more room than its words"
    assert words._repr_html_() == words._repr_html_(), "no id that differs from run to run"


def test_a_table_takes_one_line_and_is_the_same_to_a_reader(shell, start):
    frame = pd.DataFrame({"claim": ["a <b>& more", "two"], "here": [1.5, np.nan]})
    start(ALLOWED, **OWN)
    shown = shell.display_formatter.format(frame)[0]["text/html"]
    assert "\n" not in shown
    assert len(shown) < 0.8 * len(frame._repr_html_())
    pages = (BeautifulSoup(page, "html.parser") for page in (shown, frame._repr_html_()))
    ours, theirs = ([cell.get_text() for cell in page.find_all(["th", "td"])] for page in pages)
    assert ours == theirs


def test_a_new_start_drops_what_the_notebook_left_before(tmp_path):
    frame = pd.DataFrame({"x": ["a", "b"], "y": [1.0, 2.0]})

    def start(name):
        return notebook.start(name, **GOOD, output_dir=tmp_path)

    for name in ("01_attention", "010_other"):
        run = start(name)
        run.figure(figures.bars(frame, "x", "y"), "scores", frame)
        run.claim("llm2vec-untrained-bidirectional", causal_mean=37, bidirectional_mean=16)
    start("01_attention")
    assert [verdict.notebook for verdict in claims.read(tmp_path / "claims.json")[0]] == ["010_other"]
    assert {path.name.split("_")[0] for path in (tmp_path / "figures").iterdir()} == {"010"}


def test_provenance_is_the_same_everywhere(start):
    text = start(ALLOWED, **OWN).provenance()
    assert "01_attention at scale quick: backbone='tiny-llama', seed=0, pooling='mean', layer=12" in text
    assert "torch 2.13.0," in text
    assert str(torch.get_num_threads()) + " threads" not in text


def test_unwritable_output(start, tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", "/proc/x"):
        with pytest.raises(OutputError, match="Choose a folder"):
            start(output_dir=folder)
