"""Stages whose decoder is frozen: the same losses as without kept states, and nothing else moves."""

import numpy as np
import pytest
import torch
from training_tools import differing, stage, tiny, trained, weights

import workbook
from workbook import probes
from workbook.errors import DamagedFileError, InvalidValueError, WorkbookError
from workbook.files import cache_path
from workbook.training import Adapter, Recipe, Stage, prepare, states
from workbook.training.run import Training
from workbook.training.states import read_once

TEXTS = ["Rain is due.", "The bakery opens at six in the morning.", "", "Rain is due.", "Copper conducts heat."]


def embedder(pooling="latent_attention", dtype="float32", **options):
    own = {"latents": 8, "heads": 2, **options} if pooling == "latent_attention" else options
    return tiny("nv-embed", pooling=pooling, pooling_options=own, attention="bidirectional", dtype=dtype)


def frozen(data, **changes):
    return stage(data, "contrastive", **{"adapter": None, "frozen": True, "steps": 8} | changes)


@pytest.fixture
def passes(monkeypatch):
    """Number of texts that any decoder has read, counted where they enter it."""
    counted, forward = [], workbook.modules.Decoder.forward

    def counting(module, features, **options):
        counted.append(len(features["attention_mask"]))
        return forward(module, features, **options)

    monkeypatch.setattr(workbook.modules.Decoder, "forward", counting)
    return counted


def test_with_kept_states_the_losses_are_those_without(own, monkeypatch, passes):
    kept = trained(frozen(own), model=embedder())
    assert sum(passes) <= 48 + 1  # the distinct texts, and the measurement of the attention
    monkeypatch.setenv("WORKBOOK_CACHE", str(cache_path("another")))
    passes.clear()

    class Without:
        def __init__(self, module):
            self.module = module

        def __enter__(self):
            return None

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(prepare, "read_once", Without)
    plain = trained(frozen(own), model=embedder())
    assert sum(passes) >= 8 * 12
    np.testing.assert_allclose(kept.history["loss"], plain.history["loss"], rtol=1e-4)
    for name, value in weights(plain.model).items():
        torch.testing.assert_close(weights(kept.model)[name], value, rtol=1e-3, atol=1e-4)


def test_only_what_follows_the_decoder_trains(own):
    model = embedder()
    before = weights(model)
    done = trained(frozen(own), model=model)
    moved = differing(weights(done.model), before)
    assert {name.partition(".")[0] for name in moved} == {"1"}
    assert {*moved} == {f"1.{name}" for name, _ in done.model[1].named_parameters()}
    assert all(parameter.requires_grad for parameter in done.model.parameters())
    assert "forward" not in vars(done.model[0])
    assert done.history["loss"].iloc[-3:].mean() < done.history["loss"].iloc[:3].mean()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_random_dictionary_stays_as_it_was(own, dtype):
    """In half precision what trains is float32 and the dictionary is not; the model reads texts all the same."""
    model = embedder(dtype=dtype, train_dictionary=False)
    before = weights(model)
    done = trained(frozen(own), model=model)
    trained_dtypes = {name: value.to(before[name].dtype) for name, value in weights(done.model).items()}
    moved = {*differing(trained_dtypes, before)}
    assert probes.latent_attention(done.model, TEXTS).shape == (len(TEXTS), 2, 8)
    every = {f"1.{name}" for name, _ in done.model[1].named_parameters()}
    assert moved == every - {"1.dictionary"}
    assert not done.model[1].dictionary.requires_grad


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_states_do_not_depend_on_padding_batch_or_order(own, passes, side, dtype):
    model = tiny("nv-embed", attention="bidirectional", dtype=dtype)
    model[0].tokenizer.padding_side = side
    try:
        expected = model.encode(TEXTS, prompt="Find it", batch_size=1)
        passes.clear()
        with read_once(model[0]):
            for batch_size, order in ((2, 1), (5, -1), (1, 1)):
                found = model.encode(TEXTS[::order], prompt="Find it", batch_size=batch_size)[::order]
                np.testing.assert_allclose(found, expected, atol=1e-5 if dtype == "float32" else 0.05)
        assert sum(passes) == 4
        other = model.encode(TEXTS, prompt="Find other things", batch_size=2)
        with read_once(model[0]):  # from the cache: no text is read again, and another instruction is another text
            np.testing.assert_allclose(model.encode(TEXTS, prompt="Find it"), expected, atol=0.05)
            assert sum(passes) == 4 + 5
            found = model.encode(TEXTS, prompt="Find other things")
        np.testing.assert_allclose(found, other, atol=1e-5 if dtype == "float32" else 0.05)
    finally:
        model[0].tokenizer.padding_side = "right"


def test_other_weights_and_another_attention_have_states_of_their_own(own):
    model = tiny("mean", attention="bidirectional")
    with read_once(model[0]):
        model.encode(TEXTS)
    model[0].attention = "causal"
    expected = model.encode(TEXTS)
    with read_once(model[0]):
        np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)
    with torch.no_grad():
        model[0].decoder.norm.weight.mul_(2)
    expected = model.encode(TEXTS)
    with read_once(model[0]):
        np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)
    assert len([*cache_path("states").iterdir()]) == 3


def test_kept_states_that_were_changed_are_refused(own):
    model = tiny("mean", attention="bidirectional")
    with read_once(model[0]):
        model.encode(TEXTS)
    (file,) = cache_path("states").glob("*/*/states.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFileError, match="to read its texts again"), read_once(model[0]):
        pass


def test_a_block_that_fails_keeps_nothing_and_leaves_the_decoder_as_it_was(own):
    model = tiny("mean", attention="bidirectional").train()
    with pytest.raises(InvalidValueError, match="texts"), read_once(model[0]):
        model.encode([*TEXTS, None])
    assert "forward" not in vars(model[0])
    assert not cache_path("states").exists()


def test_blocks_within_blocks(own, passes):
    model = tiny("mean", attention="bidirectional")
    with read_once(model[0]):
        first = model.encode(TEXTS)
        with read_once(model[0]):
            np.testing.assert_array_equal(model.encode(TEXTS), first)
        np.testing.assert_array_equal(model.encode(TEXTS), first)
    assert sum(passes) == 4
    assert states.weights_sha256(model[0].decoder) == states.weights_sha256(tiny("mean")[0].decoder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter": Adapter()}, "got an adapter"),
        ({"objective": "simcse", "options": {}}, "got simcse"),
    ],
)
def test_stages_that_make_no_sense(own, changes, message):
    with pytest.raises(ValueError, match=message):
        frozen(own, **changes)


def test_a_recipe_is_changed_to_a_frozen_one_with_its_adapter_left_out(own):
    recipe = Recipe(stages=(stage(own, "contrastive"),))
    with pytest.raises(WorkbookError, match=r"contrastive\.frozen: .*adapter=None"):
        recipe.changed({"contrastive.frozen": True})
    changed = recipe.changed({"contrastive.frozen": True, "contrastive.adapter": None})
    assert isinstance(changed.stages[0], Stage)
    assert changed.fingerprint() != recipe.fingerprint()


def test_contextual_tokens_are_refused(own):
    model = tiny("causal2vec", encoder="minilm")
    with pytest.raises(InvalidValueError, match="reads contextual tokens"):
        Training(model, Recipe(stages=(frozen(own),)))
