"""Benchmarks at tiny size: all of them that runs at the papers' size runs here; and the budgets that they count."""

import importlib.util
import re
import sys

import pandas as pd
import pytest
from training_tools import recipe_of, tiny

from workbook import METHODS, recipe
from workbook.experiments import EXPERIMENTS
from workbook.files import ROOT
from workbook.training import Recipe, devices, train
from workbook.training.trainer import StageTrainer

TINY = ["--layers", "2", "--width", "32", "--vocabulary", "300", "--batch", "4", "--length", "32", "--steps", "2"]


def script(name):
    found = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def paper(tmp_path, monkeypatch):
    """The benchmark on tiny models; returns its table."""
    monkeypatch.setenv("WORKBOOK_CACHE", "set by the benchmark itself, and back afterwards")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*arguments):
        script("paper").main(["--output", str(tmp_path), *TINY, *arguments])
        return pd.read_csv(tmp_path / "paper.csv", keep_default_na=False)

    return run


@pytest.mark.journey
def test_every_stage_of_the_papers_runs_and_is_measured_once(paper, monkeypatch, capsys):
    table = paper("--backbones", "mistral")
    methods = script("paper").METHODS
    stages = [(method, one.name) for method in methods for one in recipe(method, "paper", "tiny-llama").stages]
    assert list(zip(table["method"], table["stage"], strict=True)) == stages
    assert (table["note"] == "").all()
    assert (table["tokens a second"].astype(float) > 0).all()
    assert (table["peak memory"] > 1e6).all()
    capsys.readouterr()
    monkeypatch.setattr(StageTrainer, "train", None)  # what is in the table is not trained again
    assert paper("--backbones", "mistral").equals(table)
    assert "tokens/s" not in capsys.readouterr().out


def test_other_backbones_methods_and_stages(paper):
    table = paper("--backbones", "llama", "qwen", "--methods", "llm2vec", "anchor", "--stages", "mntp")
    assert table[["backbone", "method", "stage"]].to_numpy().tolist() == [
        ["llama", "llm2vec", "mntp"],
        ["qwen", "llm2vec", "mntp"],
    ]


def test_what_does_not_fit_is_said_with_the_arithmetic_and_the_rest_goes_on(paper, monkeypatch):
    monkeypatch.setattr(devices, "memory", lambda device: 500_000)
    first, second = paper("--backbones", "mistral", "--methods", "anchor").to_dict("records")
    assert re.match(r"Stage reconstruction: memory: expected .* 16 bytes for each of [\d,]+ numbers", first["note"])
    assert first["tokens a second"] == ""
    assert second["stage"] == "contrastive"
    assert second["note"] == ""
    assert float(second["tokens a second"]) > 0


@pytest.mark.parametrize("method", ["llm2vec", "nv-embed", "anchor"])
@pytest.mark.parametrize("size", [None, 2], ids=["whole", "gradcache"])
def test_passes_are_counted_as_they_are_made(own, monkeypatch, method, size):
    budget, made, model, stages = script("budget"), [], tiny(method), []
    for one in recipe_of(method, own, steps=2).stages:
        contrastive = one.objective == "contrastive"
        cached = contrastive and one.options.get("in_batch", True) and size
        options = {**one.options, "mini_batch_size": size} if cached else one.options
        stages.append(one.model_copy(update={"options": options, "negatives": 1 if contrastive else None}))
    step = StageTrainer.training_step

    def counted(trainer, *arguments, **options):
        hook = model[0].decoder.register_forward_pre_hook(lambda *_: made.append(trainer.state.global_step))
        try:
            return step(trainer, *arguments, **options)
        finally:
            hook.remove()

    monkeypatch.setattr(StageTrainer, "training_step", counted)
    train(model, Recipe(stages=tuple(stages)), progress=False)
    monkeypatch.setattr(budget, "tokens_of_row", lambda *_: 1.0)  # of files of one's own it knows nothing
    costs = [budget.cost_of_stage(METHODS[method].chain, one, "tiny-llama") for one in stages]
    assert len(made) == sum(cost.passes for cost in costs)
    assert sum(cost.trained for cost in costs) == sum(one.steps * one.batch_size for one in stages)


@pytest.mark.journey
def test_scale_gpu_keeps_to_its_budgets(docs):
    """Minutes of an H100 with assumed figures: 50 ms a pass, or 100,000 trained tokens a second."""
    found = script("budget").table("gpu", "smollm2-135m", 100_000, 50)
    notebooks, records = (found[found["what"] == what].set_index("name") for what in ("notebook", "record"))
    assert {name.partition("_")[0] for name in notebooks.index} == {f"{number:02d}" for number in range(8)}
    assert {*records.index} == {name for name in EXPERIMENTS if name[0].isdigit()}
    assert (notebooks["minutes"] < 5).all()
    assert records["minutes"].sum() < 120
    assert records["passes"].sum() < 120_000
    # Ten times the budget of a night, but for what is sized by texts, and no data set is gone through again and again.
    assert records["trained tokens"].sum() < 3.8e8
    of_model = records["trained tokens"] / records["models"]
    assert (of_model.drop("05_examples") < 3.3e6).all(), "however many models a grid has"
    assert of_model["05_examples"] < 2 * 3.3e6, "half of its models have three examples in front of each query"
    for method, name in (("lens", "distilled"), ("nv-embed", "retrieval")):
        (stage,) = recipe(method, "gpu").only(name).stages
        assert stage.steps * stage.batch_size <= 9000, "rows of docs-mined-large"
    for method in METHODS:
        last = recipe(method, "gpu").stages[-1]
        assert last.data != "docs" or last.steps * last.batch_size < 3 * 12_465
