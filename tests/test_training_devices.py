"""A batch is the same however it is cut: into micro-batches, for GradCache, with checkpointing."""

import math
import sys

import pytest
import torch
from training_tools import ALL_MASKED, EVEN, differing, stage, tiny, trained, write_data
from transformers import MistralConfig, MistralModel

from workbook import backbones, cli, recipe
from workbook.errors import InvalidValueError
from workbook.files import cache_path
from workbook.training import Adapter, devices
from workbook.training.trainer import StageTrainer


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


@pytest.mark.parametrize(("objective", "options"), [("mntp", {"rate": 0.5}), ("simcse", {"dropout": 0.3})])
def test_masks_and_dropout_are_the_same_however_many_processes_tokenize(own, monkeypatch, objective, options):
    """On a CUDA device two do, on a CPU none. The data are read three times: each pass draws a seed for them."""
    losses = []
    for workers in (0, 2):
        monkeypatch.setenv("WORKBOOK_CACHE", str(cache_path("with", str(workers))))
        monkeypatch.setattr("workbook.training.stage._WORKERS", {"cpu": workers})
        losses.append(list(trained(stage(own, objective, steps=6, options=options)).history["loss"]))
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 6


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
    monkeypatch.setattr("workbook.modules.passes._PASS", {"cpu": 10**6})  # a batch is one group

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


@pytest.mark.journey
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
