"""Several processes train as one: a journey of a minute, which CI takes before a change lands, not on each push."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from training_tools import (
    ALL_MASKED,
    EVEN,
    TEXTS,
    differing,
    mixed,
    recipe_of,
    stage,
    tiny,
    tiny_for,
    trained,
    without_dropout,
    write_data,
)

from workbook.files import ROOT
from workbook.objectives import OBJECTIVES
from workbook.training.recipe import Adapter

pytestmark = pytest.mark.journey


def together(folder, stages, launcher, caches, program="train_together.py", *given):
    """Train stages in several processes: a launcher for each cache, as each machine has one."""
    (folder / "stages.json").write_text(json.dumps({name: one.model_dump(mode="json") for name, one in stages.items()}))
    program = [Path(__file__).with_name(program), folder / "stages.json", folder, *given]
    started = []
    for rank, cache in enumerate(caches):
        own = [str(word).format(rank=rank) for word in launcher]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *own, *map(str, program)],
                cwd=folder,
                env=os.environ
                | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "WORKBOOK_CACHE": str(folder / cache)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return started


def test_two_machines_without_a_common_cache_agree(own, tmp_path):
    """Each keeps its own checkpoints; a finished stage lies on the first, and the other takes it over from there."""
    stages = {"mntp": stage(write_data(tmp_path, EVEN, "even"), "mntp", steps=6, **ALL_MASKED)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["--nnodes", 2, "--node_rank", "{rank}", "--nproc_per_node", 1, "--master_addr", "127.0.0.1"]
    started = together(tmp_path, stages, [*launcher, "--master_port", port], caches=["one", "other"])
    for ran in started:
        assert ran.wait(120) == 0, ran.stderr.read()[-4000:]
    said, other = (json.loads((tmp_path / f"said-{process}.json").read_text()) for process in (0, 1))
    assert said.pop("masks") != other.pop("masks")
    assert said == other
    assert {*said["mntp resumed"][0]} == {5, 6}
    assert said["mntp again"][0] == []
    alone = trained(stages["mntp"])
    assert differing(load_file(tmp_path / "mntp.safetensors"), alone.model, 1e-4) == []


def test_a_lost_process_ends_the_others_in_one_line_and_what_is_kept_goes_on(own, tmp_path):
    one = stage(own, "contrastive")

    def ran(lost):
        # The launcher ends all that are left, but leaves them some seconds to speak.
        launcher = ["--standalone", "--nproc_per_node", 2, "--monitor_interval", 3]
        (process,) = together(tmp_path, {"one": one}, launcher, ["two"], "train_and_lose.py", lost)
        errors = process.communicate(timeout=120)[1]
        return process.returncode, [line for line in errors.splitlines() if line.startswith("Error: ")]

    code, said = ran(8)
    (kept,) = (tmp_path / "two" / "training").glob("*/checkpoint-6")
    assert code != 0
    assert len(said) == 1
    assert f"processes to train together, lost one at step 8. The last good checkpoint is kept: {kept}. " in said[0]
    assert ran(5) == (0, [])  # that step lies behind it
    assert differing(load_file(tmp_path / "kept.safetensors"), trained(one).model, 1e-4) == []


def test_two_processes_train_as_one(own, tmp_path, monkeypatch):
    """Stopped, resumed, and taken from the cache by both; with the negatives of both, plain and with GradCache.

    Every objective does. A head of its own, which no distributed wrapper knows, ends alike in both.
    """
    even = write_data(tmp_path, EVEN, "even")
    head = {"steps": 6, "batch_size": 8, "adapter": None, "options": {"train_head": True}}
    stages = {
        "contrastive": stage(own, "contrastive", steps=6),
        "gradcache": stage(own, "contrastive", steps=6, options={"temperature": 0.1, "mini_batch_size": 2}),
        "gritlm": stage(
            even,
            "gritlm",
            steps=6,
            batch_size=8,
            options={"temperature": 0.1, "mini_batch_size": 2},
            gradient_checkpointing=True,
        ),
        "accumulated": stage(own, "contrastive", steps=6, batch_size=12, accumulation=2, adapter=None),
        "taught": recipe_of("lens", own, steps=6).stages[0],
        "mixed": mixed(tmp_path, steps=6),
        "mixed, gradcache": mixed(tmp_path, steps=6, options={"temperature": 0.1, "mini_batch_size": 2}),
        "simcse": stage(own, "simcse", steps=6, options={"dropout": 0.0}),
        "reconstruction": stage(even, "reconstruction", **head),
        "halves": stage(even, "reconstruction", accumulation=2, **head),
        "llama2vec": stage(even, "llama2vec", **head),
        "states": stage(even, "state-distillation", steps=6, adapter=Adapter(keep_zeros=True)),
        "mntp": stage(even, "mntp", steps=6, **ALL_MASKED),
    }
    (ran,) = together(tmp_path, stages, ["--standalone", "--nproc_per_node", 2], caches=["two"])
    assert ran.wait() == 0, ran.stderr.read()[-4000:]
    said, other = (json.loads((tmp_path / f"said-{process}.json").read_text()) for process in (0, 1))
    (masks,), (others,) = (one.pop("masks") for one in (said, other))
    assert [len(row) for row in masks] == [len(row) for row in others] == [16] * 4  # the same may be masked in both
    assert masks != others
    assert said == other
    assert said["processes"] == 2
    assert {one.objective for one in stages.values()} == {*OBJECTIVES}
    for name, one in stages.items():
        with without_dropout(monkeypatch):
            alone = trained(one, model=tiny_for(one.objective), teacher=tiny())
        # AdamW divides by the size of a gradient: where that is next to nothing, what is left is rounding.
        assert differing(load_file(tmp_path / f"{name}.safetensors"), alone.model, 1e-4) == [], name
        assert differing(alone.model, tiny_for(one.objective), 1e-3), name
        (resumed, resumed_sha256, tokens), (again, again_sha256, _) = said[f"{name} resumed"], said[f"{name} again"]
        assert {*resumed} == {5, 6}, name
        assert again == []
        assert resumed_sha256 == again_sha256
        assert tokens == list(alone.history["tokens"]), name
    assert said["into"] == said["mntp again"][1]
    assert "holds a training already" in said["into again, resume False"]
    assert said["into again, resume True"] is None
    loaded = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    assert loaded.encode(TEXTS) == pytest.approx(alone.model.encode(TEXTS), abs=1e-4)
    assert not list((tmp_path / "two" / "training").glob("*/checkpoint-*"))
