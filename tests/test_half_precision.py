"""Backbones in bfloat16: what trains does so in float32 and really moves, and losses are those of float32."""

import pytest
import torch
from peft import PeftModel
from training_tools import differing, recipe_of, stage, tiny, trained

from workbook import METHODS
from workbook.checksums import verify_checksums
from workbook.files import cache_path
from workbook.modules.pooling import pool
from workbook.modules.projection import token_losses
from workbook.objectives import Contrastive
from workbook.training import Adapter, train
from workbook.training.trainer import StageTrainer


@pytest.mark.journey
@pytest.mark.parametrize("method", METHODS)
def test_what_trains_moves_at_the_papers_rate(own, monkeypatch, method):
    """Nearly every entry with a gradient is another after five steps: those of no token of the data have none."""
    found = []
    train_stage = StageTrainer.train

    def spied(trainer, checkpoint):
        before = {name: p.detach().clone() for name, p in trainer.trainable().items()}
        train_stage(trainer, checkpoint)
        state = trainer.optimizer.state
        found.append(
            {name: (before[name], p.detach(), state[p]["exp_avg_sq"]) for name, p in trainer.trainable().items()}
        )

    monkeypatch.setattr(StageTrainer, "train", spied)
    train(
        tiny(method, dtype="bfloat16"),
        recipe_of(method, own, steps=5, learning_rate=2e-5, warmup_steps=0),
        progress=False,
    )
    assert found
    for one in found:
        assert {value.dtype for values in one.values() for value in values} == {torch.float32}
        asked = {name: seen > 0 for name, (_, _, seen) in one.items()}
        moved = {name: (old != new)[asked[name]] for name, (old, new, _) in one.items()}
        entries = sum(len(values) for values in moved.values())
        assert entries > 0.5 * sum(mask.numel() for mask in asked.values())
        assert sum(int(values.sum()) for values in moved.values()) > 0.99 * entries
        for name, values in moved.items():
            assert values.float().mean() > 0.99, name


def test_what_trains_beside_the_decoder_keeps_float32(own):
    done = train(tiny("nv-embed", dtype="bfloat16"), recipe_of("nv-embed", own, steps=1), progress=False)
    assert {p.dtype for p in done.model[0].parameters()} == {torch.bfloat16}
    assert {p.dtype for p in done.model[1].parameters()} == {torch.float32}


def test_a_head_that_trains_is_float32(own, monkeypatch):
    seen = []
    step = StageTrainer.training_step

    def spied(trainer, *arguments, **options):
        seen.append({name: p.dtype for name, p in trainer.trainable().items()})
        return step(trainer, *arguments, **options)

    monkeypatch.setattr(StageTrainer, "training_step", spied)
    trained(stage(own, "mntp", steps=1, options={"rate": 0.5, "train_head": True}), model=tiny(dtype="bfloat16"))
    assert seen[0]["objective.head.weight"] is torch.float32
    assert {*seen[0].values()} == {torch.float32}


# Losses


def vectors(nearness, rows=64, dim=48):
    """Queries, positives and hard negatives, float32 (3, rows, dim); a query is as near to its positive as is asked."""
    generator = torch.Generator().manual_seed(0)
    queries, noise, negatives = torch.randn(3, rows, dim, generator=generator)
    return torch.stack([queries, nearness * queries + noise, negatives])


def loss_of(given, precision, labels=None, **options):
    """The contrastive loss of given vectors, and their gradient."""
    given = given.clone().requires_grad_()
    model = tiny("mean")
    model.forward = lambda features: features  # what is given is the vectors
    columns = [{"sentence_embedding": column} for column in given]
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
        loss = Contrastive(model, **options)(columns, labels)
    loss.backward()
    return loss.detach(), given.grad


@pytest.mark.parametrize("nearness", [0.2, 0.6, 1.0])  # at a temperature of 0.02 losses of 8.5, 0.3 and 5e-4
@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.05}, {"in_batch": False}, {"mini_batch_size": 16}], ids=str)
def test_contrastive_losses_are_those_of_float32(nearness, taught, options):
    labels = torch.linspace(-3, 3, 128).view(64, 2) if taught else None
    (wanted, slope), (loss, found) = (
        loss_of(vectors(nearness), dtype, labels, **options) for dtype in (torch.float32, torch.bfloat16)
    )
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss, wanted, rtol=1e-3, atol=0)
    assert (found - slope).norm() <= 1e-3 * slope.norm()


@pytest.mark.parametrize("size", [0.1, 3.0])  # losses of about 4 and 6e-5
def test_token_losses_are_those_of_float32(size):
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(200, 32, generator=generator).bfloat16()
    labels = torch.arange(40).unsqueeze(1)
    states = (size / 2 * head[:40].float()).bfloat16()
    wanted = torch.nn.functional.cross_entropy(
        states.double() @ head.double().T, labels.flatten(), reduction="none"
    ).unsqueeze(1)
    with torch.autocast("cpu", torch.bfloat16):
        found = token_losses(states, labels, head)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "weighted_mean", "last_token"])
def test_vectors_are_pooled_in_float32(pooling):
    states = torch.randn(2, 300, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    mask = torch.ones(2, 300).long()
    with torch.autocast("cpu", torch.bfloat16):
        found = pool(states, mask, pooling)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, pool(states, mask, pooling))


# Passes


def gradients(own, objective, **options):
    """The gradients of one batch in bfloat16, by parameter, and whether each pass ran under autocast."""
    passes, found = [], {}
    step = StageTrainer.training_step

    def spied(trainer, model, inputs, *arguments, **kwargs):
        passes.clear()
        handle = model[0].register_forward_pre_hook(
            lambda *_: passes.append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))
        )
        loss = step(trainer, model, inputs, *arguments, **kwargs)
        handle.remove()
        found.update({name: p.grad.clone() for name, p in trainer.trainable().items() if p.grad is not None})
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageTrainer, "training_step", spied)
        one = stage(own, objective, steps=1, options={"temperature": 0.1, **options}, adapter=None)
        trained(one, model=tiny(dtype="bfloat16"))
    return found, passes


@pytest.mark.parametrize("objective", ["contrastive", "gritlm"])
@pytest.mark.parametrize("size", [6, 2])
def test_both_passes_of_gradcache_have_one_precision(own, objective, size):
    """The gradients are those without GradCache, but for the order in which numbers are added up."""
    plain, once = gradients(own, objective)
    cached, twice = gradients(own, objective, mini_batch_size=size)
    assert {*once} == {*twice} == {torch.bfloat16}
    columns = {"contrastive": 2, "gritlm": 3}[objective]  # documents that GritLM writes are a column of their own
    assert len(once) == columns - 1, "query and positive go through the model together"
    assert len(twice) == 2 * columns * 6 // size
    assert plain.keys() == cached.keys()
    for name, value in plain.items():
        assert (cached[name] - value).norm() <= 0.01 * value.norm(), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_precision_of_a_launcher_changes_nothing(own, monkeypatch, dtype):
    """accelerate would wrap the model's forward pass, and leave it so: twice after two stages."""
    one, other = stage(own, steps=2), stage(own, "contrastive", steps=2)
    plain = trained(one, other, model=tiny(dtype=dtype))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("WORKBOOK_CACHE", str(cache_path("other")))
    launched = trained(one, other, model=tiny(dtype=dtype))
    assert "forward" not in vars(launched.model)
    assert differing(plain.model, launched.model) == []


# Adapters


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_are_merged_in_float32_and_kept(own, dtype):
    """Rounded once: each weight is that of the sum in float32, with the adapters that are kept beside the stage."""
    done = trained(stage(own, adapter=Adapter(targets=("q_proj",))), model=tiny(dtype=dtype))
    key = done.manifest["stages"]["simcse"]["key"]
    folder = cache_path("stages", key[:24], "adapters", "decoder")
    verify_checksums(folder, "", required=["adapter_model.safetensors", "adapter_config.json"])
    loaded = PeftModel.from_pretrained(tiny(dtype=dtype)[0].decoder, str(folder))
    for merged, layer in zip(done.model[0].decoder.layers, loaded.base_model.model.layers, strict=True):
        q = layer.self_attn.q_proj
        low, high = (part["default"].weight.float() for part in (q.lora_A, q.lora_B))
        whole = q.base_layer.weight.float() + high @ low * q.scaling["default"]
        assert torch.equal(merged.self_attn.q_proj.weight, whole.to(getattr(torch, dtype)))
        assert not torch.equal(merged.self_attn.q_proj.weight, q.base_layer.weight)


def test_without_adapters_none_are_kept(own):
    trained(stage(own, steps=1, adapter=None))
    assert not list(cache_path("stages").glob("*/adapters"))
