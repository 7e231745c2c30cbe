"""Training that is stopped and goes on, finished stages that are kept by content, and losses that leave the numbers."""

import json
import os
import shutil

import pandas as pd
import pytest
import torch
from places import full
from safetensors.torch import load_file
from training_tools import (
    TEXTS,
    StoppedError,
    differing,
    recipe_of,
    stage,
    steps_counted,
    tiny,
    trained,
    weights,
    write_data,
)

from workbook import METHODS, objectives
from workbook.checksums import write_checksums
from workbook.errors import DamagedFileError, OutputError, TrainingError
from workbook.files import cache_path
from workbook.training import Evaluator, Recipe, Stage, train
from workbook.training import stage as stage_module
from workbook.training.run import Training
from workbook.training.trainer import WEIGHTS, StageTrainer


def saved():
    """Checkpoints in the cache, newest first."""
    return sorted(cache_path("training").glob("*/checkpoint-*"), key=lambda path: -int(path.name.split("-")[1]))


@pytest.fixture
def interrupted(own, monkeypatch):
    """Train until a step, in a cache of its own; then in another cache to the end, for comparison."""

    def interrupted(one, stop_at, **options):
        before = os.environ["WORKBOOK_CACHE"]
        monkeypatch.setenv("WORKBOOK_CACHE", f"{before}-whole")
        whole = trained(one, **options)
        monkeypatch.setenv("WORKBOOK_CACHE", before)
        with steps_counted(monkeypatch, stop_at), pytest.raises(StoppedError):
            trained(one, **options)
        return whole

    return interrupted


def same(resumed, whole):
    """The weights up to rounding, and the log without gaps or repeats.

    Bit by bit on most processors; on others the libraries add numbers up in an order that memory's layout decides.
    """
    assert differing(resumed.model, whole.model, 1e-5) == []
    for one, other in ((resumed.history, whole.history), (resumed.curve, whole.curve)):
        pd.testing.assert_frame_equal(one.drop(columns="seconds"), other.drop(columns="seconds"), rtol=1e-4)
        assert one["seconds"].is_monotonic_increasing
    return True


# Stopped and resumed; a batch is a quarter of the data, so that four steps are an epoch


@pytest.mark.parametrize(
    ("objective", "save_every", "stop_at", "left"),
    [
        ("simcse", 3, 9, [7, 8, 9, 10]),  # from the middle of an epoch
        ("mntp", 4, 7, [5, 6, 7, 8, 9, 10]),  # from its end
        ("contrastive", 4, 3, [*range(1, 11)]),  # before the first checkpoint
    ],
)
def test_a_stopped_training_ends_with_the_same_weights(
    interrupted, own, monkeypatch, objective, save_every, stop_at, left
):
    one = stage(own, objective, max_length=32 if objective != "mntp" else 22)
    options = {
        "save_every": save_every,
        "evaluator": Evaluator("sum", 2, lambda model: {"sum": model.encode(TEXTS[:2]).sum()}),
    }
    whole = interrupted(one, stop_at, **options)
    assert list(whole.curve["step"]) == [0, 2, 4, 6, 8, 10]
    with steps_counted(monkeypatch) as steps:
        assert same(trained(one, **options), whole)
    assert steps == left
    assert saved() == []


@pytest.mark.parametrize(
    "method", [pytest.param(one, marks=pytest.mark.journey) if one == "causal2vec" else one for one in METHODS]
)
def test_every_method_ends_with_the_same_weights_when_each_stage_is_stopped(own, monkeypatch, method):
    recipe, stopped = recipe_of(method, own, steps=6), {}

    def done():
        return train(tiny(method), recipe, save_every=2, progress=False)

    def once(trainer, *arguments, **options):
        if trainer.state.global_step == 3 and stopped.setdefault(trainer.args.output_dir, True):
            stopped[trainer.args.output_dir] = False
            raise StoppedError
        return step(trainer, *arguments, **options)

    whole, step = done(), StageTrainer.training_step
    monkeypatch.setenv("WORKBOOK_CACHE", str(cache_path("stopped")))
    monkeypatch.setattr(StageTrainer, "training_step", once)
    for _ in recipe.stages:
        with pytest.raises(StoppedError):
            done()
    assert differing(done().model, whole.model, 1e-5) == []  # see same
    assert len(stopped) == len(recipe.stages)


def test_stopped_twice_and_after_the_last_step(interrupted, own, monkeypatch):
    """The last checkpoint is there, the kept stage is not: nothing is left to train."""
    one = stage(own, adapter=None)
    whole = interrupted(one, 5, save_every=2)

    def full(*_):
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(stage_module, "save_weights", full)
        with steps_counted(patch) as steps, pytest.raises(StoppedError):
            trained(one, save_every=2)
    assert steps == [5, 6, 7, 8, 9, 10]
    assert [path.name for path in saved()] == ["checkpoint-10", "checkpoint-8"]
    with steps_counted(monkeypatch) as steps:
        assert same(trained(one, save_every=2), whole)
    assert steps == []


def test_stopped_where_texts_repeat(interrupted, own, tmp_path, monkeypatch):
    """Most pairs share their query, and no two of those a batch: an epoch has fewer batches than its sampler says."""
    shared = "".join(f'{{"query": "the same", "positive": "{text}"}}\n' for text in TEXTS)
    others = "".join(f'{{"query": "{text[4:]}", "positive": "{text}"}}\n' for text in TEXTS[:4])
    (tmp_path / "shared.jsonl").write_text(shared + others)
    one = stage({"contrastive": str(tmp_path / "shared.jsonl")}, "contrastive", batch_size=4)
    whole = interrupted(one, 10, save_every=7)
    with steps_counted(monkeypatch) as steps:
        assert same(trained(one, save_every=7), whole)
    assert steps == [8, 9, 10]


def flip(checkpoint):
    content = bytearray((checkpoint / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (checkpoint / WEIGHTS).write_bytes(content)


def cut(name):
    """A file of half its length, whose checksum is of that half."""

    def harm(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
        write_checksums(folder, json.loads((folder / "checksums.json").read_text()))

    return harm


def taken_out(name):
    """A file that is neither there nor in the checksums."""

    def harm(folder):
        (folder / name).unlink()
        write_checksums(folder, json.loads((folder / "checksums.json").read_text()))

    return harm


CHECKPOINT = [WEIGHTS, "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda checkpoint: (checkpoint / "checksums.json").unlink(), None),  # as where it was cut off
        (flip, "trained.safetensors: expected sha256 .*It is not used; training goes on from an earlier one"),
        (lambda checkpoint: (checkpoint / "optimizer.pt").unlink(), "optimizer.pt: expected sha256 .*, got no file"),
        (lambda checkpoint: (checkpoint / "trainer_state.json").write_text("{"), "trainer_state.json: expected sha256"),
        (lambda checkpoint: (checkpoint / "checksums.json").write_text("{"), "checksums.json: expected a checksum"),
        *((cut(name), rf"{name}: expected a file that can be loaded, got .* It is not used") for name in CHECKPOINT),
        *((taken_out(name), rf"expected a checksum of {name}, got none\. It is not used") for name in CHECKPOINT),
    ],
    ids=[
        *("cut-off", "flipped", "missing", "truncated", "checksums"),
        *(f"cut-{name}" for name in CHECKPOINT),
        *(f"without-{name}" for name in CHECKPOINT),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_not_used(interrupted, own, monkeypatch, recwarn, harm, said):
    one = stage(own, steps=4)
    whole = interrupted(one, 4, save_every=1)
    newest, before = saved()
    assert (newest.name, before.name) == ("checkpoint-3", "checkpoint-2")
    harm(newest)
    recwarn.clear()
    with steps_counted(monkeypatch) as steps:
        if said:
            with pytest.warns(UserWarning, match=said):
                resumed = trained(one, save_every=1)
        else:
            resumed = trained(one, save_every=1)
            assert not recwarn.list
    assert steps == [3, 4]
    assert same(resumed, whole)


def test_a_folder_that_only_looks_like_a_checkpoint_is_left(interrupted, own, monkeypatch):
    one = stage(own, steps=4)
    whole = interrupted(one, 4, save_every=2)
    mine = saved()[0].with_name("checkpoint-final")
    mine.mkdir()
    (mine / "notes.txt").write_text("Dear")
    with steps_counted(monkeypatch) as steps:
        assert same(trained(one, save_every=2), whole)
    assert steps == [3, 4]
    assert [*mine.parent.rglob("*")] == [mine, mine / "notes.txt"]


def test_a_full_disk_names_the_file_and_is_resumed(own):
    """The optimizer is twice as large as the weights, which it still takes."""
    one = stage(own, steps=4)
    said = r"Could not write .*checkpoint-2/optimizer\.pt: No room"
    with full(cache_path(), 50_000), pytest.raises(OutputError, match=said):
        trained(one, save_every=2)
    assert {path.name for path in saved()[0].iterdir()} == {WEIGHTS, "optimizer.pt"}
    assert differing(trained(one, save_every=2).model, tiny())
    assert saved() == []


# Kept by content


def test_a_stage_is_trained_once(own, tmp_path, monkeypatch):
    """The same content wherever it lies; weights and log come from the cache."""
    first = trained(stage(own, steps=3))
    (tmp_path / "moved").mkdir()
    moved = shutil.move(own["simcse"], tmp_path / "moved" / "texts.txt")
    with steps_counted(monkeypatch) as steps:
        again = trained(stage({"simcse": str(moved)}, steps=3))
    assert steps == []
    assert differing(first.model, again.model) == []
    assert again.history.equals(first.history)
    assert again.manifest["stages"] == first.manifest["stages"]


def test_other_content_has_another_key(own, tmp_path):
    other = write_data(tmp_path, [*TEXTS[:-1], "something else"], "other")
    changed = tiny()
    with torch.no_grad():
        changed[0].decoder.norm.weight[0] += 1e-3
    one = stage(own, steps=1)
    keys = [
        trained(*stages, model=model, seed=seed).manifest["stages"]["simcse"]["key"]
        for stages, model, seed in [
            ([one], None, 0),
            ([one], None, 1),
            ([one.model_copy(update={"learning_rate": 1e-3})], None, 0),
            ([stage(other, steps=1)], None, 0),
            ([one], changed, 0),
            ([one], tiny("mean"), 0),  # causal
            ([stage(own, "mntp", steps=1, batch_size=4), one], None, 0),
        ]
    ]
    assert len({*keys}) == len(keys)


def test_recipes_share_how_they_begin(own, monkeypatch):
    """A evaluator belongs to the last stage alone; one of another name is measured anew, one of the same is not."""
    mntp, simcse = stage(own, "mntp", steps=2, batch_size=4), stage(own, steps=3)
    first = trained(mntp)
    after = weights(first.model)

    def evaluated(name, **options):
        with steps_counted(monkeypatch) as steps:
            done = trained(mntp, simcse, evaluator=Evaluator(name, 2, lambda model: {"one": 1}), **options)
        return done, steps

    one, steps = evaluated("one")
    assert steps == [1, 2, 3]  # those of the second stage
    assert differing(one.model, after)
    assert list(one.history["stage"]) == ["mntp"] * 2 + ["simcse"] * 3
    assert list(one.history["step"]) == [1, 2, 1, 2, 3]
    assert set(one.curve["stage"]) == {"simcse"}
    again, steps = evaluated("one")
    assert steps == []
    assert again.curve.equals(one.curve)
    other, steps = evaluated("other")
    assert steps == [1, 2, 3]
    assert differing(other.model, one.model, 1e-5) == []


def test_a_kept_stage_that_was_cut_is_said(own):
    one = stage(own, steps=1)
    trained(one)
    (folder,) = (path.parent for path in cache_path("stages").glob("*/checksums.json"))
    cut(WEIGHTS)(folder)
    with pytest.raises(DamagedFileError, match=f"{folder / WEIGHTS}: expected tensors, got .* Delete the folder"):
        trained(one)


@pytest.mark.parametrize("name", [WEIGHTS, "record.json"])
def test_a_damaged_stage_is_said(own, name):
    one = stage(own, steps=1)
    trained(one)
    (file,) = cache_path("stages").glob(f"*/{name}")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    model = tiny()
    with pytest.raises(DamagedFileError, match=rf"{name}: expected sha256 .* Delete {file.parent} to train the stage"):
        trained(one, model=model)
    assert differing(model, tiny()) == []
    shutil.rmtree(file.parent)
    assert differing(trained(one).model, tiny())


# No numbers any more


@pytest.mark.parametrize("wrong", ["loss", "gradients"])
def test_a_loss_that_is_not_a_number_ends_the_training(own, monkeypatch, wrong):
    class Spoilt(objectives.SimCSE):
        calls = 0

        def forward(self, *arguments):
            type(self).calls += 1
            loss = super().forward(*arguments)
            if self.calls != 5:
                return loss
            # The root of nothing is a number, but its slope there is not.
            return loss * float("nan") if wrong == "loss" else loss + (0 * loss).sqrt()

    monkeypatch.setitem(objectives.OBJECTIVES, "simcse", Spoilt)
    model = tiny()
    said = "a loss of nan" if wrong == "loss" else "gradients that are not"
    with pytest.raises(TrainingError, match=f"got {said} at step 5, after a loss of .* at the step before") as caught:
        trained(stage(own), model=model, save_every=2)
    newest = saved()[0]
    assert newest.name == "checkpoint-4"
    assert f"The last good checkpoint is kept: {newest}." in str(caught.value)
    assert "Lower the learning rate" in str(caught.value)
    assert all(torch.isfinite(value).all() for value in load_file(newest / WEIGHTS).values())
    assert differing(model, tiny()) == []  # the adapters are dropped
    monkeypatch.undo()


def test_a_learning_rate_that_overflows(own):
    with pytest.raises(TrainingError, match=r"Expected finite numbers, got .* at step [2-9]") as caught:
        trained(stage(own, learning_rate=1e25), save_every=1)
    assert "after a loss of nan" not in str(caught.value)
    assert all(torch.isfinite(value).all() for value in load_file(saved()[0] / WEIGHTS).values())


def test_what_a_kept_stage_takes_for_granted():
    """Keys of kept stages leave out what is at its default. Whoever changes a default raises the library's version."""
    required = {"name": "s", "objective": "mntp", "steps": 1, "batch_size": 2, "max_length": 8, "learning_rate": 1e-3}
    assert Stage(**required).model_dump(exclude=set(required)) == {
        "options": {},
        "data": "docs",
        "limit": None,
        "negatives": None,
        "blend": False,
        "mixed": False,
        "teacher": None,
        "others": None,
        "accumulation": 1,
        "warmup_steps": 0,
        "decay_steps": None,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "adapter": {
            "rank": 16,
            "alpha": 32.0,
            "dropout": 0.0,
            "targets": ("q_proj", "k_proj", "v_proj", "o_proj"),
            "keep_zeros": False,
        },
        "frozen": False,
        "context_alone": False,
        "context_rate": 1.0,
        "gradient_checkpointing": False,
        "compiled": False,
    }


@pytest.mark.parametrize(("steps", "every"), [(3, 3), (5, 5), (10, 5), (80, 8)])
def test_checkpoints_are_a_tenth_apart_and_five_steps_at_least(steps, every, tmp_path):
    recipe = Recipe(stages=(stage(write_data(tmp_path), steps=steps),))
    assert Training(tiny(), recipe).stages[0].save_every == every
