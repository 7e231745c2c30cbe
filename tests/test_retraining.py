"""Retraining of a pruned model: adapters that keep its zeros, and a teacher's states."""

from copy import deepcopy

import pytest
import torch
from training_tools import TEXTS, differing, stage, tiny, trained

import workbook
from workbook.errors import InvalidValueError
from workbook.objectives import Contrastive, StateDistillation
from workbook.objectives.states import layer_states
from workbook.training import Adapter, Recipe
from workbook.training.masked import MaskedLora
from workbook.training.prepare import prepared
from workbook.training.run import Training

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
KEPT = Adapter(rank=4, targets=LAYERS, keep_zeros=True)


def linear_layers(model):
    return {
        name: layer for name, layer in model[0].decoder.named_modules() if name.rpartition(".")[2] in LAYERS
    }  # fmt: skip


@torch.no_grad()
def halved(method="mean", **options):
    """A tiny model of whose linear weights a random half is zero."""
    model = tiny(method, **options)
    draw = torch.Generator().manual_seed(0)
    for layer in linear_layers(model).values():
        layer.weight *= torch.rand(layer.weight.shape, generator=draw) < 0.5
    return model


def batch(model, texts=TEXTS[:6]):
    return [model.preprocess(texts), model.preprocess([text[::-1] for text in texts])]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_zero_stays_zero_and_the_rest_moves(own, dtype, dropout):
    model = halved(dtype=dtype)
    before = {name: layer.weight.detach().clone() for name, layer in linear_layers(model).items()}
    adapter = KEPT.model_copy(update={"dropout": dropout})
    trained(stage(own, "contrastive", adapter=adapter), model=model)
    for name, layer in linear_layers(model).items():
        assert not layer.weight[before[name] == 0].any(), name
        moved = (layer.weight != before[name])[before[name] != 0]
        assert moved.float().mean() > (0.9 if dtype == "float32" else 0.3), name
        assert type(layer) is torch.nn.Linear


def test_plain_adapters_fill_the_zeros(own):
    """Without which the other test would show nothing."""
    model = halved()
    zero = {name: layer.weight == 0 for name, layer in linear_layers(model).items()}
    trained(stage(own, "contrastive", adapter=KEPT.model_copy(update={"keep_zeros": False})), model=model)
    assert all(layer.weight[zero[name]].any() for name, layer in linear_layers(model).items())


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_is_trained_is_what_is_merged(own, dropout):
    model = halved()
    adapter = KEPT.model_copy(update={"dropout": dropout})
    with prepared(model, stage(own, "contrastive", adapter=adapter), 0):
        layers = [one for one in model.modules() if isinstance(one, MaskedLora)]
        assert len(layers) == len(linear_layers(halved()))
        for layer in layers:
            torch.nn.init.normal_(layer.lora_B["default"].weight)
        model.train()
        Contrastive(model)(batch(model)).backward()
        learns = {name for name, one in model.named_parameters() if one.grad is not None and one.grad.any()}
        assert len(learns) == 2 * len(layers)
        assert all("lora_" in name for name in learns)
        model.eval()
        adapted = model.encode(TEXTS)
    assert model.encode(TEXTS) == pytest.approx(adapted, abs=1e-5)


def test_adapters_that_keep_zeros_are_kept_in_no_folder_of_adapters(own, tmp_path):
    trained(stage(own, "contrastive", adapter=KEPT), model=halved())
    (kept,) = (tmp_path / "cache" / "stages").iterdir()
    assert not (kept / "adapters").exists()
    trained(stage(own, "contrastive", adapter=Adapter()), model=halved())
    assert len(list((tmp_path / "cache" / "stages").glob("*/adapters/decoder"))) == 1


def by_hand(student, teacher, texts, output=None, scaled=False):
    """The loss of the states one text at a time, without padding: text by text the tokens differ in number."""
    sums, tokens = 0.0, 0
    for text in texts:
        features = student.preprocess([text])
        given = {"input_ids": features["input_ids"], "output_hidden_states": True}
        own, other = (model[0].decoder(**given).hidden_states for model in (student, teacher))
        last = other[-1] if output is None else output(other[-1])
        pairs = [*zip(own[1:-1], other[1:-1], strict=True), (own[-1], last)]
        if scaled:
            pairs = [[x / x.square().mean(-1, keepdim=True).sqrt() for x in pair] for pair in pairs]
        sums += sum(((one - two) ** 2).mean() * one.shape[1] for one, two in pairs)
        tokens += own[0].shape[1]
    return sums / tokens


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("blocked", [False, True], ids=["no latent block", "latent block"])
def test_the_loss_is_the_formulas(blocked, scaled):
    options = {"attention": "bidirectional", "template": "plain"}
    teacher = tiny("nv-embed", **options) if blocked else tiny("mean", **options)
    student = halved(**options)
    output = None
    if blocked:
        torch.nn.init.normal_(teacher[1].to_out.weight)  # it begins at zero, as the mean
        output = lambda states: teacher[1].read(states, torch.ones(states.shape[:2]))  # noqa: E731
    texts = [*TEXTS[:3], "a", "the old cat sees rain and snow"]
    columns = [student.preprocess(texts[:2]), student.preprocess(texts[2:4])]
    with torch.no_grad():
        loss = StateDistillation(student, teacher, alpha=0.5, scaled=scaled)(columns)
        states = by_hand(student, teacher, texts[:4], output, scaled)
        expected = Contrastive(student)(columns) + 0.5 * states
    assert states > 0.01
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


def test_the_teacher_learns_nothing_and_alone_costs_nothing():
    student, teacher = halved(), tiny("mean")
    loss = StateDistillation(student, teacher)
    assert {id(one) for one in loss.parameters()} == {id(one) for one in student.parameters()}
    loss(batch(student)).backward()
    assert all(one.grad is None for one in teacher.parameters())
    assert all(layer.weight.grad.any() for layer in linear_layers(student).values())
    with torch.no_grad():
        torch.testing.assert_close(
            StateDistillation(teacher, teacher)(batch(teacher)), Contrastive(teacher)(batch(teacher))
        )


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_stage_learns_the_teachers_states(own, checkpointing):
    teacher, student = tiny("mean"), halved()
    texts = [text[::-1] for text in TEXTS]

    def away(model):
        with torch.no_grad():
            return float(by_hand(model, teacher, texts))

    before = away(student)
    one = stage(own, "state-distillation", adapter=KEPT, steps=20, options={"alpha": 10.0},
                gradient_checkpointing=checkpointing)  # fmt: skip
    trained(one, model=student, teacher=teacher)
    assert away(student) < 0.8 * before
    assert differing(teacher, tiny("mean")) == []


def test_a_cached_stage_is_of_its_teacher(own):
    one = stage(own, "state-distillation", adapter=KEPT)
    other = tiny("mean")
    torch.nn.init.normal_(other[0].decoder.layers[0].mlp.up_proj.weight)
    plain = stage(own, "contrastive", adapter=KEPT)
    keys = {
        (name, place): Training(halved(), Recipe(stages=(which,)), teacher=teacher).stages[0].key
        for name, which in (("states", one), ("plain", plain))
        for place, teacher in enumerate((tiny("mean"), deepcopy(tiny("mean")), other))
    }
    assert keys["states", 0] == keys["states", 1] != keys["states", 2]
    assert len({keys["plain", place] for place in range(3)}) == 1


def test_what_can_not_teach_is_refused(own):
    with pytest.raises(InvalidValueError, match="the model whose states are learnt, got 'none'"):
        trained(stage(own, "state-distillation"), model=halved())
    short = tiny("mean")
    short[0].decoder.layers = short[0].decoder.layers[:-1]
    with pytest.raises(InvalidValueError, match="the layers and the width of the student's"):
        StateDistillation(halved(), short)
    with pytest.raises(InvalidValueError, match="one pass"):
        StateDistillation(halved(), tiny("mean"), mini_batch_size=2)


def test_nobody_collects_behind_the_block():
    model = tiny("mean")
    with layer_states(model[0]) as passes:
        model.encode(TEXTS)
    count = len(passes)
    assert count
    assert all(len(one) == len(model[0].decoder.layers) - 1 for one in passes)
    model.encode(TEXTS)
    assert len(passes) == count


def test_the_mask_is_off_by_default():
    assert not any(
        one.adapter and one.adapter.keep_zeros for one in workbook.recipe("mean", "paper", "tiny-llama").stages
    )
