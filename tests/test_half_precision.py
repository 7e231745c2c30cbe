"""Backbones in bfloat16: what trains does so in float32 and really moves, and losses are those of float32."""

import json

import pytest
import torch
from training_tools import TEXTS, stage, tiny, trained

from workbook import METHODS, methods
from workbook.training import Recipe, train
from workbook.training.trainer import StageTrainer


@pytest.fixture
def recipe_of(own, tmp_path):
    """The recipe of a method at scale ``quick`` on the small texts, each pair with a hard negative."""
    rows = [
        {"query": " ".join(text.split()[::-1]), "positive": text, "negative": other}
        for text, other in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)
    ]
    (tmp_path / "mined.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def recipe(method, backbone="tiny-llama", **changes):
        stages = []
        for one in methods.recipe(method, "quick", backbone).stages:
            data = own[one.objective] if own[one.objective].endswith(".txt") else str(tmp_path / "mined.jsonl")
            sizes = {"data": data, "batch_size": 6, "accumulation": 1, "max_length": 64, "blend": False, **changes}
            stages.append(one.model_copy(update=sizes))
        return Recipe(stages=tuple(stages))

    return recipe


@pytest.mark.parametrize("method", METHODS)
def test_what_trains_moves_at_the_papers_rate(recipe_of, monkeypatch, method):
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
        recipe_of(method, steps=5, learning_rate=2e-5, warmup_steps=0),
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


def test_what_trains_beside_the_decoder_keeps_float32(recipe_of):
    done = train(tiny("nv-embed", dtype="bfloat16"), recipe_of("nv-embed", steps=1), progress=False)
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
