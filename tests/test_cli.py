"""The command line, through its entry point: exit codes, one message an error, a report at the end."""

import contextlib
import io
import os
import pty
import re
import shutil
import subprocess
import sys

import mteb
import nbformat
import numpy as np
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook

import workbook as package
from workbook import cli, doctor, papers
from workbook.evaluation import SUITES, items
from workbook.evaluation.effects import Quantity
from workbook.papers import claims, ledger
from workbook.papers.verdicts import judge
from workbook.runs import runner


@pytest.fixture
def workbook(monkeypatch, capsys):
    """Run a command; returns exit code, output, errors."""

    def workbook(*arguments):
        monkeypatch.setattr(sys, "argv", ["workbook", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code, *capsys.readouterr()

    return workbook


@pytest.fixture
def source(tmp_path):
    """Two notebooks, the first of which fails."""
    for name, line in {"00_fails": "1 / 0", "01_passes": "1"}.items():
        nbformat.write(new_notebook(cells=[new_code_cell(line)]), tmp_path / f"{name}.ipynb")
    return tmp_path


def test_run(workbook, source):
    output = source / "output"
    code, out, _ = workbook("run", "--notebooks", source, "--output", output, "--scale", "quick")
    failed, passed, page = out.splitlines()
    assert code == 1
    assert failed.startswith("00_fails")
    assert failed.endswith("In [2]: ZeroDivisionError: division by zero")
    assert passed.split()[:2] == ["01_passes", "passed"]
    assert page == f"Report: {output / 'index.html'}"
    assert (output / "index.html").exists()
    code, out, _ = workbook("run", "1", "--notebooks", source, "--output", output, "--scale", "quick")
    assert (code, out.split()[:2]) == (0, ["01_passes", "unchanged"])


def test_a_run_that_is_stopped_leaves_a_page_and_report_writes_one(workbook, source, monkeypatch):
    output = source / "output"
    execute = runner.Session.execute

    def stopped(session, path):
        if path.stem == "01_passes":
            raise KeyboardInterrupt
        return execute(session, path)

    monkeypatch.setattr(runner.Session, "execute", stopped)
    code, out, _ = workbook("run", "--notebooks", source, "--output", output, "--scale", "quick")
    assert (code, out.splitlines()[-1].split()[0]) == (130, "00_fails")
    page = output / "index.html"
    assert "1 failed" in " ".join(page.read_text(encoding="utf-8").split())
    page.unlink()
    assert workbook("report", output) == (0, f"Report: {page}\n", "")
    assert page.exists()


@pytest.mark.journey
def test_run_shows_the_cell_of_each_notebook_in_a_terminal(source):
    command = ["run", "--notebooks", str(source), "--output", str(source / "output"), "--scale", "quick", "--jobs", "2"]
    read, write = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-m", "workbook", *command], stdout=write, env=environment)
    os.close(write)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while part := os.read(read, 65536):
            shown += part
    os.close(read)
    assert process.wait() == 1
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert re.search(r"00_fails +\S+ +cell 2 of 2", lines)
    assert re.search(r"01_passes +\S+ +cell 2 of 2", lines)
    assert re.search(r"01_passes +passed ", lines)


def test_claims(workbook, tmp_path):
    claim = claims.get("nv-embed-recency-bias")
    values = {"last_token_recency": Quantity.of_values(np.linspace(60, 62, 9)), "mean_recency": 50.0}
    verdict = judge(claim, values, scale="cpu", notebook="01_attention")
    claims.write([verdict], tmp_path / "claims.json")
    code, out, err = workbook("claims", "--output", tmp_path)
    assert (code, err) == (0, "")
    row = next(part for part in re.split("[├┡]", out) if "9 x 1" in part)
    columns = zip(*(line.split("│")[1:-1] for line in row.splitlines() if line.startswith("│")), strict=True)
    cells = [" ".join(" ".join(column).split()) for column in columns]
    assert cells[3] == ledger.readable(ledger.effects([verdict]))["here"].item().replace("\n", " ")
    assert cells[-2:] == ["supported", "-"]
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("all ")] == [str(len(claims.load()))]
    assert out.endswith(f"Ledger: {tmp_path / 'ledger.json'}, {tmp_path / 'ledger.csv'}\n")


def test_version_and_help(workbook):
    assert workbook("--version") == (0, f"workbook {package.__version__}\n", "")
    code, out, err = workbook("--help")
    assert (code, err) == (0, "")
    assert "Five ways to turn" in out  # not the docstring of what takes the options
    assert "--install-completion" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell):
    words = {"COMP_WORDS": "workbook eval", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "workbook eval"}
    environment = (
        os.environ | words | {"_WORKBOOK_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    )
    program = "import sys; sys.argv = ['workbook']; from workbook.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "evaluate" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--scale", "qick"], "Unknown scale 'qick'. Did you mean 'quick'?"),
        (["run", "--scale", "night"], "It is recorded with `workbook record --scale night`"),
        (["run", "09", "--notebooks", "SOURCE"], "Unknown notebook '09'."),
        (["run", "--notebooks", "SOURCE/absent"], "found none"),
        (["run", "--notebooks", "SOURCE", "--output", "SOURCE/00_fails.ipynb"], "Could not write"),
        (["run", "--seed", "-1"], "Invalid value for '--seed'"),
        (["claims", "--output", "SOURCE"], "Expected the verdicts of a run in"),
        (["report", "SOURCE"], "Expected a run's manifest.json in"),
        (["claims", "--scale", "huge"], "Unknown scale 'huge'"),
        (["evaluate", "SOURCE"], "Expected a saved sentence-transformers model"),
        (
            ["evaluate", "smollm2-135m"],
            "an embedder, got 'the language model smollm2-135m'. Name a method, such as mean",
        ),
        (["evaluate", "llm2wec"], "Unknown model 'llm2wec'. Did you mean 'llm2vec'?"),
        (["evaluate", "minilm", "--backbone", "tiny-llama"], "backbone: expected a method beside it"),
        (["evaluate", "mean", "--no-cache", "--mteb-results", "SOURCE"], "--mteb-results: expected --cache"),
        (["evaluate", "SOURCE", "--scale", "tiny"], "Unknown scale 'tiny'"),
        (["-v", "-q", "doctor"], "--quiet: expected --quiet or --verbose, got 'both'"),
        (["walk"], "No such command 'walk'"),
    ],
)
def test_mistakes_exit_with_2_and_one_message(workbook, source, arguments, message):
    code, out, err = workbook(*(argument.replace("SOURCE", str(source)) for argument in arguments))
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_a_folder_that_hides_a_method_is_named(workbook, tmp_path, monkeypatch):
    (tmp_path / "mean").mkdir()
    monkeypatch.chdir(tmp_path)
    code, _, err = workbook("evaluate", "mean", "--backbone", "tiny-llama")
    assert (code, "got 'the folder mean'" in err) == (2, True), err


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An embedder, saved."""
    folder = tmp_path_factory.mktemp("saved") / "mean"
    package.build("mean", "tiny-llama", dtype="float32", device="cpu").save(str(folder))
    return folder


@pytest.mark.journey
def test_evaluate(saved, tmp_path):
    """In a process of its own, where loggers and warnings are as a user has them."""
    table = tmp_path / "table.csv"
    command = [sys.executable, "-m", "workbook", "evaluate", saved, "--suite", "ParaphraseLadder"]
    command += ["--scale", "quick", "-o", table]
    ran = subprocess.run(list(map(str, command)), cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith(f"Table: {table}\n")
    frame = pd.read_csv(table)
    assert frame["task"].tolist() == ["ParaphraseLadder"]
    assert set(frame["model"]) == {"mean"}
    assert np.isfinite(frame[["score", "low", "high"]].to_numpy()).all()
    assert list(tmp_path.iterdir()) == [table]


@pytest.fixture
def no_results(corpora, tmp_path, monkeypatch):
    """A cache of corpora and models alone."""
    (tmp_path / "cache").mkdir()
    for path in corpora:
        (tmp_path / "cache" / path.name).symlink_to(path)
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def evaluating(workbook, saved, no_results, tmp_path):
    """Evaluate the saved model without earlier results, into ``table.csv``."""

    def evaluating(*arguments):
        found = workbook("evaluate", saved, "--scale", "quick", "-o", tmp_path / "table.csv", *arguments)
        return *found, pd.read_csv(tmp_path / "table.csv") if (tmp_path / "table.csv").exists() else None

    return evaluating


OWN = ["TopicClustering", "ReviewClassification", "ParaphraseLadder"]
"""The tasks of suite other, which need no corpus."""


@pytest.mark.parametrize(
    ("model", "options"),
    [("mean", ["--backbone", "tiny-llama"]), ("minilm", [])],
)
def test_evaluate_takes_names_and_writes_what_mteb_reads(workbook, no_results, tmp_path, model, options):
    folder = tmp_path / "results"
    asked = ("evaluate", model, *options, "--scale", "quick", "--suite", "ParaphraseLadder")
    code, out, err = workbook(*asked, "-o", tmp_path / "table.csv", "--mteb-results", folder)
    assert (code, err) == (0, "")
    assert out.endswith(f"Results of mteb: {folder}\n")
    row = pd.read_csv(tmp_path / "table.csv").iloc[0]
    assert row["model"] == model
    for _ in range(2):  # the second time from what is kept
        (found,) = mteb.ResultCache(folder).load_results(validate_and_filter=False)
        assert found.model_name == f"workbook/{model}"
        assert [100 * one.get_score() for one in found.task_results] == pytest.approx([row["score"]], abs=1e-3)
        workbook(*asked, "--mteb-results", folder)


@pytest.mark.journey
def test_a_hub_id_is_read_from_its_cache(saved, tmp_path):
    """In a process of its own: where the cache lies is read once."""
    snapshot = tmp_path / "models--someone--their-model" / "snapshots" / "0123abc"
    shutil.copytree(saved, snapshot)
    (tmp_path / "models--someone--their-model" / "refs").mkdir()
    (tmp_path / "models--someone--their-model" / "refs" / "main").write_text("0123abc")
    program = "from workbook import embedders; one = embedders.load('someone/their-model', device='cpu')\n"
    program += "print(one.name, one.method, len(one.key), one.model.encode(['a text']).shape)"
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ran.stdout == "someone/their-model None 64 (1, 32)\n", ran.stderr


@pytest.fixture
def run_tasks(monkeypatch):
    """The tasks that mteb ran, by name."""
    done, run = [], items._run

    def counted(task, *arguments):
        result = run(task, *arguments)
        done.append(task.metadata.name)
        return result

    monkeypatch.setattr(items, "_run", counted)
    return done


def test_a_stopped_evaluation_goes_on_where_it_was(evaluating, run_tasks, tmp_path, monkeypatch):
    """Each task is in the table as soon as it is done; what is kept gives the same numbers, intervals and averages."""
    run = items._run

    def stopped(task, *arguments):
        if len(run_tasks) == 2:
            assert pd.read_csv(tmp_path / "table.csv")["task"].tolist() == OWN[:2]
            raise KeyboardInterrupt
        return run(task, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(items, "_run", stopped)
        code, *_, table = evaluating("--suite", "other")
    assert (code, table["task"].tolist(), run_tasks) == (130, OWN[:2], OWN[:2])
    code, out, _, table = evaluating("--suite", "other")
    assert (code, table["task"].tolist(), run_tasks) == (0, OWN, OWN)
    again = evaluating("--suite", "other")
    assert (again[1], run_tasks) == (out, OWN)
    pd.testing.assert_frame_equal(again[3], table)
    fresh = evaluating("--suite", "other", "--no-cache")[3]
    assert run_tasks == OWN * 2
    pd.testing.assert_frame_equal(fresh.drop(columns="seconds"), table.drop(columns="seconds"))
    kept = mteb.ResultCache(tmp_path / "cache" / "mteb").load_results(require_model_meta=False)
    scores = {result.task_name: 100 * result.get_score() for one in kept for result in one.task_results}
    assert scores == pytest.approx(dict(zip(table["task"], table["score"], strict=True)), abs=0.01)


@pytest.mark.parametrize(
    "change", [["--max-length", "80"], ["--instructions", "none"], ["--scale", "cpu"]], ids=lambda change: change[0]
)
def test_other_settings_are_other_results(evaluating, run_tasks, change):
    evaluating("--suite", "ParaphraseLadder", "--instructions", "docs")
    code, *_, other = evaluating("--suite", "ParaphraseLadder", "--instructions", "docs", *change)
    assert (code, len(other), run_tasks) == (0, 1, ["ParaphraseLadder"] * 2)


def test_a_batch_size_and_resamples_are_not(evaluating, run_tasks):
    one = evaluating("--suite", "ParaphraseLadder")[3]
    other = evaluating("--suite", "ParaphraseLadder", "--batch-size", "7")[3]
    pd.testing.assert_frame_equal(one, other)
    assert run_tasks == ["ParaphraseLadder"]


def test_another_model_in_the_same_folder_is_another(workbook, no_results, run_tasks, tmp_path):
    scores = []
    for method in ("mean", "last-token"):
        package.build(method, "tiny-llama", device="cpu").save(str(tmp_path / "model"))
        code, *_ = workbook("evaluate", tmp_path / "model", "--suite", OWN[2], "-s", "quick", "-o", tmp_path / "t.csv")
        assert code == 0
        scores.append(pd.read_csv(tmp_path / "t.csv")["score"].item())
    assert len(run_tasks) == 2
    assert scores[0] != scores[1]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_verbose_says_what_is_decided_and_quiet_prints_results_alone(workbook, saved, no_results, monkeypatch):
    asked = ("evaluate", saved, "--suite", "ParaphraseLadder", "--scale", "quick", "--devices", "cpu")
    told = []
    for flags in (["-v"], ["-v"], [], ["-q"]):
        monkeypatch.setattr(sys, "stderr", Terminal())
        code, out, _ = workbook(*flags, *asked)
        told.append(sys.stderr.getvalue())
        assert (code, out.count("ParaphraseLadder")) == (0, 1)
    for line in ("mean is on cpu, in float32", "attention is causal, as measured", "float32, attention by sdpa"):
        assert f"{line}\n" in told[0]
    assert "task ParaphraseLadder: not in the cache, is computed\n" in told[0]
    assert "task ParaphraseLadder: from the cache\n" in told[1]
    assert "cache" not in told[2]
    assert "| 0/1 [" in told[2]  # the bar
    assert told[3] == ""


def test_both_offline_suites_with_their_averages_apart(workbook, saved, docs):
    code, out, err = workbook("evaluate", saved, "--scale", "quick", "--max-length", "192", "--no-cache")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert [line[2] for line in lines if line[:2] == ["mean", "docs"]] == [*SUITES["docs"].tasks, "docs"]
    assert [line[2] for line in lines if line[:2] == ["mean", "other"]] == [*OWN, "other"]


@pytest.mark.journey
def test_several_devices_share_the_texts(evaluating, run_tasks):
    one = evaluating("--suite", "ParaphraseLadder", "--no-cache")[3]
    code, *_, two = evaluating("--suite", "ParaphraseLadder", "--no-cache", "--devices", "cpu,cpu")
    assert (code, run_tasks) == (0, ["ParaphraseLadder"] * 2)
    np.testing.assert_allclose(two["score"], one["score"], atol=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "cuda:7"], "Error: device: expected cpu, or a device that torch finds here, got 'cuda:7'."),
        (["--devices", "cpu,gpu"], "Error: device: expected cpu, or a device that torch finds here, got 'gpu'."),
        (["--instructions", "llm2vce"], "Did you mean 'llm2vec'?"),
        (["--max-length", "0"], "Invalid value for '--max-length'"),
        (["--batch-size", "0"], "Invalid value for '--batch-size'"),
    ],
)
def test_mistakes_of_an_evaluation_are_said_at_the_start(evaluating, run_tasks, tmp_path, arguments, message):
    (tmp_path / "table.csv").write_text("task\nof an earlier run\n")
    code, out, err, table = evaluating("--suite", "ParaphraseLadder", *arguments)
    assert (code, out, run_tasks) == (2, "", [])
    assert message in err
    assert table["task"].tolist() == ["of an earlier run"]


def test_evaluate_on_a_suite_that_does_not_exist(workbook, saved, tmp_path):
    code, out, err = workbook("evaluate", saved, "--suite", "dosc", "--scale", "quick", "-o", tmp_path / "table.csv")
    assert (code, out) == (2, "")
    assert err.startswith("Error: Unknown suite or task 'dosc'. Did you mean 'docs'?")
    assert len(err.splitlines()) == 1
    assert not any(tmp_path.iterdir())


def test_evaluate_on_a_benchmark_whose_answers_are_kept(workbook, saved, tmp_path):
    code, out, err = workbook(
        "evaluate", saved, "--suite", "air-bench", "--suite", "docs", "-o", tmp_path / "table.csv"
    )
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("Error: suite: expected tasks that can be scored here, got 'air-bench'. AIR-Bench keeps")
    (table,) = re.findall(r'papers\.published\("(.+)"\)', err)
    assert {*papers.published(table)["part"]} == {"QA", "Long-Doc"}
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["run", "claims", "train", "adapters", "record", "evaluate", "compress", "doctor"])
def test_help(workbook, command):
    code, out, _ = workbook(command, "--help")
    assert code == 0
    assert f" {command} [OPTIONS]" in out


def test_doctor(workbook):
    code, out, _ = workbook("doctor")
    assert code == 0
    assert "The notebooks can run." in out
    assert "smollm2-135m" in out


def test_doctor_says_how_long_the_contextual_token_begins():
    found, absent = doctor.contextual(), doctor.contextual(encoder="no-such-encoder")
    assert found.well
    assert re.match(r"0\.1\d times as long as a word embedding of smollm2-135m as torch initialises it", found.detail)
    assert (absent.well, absent.detail.partition(":")[0]) == (None, "not measured")


def test_doctor_says_what_is_missing():
    absent, other = doctor.packages({"a": "1", "b": "2"}, {"b": "3"}, ["a"])[1:]
    assert not absent.well
    assert "not installed: a" in absent.detail
    assert other.well is None
    assert "b 3 (pinned 2)" in other.detail
    rows = [{"name": "minilm", "status": "missing", "path": ""}, {"name": "other", "status": "missing", "path": ""}]
    assert [finding.well for finding in doctor.models(rows)] == [False, None]


@pytest.mark.parametrize(
    ("kernel", "installed", "detail"),
    [
        ("sdpa", {}, "not installed; .*pip install --no-build-isolation -c constraints.txt"),
        ("sdpa", {"flash_attn": "2.8.3"}, "2.8.3, not used: it needs"),
        ("flash_attention_2", {"flash-attn": "2.8.3"}, "2.8.3, used"),
    ],
)
def test_doctor_says_how_flash_attention_stands(kernel, installed, detail):
    capability = {"device": "cuda", "why": "a card", "dtype": "torch.bfloat16", "attn_implementation": kernel}
    finding = doctor.accelerator(capability, installed)[-1]
    assert (finding.name, finding.well) == ("flash attention", None)
    assert re.match(detail, finding.detail)
