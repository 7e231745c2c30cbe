"""The engine of training: each objective learns, what trains and what does not, and the model is handed back whole."""

import numpy as np
import pandas as pd
import peft
import pytest
import torch
from sentence_transformers import SentenceTransformer
from training_tools import TEXTS, differing, stage, tiny, trained, weights

from workbook import attention, objectives, training
from workbook.errors import AttentionError, InvalidValueError
from workbook.modules.prefix import watched
from workbook.training import Adapter, Evaluator, Recipe
from workbook.training.trainer import StageTrainer

COLUMNS = ["stage", "step", "loss", "learning_rate", "gradient_norm", "tokens", "seconds"]


@pytest.fixture
def seen(monkeypatch):
    """What training looks like from inside, at the first step; keep(trainer) says what."""
    found = {}

    def evaluator(keep):
        step = StageTrainer.training_step

        def spied(trainer, *arguments, **options):
            loss = step(trainer, *arguments, **options)
            if not found:
                found.update(keep(trainer))
            return loss

        monkeypatch.setattr(StageTrainer, "training_step", spied)
        return found

    return evaluator


# Learning


@pytest.mark.parametrize(
    ("objective", "backbone"),
    [
        ("mntp", "tiny-llama"),
        ("mntp", "tiny-gemma3"),  # its head is its input embeddings
        ("simcse", "tiny-llama"),
        ("contrastive", "tiny-llama"),
    ],
)
def test_each_objective_learns(own, objective, backbone):
    one = stage(own, objective, steps=30, batch_size=8, learning_rate=3e-3 if objective == "simcse" else 1e-2)
    done = trained(one, model=tiny(backbone=backbone))
    assert list(done.history.columns) == COLUMNS
    assert list(done.history["step"]) == [*range(1, 31)]
    assert set(done.history["stage"]) == {objective}
    assert (done.history["gradient_norm"] > 0).all()
    assert (done.history["seconds"].diff()[1:] > 0).all()
    losses = done.history["loss"]
    assert losses[-6:].mean() < 0.9 * losses[:6].mean()
    assert list(done.curve.columns) == ["stage", "step", "tokens", "seconds"]
    assert len(done.curve) == 0
    record = done.manifest["stages"][objective]
    assert (record["source"], record["tokens"]) == (own[objective], done.history["tokens"].iloc[-1])


@pytest.mark.parametrize("accumulation", [1, 2])
def test_tokens_are_those_of_the_texts(own, tmp_path, accumulation):
    """Bytes, since a token is a byte, and one token in front; padding and the second pass of SimCSE don't count."""
    texts = [f"text {'of' * place}" for place in range(1, 9)]
    (tmp_path / "few.txt").write_text("\n".join(texts))
    (tmp_path / "few.csv").write_text(
        "query,positive,negative,instruction\n" + "".join(f"{text},{text}!,no {text},Say it\n" for text in texts)
    )
    once = sum(1 + len(text) for text in texts)
    expected = {
        "simcse": once,
        "contrastive": (once + 8 * len("Say it ")) + (once + 8 * len("!")) + (once + 8 * len("no ")),
    }
    for objective, file in {"simcse": "few.txt", "contrastive": "few.csv"}.items():
        one = stage({objective: str(tmp_path / file)}, objective, steps=3, batch_size=8, max_length=64)
        done = trained(one.model_copy(update={"accumulation": accumulation}))
        assert list(done.history["tokens"]) == [expected[objective] * step for step in (1, 2, 3)], objective


def test_chunks_are_full(own):
    done = trained(stage(own, "mntp", steps=3, batch_size=4, max_length=16))
    assert list(done.history["tokens"]) == [4 * 16 * step for step in (1, 2, 3)]


@pytest.mark.parametrize(("warmup", "decay"), [(0, None), (1, None), (3, None), (2, 25)])
def test_learning_rates(own, warmup, decay):
    """A line up from 0 over the warm-up, then a line down that reaches 0 after ``decay_steps``."""
    done = trained(stage(own, learning_rate=1e-3, warmup_steps=warmup, decay_steps=decay))
    end = decay or 10
    naive = [
        1e-3 * ((step + 1) / (warmup + 1) if step < warmup else (end - step) / (end - warmup)) for step in range(10)
    ]  # before the step is made
    np.testing.assert_allclose(done.history["learning_rate"], naive, rtol=1e-6)


def test_a_curve_is_measured_and_changes_nothing(own):
    """Also where the measure draws random numbers of every kind, and leaves the model in another mode."""
    measured = []

    def measure(model):
        assert not model.training
        torch.rand(3), np.random.rand(3)
        measured.append(model.encode(TEXTS[:2]).sum())
        return {"a": measured[-1], "b": len(measured)}

    plain = trained(stage(own))
    evaluated = trained(stage(own), evaluator=Evaluator("sums", 4, measure))
    assert list(evaluated.curve.columns) == ["stage", "step", "tokens", "seconds", "a", "b"]
    assert list(evaluated.curve["step"]) == [0, 4, 8, 10]
    assert list(evaluated.curve["b"]) == [1, 2, 3, 4]
    np.testing.assert_allclose(evaluated.curve["a"], measured)
    assert evaluated.curve["a"].nunique() == 4
    tokens = dict(zip(evaluated.history["step"], evaluated.history["tokens"], strict=True))
    assert list(evaluated.curve["tokens"]) == [tokens.get(step, 0) for step in (0, 4, 8, 10)]
    assert differing(plain.model, evaluated.model, 1e-5) == []
    one, other = (done.history.drop(columns="seconds") for done in (plain, evaluated))
    pd.testing.assert_frame_equal(one, other, rtol=1e-4)


def test_a_decoder_that_turned_causal_in_training_is_refused(own, seen, monkeypatch):
    model = tiny()
    found = seen(lambda trainer: {"trained": monkeypatch.setattr(attention, "probe", lambda decoder: "causal")})
    with pytest.raises(AttentionError, match="Asked for bidirectional attention, measured causal"):
        trained(stage(own, steps=1), model=model)
    assert "trained" in found


def test_weights_that_the_last_step_spoilt_are_refused(own, seen):
    model = tiny()
    seen(lambda trainer: {"spoilt": [weight.data.fill_(torch.nan) for weight in model[0].decoder.parameters()]})
    with pytest.raises(AttentionError, match="not finite"):
        trained(stage(own, steps=1), model=model)


# What trains


def test_only_the_adapters_train(own, seen):
    before = {}

    def keep(trainer):
        parameters = dict(trainer.model.named_parameters())
        return {
            "trained": {name for name, p in parameters.items() if p.grad is not None},
            "free": {name for name, p in parameters.items() if p.requires_grad},
            "dropout": {layer.p for name, layer in trainer.model.named_modules() if "lora_dropout.default" in name},
            "base": {name: p.detach().clone() for name, p in parameters.items() if "lora_" not in name},
        }

    def measure(model):
        before["vectors"] = model.encode(TEXTS)
        before["base"] = {name: p.detach().clone() for name, p in model.named_parameters() if "lora_" not in name}
        return {"none": 0}

    found = seen(keep)
    model = tiny()
    start = weights(model)
    adapter = Adapter(rank=4, alpha=8, dropout=0.1, targets=("q_proj", "down_proj"))
    done = trained(stage(own, adapter=adapter, max_length=512), model=model, evaluator=Evaluator("last", 10, measure))
    assert len(found["trained"]) == 2 * 2 * 2  # layers, targets, and A and B of each
    assert all("lora_" in name for name in found["trained"])
    assert found["trained"] == found["free"]
    assert found["dropout"] == {0.1}
    for base in (found["base"], before["base"]):
        bare = {name.replace("base_model.model.", "").replace("base_layer.", ""): value for name, value in base.items()}
        assert differing(bare, start) == []
    # Merged, the same function in other weights.
    changed = differing(start, done.model)
    assert len(changed) == 4
    assert all("q_proj" in name or "down_proj" in name for name in changed)
    np.testing.assert_allclose(done.model.encode(TEXTS), before["vectors"], atol=1e-5)
    assert not np.allclose(before["vectors"], tiny().encode(TEXTS), atol=1e-2)


@pytest.mark.parametrize("objective", ["mntp", "simcse", "contrastive"])
@pytest.mark.parametrize("adapter", [Adapter(dropout=0.1), None])
def test_the_model_comes_back_as_it_was(own, objective, adapter):
    model = tiny(max_length=77)
    decoder, head = model[0].decoder, model[0].decoder.get_input_embeddings()
    head.weight.requires_grad_(False)
    free = {name: p.requires_grad for name, p in model.named_parameters()}
    done = trained(stage(own, objective, steps=2, adapter=adapter, gradient_checkpointing=True), model=model)
    assert done.model is model
    assert model[0].decoder is decoder
    assert decoder.get_input_embeddings() is head
    assert not any(isinstance(module, peft.tuners.tuners_utils.BaseTunerLayer) for module in model.modules())
    assert not hasattr(decoder, "peft_config")
    assert {name: p.requires_grad for name, p in model.named_parameters()} == free
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {m.attention_dropout for m in model.modules() if hasattr(m, "attention_dropout")} == {0.0}
    assert (model[0].attention, decoder.config._attn_implementation) == ("bidirectional", "sdpa")
    assert model[0].max_length == 77
    assert not decoder.is_activation_checkpointing
    assert not watched(decoder), "a hook that is left keeps the prefix cache off"
    assert not any(module.training for module in model.modules())


@pytest.mark.journey
def test_a_compiled_stage_learns_the_same(own):
    """Up to rounding; afterwards the layers are as they were."""
    models, losses = [], []
    for compiled in (False, True):
        one = stage(own, "mntp", steps=3, compiled=compiled, adapter=Adapter(rank=4))
        done = trained(one, model=tiny())
        losses.append(done.history["loss"])
        models.append(done.model)
        assert not any("forward" in vars(layer) for layer in done.model[0].decoder.layers)
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_a_compiled_stage_needs_a_compiler(own, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(InvalidValueError, match=r"compiled: expected a C\+\+ compiler .*, got 'none'. Install one, or"):
        trained(stage(own, compiled=True))


@pytest.mark.parametrize("objective", ["mntp", "simcse", "contrastive"])
def test_without_adapters_every_parameter_trains(own, objective):
    model = tiny()
    start = weights(model)
    done = trained(stage(own, objective, steps=2, adapter=None), model=model)
    assert differing(start, done.model) == list(start)


@pytest.mark.parametrize("adapter", [Adapter(), None])
def test_half_precision(own, seen, adapter):
    """What trains does so in float32, under autocast; the decoder comes back in bfloat16."""

    def keep(trainer):
        parameters = trainer.model.named_parameters()
        return {
            "trained": {p.dtype for p in trainer.trainable().values()},
            "gradients": {p.grad.dtype for p in trainer.trainable().values() if p.grad is not None},
            "frozen": {p.dtype for _, p in parameters if not p.requires_grad},
        }

    casts = []

    class Spy(objectives.SimCSE):
        def forward(self, *arguments):
            casts.append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))
            return super().forward(*arguments)

    found = seen(keep)
    model = tiny(dtype="bfloat16")
    start = weights(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(objectives.OBJECTIVES, "simcse", Spy)
        done = trained(stage(own, adapter=adapter, steps=3), model=model)
    assert found["trained"] == found["gradients"] == {torch.float32}
    assert found["frozen"] == (set() if adapter is None else {torch.bfloat16})
    assert casts == [torch.bfloat16] * 3
    assert {p.dtype for p in done.model.parameters()} == {torch.bfloat16}
    assert differing(start, done.model)
    assert np.isfinite(done.model.encode(TEXTS)).all()


# What is saved


def test_a_saved_folder_loads_with_plain_sentence_transformers(own, tmp_path):
    recipe = Recipe(stages=(stage(own, "mntp", steps=2), stage(own, "contrastive", steps=2)))
    folder = tmp_path / "out"
    done = training.train_into(folder, tiny(), recipe, plan={"method": "llm2vec"}, progress=False)
    assert {"training.json", "history.csv", "modules.json", "model.safetensors"} <= {f.name for f in folder.iterdir()}
    loaded = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    for prompt in (None, "Say"):
        vectors = loaded.encode(TEXTS, prompt=prompt), done.model.encode(TEXTS, prompt=prompt)
        np.testing.assert_allclose(*vectors, rtol=0, atol=1e-5)
    assert loaded[0].attention == "bidirectional"
    assert loaded[0].max_length == done.model[0].max_length == 512
