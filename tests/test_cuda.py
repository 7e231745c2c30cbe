"""Training on CUDA, and in bfloat16 anywhere, comes to what float32 comes to on a CPU."""

import numpy as np
import pytest
import torch
from training_tools import OPTIONS, recipe_of, stage, tiny, tiny_for, trained

from workbook import METHODS
from workbook.files import cache_path
from workbook.objectives import OBJECTIVES
from workbook.training import Adapter, train

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
PLACES = [
    ("cpu", "bfloat16"),
    pytest.param("cuda", "float32", marks=cuda),
    pytest.param("cuda", "bfloat16", marks=cuda),
]
GRADCACHE = [name for name, kind in OBJECTIVES.items() if "mini_batch_size" in kind.Options.model_fields]
CASES = [(name, None) for name in OBJECTIVES] + [(name, 2) for name in GRADCACHE]


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("adapter", [None, Adapter()], ids=["full", "adapters"])
@pytest.mark.parametrize(("objective", "size"), CASES)
def test_each_objective_trains_as_in_float32(own, monkeypatch, objective, size, adapter, device, dtype):
    """Losses and gradients of the first steps, at a rate that changes both; dropout draws otherwise on each device."""
    options = OPTIONS.get(objective, {}) | ({"mini_batch_size": size} if size else {})
    options |= {"dropout": 0.05, "temperature": 1.0} if objective == "simcse" else {}
    one = stage(own, objective, steps=4, learning_rate=3e-3, adapter=adapter, options=options)

    def history(**place):
        return trained(one, model=tiny_for(objective, **place)).history

    wanted = history()
    monkeypatch.setenv("WORKBOOK_CACHE", str(cache_path("other")))  # a kept stage is for any device
    found = history(device=device, dtype=dtype)
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=0.05)
    np.testing.assert_allclose(found["gradient_norm"], wanted["gradient_norm"], rtol=0.1)
    assert list(found["tokens"]) == list(wanted["tokens"])


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("method", METHODS)
def test_each_method_ends_within_noise_of_float32(own, monkeypatch, method, device, dtype):
    """The loss at the end moves by less, in the mean of five seeds, than it differs from seed to seed."""
    recipe = recipe_of(method, own, steps=8, learning_rate=1e-3, warmup_steps=0)

    def losses(**place):
        ends = []
        for seed in range(5):
            done = train(tiny(method, seed=seed, **place), recipe, seed=seed, progress=False)
            ends.append(done.history[done.history["stage"] == recipe.stages[-1].name]["loss"][-4:].mean())
        return np.array(ends)

    wanted = losses()
    monkeypatch.setenv("WORKBOOK_CACHE", str(cache_path("other")))  # as above
    found = losses(device=device, dtype=dtype)
    assert abs((found - wanted).mean()) < wanted.std(ddof=1)
