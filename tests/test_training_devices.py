"""A batch is the same however it is cut: into micro-batches, for GradCache, with checkpointing, over processes."""

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from training_tools import TEXTS, differing, recipe_of, stage, tiny, tiny_for, trained, without_dropout, write_data
from transformers import MistralConfig, MistralModel

from workbook import backbones, cli, recipe
from workbook.errors import InvalidValueError
from workbook.files import ROOT
from workbook.objectives import OBJECTIVES
from workbook.training import Adapter, devices
from workbook.training.trainer import StageTrainer

# Chunks of one text each, in which all that can be masked is masked: a micro-batch hides as many tokens as any other.
EVEN = [f"number {place:02d} here." for place in range(16)]
ALL_MASKED = {
    "options": {"rate": 1 - 1e-9, "style": "roberta"},
    "batch_size": 8,
    "max_length": 16,
    "learning_rate": 1e-3,
}


@pytest.mark.parametrize("adapter", [None, {}])
def test_micro_batches_of_mntp_add_up(own, tmp_path, adapter):
    changes = ALL_MASKED | {"adapter": adapter, "steps": 4, "limit": 8}
    whole, cut = (trained(stage(write_data(tmp_path, EVEN), "mntp", accumulation=n, **changes)) for n in (1, 4))
    assert differing(whole.model, cut.model, 1e-5) == []
    assert list(cut.history["tokens"]) == list(whole.history["tokens"])
    assert cut.history["loss"].to_numpy() == pytest.approx(whole.history["loss"].to_numpy(), abs=1e-4)


def test_micro_batches_have_fewer_negatives(own):
    """What the recipe says of contrastive batches: the loss of a half is not that of the whole."""
    changes = {"steps": 1, "batch_size": 24, "options": {"temperature": 2.0}}  # so warm that only their number counts
    whole, cut = (trained(stage(own, "contrastive", accumulation=n, **changes)) for n in (1, 2))
    assert whole.history["loss"][0] - cut.history["loss"][0] == pytest.approx(math.log(2), abs=0.1)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_gradcache_is_the_plain_batch(own, size):
    plain, cached = {"temperature": 0.1}, {"temperature": 0.1, "mini_batch_size": size}
    whole, cut = (trained(stage(own, "contrastive", steps=5, options=options)) for options in (plain, cached))
    assert differing(whole.model, cut.model, 1e-5) == []
    assert differing(whole.model, tiny(), 1e-3)


@pytest.mark.parametrize("objective", ["mntp", "simcse", "contrastive", "gritlm"])
@pytest.mark.parametrize("adapter", [None, {}])
def test_checkpointing_computes_twice_and_the_same(own, monkeypatch, objective, adapter):
    passes = []
    monkeypatch.setattr("workbook.modules.decoder._PASS", {"cpu": 10**6})  # a batch is one group

    def run(checkpointing):
        model = tiny()
        # Not the last part of a layer: the second pass ends when it has all that the gradient needs.
        handle = model[0].decoder.layers[0].self_attn.register_forward_hook(lambda *_: passes.append(checkpointing))
        changes = {"steps": 3, "adapter": adapter, "gradient_checkpointing": checkpointing}
        done = trained(
            stage(own, objective, **changes, **({"max_length": 20} if objective == "mntp" else {})), model=model
        )
        handle.remove()
        return done

    plain, checkpointed = run(False), run(True)
    assert differing(plain.model, checkpointed.model, 1e-5) == []
    assert passes.count(True) - passes.count(False) == 3 * {"gritlm": 2}.get(objective, 1)


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


LAUNCHERS = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}


@pytest.mark.parametrize("flag", LAUNCHERS)
def test_a_launcher_that_divides_the_model_is_refused_before_it_is_loaded(flag, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(flag, "true")
    monkeypatch.setattr(backbones, "load_decoder", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setattr(sys, "argv", ["workbook", "train", "mean", "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 2
    said = f"launcher: expected processes that hold the whole model each, got '{LAUNCHERS[flag]}'."
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


WHOLE = {"adapter": None}
HEAD = {"options": {"train_head": True}}


@pytest.mark.parametrize(
    ("objective", "method", "changes"),
    [
        ("simcse", "llm2vec", {}),
        ("simcse", "llm2vec", WHOLE),
        ("contrastive", "nv-embed", {}),
        ("contrastive", "lens", WHOLE),
        ("contrastive", "causal2vec", {"adapter": {"rank": 3, "targets": ("down_proj",)}}),
        ("reconstruction", "anchor", WHOLE),
        ("reconstruction", "anchor", WHOLE | HEAD),
        ("mntp", "llm2vec", HEAD),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_memory_of_weights_is_what_a_step_holds(own, monkeypatch, objective, method, changes, dtype):
    held, train = [], StageTrainer.train

    def spied(trainer, checkpoint):
        train(trainer, checkpoint)
        trains = trainer.trainable().values()
        moments = [trainer.optimizer.state[p][name] for p in trains for name in ("exp_avg", "exp_avg_sq")]
        every = {id(p): p for part in (trainer.model, trainer.loss) for p in part.parameters()}.values()
        held.append(sum(tensor.nbytes for tensor in [*every, *moments]) + sum(p.nbytes for p in trains))

    monkeypatch.setattr(StageTrainer, "train", spied)
    model, one = tiny(method, dtype=dtype), stage(own, objective, steps=1, **changes)
    number, kept = devices.weights(model, one)
    trained(one, model=model)
    assert held == [16 * number + kept]


def test_what_no_device_holds_is_refused_with_the_arithmetic(own, monkeypatch):
    monkeypatch.setattr(devices, "memory", lambda device: 300_000)
    trained(stage(own, steps=1))
    number, _ = devices.weights(tiny(), stage(own, adapter=None))
    said = (
        rf"Stage simcse: memory: expected 0\.0 GB on each device, .* 16 bytes for each of {number:,} numbers that train"
    )
    with pytest.raises(InvalidValueError, match=said):
        trained(stage(own, adapter=None))
    with monkeypatch.context() as larger:
        larger.setattr(devices, "memory", lambda device: 10**9)
        trained(stage(own, adapter=None))
    trained(stage(own, adapter=None))  # kept: nothing trains any more


def test_anchors_first_stage_at_7b_is_refused_on_80_gb(monkeypatch):
    """A Mistral of 7B without its numbers: 7.11 billion in the decoder and 0.13 in the head, at 16 bytes each."""
    model = tiny("anchor")
    with torch.device("meta"):
        model[0].decoder = MistralModel(MistralConfig())
    first = recipe("anchor", "paper", "tiny-mistral").stages[0]
    monkeypatch.setattr(devices, "memory", lambda device: 80 * 10**9)
    with pytest.raises(InvalidValueError, match=r"memory: expected 115\.9 GB on each device, .* got '80\.0 GB'"):
        devices.check_memory(model, first)
    devices.check_memory(model, first.model_copy(update={"adapter": Adapter()}))


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
