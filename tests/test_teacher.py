"""Distillation from a teacher: its scores, and that they reach the training."""

import pytest
import torch
from training_tools import TEXTS, differing, stage, tiny, trained, write_data
from transformers import AutoConfig, BertConfig, BertForSequenceClassification

from workbook import backbones
from workbook.data import curation
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.experiments import Experiment, Variant
from workbook.modules import Lexicon
from workbook.objectives.contrastive import Contrastive
from workbook.training import Recipe
from workbook.training.run import Training
from workbook.training.teacher import TAUGHT, TaughtCollator, Teacher

QUERIES = ["how to prune basil", "why leaves curl"]
DOCUMENTS = [
    ["Pinch basil above a pair of leaves.", "Trains leave at noon."],
    ["Heat curls leaves.", "Basil is a herb."],
]


def reranker(folder, labels=1, seed=0):
    """A tiny random cross-encoder with MiniLM's tokenizer."""
    backbones.load_encoder()[0].tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=30522, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=labels,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BertForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


def test_an_encoder_scores_by_cosines_times_twenty():
    encoder = backbones.load_encoder()
    query, documents = encoder.encode(QUERIES), [encoder.encode(row) for row in DOCUMENTS]
    expected = torch.cat([encoder.similarity(query[n : n + 1], documents[n]) for n in range(2)])
    torch.testing.assert_close(Teacher("minilm").scores(QUERIES, DOCUMENTS), 20 * expected, atol=1e-3, rtol=0)
    assert expected.argmax(dim=1).tolist() == [0, 0]


def test_a_reranker_scores_by_its_logits(tmp_path):
    teacher = Teacher(reranker(tmp_path))
    assert teacher.reranker
    found = teacher.scores(QUERIES, DOCUMENTS)
    tokenizer = backbones.load_encoder()[0].tokenizer
    model = BertForSequenceClassification.from_pretrained(tmp_path).eval()
    for row, query in enumerate(QUERIES):
        for place, document in enumerate(DOCUMENTS[row]):
            with torch.no_grad():
                logit = model(**tokenizer(query, document, return_tensors="pt")).logits.item()
            assert found[row, place].item() == pytest.approx(logit, abs=1e-5)


def test_a_classifier_is_no_teacher(tmp_path):
    with pytest.raises(InvalidValueError, match="teacher: expected a reranker, of one score, got '3 classes in"):
        Teacher(reranker(tmp_path, labels=3))
    assert AutoConfig.from_pretrained(tmp_path).num_labels == 3


@pytest.mark.parametrize("blend", [False, True])
def test_a_teacher_reads_the_texts_of_a_batch_without_instructions(blend):
    rows = [dict(zip(("query", "positive", "negative_1"), [q, *d], strict=True)) for q, d in
            zip(QUERIES, DOCUMENTS, strict=True)]  # fmt: skip
    if blend:
        rows = [{name: {"instruction": "Find", "text": text} for name, text in row.items()} for row in rows]
    collator = TaughtCollator(tiny("lens")[0].preprocess, prompts={"query": "Find it"}, taught={"own"})
    batch = collator([row | {"dataset_name": "own"} for row in rows])
    assert batch[TAUGHT] == [[query, *documents] for query, documents in zip(QUERIES, DOCUMENTS, strict=True)]


def mined(folder):
    """Pairs of the small data, each with a hard negative."""
    import pandas as pd

    pairs = pd.DataFrame({"query": [" ".join(text.split()[::-1]) for text in TEXTS], "positive": TEXTS})
    rows = curation.mine(pairs, backbones.load_encoder(), progress=False)
    rows.to_json(folder / "mined.jsonl", orient="records", lines=True)
    return {"contrastive": str(folder / "mined.jsonl")}


def test_labels_are_the_teachers_scores_of_the_batch(tmp_path, monkeypatch):
    """And the same where other processes tokenize."""
    data, seen, kept = mined(tmp_path), [], Contrastive.forward

    def looked_at(self, features, labels=None):
        decode = self.model.tokenizer.batch_decode
        seen.append(([decode(one["input_ids"], skip_special_tokens=True) for one in features], labels))
        return kept(self, features, labels)

    monkeypatch.setattr(Contrastive, "forward", looked_at)
    one, models = stage(data, "contrastive", teacher="minilm", steps=2, max_length=64), []
    for workers in (0, 2):
        monkeypatch.setattr("workbook.training.stage._WORKERS", {"cpu": workers})
        monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / str(workers)))
        models.append(trained(one, model=tiny("lens")).model)
    assert len(seen) == 4
    for columns, labels in seen:
        rows = [[text.partition("Query: ")[2] or text for text in row] for row in zip(*columns, strict=True)]
        due = Teacher("minilm").scores([query for query, *_ in rows], [documents for _, *documents in rows])
        torch.testing.assert_close(labels, due)
    assert differing(*models) == []


@pytest.mark.parametrize("cached", [None, 2])
def test_a_taught_stage_trains_otherwise_and_the_head_not_at_all(tmp_path, cached):
    data, models = mined(tmp_path), {}
    for teacher in (None, "minilm"):
        options = {"temperature": 0.1, "mini_batch_size": cached}
        model = tiny("lens")
        before = model[1].head.clone()
        one = stage(data, "contrastive", teacher=teacher, options=options, steps=2, max_length=64)
        found = trained(one, model=model)
        models[teacher], history = found.model, found.history
        assert isinstance(found.model[1], Lexicon)
        assert found.model[1].head.equal(before)
        assert history["loss"].notna().all()
    assert differing(models[None], models["minilm"])


def test_a_teacher_counts_by_its_content(own, tmp_path, monkeypatch):
    """Other weights in the same folder are another teacher, to a kept stage as to a record."""
    data, folder = mined(tmp_path), tmp_path / "teacher"

    def names(teacher):
        recipe = Recipe(stages=(stage(data, "contrastive", teacher=teacher, steps=2, max_length=64),))
        variant = Variant("taught", "lens", ("contrastive",), recipe=lambda scale, backbone: recipe)
        made = Experiment("04_taught", "A teacher", (variant,)).fingerprint(variant, 0, "quick", "tiny-llama")
        return Training(tiny("lens"), recipe).stages[0].key, made

    before, other, again = (names(reranker(folder, seed=seed)) for seed in (0, 1, 0))
    assert before == again
    assert not {*before} & {*other}
    monkeypatch.setattr("workbook.training.teacher._COSINES", 1)
    assert not {*before} & {*names(str(folder))}, "how scores are made counts too"


@pytest.mark.journey
def test_a_kept_stage_does_without_its_teacher(own, tmp_path, monkeypatch):
    """It is loaded where a stage trains; what is no teacher is refused before the data are read."""
    one = stage(mined(tmp_path), "contrastive", teacher=reranker(tmp_path / "teacher"), steps=1, max_length=64)
    first = trained(one, model=tiny("lens"))
    monkeypatch.setattr("workbook.training.stage.Teacher", None)
    assert differing(first.model, trained(one, model=tiny("lens")).model) == []
    with pytest.raises(TypeError):
        trained(one, model=tiny("lens"), seed=1)
    three = reranker(tmp_path / "three", labels=3)
    for name, error, message in (
        ("nobody", UnknownNameError, "Stage contrastive: Unknown backbone 'nobody'"),
        ("tiny-llama", UnknownNameError, "Stage contrastive: Unknown backbone 'tiny-llama'"),
        (three, InvalidValueError, "Stage contrastive: teacher: expected a reranker, of one score, got '3 classes in"),
    ):
        with pytest.raises(error, match=message):
            trained(one.model_copy(update={"teacher": name, "data": "absent.jsonl"}), model=tiny("lens"))


def test_a_teacher_without_anything_to_score(tmp_path):
    data = write_data(tmp_path)
    with pytest.raises(InvalidValueError, match="Stage contrastive: teacher: expected a contrastive stage whose data"):
        trained(stage(data, "contrastive", teacher="minilm"))
    with pytest.raises(InvalidValueError, match=r"teacher: expected a contrastive stage .*, got 'simcse'"):
        trained(stage(data, "simcse", teacher="minilm"))
    with pytest.raises(UnknownNameError, match="nobody"):
        trained(stage(data, "contrastive", teacher="nobody"))
