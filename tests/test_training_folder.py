"""The folder that a training writes: what else lies there stays, it has one training at a time, a resume is honest."""

import contextlib
import os
import shutil
import warnings

import pandas as pd
import pytest
import torch
from places import full, read_only
from safetensors.torch import load_file
from training_tools import StoppedError, differing, stage, steps_counted, tiny

from workbook.errors import InvalidValueError, OutputError
from workbook.files import alone, cache_path, scratch_folder
from workbook.training import Recipe, train_into
from workbook.training import stage as stage_module

MINE = {"notes.txt": "Dear", "eval/scores.csv": "1,2"}


def into(folder, *stages, model=None, **options):
    model = tiny() if model is None else model
    return train_into(folder, model, Recipe(stages=stages), plan={"method": "llm2vec"}, progress=False, **options)


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def add_mine(folder):
    for name, text in MINE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@contextlib.contextmanager
def silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def stopped(own, monkeypatch):
    """A training that was stopped after its first checkpoint, and its folder; called again, it can be resumed."""

    def stopped(folder, **options):
        one = stage(own, steps=6)
        with steps_counted(monkeypatch, stop_at=6), pytest.raises(StoppedError):
            into(folder, one, **options)
        return one

    return stopped


# Done, and what else lies there


@pytest.mark.parametrize("cache", ["same", "another"])
def test_a_training_that_is_done_and_whole_is_left_as_it_is(own, tmp_path, monkeypatch, cache):
    one, folder = stage(own, steps=1), tmp_path / "out"
    into(folder, one)
    add_mine(folder)
    before = content(folder)
    if cache == "another":
        monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "another"))
        monkeypatch.setattr(stage_module, "__version__", "99")  # nor would today's library have to do it again
    with steps_counted(monkeypatch) as steps, silent():
        assert into(folder, one, resume=True) is None
    assert steps == []
    assert content(folder) == before


def test_what_is_missing_is_written_again_and_nothing_else_is_touched(own, tmp_path):
    one, folder = stage(own, steps=1), tmp_path / "out"
    into(folder, one)
    whole = content(folder)
    add_mine(folder)
    (folder / "model.safetensors").unlink()
    shutil.rmtree(folder / "1_Pooling")
    with silent():
        assert into(folder, one, resume=True) is not None
    assert {*content(folder)} == {*whole, *MINE}
    assert content(folder)["model.safetensors"] == whole["model.safetensors"]
    assert {name: (folder / name).read_text() for name in MINE} == MINE


def test_a_file_that_was_changed_is_never_replaced(own, tmp_path):
    one, folder = stage(own, steps=1), tmp_path / "out"
    into(folder, one)
    (folder / "README.md").write_text("My own words.")
    before = content(folder)
    said = r"Expected to write README\.md in .*, found files there that this training did not write, or that were"
    with pytest.raises(OutputError, match=said):
        into(folder, one, resume=True)
    assert content(folder) == before


def test_files_of_others_where_the_model_belongs(stopped, own, tmp_path):
    """They are named when the model is there, which a resume then writes without training again."""
    folder = tmp_path / "out"
    one = stopped(
        folder,
    )
    add_mine(folder)
    (folder / "README.md").write_text("My own words.")
    with pytest.raises(OutputError, match=r"Expected to write README\.md in .*Move them away, then go on by --resume"):
        into(folder, one, resume=True)
    assert {*content(folder)} == {"training.json", "README.md", *MINE}
    (folder / "README.md").rename(tmp_path / "README.md")
    into(folder, one, resume=True)
    assert {"model.safetensors", "README.md", "history.csv", *MINE} <= {*content(folder)}


# Where it is written


def test_the_current_folder(own, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    into(type(tmp_path)("."), stage(own, steps=1))
    assert "model.safetensors" in content(tmp_path / "here")


def test_a_folder_beside_which_nothing_can_be_written(own, place, monkeypatch):
    """As a volume is mounted; and its own user's files are there after it, and not ours beside them."""
    monkeypatch.setenv("WORKBOOK_CACHE", str(place / "cache"))
    (place / "volumes" / "out").mkdir(parents=True)
    for folder in (place / "cache", place / "volumes" / "out"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
    data = {"simcse": str(shutil.copy(own["simcse"], place / "texts.txt"))}
    into(place / "out", stage(data, steps=1))  # whatever is imported at first use is there
    shutil.rmtree(place / "cache")
    (place / "cache").mkdir()
    (place / "cache").chmod(0o777)
    with read_only(place / "volumes"):
        into(place / "volumes" / "out", stage(data, steps=1))
    assert [path.name for path in (place / "volumes").iterdir()] == ["out"]
    assert {*content(place / "volumes" / "out")} == {*content(place / "out")}


@pytest.mark.parametrize("broken", [full, read_only], ids=lambda broken: broken.__name__)
def test_a_folder_that_can_not_be_written_is_said_before_anything_trains(own, place, monkeypatch, broken):
    one = stage({"simcse": str(shutil.copy(own["simcse"], place / "texts.txt"))}, steps=1)
    monkeypatch.setenv("WORKBOOK_CACHE", str(place / "cache"))
    into(place / "first", one)
    for path in (place / "cache").rglob("*"):
        path.chmod(0o777)
    said = pytest.raises(OutputError, match=r"^Could not write .*/out")
    with steps_counted(monkeypatch) as steps, broken(place / "out"), said:
        into(place / "out", one.model_copy(update={"steps": 2}))
    assert steps == []


def test_too_little_disk_is_said_before_anything_trains(own, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    arithmetic = r"for stage simcse \(3 checkpoints at a time, 12 bytes for each of 7,168 numbers that train\), got"
    with steps_counted(monkeypatch) as steps, pytest.raises(OutputError, match=arithmetic):
        into(tmp_path / "out", stage(own))
    assert (steps, (tmp_path / "out").exists()) == ([], False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=300_000))
    assert into(tmp_path / "out", stage(own, steps=1)) is not None


def test_a_disk_with_room_for_checkpoints_and_not_for_the_model(own, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    free = {True: usage.free, False: 1000}
    monkeypatch.setattr(shutil, "disk_usage", lambda at: usage._replace(free=free["cache" in str(at)]))
    cache_path().mkdir()
    with steps_counted(monkeypatch) as steps, pytest.raises(OutputError, match=r"for the model, .* with --output\."):
        into(tmp_path / "out", stage(own))
    assert (steps, content(tmp_path / "out")) == ([], {})


def test_a_link_to_a_folder_stays_a_link(own, tmp_path):
    (tmp_path / "volume").mkdir()
    (tmp_path / "out").symlink_to("volume")
    into(tmp_path / "out", stage(own, steps=1))
    assert (tmp_path / "out").readlink().name == "volume"
    assert "model.safetensors" in content(tmp_path / "volume")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(OutputError, match=r"Could not write .*dangling: File exists"):
        into(tmp_path / "dangling", stage(own, steps=1))


def test_a_name_that_is_too_long(own, tmp_path):
    for resume in (False, True):
        with pytest.raises(OutputError, match=r"Could not write .*: File name too long"):
            into(tmp_path / ("n" * 300), stage(own, steps=1), resume=resume)


# One at a time, and cut off at any moment


def test_a_folder_has_one_training_at_a_time(own, tmp_path, monkeypatch):
    one, folder = stage(own, steps=1), tmp_path / "out"
    folder.mkdir()
    (tmp_path / "link").symlink_to("out")
    said = r"Another training is writing into .*/link\. Wait for it to end, or choose another folder with --output"
    with alone(folder):
        for options in ({}, {"resume": True}, {"seed": 1}):
            (folder / "training.json").write_text('{"asked": {}, "keys": []}')
            with pytest.raises(OutputError, match=said):
                into(tmp_path / "link", one, **options)
    (folder / "training.json").unlink()
    held, save_weights = [], stage_module.save_weights

    def kept(*arguments):
        with pytest.raises(TimeoutError), alone(folder):
            pass
        held.append(True)
        save_weights(*arguments)

    monkeypatch.setattr(stage_module, "save_weights", kept)
    into(tmp_path / "link", one)
    assert held == [True]
    assert not (folder / ".workbook.lock").exists()


@pytest.mark.parametrize("number", [0, 1, 2, 3, 9])
def test_stopped_while_the_model_is_written(own, tmp_path, monkeypatch, number):
    """Before the first file moves there, or between two; before the plan says what they are, and before it is done."""
    one, folder = stage(own, steps=1), tmp_path / "out"
    into(tmp_path / "whole", one)
    into(folder, one)
    shutil.rmtree(folder / "1_Pooling")  # it is written again, over what is there
    replace, left = os.replace, [number]

    def stopping(source, target):
        if str(target).startswith(str(folder)):
            if not left[0]:
                raise StoppedError
            left[0] -= 1
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopping)
        with pytest.raises(StoppedError):
            into(folder, one, resume=True)
    into(folder, one, resume=True)
    assert {*content(folder)} == {*content(tmp_path / "whole")}
    assert into(folder, one, resume=True) is None


def test_begun_anew_over_a_part_of_its_model(own, tmp_path, monkeypatch):
    """The part is known as ours, though nothing of the training is left."""
    one, folder = stage(own, steps=1), tmp_path / "out"
    replace = os.replace

    def stopping(source, target):
        if target == folder / "modules.json":
            raise StoppedError
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopping)
        with pytest.raises(StoppedError):
            into(folder, one)
    assert "model.safetensors" in content(folder)
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "another"))
    into(folder, one)
    assert into(folder, one, resume=True) is None


def test_what_a_killed_training_left_in_the_folder_is_in_nobodys_way(own, tmp_path):
    folder = tmp_path / "out"
    with scratch_folder(folder) as scratch:
        (scratch / "model.safetensors").write_text("half")
        shutil.copytree(scratch.parent, folder / ".workbook-_killed1")
    (folder / ".workbook.lock").touch()
    into(folder, stage(own, steps=1))
    assert not [path for path in folder.rglob(".*")]


# What a resume says


def test_a_resume_with_other_versions_or_weights_is_refused(stopped, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    one = stopped(folder)
    changed = tiny()
    with torch.no_grad():
        changed[0].decoder.norm.weight[0] += 1e-3
    hint = r"\. Go back to that, or leave --resume out and choose another folder with --output\."
    with steps_counted(monkeypatch) as steps:
        with pytest.raises(InvalidValueError, match=rf"It was begun with model '\w+', now '\w+'{hint}"):
            into(folder, one, model=changed, resume=True)
        with monkeypatch.context() as patch:
            patch.setattr(stage_module, "__version__", "99")
            with pytest.raises(InvalidValueError, match=rf"begun with versions\.workbook '[\d.]+', now '99'{hint}"):
                into(folder, one, resume=True)
        assert steps == []
        into(folder, one, resume=True)
    assert steps == [6]


def test_a_resume_that_begins_anew_says_so(stopped, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    one = stopped(folder)
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "another"))
    said = f"The cache {cache_path()} does not hold all of the training in {folder}: .* What is missing begins anew"
    with steps_counted(monkeypatch) as steps, pytest.warns(UserWarning, match=said):
        into(folder, one, resume=True)
    assert steps == [1, 2, 3, 4, 5, 6]
    assert len(pd.read_csv(folder / "history.csv")) == 6


@pytest.mark.parametrize(("lost", "steps"), [([0], [1, 2]), ([1], [1, 2, 3]), ([0, 1], [1, 2, 1, 2, 3])])
def test_a_cache_that_was_cleaned_is_said_too(own, tmp_path, monkeypatch, lost, steps):
    """A first stage comes anew, though the second is there; or only the second, where the model is missing."""
    stages, folder = [stage(own, "mntp", steps=2, batch_size=4), stage(own, steps=3)], tmp_path / "out"
    made = into(folder, *stages)
    for number in lost:
        shutil.rmtree(cache_path("stages", list(made.manifest["stages"].values())[number]["key"][:24]))
    (folder / "model.safetensors").unlink()
    with steps_counted(monkeypatch) as counted, pytest.warns(UserWarning, match="What is missing begins anew"):
        into(folder, *stages, resume=True)
    assert counted == steps


def test_a_folder_that_is_gone_when_the_training_ends_is_made_again(own, tmp_path, monkeypatch):
    folder, save_weights = tmp_path / "out", stage_module.save_weights

    def gone(*arguments):
        shutil.rmtree(folder)
        save_weights(*arguments)

    monkeypatch.setattr(stage_module, "save_weights", gone)
    into(folder, stage(own, steps=1))
    assert {"training.json", "model.safetensors"} <= {*content(folder)}


# A cache that is only read


def test_a_cache_that_is_only_read_is_enough_where_it_holds_the_stage(own, place, monkeypatch):
    """Weights, chunks of a text, and a table of pairs."""
    paths = {objective: shutil.copy(own[objective], place) for objective in ("mntp", "contrastive")}
    stages = [stage(paths, "mntp", steps=1, batch_size=4), stage(paths, "contrastive", steps=1)]
    monkeypatch.setenv("WORKBOOK_CACHE", str(place / "cache"))
    first = into(place / "first", *stages)
    for folder in (place / "out", place / "another"):
        folder.mkdir()
        folder.chmod(0o777)
    for path in (place / "cache").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with read_only(place / "cache"), steps_counted(monkeypatch) as steps:
        second = into(place / "out", *stages)
    assert steps == []
    assert differing(first.model, second.model) == []
    one, other = (load_file(place / name / "model.safetensors") for name in ("first", "out"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with read_only(place / "cache"), pytest.raises(OutputError, match=r"^Could not write .*cache"):
        into(place / "another", *(one.model_copy(update={"steps": 2}) for one in stages))
