"""Stages in which the layers of the contextual token train alone, or at a rate of their own."""

import pytest
from training_tools import StoppedError, differing, stage, steps_counted, tiny, trained, weights, write_encoder

from workbook.errors import InvalidValueError
from workbook.experiments import sinks
from workbook.training import prepare
from workbook.training.trainer import StageTrainer


@pytest.fixture
def build(tmp_path):
    encoder = write_encoder(tmp_path, 64)
    return lambda: tiny("causal2vec", encoder=encoder, max_length=64)


def alone(own, **changes):
    return stage(own, "contrastive", **{"adapter": None, "context_alone": True} | changes)


def test_the_context_trains_alone(build, own):
    model = build()
    before = weights(model)
    trained(alone(own, steps=2), model=model)
    assert sorted(differing(before, model)) == ["0.context.mlp.0.weight", "0.context.mlp.2.weight"]
    with prepare.prepared(model, alone(own), 0):
        got = [name for name, one in model.named_parameters() if one.requires_grad]
    assert got == ["0.context.mlp.0.weight", "0.context.mlp.2.weight"]
    assert all(one.requires_grad for one in model[0].decoder.parameters())


def test_it_resumes(build, own, monkeypatch, tmp_path):
    one = stage(own, "contrastive", steps=4, context_rate=2.0)
    with steps_counted(monkeypatch, stop_at=4), pytest.raises(StoppedError):
        trained(one, model=build(), save_every=2)
    again, whole = build(), build()
    with steps_counted(monkeypatch) as done:
        trained(one, model=again, save_every=2)
    assert done == [3, 4]
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "another"))
    with steps_counted(monkeypatch) as done:
        trained(one, model=whole)
    assert done == [1, 2, 3, 4]
    assert differing(whole, again) == []


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_rates_differ_as_asked(build, own, monkeypatch, factor):
    model, found = build(), {}
    step = StageTrainer.training_step

    def kept(trainer, *args, **options):
        names = {id(one): name for name, one in trainer.model.named_parameters()}
        for group in trainer.optimizer.param_groups:
            found.update({names[id(one)]: group["lr"] for one in group["params"]})
        return step(trainer, *args, **options)

    monkeypatch.setattr(StageTrainer, "training_step", kept)
    trained(stage(own, "contrastive", steps=1, context_rate=factor), model=model)
    context = {rate for name, rate in found.items() if ".context." in name}
    rest = {rate for name, rate in found.items() if ".context." not in name}
    assert len(rest) == len(context) == 1
    assert context.pop() == pytest.approx(factor * rest.pop())


def test_what_is_refused(own):
    with pytest.raises(ValueError, match="context_alone: expected a stage without an adapter"):
        stage(own, "contrastive", context_alone=True)
    for changes in ({"adapter": None, "context_alone": True}, {"context_rate": 2.0}):
        with pytest.raises(InvalidValueError, match="a decoder that reads contextual tokens"):
            trained(stage(own, "contrastive", **changes))


def test_all_arms_have_as_many_steps():
    for scale in ("quick", "cpu", "night"):
        found = {one.name: one.trained_by(scale, "tiny-llama").stages for one in sinks.STAGES.variants}
        assert len({sum(part.steps for part in parts) for parts in found.values()}) == 1
        assert [part.context_alone for part in found["MLP first"]] == [True, False]
        assert [part.context_rate for part in found["separate rates"]] == [10.0]
