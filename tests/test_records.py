"""Records: each cell computed once, kept at once, shared by processes, and never taken for another's."""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import recorded_apart

from workbook import backbones, cli, experiments, methods
from workbook.data import rows
from workbook.errors import DamagedFileError, MissingDataError, OutputError, TrainingError, UnknownNameError
from workbook.evaluation.outcomes import Outcomes, pack
from workbook.experiments import EXPERIMENTS, Experiment, Record, Variant, grid, paired, quantities, records
from workbook.experiments.processes import in_own_process
from workbook.experiments.suite import kept_along
from workbook.files import ROOT
from workbook.methods.chain import Chain
from workbook.papers.verdicts import Claim, judge
from workbook.runs import notebook
from workbook.scale import get_scale
from workbook.training import Evaluator
from workbook.training.recipe import Recipe, Stage

PLAIN, TRAINED = Variant("plain", "small"), Variant("trained", "small", ("contrastive",))
BIDIRECTIONAL = {"attention": "bidirectional"}
CELLS = [("plain", 0), ("trained", 0), ("trained", 1)]


def pairs(folder, word="answer"):
    """Write the data of the small method."""
    rows = [{"query": f"question {number}", "positive": f"{word} {number}"} for number in range(6)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def small(folder, **changes):
    """A method on pairs of its own, trained for two steps."""
    sizes = {"steps": 2, "batch_size": 3, "max_length": 12, "learning_rate": 1e-3}
    stage = Stage(name="contrastive", objective="contrastive", data=str(folder / "pairs.jsonl"), **{**sizes, **changes})
    return methods.Method(Chain(pooling="mean"), lambda scale, backbone: Recipe(stages=(stage,)))


def vectors(model, sizes):
    made = [Outcomes.of_values(vector, range(len(vector))) for vector in model.encode(["a text", "another"])]
    rows = {"text": [1, 2], "score": [one.score for one in made], "outcomes": made}
    return pd.DataFrame(rows | {"seed": -1, "seconds": time.time()})


def same(found, expected):
    """Assert that two frames are equal, outcomes too, which are equal if they are kept alike."""
    plain = [frame.drop(columns="outcomes") for frame in (found, expected)]
    pd.testing.assert_frame_equal(*plain)
    assert [pack([one])[0] for one in found["outcomes"]] == [pack([one])[0] for one in expected["outcomes"]]


def corpus(fingerprint):
    """A stand-in, since to build a corpus for this cache takes long."""
    return SimpleNamespace(fingerprint=fingerprint)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of our own, in which equal stages are trained once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def computed(tmp_path, cache, monkeypatch):
    """The small method at hand; a list that grows with every cell that is measured."""
    pairs(tmp_path)
    monkeypatch.setitem(methods.METHODS, "small", small(tmp_path))
    monkeypatch.setenv("WORKBOOK_CACHE", str(cache))
    monkeypatch.setattr(grid, "_CORPORA", {name: partial(corpus, f"today's {name}") for name in grid._CORPORA})
    return []


@pytest.fixture
def experiment(computed):
    def measure(model, sizes):
        computed.append(sizes.name)
        return vectors(model, sizes)

    def experiment(**changes):
        own = {"name": "02_small", "description": "Means", "variants": (PLAIN, TRAINED), "measure": measure}
        return Experiment(**own | changes)

    return experiment


@pytest.fixture
def record(tmp_path, experiment):
    def record(folder="runs", **changes):
        return Record(experiment(**changes), "quick", "tiny-llama", tmp_path / folder)

    return record


def cells(frame):
    return list(dict.fromkeys(zip(frame["variant"], frame["seed"], strict=True)))


# Filling


def test_each_cell_is_computed_once(record, computed):
    frame = record().fill([0, 1])
    assert list(frame.columns) == ["variant", "seed", "text", "score", "outcomes", "trained", "stale"]
    assert frame["trained"].tolist() == [False] * 2 + [True] * 4
    assert cells(frame) == CELLS, "what is not trained is measured once, whatever the seeds"
    assert list(frame["text"]) == [1, 2] * 3
    assert frame["score"].nunique() == 6
    assert len(computed) == 3
    same(record().fill([0, 1]), frame)
    same(record().load(), frame)
    assert cells(record().fill([1], ("trained",))) == [("trained", 1)]
    assert len(computed) == 3


def test_losses_of_training_are_rows_if_asked_for(record):
    rows = record(losses=True).fill([0], ("trained",))
    losses = rows[rows["metric"] == "training"]
    trained = TRAINED.train(0, "quick", "tiny-llama").history
    assert losses["task"].tolist() == trained["stage"].tolist()
    assert losses["step"].tolist() == trained["step"].tolist() == [1, 2]
    assert losses["score"].tolist() == pytest.approx(trained["loss"].tolist(), rel=1e-4)


def test_a_variant_beside_another_is_measured_as_the_hybrid_of_both(experiment, monkeypatch):
    other = Variant("bidirectional", "small", ("contrastive",), BIDIRECTIONAL)
    both = Variant("both", "small", ("contrastive",), hybrid_with=other)
    grid = (TRAINED, other, both)
    monkeypatch.setattr("workbook.experiments.grid.methods.hybrid", lambda *models: ("hybrid of", models))

    def measure(model, sizes):
        text = ["a text"]
        if isinstance(model, tuple):
            return pd.DataFrame({"score": [m.encode(text)[0].tolist() for m in model[1]], "part": [1, 2]})
        return pd.DataFrame({"score": [model.encode(text)[0].tolist()], "part": 0})

    made = experiment(variants=grid, measure=measure)
    one, two, hybrid = (made.run(variant, 0, "quick", "tiny-llama") for variant in grid)
    np.testing.assert_allclose(hybrid["score"].tolist(), [one["score"][0], two["score"][0]], atol=1e-6)
    prints = [made.fingerprint(variant, 0, "quick", "tiny-llama") for variant in grid]
    assert len({*prints}) == 3
    changed = Variant("both", "small", ("contrastive",), hybrid_with=TRAINED)
    assert made.fingerprint(changed, 0, "quick", "tiny-llama") not in prints


def test_numbers_are_those_of_the_run(record):
    made = record()
    frame = made.fill([3], ("trained",))
    again = made.experiment.run(TRAINED, 3, "quick", "tiny-llama", progress=False)
    assert list(frame["score"]) == pytest.approx(list(again["score"]), rel=1e-4)


def test_a_cell_that_another_record_has_is_taken_from_there(record, computed, monkeypatch):
    theirs, mine = record(), record(name="03_alike", variants=(replace(TRAINED, name="the same"), PLAIN))
    monkeypatch.setitem(EXPERIMENTS, "02_small", theirs.experiment)
    theirs.fill([0, 1])
    made = len(computed)
    found = mine.fill([0, 1])
    assert len(computed) == made
    expected = theirs.fill([0, 1])
    for own, other in (("the same", "trained"), ("plain", "plain")):
        taken, there = found[found["variant"] == own], expected[expected["variant"] == other]
        same(taken.reset_index(drop=True), there.assign(variant=own).reset_index(drop=True))
    assert [cell["taken_from"] for cell in mine.read()[1]] == ["02_small"] * 3
    assert mine.stale() == []


def test_a_cell_that_two_experiments_share_is_computed_by_one_at_a_time(record, computed, monkeypatch):
    theirs, mine = record(), record(name="03_alike")
    monkeypatch.setitem(EXPERIMENTS, "02_small", theirs.experiment)
    met, compute = [], Record._compute

    def slow(self, *cell):
        if self.experiment is theirs.experiment:
            met.append(cells(mine.fill([0], ("plain",), wait=False)))
        compute(self, *cell)

    monkeypatch.setattr(Record, "_compute", slow)
    theirs.fill([0], ("plain",))
    assert met == [[]]
    assert cells(mine.fill([0], ("plain",))) == [("plain", 0)]
    assert len(computed) == 1


REFUSED = ("another measure", "another inside", "stale", "another recipe", "another folder", "damaged", "outcomes lost")


@pytest.mark.parametrize("why", REFUSED)
def test_no_other_cell_is_taken(record, computed, monkeypatch, why):
    theirs = record("elsewhere" if why == "another folder" else "runs")
    monkeypatch.setitem(EXPERIMENTS, "02_small", theirs.experiment)
    theirs.fill([0], ("trained",))
    if why == "damaged":
        theirs.csv.write_text("variant,seed,score\ntrained,0,1\n", encoding="utf-8")
    if why == "outcomes lost":
        theirs.npz.unlink()
    if why == "stale":  # its measure has changed since, and this one has counted as far
        theirs.fill([0], ("trained",))
        monkeypatch.setitem(EXPERIMENTS, "02_small", replace(theirs.experiment, version=2))
    changes = {
        "another measure": {"measure": vectors},
        "another inside": {"inside": lambda built, made, sizes: pd.DataFrame({"text": [3], "score": [0.0]})},
        "another recipe": {"version": 2},
    }
    mine = record(name="03_other", variants=(TRAINED,), **changes.get(why, {}))
    made = len(computed)
    assert cells(mine.fill([0])) == [("trained", 0)]
    assert len(computed) == made + (why != "another measure")
    assert "taken_from" not in mine.read()[1][0]


def test_what_is_computed_is_kept_when_the_next_cell_fails(record, computed):
    kept = []

    def failing(model, sizes):
        kept.append(len(record().read()[1]))
        if len(kept) == 3:
            raise KeyboardInterrupt
        return vectors(model, sizes)

    with pytest.raises(KeyboardInterrupt):
        record(measure=failing).fill([0, 1])
    assert kept == [0, 1, 2]
    assert cells(record().load()) == CELLS[:2]
    assert cells(record().fill([0, 1])) == CELLS
    assert len(computed) == 1


def test_the_files_are_the_same_in_whatever_order_they_were_filled(record, tmp_path, monkeypatch):
    first, second = record("one"), record("two")
    first.fill([0, 1])
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "other"))
    second.fill([1], ("trained",))
    second.fill([0], ("trained", "plain"))
    assert cells(second.fill([0, 1])) == CELLS
    assert first.csv.read_bytes() == second.csv.read_bytes()

    def timeless(path):
        manifest = json.loads(path.read_text())
        return manifest | {"cells": [cell | {"seconds": 0, "written": ""} for cell in manifest["cells"]]}

    assert timeless(first.json) == timeless(second.json)
    assert {path.name for path in first.folder.iterdir()} == {first.csv.name, first.json.name, first.npz.name}
    assert first.npz.read_bytes() == second.npz.read_bytes()


def test_a_manifest_tells_what_made_the_numbers_and_nothing_of_the_machine(record, tmp_path):
    made = record()
    made.fill([0])
    manifest = json.loads(made.json.read_text())
    assert (manifest["experiment"], manifest["scale"], manifest["backbone"]) == ("02_small", "quick", "tiny-llama")
    for cell in manifest["cells"]:
        assert cell["seconds"] >= 0
        assert cell["device"] == backbones.capability()["why"]
        assert {"workbook", "torch", "transformers", "sentence-transformers"} <= set(cell["versions"])
        assert len(cell["fingerprint"]) == 64
    text = made.json.read_text() + made.csv.read_text()
    for private in (platform.node(), platform.release(), str(tmp_path), str(Path.home())):
        assert private not in text


def test_a_manifest_tells_of_the_data_behind_each_cell(record):
    made = record(inputs=("docs", "texts/reviews.csv"))
    made.fill([0])
    plain, trained = (cell["data"] for cell in json.loads(made.json.read_text())["cells"])
    reviews = hashlib.sha256((ROOT / "data" / "texts" / "reviews.csv").read_bytes()).hexdigest()
    assert plain["measured_on"] == trained["measured_on"] == {"docs": "today's docs", "texts/reviews.csv": reviews}
    assert plain["trained_on"] == {}
    (stage,) = methods.recipe("small", "quick", "tiny-llama").stages
    read = rows.load(**stage.reading(), tokenizer=backbones.load_tokenizer("tiny-llama"))
    assert trained["trained_on"] == {"contrastive": read.fingerprint}


def test_a_backbone_in_a_folder_is_recorded_by_its_name(experiment, tmp_path):
    folder = tmp_path / "models" / "mine"
    for part in (backbones.load_decoder("tiny-llama", lm_head=True), backbones.load_tokenizer("tiny-llama")):
        part.save_pretrained(folder)
    made = Record(experiment(), "quick", str(folder), tmp_path / "runs")
    made.fill([0], ("plain",))
    assert made.csv.name == "02_small-quick-mine.csv"
    assert json.loads(made.json.read_text())["backbone"] == "mine"
    assert str(tmp_path) not in made.json.read_text() + made.provenance()
    backbones.load_decoder("tiny-qwen2", lm_head=True).save_pretrained(folder)
    assert made.stale() == ["02_small, plain, seed 0"]


def test_a_curve_is_recorded_without_its_seconds(record):
    def evaluator(sizes):
        return Evaluator(
            "mean", 2, lambda model: kept_along({"mean": Outcomes.of_values(model.encode("a text"), range(32))})
        )

    frame = record(variants=(TRAINED,), measure=None, evaluator=evaluator).fill([0])
    assert list(frame.columns) == [
        *("variant", "seed", "step", "tokens", "metric", "task", "score"),
        *("outcomes", "trained", "stale"),
    ]
    assert frame[["metric", "task", "step"]].to_numpy().tolist() == [["curve", "mean", 0], ["curve", "mean", 2]]
    assert frame["tokens"].iloc[0] == 0
    assert frame["tokens"].iloc[1] > 0
    assert frame["score"].nunique() == 2
    assert [one.score for one in frame["outcomes"]] == pytest.approx(frame["score"].tolist(), rel=1e-4)
    assert [one.items for one in frame["outcomes"]] == [32, 32]


def test_a_curve_stands_behind_what_is_measured_at_the_end(record):
    evaluator = Evaluator("two", 1, lambda model: kept_along({"two": Outcomes.of_values([1.0, 3.0], "ab")}))
    frame = record(variants=(TRAINED,), evaluator=lambda sizes: evaluator).fill([0])
    assert list(frame["text"].dropna()) == [1, 2]
    assert list(frame["step"].dropna()) == [0, 1, 2]
    assert frame["metric"].eq("curve").equals(frame["text"].isna())
    assert [one.items for one in frame["outcomes"]] == [32, 32, 2, 2, 2]


def test_a_folder_that_cannot_be_written(record, tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(OutputError, match="Could not write"):
        record().fill([0], ("plain",))


# Several processes


def slow(folder):
    """What another process does: it fills the record, and its second cell waits for the file ``go``."""
    folder = Path(folder)
    methods.METHODS["small"] = small(folder)
    parent = os.getppid()

    def measure(model, sizes):
        (folder / f"measured-{time.time_ns()}").touch()
        second = len(list(folder.glob("measured-*"))) == 2
        while second and os.getppid() == parent and not (folder / "go").exists():
            time.sleep(0.05)
        return vectors(model, sizes)

    made = Experiment("02_small", "Means", (PLAIN, TRAINED), measure=measure)
    Record(made, "quick", "tiny-llama", folder / "runs").fill([0, 1], progress=False)


@pytest.fixture
def other(tmp_path, computed):
    """A process that has filled the first cell of the record and is at the second."""
    program = "import sys, test_records; test_records.slow(sys.argv[1])"
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], env=os.environ | {"PYTHONPATH": path}) as other:
        while len(list(tmp_path.glob("measured-*"))) < 2:
            assert other.poll() is None
            time.sleep(0.05)
        yield other
        other.kill()


@pytest.mark.journey
def test_processes_share_the_cells_of_a_record(other, record, tmp_path):
    ours = []

    def measure(model, sizes):
        ours.append(cells(record().load()))
        return vectors(model, sizes)

    made = record(measure=measure)
    assert cells(made.fill([0, 1], wait=False)) == [CELLS[0], CELLS[2]]
    (tmp_path / "go").touch()
    frame = made.fill([0, 1])
    assert ours == [CELLS[:1]], "the third cell alone, while the other process was at the second"
    assert cells(frame) == CELLS
    assert other.wait() == 0
    same(record().load(), frame)


@pytest.mark.journey
def test_a_process_that_dies_leaves_what_it_had_and_no_lock(other, record, computed):
    other.kill()
    other.wait()
    assert cells(record().load()) == CELLS[:1]
    assert cells(record().fill([0, 1])) == CELLS
    assert len(computed) == 2


# Cells in processes of their own


@pytest.fixture
def apart(computed, tmp_path, monkeypatch):
    """A record that other processes can compute, by its measure; and the processes that measured a cell of it."""
    monkeypatch.setenv("RECORDED_APART", str(tmp_path))

    def apart(measure):
        return Record(recorded_apart.experiment(measure), "quick", "tiny-llama", tmp_path / "runs")

    return apart


def measured_by(folder):
    return [int(path.name.split("-")[1]) for path in sorted(folder.glob("process-*"))]


@pytest.mark.journey
def test_each_cell_has_a_process_of_its_own(apart, record, tmp_path):
    told = []
    frame = apart(recorded_apart.measure).fill([0, 1], apart=True, told=told.append)
    processes = measured_by(tmp_path)
    assert len({*processes}) == 3
    assert os.getpid() not in processes
    assert [line.rpartition(",")[0] for line in told] == [f"02_small: {name}, seed {seed}" for name, seed in CELLS]
    same(record("here").fill([0, 1]), frame)
    assert not [pid for pid in processes if os.path.exists(f"/proc/{pid}")]


def test_the_memory_of_a_process_is_given_back_as_tensors_are_freed(monkeypatch):
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    monkeypatch.delenv(names[0], raising=False)
    monkeypatch.setenv(names[1], "5")
    assert [in_own_process(os.getenv, name) for name in names] == [str(2 << 20), "5"]  # a user's own stays
    assert in_own_process(os.getenv, "MALLOC_ARENA_MAX") == os.environ.get("MALLOC_ARENA_MAX", "2")
    assert names[0] not in os.environ


@pytest.mark.journey
def test_what_a_process_refuses_is_said_as_it_was(apart):
    with pytest.raises(UnknownNameError, match=r"^Unknown colour 'rde'\. Did you mean 'red'\? Expected one of: red\.$"):
        apart(recorded_apart.refused).fill([0], apart=True)


@pytest.mark.journey
def test_a_process_that_the_system_ends_is_said(apart, record):
    with pytest.raises(TrainingError, match=r"Expected a process to compute a cell, it died.* give the same command"):
        apart(recorded_apart.killed).fill([0], apart=True)
    assert cells(record().fill([0])) == CELLS[:2], "the cell is free again"


@pytest.mark.journey
@pytest.mark.parametrize("ended", [signal.SIGINT, signal.SIGKILL])
def test_the_process_of_a_cell_ends_with_the_command(apart, tmp_path, ended):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-c", "import recorded_apart; recorded_apart.main()"]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.DEVNULL) as recording:
        while not measured_by(tmp_path):
            assert recording.poll() is None
            time.sleep(0.05)
        recording.send_signal(ended)
        recording.wait(60)
    (cell,) = measured_by(tmp_path)
    for _ in range(200):
        if not os.path.exists(f"/proc/{cell}"):
            break
        time.sleep(0.05)
    else:
        os.kill(cell, signal.SIGKILL)
        pytest.fail("it went on")


# Staleness


def fewer(scale):
    return get_scale(scale).model_copy(update={"texts": 3})


@pytest.mark.parametrize(
    ("changes", "steps", "word", "wrong"),
    [
        ({"version": 2}, 2, "answer", CELLS),
        ({"sizes": fewer}, 2, "answer", CELLS),
        ({"variants": (Variant("plain", "small", options=BIDIRECTIONAL), TRAINED)}, 2, "answer", CELLS[:1]),
        ({}, 3, "answer", CELLS[1:]),
        ({}, 2, "reply", CELLS[1:]),
        ({"description": "Other words"}, 2, "answer", []),
    ],
    ids=["version", "sizes", "options", "steps", "data", "description"],
)
def test_stale_cells_are_named_never_shown_and_recorded_again(
    record, computed, tmp_path, monkeypatch, changes, steps, word, wrong
):
    before = record().fill([0, 1])
    monkeypatch.setitem(methods.METHODS, "small", small(tmp_path, steps=steps))
    pairs(tmp_path, word)
    made = record(**changes)
    assert made.stale() == [f"02_small, {variant}, seed {seed}" for variant, seed in wrong]
    if wrong:
        with pytest.raises(DamagedFileError, match=f"{made.stale()[-1]}. Record them again: .* record 02_small "):
            made.load()
    computed.clear()
    after = made.fill([0, 1])
    assert len(computed) == len(wrong)
    assert cells(after) == CELLS
    assert len(after) == len(before), "the old rows are gone"
    same(made.load(), after)


READ = ("docs", "roles", "texts/topics.csv", "probes/future_tokens.csv")


@pytest.mark.parametrize("changed", READ)
def test_cells_are_stale_when_what_they_are_measured_on_changes(record, tmp_path, monkeypatch, changed):
    shutil.copytree(ROOT / "data", tmp_path / "data")
    monkeypatch.setattr("workbook.files.ROOT", tmp_path)
    readers = {read: record(read.partition("/")[0], inputs=(read,), variants=(PLAIN,)) for read in READ}
    for made in readers.values():
        made.fill([0])
        assert made.stale() == []
    if changed in grid._CORPORA:
        monkeypatch.setitem(grid._CORPORA, changed, partial(corpus, "another"))
    else:
        with (tmp_path / "data" / changed).open("a") as file:
            file.write("another\n")
    assert [read for read, made in readers.items() if made.stale()] == [changed]


def test_what_is_read_must_be_there(record):
    with pytest.raises(MissingDataError, match=r"topic\.csv"):
        record(inputs=("texts/topic.csv",)).fill([0])


@pytest.mark.parametrize("other", [("mean-2", 2), ("mean", 1)])
def test_cells_are_stale_when_another_curve_is_watched(record, other):
    def evaluated(name, every):
        evaluator = Evaluator(name, every, lambda model: kept_along({"mean": Outcomes.of_values([0.0, 1.0], "ab")}))
        return record(variants=(TRAINED,), measure=None, evaluator=lambda sizes: evaluator)

    evaluated("mean", 2).fill([0])
    assert evaluated("mean", 2).stale() == []
    assert evaluated(*other).stale() == ["02_small, trained, seed 0"]


def test_a_seed_is_part_of_what_is_trained_alone(record):
    made = record()
    made.fill([0])
    for path in (made.csv, made.json):
        path.write_text(path.read_text().replace(",0,", ",7,").replace('"seed": 0', '"seed": 7'))
    assert made.stale() == ["02_small, trained, seed 7"]


def test_what_nobody_asks_for_any_more_is_stale_and_goes(record, computed):
    record().fill([0, 1])
    fewer = record(variants=(TRAINED,))
    assert fewer.stale() == ["02_small, plain, seed 0"]
    fewer.fill([0])
    assert cells(fewer.load()) == CELLS[1:], "current cells stay, whatever seeds were asked for"
    computed.clear()
    changed = record(version=2, variants=(TRAINED,))
    changed.fill([0])
    assert cells(changed.load()) == [("trained", 0)]
    assert len(computed) == 1


def test_stale_cells_of_other_variants_stay_when_one_is_recorded(record):
    record().fill([0, 1])
    changed = record(version=2)
    changed.fill([0, 1], ("trained",))
    assert changed.stale() == ["02_small, plain, seed 0"]
    assert sorted(cells(changed.load(stale=True))) == sorted(CELLS)


# What lies there


def test_nothing_is_recorded(record):
    made = record()
    assert not made.exists()
    assert made.stale() == []
    with pytest.raises(
        MissingDataError, match=r"python -m workbook record 02_small --scale quick --backbone tiny-llama.*rerun = True"
    ):
        made.load()
    assert made.provenance() == "Nothing is recorded of 02_small at scale quick, backbone tiny-llama."


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("csv", lambda text: None),
        ("csv", lambda text: ""),
        ("csv", lambda text: text.replace("variant", "variety")),
        ("csv", lambda text: text.replace(",2,", ",2,3,4,")),
        ("json", lambda text: text[:-9]),
        ("json", lambda text: "[]"),
        ("json", lambda text: "{}"),
        ("json", lambda text: text.replace("fingerprint", "print")),
        ("json", lambda text: text.replace('"seconds"', '"minutes"')),
        ("json", lambda text: text.replace('"rows_sha256"', '"rows"')),
    ],
)
def test_a_damaged_record_is_said_and_not_used(record, computed, file, damage):
    made = record(variants=(PLAIN,))
    made.fill([0])
    path = getattr(made, file)
    damaged = damage(path.read_text())
    path.unlink() if damaged is None else path.write_text(damaged)
    assert made.exists()
    for use in (made.load, made.stale, made.provenance, partial(made.fill, [0])):
        with pytest.raises(
            DamagedFileError, match=r"Expected a record in .*\.csv and .*\.json, got .* record 02_small "
        ):
            use()
    assert len(computed) == 1


ROWS = {
    "a number": lambda lines: [*lines[:-1], lines[-1][:-1] + ("2" if lines[-1][-1] == "1" else "1")],
    "a row less": lambda lines: lines[:-1],
    "no rows": lambda lines: [line for line in lines if not line.startswith("trained")],
    "a row twice": lambda lines: [*lines, lines[-1]],
    "another order": lambda lines: [*lines[:-2], *lines[:-3:-1]],
}


@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
def test_rows_that_were_not_written_so_are_refused_and_computed_again(record, computed, change):
    made = record()
    frame = made.fill([0])
    changed = change(made.csv.read_text().splitlines())
    made.csv.write_text("".join(f"{line}\n" for line in changed))
    for use in (made.load, made.stale, made.provenance):
        with pytest.raises(
            DamagedFileError, match=r"got other rows than were recorded for trained, seed 0\. Restore both"
        ):
            use()
    with pytest.warns(UserWarning, match=r"02_small.*\.csv: expected the rows that were recorded, .* trained, seed 0"):
        same(made.fill([0]), frame)
    assert len(computed) == 3
    same(made.load(), frame)


def test_damaged_cells_that_nobody_asks_for_are_dropped(record):
    made = record()
    made.fill([0, 1])
    lines = made.csv.read_text().splitlines()
    made.csv.write_text("".join(f"{line}\n" for line in lines[:-1]))
    with pytest.warns(UserWarning, match="dropped where not"):
        made.fill([0])
    assert cells(made.load()) == CELLS[:2]


def test_a_table_of_others_is_never_replaced(record):
    made = record()
    made.csv.parent.mkdir()
    made.csv.write_text("name,age\nme,7\n")
    with pytest.raises(DamagedFileError, match=r"got something else\. Move it away"):
        made.fill([0])
    assert made.csv.read_text() == "name,age\nme,7\n"


def test_rows_without_their_manifest_do_not_count(record, computed):
    """A recording that was killed between its two files goes on; the rows that it left are not there twice."""
    made = record()
    made.fill([0], ("plain",))
    manifest = made.json.read_text()
    frame = made.fill([0])
    made.json.write_text(manifest)
    assert cells(made.load()) == CELLS[:1]
    same(made.fill([0]), frame)
    assert len(computed) == 3
    made.json.unlink()
    assert not made.exists()
    with pytest.raises(MissingDataError, match="found none"):
        made.load()
    same(made.fill([0]), frame)
    assert len(computed) == 5


def test_names_are_kept_as_they_are(record):
    made = record(variants=(Variant("None", "small"), Variant("1.0", "small")))
    assert cells(made.fill([0])) == cells(made.load()) == [("None", 0), ("1.0", 0)]


def test_provenance(record):
    made = record()
    made.fill([0, 1])
    assert made.provenance() == (
        "Recorded: 02_small at scale quick, backbone tiny-llama, seeds 0, 1, 3 cells in 0 min "
        f"on {backbones.capability()['why']}."
    )


# Names


def test_names_that_do_not_exist(record, experiment):
    with pytest.raises(UnknownNameError, match=r"Unknown variant of 02_small 'trian'. .* plain, trained"):
        record().fill([0], ("trian",))
    with pytest.raises(UnknownNameError, match="Did you mean 'quick'"):
        Record(experiment(), "qick", "tiny-llama")
    with pytest.raises(UnknownNameError, match="Did you mean '02_words'"):
        experiments.get("02_word")
    with pytest.raises(UnknownNameError, match="Unknown experiment '99'"):
        experiments.find(["02", "99"])


def test_experiments_are_found_by_notebook_and_by_name():
    ours = [name for name in experiments.EXPERIMENTS if name.startswith("02_")]
    assert [found.name for found in experiments.find(["2"])] == ours
    assert [found.name for found in experiments.find(["02_words", "02_stages"])] == ["02_words", "02_stages"]
    rest = [name for name in ours if name != "02_words"]
    assert [found.name for found in experiments.find(["02_words", "02", "02_words"])] == ["02_words", *rest]


def test_experiments_are_recorded_in_the_order_that_is_asked_for():
    asked = [found.name for found in experiments.find(["06_early", "05"])]
    assert asked[0] == "06_early"
    assert asked[1:] == [name for name in experiments.EXPERIMENTS if name.startswith("05_")] != []


# Outcomes by item


def gap(frame):
    """The paired difference of the two variants, and the verdict that rests on it."""
    rows = frame[frame["text"] == 1].assign(source="recorded", task="text")
    claim = Claim(id="c", paper="P", place="table 1", statement="s", rule=["a > b"], scale="quick")
    measured = quantities(rows, {"a": "trained", "b": "plain"})
    return paired(rows, "trained", "plain"), judge(claim, measured, scale="quick")


def test_outcomes_survive_the_files(record):
    made = record()
    made.fill([0, 1])
    frame = made.load()
    again = made.experiment.run(TRAINED, 1, "quick", "tiny-llama", progress=False)
    for kept, own in zip(frame["outcomes"].iloc[-2:], again["outcomes"], strict=True):
        np.testing.assert_allclose(kept.values, own.values, rtol=2**-11, atol=1e-6)
        assert (kept.score, kept.items, kept.digest) == (pytest.approx(own.score, rel=1e-6), 32, own.digest)
    found, verdict = gap(frame)
    assert (found.why, found.items, found.seeds) == ("", 32, 2)
    assert verdict.verdict != "not tested"
    assert made.csv.read_text().partition("\n")[0] == "variant,seed,text,score"


def emptied(path):
    path.write_bytes(b"")


def edited(path):
    with np.load(path) as file:
        arrays = {name: array[..., ::-1].copy() for name, array in file.items()}
    np.savez_compressed(path, **arrays)


@pytest.mark.parametrize("damage", [Path.unlink, emptied, edited], ids=["deleted", "emptied", "edited"])
def test_outcomes_that_were_not_written_so_are_said_and_test_nothing(record, damage):
    made = record()
    expected = made.fill([0, 1]).drop(columns="outcomes")
    damage(made.npz)
    frame = made.load()
    pd.testing.assert_frame_equal(frame.drop(columns="outcomes"), expected)
    assert [one.score for one in frame["outcomes"]] == expected["score"].tolist()
    found, verdict = gap(frame)
    assert found.error is None
    why = r"02_small-quick-tiny-llama\.npz, .*: Expected the outcomes that were recorded, got .*Record it again: python"
    assert re.match(why, found.why)
    assert (verdict.verdict, verdict.why()) == ("not tested", found.why)


@pytest.mark.parametrize("damage", [Path.unlink, emptied, edited], ids=["deleted", "emptied", "edited"])
def test_cells_whose_outcomes_were_lost_are_computed_again(record, damage):
    made = record()
    before = gap(made.fill([0, 1]))[0]
    damage(made.npz)
    assert gap(made.fill([0, 1]))[0] == before
    assert gap(made.load())[0] == before


def test_damaged_arrays_of_one_size_do_not_take_the_others_with_them(record):
    made = record()
    expected = gap(made.fill([0, 1]))[0]
    whole = made._arrays()
    with zipfile.ZipFile(made.npz) as file:
        first = file.infolist()[0]
    content = bytearray(made.npz.read_bytes())
    place = first.header_offset + 30 + len(first.filename) + first.compress_size // 2
    content[place : place + 4] = bytes(255 - byte for byte in content[place : place + 4])
    made.npz.write_bytes(content)
    left = {name for name, array in whole.items() if f"{array.dtype}-{array.size}.npy" != first.filename}
    assert set() < {*made._arrays()} == left < {*whole}
    assert gap(made.load())[0].error is None
    assert gap(made.fill([0, 1]))[0] == expected


def test_older_files_that_hold_each_array_alone_are_read(record):
    made = record()
    expected = gap(made.fill([0, 1]))[0]
    arrays = made._arrays()
    np.savez_compressed(made.npz, **arrays)
    with np.load(made.npz) as file:
        assert {file[name].ndim for name in file.files} == {1}
    assert {*made._arrays()} == {*arrays}
    assert gap(made.load())[0] == expected


def test_outcomes_that_are_out_of_reach_are_not_written_over(record):
    made = record()
    made.fill([0])
    kept = made.npz.rename(made.npz.with_suffix(".away"))
    made.npz.mkdir()  # as good as unreadable, whoever runs this
    with pytest.raises(DamagedFileError, match=r"no outcomes: .*Is a directory"):
        made.fill([0, 1])
    made.npz.rmdir()
    kept.rename(made.npz)
    assert made.load()["outcomes"].map(lambda one: one.statistic).tolist().count("none") == 0


def test_an_old_record_without_outcomes_shows_its_rows_and_tests_nothing(record):
    made = record()
    expected = made.fill([0, 1]).drop(columns="outcomes")
    manifest = json.loads(made.json.read_text())
    for cell in manifest["cells"]:
        del cell["outcomes"]
    made.json.write_text(json.dumps(manifest))
    made.npz.unlink()
    frame = made.load()
    pd.testing.assert_frame_equal(frame.drop(columns="outcomes"), expected)
    found, verdict = gap(frame)
    assert found.why.startswith("02_small-quick-tiny-llama.csv keeps no outcomes by item. Record it again: python")
    assert (found.error, verdict.verdict, verdict.why()) == (None, "not tested", found.why)


def test_a_record_measured_on_other_items_than_todays_tests_nothing(record, monkeypatch):
    made = record(inputs=("docs", "texts/reviews.csv"))
    made.fill([0, 1])
    monkeypatch.setitem(grid._CORPORA, "docs", partial(corpus, "another"))
    frame = made.load(stale=True)
    found, verdict = gap(frame)
    assert found.why.startswith("02_small-quick-tiny-llama.csv was measured on other items than today's: docs. Record")
    assert (found.error, verdict.verdict, verdict.why()) == (None, "not tested", found.why)


def test_a_score_without_outcomes_says_so(record):
    frame = record(measure=lambda model, sizes: vectors(model, sizes).drop(columns="outcomes")).fill([0, 1])
    assert gap(frame)[0].why == "It has no outcomes by item."


def test_the_outcomes_that_the_project_keeps_are_small():
    """Below 12 MB together, so that a clone stays quick."""
    assert sum(path.stat().st_size for path in records.RECORDED.glob("*.npz")) < 12e6


def test_a_recording_stopped_between_its_files_goes_on(record, computed):
    """The outcomes are renamed into place first, then the rows, the manifest last."""
    made = record()
    made.fill([0], ("plain",))
    before = {path: path.read_bytes() for path in (made.npz, made.csv, made.json)}
    expected = made.fill([0])
    after = {path: path.read_bytes() for path in before}
    computed.clear()
    for stopped in (1, 2):  # files that were renamed
        for place, path in enumerate(before):
            path.write_bytes((after if place < stopped else before)[path])
        assert cells(made.load()) == CELLS[:1]
        assert made.load()["outcomes"].iloc[0].items == 32
        same(made.fill([0]), expected)
        assert len(computed) == stopped
        assert {path: path.read_bytes() for path in (made.npz, made.csv)} == {p: after[p] for p in (made.npz, made.csv)}


# In notebooks


@pytest.fixture
def start(experiment, tmp_path, monkeypatch):
    """A run of a notebook; the record that the project keeps lies in ``runs``."""
    monkeypatch.setitem(experiments.EXPERIMENTS, "02_small", experiment(rerun_variants=("trained",)))
    monkeypatch.setattr("workbook.experiments.records.RECORDED", tmp_path / "runs")

    def start(rerun):
        parameters = {"scale": "quick", "backbone": "tiny-llama", "seed": 1, "output_dir": tmp_path / "output"}
        return notebook.start("02_small", **parameters, rerun=rerun)

    return start


def test_a_notebook_shows_what_is_recorded(start, record, computed):
    with pytest.raises(MissingDataError, match="record 02_small --scale cpu"):
        start(rerun=False).experiment("02_small")
    frame = record().fill([0])
    computed.clear()
    run = start(rerun=False)
    expected = frame.assign(source="recorded", label=frame["variant"])
    same(run.experiment("02_small", "quick"), expected)
    assert run.recorded("02_small", "quick") == record().provenance()
    assert computed == []


def test_a_rerun_stands_beside_what_is_recorded_and_is_kept(start, record, computed):
    alone = start(rerun=True).experiment("02_small")
    assert set(alone["source"]) == {"this run"}
    assert cells(alone) == [("plain", 1), ("trained", 1)], "all of them, with the seed of the run"
    assert start(rerun=True).recorded("02_small").startswith("Nothing is recorded")
    record().fill([0])
    computed.clear()
    both = start(rerun=True).experiment("02_small", "quick")
    assert list(both["source"]) == ["recorded"] * 4 + ["this run"] * 2
    assert list(both["label"][-2:]) == ["trained (this run)"] * 2
    expected = alone[alone["variant"] == "trained"].reset_index(drop=True)  # the live variant
    same(both[both["source"] == "this run"].reset_index(drop=True), expected)
    assert computed == []
    assert len(record().load()) == 4, "the project's record is left alone"


def test_a_notebook_shows_a_stale_record_under_a_note(start, record):
    filled = record(version=2).fill([0], ("plain",))
    for rerun in (False, True):
        with pytest.warns(UserWarning, match="02_small: 1 of 1 recorded runs are of an earlier version"):
            rows = start(rerun).experiment("02_small", "quick")
        assert rows[rows["source"] == "recorded"]["score"].tolist() == filled["score"].tolist()
    assert record(version=2).warning() == ""


# On the command line


@pytest.fixture
def workbook(start, apart, monkeypatch, capsys):
    """Run a command; returns exit code, output, errors. Its cells are computed by other processes."""
    monkeypatch.setitem(experiments.EXPERIMENTS, "02_small", recorded_apart.experiment(recorded_apart.measure))

    def workbook(*arguments):
        monkeypatch.setattr(sys, "argv", ["workbook", *arguments])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code, *capsys.readouterr()

    return workbook


@pytest.mark.journey
def test_the_command_records_and_goes_on(workbook, record, tmp_path):
    command = ["record", "02_small", "--scale", "quick", "--backbone", "tiny-llama", "--seeds"]
    code, out, _ = workbook(*command, "1")
    assert (code, cells(record().load())) == (0, CELLS[:2])
    *told, last = out.splitlines()
    assert [line.rpartition(",")[0] for line in told] == ["02_small: plain, seed 0", "02_small: trained, seed 0"]
    assert last == record().provenance()
    code, out, _ = workbook(*command, "2", "--variant", "plain")
    assert (code, cells(record().load())) == (0, CELLS[:2])  # it is not seeded
    code, out, _ = workbook(*command, "2", "--variant", "trained")
    assert (code, cells(record().load())) == (0, CELLS)
    assert "seeds 0, 1, 3 cells" in out
    assert len(measured_by(tmp_path)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["99"], "Error: Unknown experiment '99'."),
        (["02_smal"], "Did you mean '02_small'?"),
        (["02_small", "--scale", "qick"], "Did you mean 'quick'?"),
        (["02_small", "--backbone", "tiny-lama"], "Did you mean 'tiny-llama'?"),
        (["02_small", "--seeds", "0"], "Invalid value for '--seeds'"),
        (["02_small", "--variant", "trainde"], "Did you mean 'trained'?"),
        (
            ["02_small", "02_words", "--variant", "trained"],
            "--variant: expected one experiment, got '02_small, 02_",
        ),
        ([], "Missing argument"),
    ],
)
def test_mistakes_exit_with_2_and_one_message(workbook, computed, tmp_path, arguments, message):
    code, out, err = workbook("record", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert computed == []
    assert not (tmp_path / "runs").exists()


@pytest.mark.journey
def test_a_trial_is_recorded_elsewhere(workbook, tmp_path):
    code, out, _ = workbook(
        "record", "02_small", "--scale=quick", "--backbone=tiny-llama", f"--output={tmp_path / 'tried'}"
    )
    assert (code, "\nRecorded: 02_small" in out) == (0, True)
    assert {path.suffix for path in (tmp_path / "tried").iterdir()} == {".csv", ".json", ".npz"}
    assert not (tmp_path / "runs").exists()


def test_help(workbook):
    code, out, _ = workbook("record", "--help")
    assert code == 0
    assert "NN..." in out
    assert "Record experiments" in out
