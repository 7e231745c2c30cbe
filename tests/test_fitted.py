"""Stages of scale ``gpu`` in micro-batches that fit, by the size of the backbone and of the device."""

import peft
import pytest
import torch
from transformers import AutoModel, LlamaConfig, MistralConfig, Qwen2Config

from workbook import METHODS, backbones, recipe
from workbook.experiments import get
from workbook.methods import stages
from workbook.scale import RECORDED, SCALES
from workbook.training import Adapter

LLAMA_1B = LlamaConfig(
    vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
    num_key_value_heads=8, head_dim=64, tie_word_embeddings=True,
)  # fmt: skip
QWEN_3B = Qwen2Config(
    vocab_size=151_936, hidden_size=2048, intermediate_size=11_008, num_hidden_layers=36, num_attention_heads=16,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
LARGE = {"llama-1b": LLAMA_1B, "qwen-3b": QWEN_3B, "mistral-7b": MistralConfig()}


@pytest.fixture
def large(monkeypatch):
    """Backbones of which only the configuration is there."""
    known = backbones.load_config
    monkeypatch.setattr(backbones, "load_config", lambda name: LARGE[name] if name in LARGE else known(name))
    stages._sizes.cache_clear()
    yield
    stages._sizes.cache_clear()


@pytest.mark.parametrize("scale", SCALES)
def test_what_is_recorded_over_hours_is_compiled(scale):
    made = [stage.compiled for name in METHODS for stage in recipe(name, scale, "smollm2-135m").stages]
    assert set(made) == {scale in RECORDED}


@pytest.mark.parametrize("adapted", [True, False])
@pytest.mark.parametrize(("width", "inner", "heads", "keys"), [(576, 1536, 9, 3), (512, 2048, 8, 8), (512, 512, 16, 4)])
def test_bytes_of_a_token_are_those_that_autograd_keeps(width, inner, heads, keys, adapted):
    """What a second layer adds to the tensors saved for the backward pass, weights and their copies aside."""

    def kept(layers):
        config = LlamaConfig(
            hidden_size=width, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=keys,
            head_dim=64, num_hidden_layers=layers, vocab_size=300,
        )  # fmt: skip
        model = AutoModel.from_config(config, dtype=torch.bfloat16 if adapted else torch.float32)
        if adapted:
            model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=list(Adapter().targets)))
        copies = {p.untyped_storage().data_ptr() for p in model.parameters()}
        shapes, seen = (
            {p.shape for p in model.parameters()} | {p.T.shape for p in model.parameters() if p.dim() == 2},
            {},
        )

        def note(tensor):
            if tensor.untyped_storage().data_ptr() not in copies and tensor.shape not in shapes:
                seen[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16),
        ):
            model(input_ids=torch.ones(1, 24, dtype=torch.long), use_cache=False)
        return config, sum(size for size, _ in seen.values()) / 24

    (_, one), (config, two) = kept(1), kept(2)
    assert stages.bytes_a_token(config, adapted) == pytest.approx(two - one, rel=0.02)


def texts_at_once(stage):
    """Texts whose activations lie on the device together."""
    columns = stages.COLUMNS.get(stage.objective, 2 + (stage.negatives or 0))
    return stage.options.get("mini_batch_size") or stage.batch_size // stage.accumulation * columns


@pytest.mark.parametrize("gigabytes", [40, 80, 140])
@pytest.mark.parametrize("backbone", ["smollm2-135m", *LARGE])
def test_stages_fit_the_device(large, monkeypatch, backbone, gigabytes):
    monkeypatch.setitem(stages.DEVICE, "gpu", gigabytes * 10**9)
    for method in METHODS:
        plain = METHODS[method].recipe("gpu", backbone).stages
        for stage, before in zip(recipe(method, "gpu", backbone).stages, plain, strict=True):
            needed = stages.memory_needed(stage, backbone, texts_at_once(stage))
            if stages.memory_needed(stage, backbone, 0) > 0.8 * gigabytes * 10**9:
                assert stage.adapter is None  # training refuses it: the weights of no batch are too many
            else:
                assert needed <= 0.8 * gigabytes * 10**9, (method, stage.name)
            assert stage.batch_size == before.batch_size
            assert stage.batch_size % (stage.accumulation * stage.options.get("mini_batch_size", 1)) == 0
            # A batch whose rows are negatives of each other is never accumulated.
            assert stage.accumulation == 1 or stage.objective not in ("contrastive", "simcse") or not (
                stage.options.get("in_batch", True)
            )  # fmt: skip


def test_only_what_does_not_fit_is_cut(large, monkeypatch):
    def cut(backbone):
        made = [stage for name in METHODS for stage in recipe(name, "gpu", backbone).stages]
        split = [one for one in made if one.accumulation > 1 or "mini_batch_size" in one.options]
        return sum(one.gradient_checkpointing for one in made), len(split), len(made)

    checkpointed, split, every = cut("smollm2-135m")
    assert 0 < checkpointed < every
    assert split == 0
    assert cut("mistral-7b")[0] == every
    small = cut("mistral-7b")[1]
    assert small > 0
    monkeypatch.setitem(stages.DEVICE, "gpu", 140 * 10**9)
    assert cut("mistral-7b")[1] < small
    assert cut("smollm2-135m")[:2] == (0, 0)


def test_a_recipe_that_fits_is_left_as_it_is(large):
    for backbone in ("smollm2-135m", "mistral-7b"):
        for method in METHODS:
            once = recipe(method, "gpu", backbone)
            assert stages.fitted(once, "gpu", backbone) == once
            for scale in {*SCALES} - {"gpu", *RECORDED}:
                own = METHODS[method].recipe(scale, backbone)
                assert stages.fitted(own, scale, backbone) == own


def test_records_train_what_fits():
    for name in ("03_recipes", "06_early", "07_methods"):
        for variant in get(name).variants:
            made = variant.trained_by("gpu", "smollm2-135m")
            assert made == stages.fitted(made, "gpu", "smollm2-135m")
            assert all("mini_batch_size" not in stage.options for stage in made.stages)
