"""The records under data/runs: of today's recipes, whole, and silent on the machine that made them."""

import json
from dataclasses import replace

import hygiene
import pandas as pd
import pytest

from workbook import experiments
from workbook.errors import WorkbookError
from workbook.experiments import RECORDED, Experiment, Record, Variant
from workbook.files import ROOT

KEYS = {"experiment", "description", "scale", "backbone", "backbone_sha256", "cells"}
CELL = {"variant", "seed", "fingerprint", "rows_sha256", "data", "seconds", "device", "platform", "threads", "written"}
CELL |= {"versions"}
ITEMS = {"outcomes", "taken_from"}
"""Of cells that keep outcomes by item, as the oldest don't; and of those that another record had."""


STALE = {name for name in experiments.EXPERIMENTS if name.partition("_")[0].isdigit()}
STALE -= {"02_stages", "02_words", "02_words_shifted", "02_inside", "02_efficiency", "09_compress", "09_blocks"}
"""Experiments whose records at scale cpu are of earlier recipes, until those of night take their place."""

NOTEBOOKS = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "notebooks").glob("*.ipynb")))


def problems(folder):
    """What is wrong with the records of a folder, a line each."""
    for path in sorted(folder.glob("*")):
        if path.suffix != ".npz" and hygiene.ABSOLUTE_PATH.search(path.read_text(encoding="utf-8")):
            yield f"{path.name} holds an absolute path"
        if path.suffix == ".json":
            yield from (f"{path.name}: {problem}" for problem in _problems(path))
        elif path.suffix not in (".csv", ".npz") or not path.with_suffix(".json").exists():
            yield f"{path.name} belongs to no record"


def _problems(path):
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if set(manifest) != KEYS:
        yield f"keys {sorted(manifest)}"
        return
    if manifest["experiment"] not in experiments.EXPERIMENTS:
        yield f"no experiment {manifest['experiment']}"
        return
    experiment = experiments.get(manifest["experiment"])
    record = Record(experiment, manifest["scale"], manifest["backbone"], path.parent)
    if record.json != path:
        yield f"expected the name {record.json.name}"
        return
    old = experiment.name in STALE and manifest["scale"] == "cpu"
    try:
        record.load(stale=old)
        if old and not record.stale():
            yield "current, and yet in the list of stale records"
    except WorkbookError as error:
        yield str(error)
        return
    frame = pd.read_csv(record.csv)
    if undeclared := set(frame["variant"]) - {variant.name for variant in experiment.variants}:
        yield f"variants that are not declared, {sorted(undeclared)}"
    listed = [(cell["variant"], cell["seed"]) for cell in manifest["cells"]]
    if list(dict.fromkeys(zip(frame["variant"], frame["seed"], strict=True))) != listed:
        yield "rows in another order than the cells, or of others"
    for cell in manifest["cells"]:
        if set(cell) - ITEMS != CELL or not {"workbook", "torch", "mteb"} <= set(cell["versions"]):
            yield f"cell {cell['variant']}, {cell['seed']} says {sorted(cell)}"
        if not (cell["device"] and cell["seconds"] >= 0 and len(cell["fingerprint"]) == 64):
            yield f"cell {cell['variant']}, {cell['seed']}: {cell}"


@pytest.mark.journey
def test_the_records_of_the_project():
    assert list(problems(RECORDED)) == []


SCALES = dict.fromkeys(
    (
        "01_untrained",
        "01_encoder",
        "01_prefix",
        "03_recipes",
        "03_released",
        "04_pooling",
        "04_hybrid",
        "04_keywords",
        "04_clusters",
        "04_dial",
        "04_faithfulness",
        "05_alone",
        "05_beside",
        "05_choices",
        "05_encoders",
        "05_examples",
        "05_ladder",
        "06_early",
        "07_methods",
        "08_encoding",
        "08_forms",
    ),
    "night",
)
"""The scale of records that are whole, where not cpu."""


def missing(experiment, folder):
    """Cells that the record at its scale lacks or has too many; backbone: the default."""
    _, recorded = Record(experiment, SCALES.get(experiment.name, "cpu"), folder=folder).read()
    wanted = [(variant.name, seed) for variant, seed in experiment.cells(range(3))]
    return sorted({(cell["variant"], cell["seed"]) for cell in recorded} ^ set(wanted))


STANDING = {
    "03_pooling": ("night", 39),
    "03_dictionary": ("night", 46),
    "03_latents": ("night", 6),
    "04_mixture": ("night", 9),
    "05_layers": ("night", 8),
    "05_length": ("night", 40),
    "05_stages": ("night", 12),
    "06_stages": ("night", 26),
    "07_parts": ("night", 4),
    "09_compress": ("cpu", 81),
    "09_blocks": ("cpu", 3),
}
"""Experiments whose grids wait for scale night: the scale of the record that notebooks read, and its cells so far."""


@pytest.mark.parametrize("name", STANDING)
def test_what_is_recorded_of_a_grid_that_waits_is_not_lost(name):
    scale, cells = STANDING[name]
    experiment = experiments.get(name)
    _, recorded = Record(experiment, scale, folder=RECORDED).read()
    found = [(cell["variant"], cell["seed"]) for cell in recorded]
    assert len({*found}) == len(found) >= cells
    assert {*found} < {(variant.name, seed) for variant, seed in experiment.cells(range(10))}, (
        "recorded in full: move it"
    )


def test_every_other_experiment_of_a_notebook_is_recorded_in_full():
    used = [experiment for name, experiment in experiments.EXPERIMENTS.items() if f'\\"{name}\\"' in NOTEBOOKS]
    used = [experiment for experiment in used if experiment.name not in STANDING]
    assert len(used) > 10
    assert {experiment.name: cells for experiment in used if (cells := missing(experiment, RECORDED))} == {}


# The check itself


def lengths(model, sizes):
    return pd.DataFrame({"score": [model.encode("a text").std()]})


SMALL = Experiment("02_small", "Length", (Variant("a", "mean"), Variant("b", "last-token")), measure=lengths)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a record that is as it should be."""
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(experiments.EXPERIMENTS, "02_small", SMALL)
    Record(SMALL, "quick", "tiny-llama", tmp_path / "runs").fill([0])
    return tmp_path / "runs"


def test_a_good_record_has_no_problems(folder):
    assert list(problems(folder)) == []
    assert list(problems(folder / "absent")) == []


def test_cells_that_are_not_recorded_are_seen(folder):
    assert missing(SMALL, folder) == [("a", 0), ("b", 0)], "a record of another scale does not count"
    (folder / "02_small-quick-tiny-llama.csv").rename(folder / "02_small-cpu-smollm2-135m.csv")
    (folder / "02_small-quick-tiny-llama.json").rename(folder / "02_small-cpu-smollm2-135m.json")
    assert missing(SMALL, folder) == []
    assert missing(replace(SMALL, variants=SMALL.variants[:1]), folder) == [("b", 0)]
    trained = replace(SMALL.variants[0], stages=("contrastive",))
    assert missing(replace(SMALL, variants=(trained, SMALL.variants[1])), folder) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (replace(SMALL, version=2), "02_small, a, seed 0; 02_small, b, seed 0. Record them again"),
        (replace(SMALL, variants=SMALL.variants[:1]), "stale ones: 02_small, b, seed 0."),
        (None, "no experiment 02_small"),
    ],
)
def test_records_of_other_experiments_are_seen(folder, monkeypatch, changed, message):
    if changed:
        monkeypatch.setitem(experiments.EXPERIMENTS, "02_small", changed)
    else:
        monkeypatch.delitem(experiments.EXPERIMENTS, "02_small")
    (problem,) = problems(folder)
    assert message in problem


@pytest.mark.parametrize(
    ("ending", "old", "new", "message"),
    [
        ("json", '"device": "', '"device": "/home/me ', "absolute path"),
        ("json", '"device"', '"machine"', "a cell without device"),
        ("json", '"description"', '"why"', "keys"),
        ("json", '"tiny-llama"', '"tiny-qwen2"', "expected the name 02_small-quick-tiny-qwen2.json"),
        ("json", '"mteb"', '"metb"', "says"),
        ("csv", "b,0", "c,0", "other rows than were recorded for b, seed 0"),
        ("csv", "b,0", "c,0,1\nb,0", "not declared"),
        ("csv", "b,0", "b,1,1\nb,0", "of others"),
    ],
)
def test_breaches_are_seen(folder, ending, old, new, message):
    path = folder / f"02_small-quick-tiny-llama.{ending}"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert any(message in problem for problem in problems(folder))


@pytest.mark.parametrize("name", ["02_small-quick-tiny-llama.txt", "02_other-quick-tiny-llama.csv", "notes"])
def test_files_of_no_record_are_seen(folder, name):
    (folder / name).write_text("a\n")
    assert list(problems(folder)) == [f"{name} belongs to no record"]
