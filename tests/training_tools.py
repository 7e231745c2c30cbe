"""What the tests of training share: small data, a small encoder, short stages, and comparing models."""

from __future__ import annotations

import contextlib
import json
from copy import deepcopy
from pathlib import Path

import torch
from tokenizers import processors
from transformers import BertConfig, BertModel

import workbook
from workbook.objectives import OBJECTIVES, contrastive
from workbook.tiny import tiny_tokenizer
from workbook.training import Recipe, Stage, train
from workbook.training.trainer import StageTrainer

TEXTS = [f"the {size} {animal} sees {what}" for size in ("old", "red") for animal in ("cat", "dog", "bird", "crow")
         for what in ("rain", "sun", "snow")]  # fmt: skip
"""24 texts, each of one token a byte and one in front."""

OPTIONS = {
    "mntp": {"rate": 0.5},
    "simcse": {"dropout": 0.3},
    "contrastive": {"temperature": 0.1},
    "reconstruction": {"alpha": 0.2},
    "gritlm": {"temperature": 0.1},
    "state-distillation": {"temperature": 0.1},
}
"""Of the objectives whose defaults do not suit so little data."""


CAUSAL = ("reconstruction", "llama2vec")
"""Objectives whose decoder must be causal; the others take LLM2Vec's."""


EVEN = [f"number {place:02d} here." for place in range(16)]
ALL_MASKED = {
    "options": {"rate": 1 - 1e-9, "style": "roberta"},
    "batch_size": 8,
    "max_length": 16,
    "learning_rate": 1e-3,
}
"""Chunks of one text each, in which all that can be masked is masked: a micro-batch hides as many tokens as another."""


def write_data(folder, texts=TEXTS, name="texts"):
    """A file for each objective: the texts, and as pairs each with its words backwards as the query."""
    (folder / f"{name}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    pairs = ({"query": " ".join(text.split()[::-1]), "positive": text} for text in texts)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    ending = {"pairs": "jsonl", "texts": "txt", "chunks": "txt"}
    return {kind: str(folder / f"{name}.{ending[found.reads]}") for kind, found in OBJECTIVES.items()}


def write_mixed(folder):
    """A file of two tasks, as bge-en-icl's data are published: 24 rows of retrieval with scores, 16 of classes."""
    rows = []
    for number, text in enumerate(TEXTS):
        query, hard = " ".join(text.split()[::-1]), [text.upper(), f"{text} no more"]
        scores = {"pos_scores": [3.0 + number / 10], "neg_scores": [1.0 - number / 20, number / 30]}
        rows.append({"query": query, "pos": [text], "neg": hard, "prompt": "Find it", "type": "normal", **scores})
    for number, text in enumerate(EVEN):
        label, *others = [("even", "odd", "none"), ("odd", "even", "none")][number % 2]
        rows.append({"query": text, "pos": [label], "neg": others, "prompt": "Class", "type": "symmetric_class"})
    path = folder / "both.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def mixed(folder, **changes):
    """A short stage on them, with the stored scores: eight batches an epoch, four of each task."""
    sizes = {"batch_size": 6, "others": {"batch_size": 4}, "teacher": "stored", "max_length": 64}
    return stage({"contrastive": write_mixed(folder)}, "contrastive", **sizes | changes)


def write_encoder(folder, limit):
    """A random BERT of two layers, with its usual dropout, as transformers saves it; it reads ``limit`` tokens."""
    tokenizer = deepcopy(tiny_tokenizer())
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=limit, initializer_range=0.3, pad_token_id=2, **sizes
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        BertModel(config).save_pretrained(folder)
    return str(folder)


def stage(data, objective="simcse", /, **changes):
    """A short stage; a batch is a quarter of the texts."""
    sizes = {
        "steps": 10,
        "batch_size": 6,
        "max_length": 32,
        "learning_rate": 1e-2,
        "options": OPTIONS.get(objective, {}),
    }
    return Stage(**{"name": objective, "objective": objective, "data": data[objective]} | sizes | changes)


def recipe_of(method, data, /, **changes):
    """The recipe of a method at scale ``quick``, on the small texts; each pair has a hard negative."""
    mined = Path(data["contrastive"]).with_name("mined.jsonl")
    rows = (
        {"query": " ".join(text.split()[::-1]), "positive": text, "negative": other}
        for text, other in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)
    )
    mined.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sizes = {"batch_size": 6, "accumulation": 1, "max_length": 64, "blend": False}
    stages = []
    for one in workbook.recipe(method, "quick", "tiny-llama").stages:
        read = str(mined) if OBJECTIVES[one.objective].reads == "pairs" else data[one.objective]
        stages.append(one.model_copy(update={"data": read} | sizes | changes))
    return Recipe(stages=tuple(stages))


def tiny_for(objective, **options):
    """The model that an objective trains in the tests of all of them."""
    return tiny("anchor" if objective in CAUSAL else "llm2vec", **options)


def tiny(method="llm2vec", backbone="tiny-llama", **options):
    return workbook.build(method, backbone, **{"dtype": "float32", "device": "cpu"} | options)


def trained(*stages, model=None, **options):
    return train(tiny() if model is None else model, Recipe(stages=stages), progress=False, **options)


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def differing(one, other, tolerance=0.0):
    """Names of the weights in which two models, or what :func:`weights` gave of them, differ."""
    one, other = (given if isinstance(given, dict) else weights(given) for given in (one, other))
    assert one.keys() == other.keys()
    return [name for name in one if not torch.allclose(one[name], other[name], rtol=0, atol=tolerance)]


@contextlib.contextmanager
def without_dropout(monkeypatch):
    """Lets SimCSE train without dropout: what each device draws would differ from what one device draws."""
    with monkeypatch.context() as patch:
        patch.setattr(contrastive, "_varies", lambda decoder: True)
        yield


class StoppedError(Exception):
    """Stands for whatever ends a training in the middle."""


@contextlib.contextmanager
def steps_counted(monkeypatch, stop_at=None):
    """Counts the updates of the weights that are made inside the block; raises instead of the given one."""
    done = []
    step = StageTrainer.training_step

    def counted(trainer, *arguments, **options):
        if trainer.state.global_step + 1 == stop_at:
            raise StoppedError
        done.append(trainer.state.global_step + 1)
        return step(trainer, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(StageTrainer, "training_step", counted)
        yield done
