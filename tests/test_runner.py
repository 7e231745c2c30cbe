"""Running notebooks unattended: real kernels on tiny notebooks."""

import json
import re
import resource
import site
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import filelock
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workbook.errors import DamagedFileError, InvalidValueError, MissingDataError, OutputError, UnknownNameError
from workbook.files import ROOT
from workbook.papers import claims
from workbook.runs import report, runner

pytestmark = pytest.mark.journey

PARAMETERS = 'scale = "cpu"\noutput_dir = ""'
GOOD = [
    "from pathlib import Path",
    'Path(output_dir, "ran").open("a").write(scale)',
]

JUDGES = [
    "from pathlib import Path",
    "from workbook.papers import claims, verdicts",
    'if seed: raise ValueError("before its claim")',
    'claim = claims.get("nv-embed-positive-latents")',
    'verdict = verdicts.judge(claim, {"latent_difference": 1.0}, scale="quick", notebook="05_judges")',
    'claims.write([verdict], Path(output_dir, "claims.json"))',
    'for name in ("figures", "manifests"): Path(output_dir, name).mkdir(exist_ok=True)',
    'Path(output_dir, "manifests", "05_judges.json").write_text(\'{"figures": ["05_scores.png"]}\')',
    'Path(output_dir, "figures", "05_scores.png").write_bytes(b"drawn")',
]


def write(path, *sources, parameters=PARAMETERS):
    cells = [new_markdown_cell("# A notebook of $k^2$"), new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    nbformat.write(new_notebook(cells=[*cells, *map(new_code_cell, sources)]), path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four notebooks, one of them good, run once: the sources, the run folder, the outcomes."""
    root = tmp_path_factory.mktemp("run")
    source, output = root / "notebooks", root / "output"
    source.mkdir()
    write(source / "00_good.ipynb", *GOOD)
    write(source / "01_fails.ipynb", "x = 1", 'raise ValueError("no such\\nthing")', "y = 2")
    write(source / "02_exits.ipynb", "import sys", "sys.exit(0)", "z = 2")
    write(source / "03_dies.ipynb", "import os", "os._exit(9)", "z = 2")
    (source / "04_broken.ipynb").write_text("{")
    (source / "05_list.ipynb").write_text("[]")
    (source / "06_newer.ipynb").write_text('{"nbformat": 99, "nbformat_minor": 0, "cells": [], "metadata": {}}')
    with runner.Session(output, {"scale": "quick", "rerun": True}) as session:
        outcomes = {outcome.name: outcome for outcome in session.run(runner.find([], source), jobs=2)}
    return source, output, outcomes


def test_each_code_cell_is_told_as_it_begins(tmp_path):
    write(tmp_path / "00_good.ipynb", *GOOD, "")
    told = []
    with runner.Session(tmp_path / "output", {}, told=lambda *cell: told.append(cell)) as session:
        session.execute(tmp_path / "00_good.ipynb")
        session.execute(tmp_path / "00_good.ipynb")  # unchanged: nothing begins
    assert told == [("00_good", number, 4) for number in (1, 2, 3, 4)]


def test_a_failure_names_its_cell_and_does_not_stop_the_rest(run):
    _, output, outcomes = run
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "00_good": "passed",
        "01_fails": "failed",
        "02_exits": "failed",
        "03_dies": "failed",
        "04_broken": "failed",
        "05_list": "failed",
        "06_newer": "failed",
    }
    assert outcomes["01_fails"].problem == "In [4]: ValueError: no such"
    assert outcomes["02_exits"].problem == "In [4]: the notebook ended itself; cells not run: 1"
    assert outcomes["03_dies"].problem.startswith("In [4]: DeadKernelError")
    for name in ("04_broken", "05_list", "06_newer"):
        assert re.match(rf"Expected a notebook in .*{name}\.ipynb, found something else", outcomes[name].problem)
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["notebooks"]["01_fails"]["problem"] == outcomes["01_fails"].problem
    assert manifest["versions"]["torch"].startswith("2.")


def test_parameters_reach_the_notebook_and_rerun_only_if_declared(run):
    _, output, _ = run
    assert (output / "ran").read_text().startswith("quick")
    executed = nbformat.read(output / "00_good.ipynb", as_version=4)
    injected = next(cell for cell in executed.cells if "injected-parameters" in cell.metadata.get("tags", []))
    assert "rerun" not in injected.source


def test_resumes_whatever_was_imported_since(run, tmp_path, monkeypatch):
    """What setuptools carries is on sys.path once it was imported, but it is not installed."""
    source, output, _ = run
    carried = tmp_path / "_vendor" / "carried-1.0.dist-info" / "METADATA"
    carried.parent.mkdir(parents=True)
    carried.write_text("Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "_vendor")
    assert "carried" in {distribution.name for distribution in metadata.distributions()}
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path / "_vendor"))
    for imported in (False, None):  # a user's packages that this Python leaves out
        monkeypatch.setattr(site, "ENABLE_USER_SITE", imported)
        with runner.Session(output, {"scale": "quick", "rerun": True}) as session:
            assert session.execute(source / "00_good.ipynb").status == "unchanged"
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    assert runner._surroundings()["versions"]["carried"] == "1.0"


def test_resumes_by_content(run):
    source, output, _ = run
    good, ran = source / "00_good.ipynb", output / "ran"

    def again(**changed):
        ran.unlink(missing_ok=True)
        with runner.Session(output, {"scale": "quick", "rerun": True} | changed) as session:
            status = session.execute(good).status
        assert ran.exists() == (status == "passed")
        return status

    assert again() == "unchanged"
    copy = output / "00_good.ipynb"
    copy.write_bytes(copy.read_bytes()[:-20])
    assert again() == "passed"  # the damaged copy was not trusted
    killed = (
        "import os, sys; from pathlib import Path; from workbook.files import atomic_file\n"
        "writing = [atomic_file(Path(sys.argv[1], name)) for name in sys.argv[2:]]\n"
        "print(*(one.__enter__() for one in writing)); sys.stdout.flush(); os._exit(1)"  # in the middle of all
    )
    names = ["00_good.ipynb", "figures/00_one.png", "manifest.json"]
    command = [sys.executable, "-c", killed, str(output), *names]
    left = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert [Path(path).parent.is_dir() for path in left] == [True] * 3
    others = output / "mine" / ".settings.json.abcdefgh"
    others.mkdir(parents=True)
    write(good, *GOOD, "1")
    assert again() == "passed"
    assert again() == "unchanged"
    assert again(scale="cpu") == "passed"
    assert {path.name for path in output.rglob(".*")} == {others.name}


@pytest.fixture
def judges(tmp_path):
    """Run a notebook that leaves a verdict and a figure; returns its outcome and the run folder."""
    write(tmp_path / "05_judges.ipynb", *JUDGES, parameters=PARAMETERS + '\nseed = 0\nbackbone = ""')

    def judges(**parameters):
        with runner.Session(tmp_path / "output", parameters) as session:
            return session.execute(tmp_path / "05_judges.ipynb").status, session.folder

    return judges


def test_a_failed_run_shows_nothing_of_an_earlier_one(judges):
    _, output = judges(seed=0)
    assert judges(seed=1)[0] == "failed"
    assert claims.read(output / "claims.json") == ([], {})
    assert not any((output / "manifests").iterdir())
    page = report.write(output).read_text(encoding="utf-8")
    assert "No claim was judged" in page
    assert "No figure was saved" in page
    assert judges(seed=0)[0] == "passed"
    report.write(output)
    (output.parent / "05_judges.ipynb").write_text("{")
    assert judges(seed=0)[0] == "failed"
    assert not list(output.glob("05_judges.*"))


def test_resumes_only_if_everything_it_left_is_intact(judges):
    _, output = judges()
    assert judges()[0] == "unchanged"
    other = claims.read(output / "claims.json")[0][0].model_copy(update={"notebook": "06_other"})
    claims.write([other], output / "claims.json")
    (output / "figures" / "06_scores.png").touch()
    assert judges()[0] == "unchanged"  # another notebook's are not its concern
    (output / "claims.json").unlink()
    assert judges()[0] == "passed"
    (output / "figures" / "05_scores.png").write_bytes(b"another")
    assert judges()[0] == "passed"
    assert [verdict.notebook for verdict in claims.read(output / "claims.json")[0]] == ["05_judges"]
    assert (output / "figures" / "06_scores.png").exists()


def test_a_copy_that_someone_has_edited_is_kept(judges):
    _, output = judges()
    for number in ("", "2"):
        (output / "05_judges.ipynb").write_text(f"mine {number}")
        assert judges()[0] == "passed"
        assert (output / f"05_judges.edited{number}.ipynb").read_text() == f"mine {number}"
    assert judges()[0] == "unchanged"


def test_who_sums_up_waits_for_the_others_and_runs_again_when_they_found_something_else(tmp_path):
    source, output = tmp_path / "notebooks", tmp_path / "output"
    source.mkdir()
    write(source / "05_judges.ipynb", "import time; time.sleep(1)", *JUDGES, parameters=PARAMETERS + "\nseed = 0")
    write(
        source / "00_sums.ipynb", "from workbook.papers import claims", "claims.read(output_dir + '/claims.json')[0][0]"
    )
    sums = nbformat.read(source / "00_sums.ipynb", as_version=4)
    sums.cells[-1].metadata["tags"] = ["sums-up"]
    nbformat.write(sums, source / "00_sums.ipynb")

    def again():
        with runner.Session(output, {}) as session:
            return [(outcome.name, outcome.status) for outcome in session.run(runner.find([], source), jobs=2)]

    assert again() == [("05_judges", "passed"), ("00_sums", "passed")]
    assert again() == [("05_judges", "unchanged"), ("00_sums", "unchanged")]
    [verdict] = claims.read(output / "claims.json")[0]
    claims.write([verdict.model_copy(update={"notebook": "06_other"})], output / "claims.json")
    assert again() == [("05_judges", "unchanged"), ("00_sums", "passed")]


def test_notebooks_run_at_the_same_time_each_in_its_folder(tmp_path):
    """Each waits until the other has begun, and reads a path from where it stands."""
    meet = [
        "from pathlib import Path",
        "import time",
        "Path(output_dir, NAME).touch()",
        "end = time.monotonic() + 60",
        "while len(list(Path(output_dir).glob('begun-*'))) < 2 and time.monotonic() < end: time.sleep(0.1)",
        "assert len(list(Path(output_dir).glob('begun-*'))) == 2",
        "Path(output_dir, NAME).write_text(Path('beside.txt').read_text())",
    ]
    for name in ("00_one", "01_other"):
        write(tmp_path / f"{name}.ipynb", f"NAME = 'begun-{name}'", *meet)
    (tmp_path / "beside.txt").write_text("read")
    with runner.Session(tmp_path / "output", {}) as session:
        outcomes = list(session.run(runner.find([], tmp_path), jobs=2))
    assert {outcome.status for outcome in outcomes} == {"passed"}, outcomes
    assert [path.read_text() for path in (tmp_path / "output").glob("begun-*")] == ["read", "read"]


def test_notebooks_share_the_cores_and_who_sums_up_has_them_all(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "9")  # so that what the run sets is taken back
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    for name in ("00_one", "01_other", "02_sums"):
        write(tmp_path / f"{name}.ipynb", "import os", "threads = os.environ['OMP_NUM_THREADS']", "threads")
    sums = nbformat.read(tmp_path / "02_sums.ipynb", as_version=4)
    sums.cells[-1].metadata["tags"] = ["sums-up"]
    nbformat.write(sums, tmp_path / "02_sums.ipynb")
    with runner.Session(tmp_path / "output", {}) as session:
        assert {outcome.status for outcome in session.run(runner.find([], tmp_path), jobs=2)} == {"passed"}
    copies = [nbformat.read(path, as_version=4) for path in sorted((tmp_path / "output").glob("*.ipynb"))]
    assert [copy.cells[-1].outputs[0].data["text/plain"] for copy in copies] == ["'3'", "'3'", "'6'"]


def test_what_stops_a_run_is_raised(tmp_path):
    write(tmp_path / "00_good.ipynb", *GOOD)
    with runner.Session(tmp_path / "output", {}) as session:
        (tmp_path / "output" / "claims.json").write_text("{}")
        with pytest.raises(DamagedFileError, match=r"claims\.json"):
            list(session.run(runner.find([], tmp_path)))


@pytest.mark.parametrize("relative", [False, True])
def test_other_weights_in_the_same_folder_are_another_backbone(judges, tmp_path, relative):
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    backbone = "model" if relative else str(weights.parent)
    assert judges(backbone=backbone)[0] == "passed"
    assert judges(backbone=backbone)[0] == "unchanged"
    weights.write_bytes(b"two")
    assert judges(backbone=backbone)[0] == "passed"


def test_report_shows_every_notebook(run):
    _, output, _ = run
    page = report.write(output).read_text(encoding="utf-8")
    assert "In [4]: ValueError: no such" in page
    assert '<a href="00_good.html">' in page
    executed = (output / "00_good.html").read_text(encoding="utf-8")
    assert "A notebook of <math" in executed
    assert "$k" not in executed
    for text in (page, executed):
        assert not re.findall(r"""(?:src|href|import\()\s*=?\s*["']?https?://""", text)
    (output / "00_good.ipynb").write_text('{"cells": [')  # newer than its page
    page = report.write(output).read_text(encoding="utf-8")
    assert "Expected a notebook in" in page
    assert '<a href="00_good.html">' not in page
    with pytest.raises(MissingDataError, match=r"manifest\.json"):
        report.write(output.parent)


def test_what_is_no_formula_stays_as_it_is_written(tmp_path):
    text = "A sum of $5, or $x^$; but $k^2$."
    cells = [new_markdown_cell(text), new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})]
    nbformat.write(new_notebook(cells=cells), tmp_path / "00_sums.ipynb")
    with runner.Session(tmp_path / "run", {}) as session:
        assert [outcome.status for outcome in session.run(runner.find([], tmp_path))] == ["passed"]
    report.write(tmp_path / "run")
    page = (tmp_path / "run" / "00_sums.html").read_text(encoding="utf-8")
    assert "$x^$" in page
    assert "<msup>" in page


def test_braces_in_the_path_of_a_run_folder_are_no_placeholders(tmp_path):
    write(tmp_path / "00_good.ipynb", *GOOD)
    with runner.Session(tmp_path / "a{b}", {}) as session:
        (outcome,) = session.run(runner.find([], tmp_path))
    assert outcome.status == "passed"
    assert (tmp_path / "a{b}" / "ran").read_text() == "cpu"


def test_a_cell_that_takes_too_long_fails_its_notebook_and_not_the_rest(tmp_path):
    write(tmp_path / "00_hangs.ipynb", "import time; time.sleep(600)")
    write(tmp_path / "01_good.ipynb", *GOOD)
    with runner.Session(tmp_path / "out", {}, cell_timeout=10) as session:
        outcomes = {outcome.name: outcome for outcome in session.run(runner.find([], tmp_path))}
    assert (outcomes["00_hangs"].status, outcomes["01_good"].status) == ("failed", "passed")
    assert "CellTimeoutError" in outcomes["00_hangs"].problem


def test_a_run_never_touches_the_notebooks_that_it_reads(tmp_path):
    (tmp_path / "notebooks").mkdir()
    write(tmp_path / "notebooks" / "00_good.ipynb", *GOOD)
    source = (tmp_path / "notebooks" / "00_good.ipynb").read_bytes()
    for folder in (tmp_path / "notebooks", tmp_path):
        with runner.Session(folder, {}) as session, pytest.raises(OutputError, match="holds the notebook"):
            [*session.run(runner.find([], tmp_path / "notebooks"))]
    assert [path.name for path in tmp_path.rglob("*")] == ["notebooks", "00_good.ipynb"], "nothing was written either"
    assert (tmp_path / "notebooks" / "00_good.ipynb").read_bytes() == source


def test_files_that_no_run_left_are_kept(tmp_path):
    sources, output = tmp_path / "notebooks", tmp_path / "output"
    sources.mkdir()
    write(sources / "05_judges.ipynb", JUDGES[0], *JUDGES[6:])
    (output / "figures").mkdir(parents=True)
    beach = output / "figures" / "05_beach.png"
    beach.write_bytes(b"sand")
    for _ in range(2):
        with runner.Session(output, {}) as session:
            assert session.execute(sources / "05_judges.ipynb").status in ("passed", "unchanged")
        assert beach.read_bytes() == b"sand"
    for name in ("05_judges.ipynb", "index.html", "figures/claims.png", "figures/claims.csv"):
        other = tmp_path / f"other-{name.replace('/', '-')}"
        (other / name).parent.mkdir(parents=True)
        (other / name).write_text("mine")
        with pytest.raises(OutputError, match="not of an earlier run"), runner.Session(other, {}) as session:
            session.execute(sources / "05_judges.ipynb")
        assert (other / name).read_text() == "mine"


def test_what_an_earlier_state_of_the_library_made_is_marked(judges, monkeypatch):
    _, output = judges(seed=0)
    assert "earlier state" not in report.write(output).read_text(encoding="utf-8")
    now = runner._surroundings()
    monkeypatch.setattr(runner, "_surroundings", lambda: now | {"library": "another"})
    with runner.Session(output, {"seed": 0}) as session:
        assert [*session.run([])] == []
    assert "earlier state" in report.write(output).read_text(encoding="utf-8")


def test_two_notebooks_of_one_number_are_refused(tmp_path):
    for name in ("01_attention", "01_attention-Copy1", "02_llm2vec"):
        write(tmp_path / f"{name}.ipynb")
    with pytest.raises(InvalidValueError, match=r"one of each number, got \['01_attention', '01_attention-Copy1'\]"):
        runner.find(["02"], tmp_path)


def test_find(run):
    source, _, _ = run
    assert [path.stem for path in runner.find(["2", "01_fails", "01"], source)] == ["01_fails", "02_exits"]
    with pytest.raises(UnknownNameError, match=r"Unknown notebook '09'.*00_good"):
        runner.find(["09"], source)
    with pytest.raises(MissingDataError, match="--notebooks"):
        runner.find([], source.parent)


def test_a_run_folder_is_held_alone(tmp_path):
    with filelock.FileLock(tmp_path / ".workbook.lock"), pytest.raises(OutputError, match="Another run"):
        runner.Session(tmp_path, {}).__enter__()
    with runner.Session(tmp_path, {}):
        pass  # the lock was given back


def test_unwritable_and_damaged_run_folders(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"Could not write .*file"):
        runner.Session(tmp_path / "file", {}).__enter__()
    with runner.Session(tmp_path, {}) as session:
        assert [*session.run([])] == []
    whole = json.loads((tmp_path / "manifest.json").read_text())
    parts = [{name: value for name, value in whole.items() if name != left} for left in whole]
    for found in ([], *parts, whole | {"notebooks": {"00_good": 3}}, whole | {"notebooks": {"00_good": {}}}):
        (tmp_path / "manifest.json").write_text(json.dumps(found))
        with pytest.raises(DamagedFileError, match="Delete it"):
            runner.Session(tmp_path, {}).__enter__()


def test_nothing_half_written_on_a_full_disk(tmp_path):
    """A limit on the size of files stands in for a disk without room."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    session = runner.Session(tmp_path / "run", {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with session, pytest.raises(OutputError, match="Choose a folder"):
            [*session.run([])]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not any((tmp_path / "run").iterdir())
