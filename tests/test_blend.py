"""Batches that blend tasks: each row with its own instruction, and any number of hard negatives."""

import json

import pytest
import torch
from training_tools import stage, tiny, trained

from workbook import backbones
from workbook.data import rows as data
from workbook.errors import InvalidValueError
from workbook.methods import nv_embed

ROWS = [
    {"query": "how warm", "positive": "twenty degrees", "negative": "a red hat", "instruction": "Answer."},
    {"query": "how cold", "positive": "minus two", "negative": "a blue hat", "instruction": "Answer."},
    {"query": "good film", "positive": "positive", "negative": "negative", "instruction": "Say whether it was liked."},
    {"query": "bad film", "positive": "negative", "negative": "positive", "instruction": "Say whether it was liked."},
    {"query": "a cat sat", "positive": "a cat was sitting", "negative": "a dog ran", "instruction": "Same.",
     "document_instruction": "Same."},
    {"query": "it rains", "positive": "rain is falling", "negative": "the sun shines", "instruction": "Same.",
     "document_instruction": "Same."},
]  # fmt: skip


def write(folder, rows=ROWS):
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(path, **options):
    tokenizer = backbones.load_tokenizer("tiny-llama")
    return data.load(path, "contrastive", tokenizer=tokenizer, max_length=64, blend=True, **options)


def test_every_value_has_its_own_instruction(tmp_path):
    loaded = load(write(tmp_path))
    assert (list(loaded.datasets), loaded.prompts) == (["blend"], {"blend": {}})
    got = {row["query"]["text"]: row for row in loaded.datasets["blend"]}
    assert len(got) == 6
    for row in ROWS:
        document = row.get("document_instruction", "")
        assert got[row["query"]] == {
            "query": {"instruction": row["instruction"], "text": row["query"]},
            "positive": {"instruction": document, "text": row["positive"]},
            "negative_1": {"instruction": document, "text": row["negative"]},
        }
    bare = load(write(tmp_path), instructions=False)
    assert {value["instruction"] for row in bare.datasets["blend"] for value in row.values()} == {""}
    assert bare.fingerprint != loaded.fingerprint


def test_the_order_does_not_depend_on_the_file(tmp_path):
    one, other = load(write(tmp_path)), load(write(tmp_path, ROWS[::-1]))
    assert [row["query"]["text"] for row in one.datasets["blend"]] != [row["query"] for row in ROWS]
    assert one.datasets["blend"][:] == other.datasets["blend"][:]


def test_a_row_is_read_as_alone_with_its_instruction():
    decoder = tiny()[0]
    rows = [{"instruction": "Answer.", "text": "how warm"}, {"instruction": "", "text": "twenty degrees"}]
    blended = decoder.preprocess(rows)
    for place, row in enumerate(rows):
        alone = decoder.preprocess([row["text"]], prompt=row["instruction"])
        real = blended["attention_mask"][place].bool()
        for name in ("input_ids", "pooling_mask"):
            assert blended[name][place][real].equal(alone[name][0])


@pytest.mark.parametrize("in_batch", [True, False])
def test_training_on_a_blend(own, tmp_path, in_batch):
    one = stage({"contrastive": write(tmp_path)}, "contrastive", blend=True, batch_size=4, max_length=160, steps=3)
    one = one.model_copy(update={"options": {"temperature": 0.1, "in_batch": in_batch}})
    done = trained(one)
    assert torch.isfinite(torch.tensor(done.history["loss"].tolist())).all()


def test_mistakes(tmp_path):
    rows = [{key: value for key, value in row.items() if key != "negative"} for row in ROWS]
    assert load(write(tmp_path, rows)).datasets["blend"].column_names == ["query", "positive"]
    tokenizer = backbones.load_tokenizer("tiny-llama")
    with pytest.raises(InvalidValueError, match="blend"):
        data.load(write(tmp_path), "simcse", tokenizer=tokenizer, max_length=64, blend=True)


def test_a_task_with_one_row_is_blended_too(tmp_path, recwarn):
    loaded = load(write(tmp_path, ROWS[1:]))
    assert "how cold" in {row["query"]["text"] for row in loaded.datasets["blend"]}
    assert not recwarn.list


def test_a_stage_for_all_tasks_refuses_retrieval_alone(tmp_path):
    """Named sources are known; rows of a file name their task, and are of retrieval if they don't."""
    said = "expected other tasks than retrieval too.*got 'retrieval alone'.*--data blended=FILE"
    for source in ("docs-mined", write(tmp_path), write(tmp_path, [row | {"task": "retrieval"} for row in ROWS])):
        with pytest.raises(InvalidValueError, match=said):
            load(source, mixed=True)
    plain = load(write(tmp_path))
    named = load(write(tmp_path, [*ROWS[:-1], ROWS[-1] | {"task": "sts"}]), mixed=True)
    assert named.fingerprint == plain.fingerprint  # the task is not trained on
    assert load("docs-blend", mixed=True).fingerprint == load("docs-blend").fingerprint


def test_the_published_second_stage_asks_for_your_own_file(own, tmp_path):
    """Before anything trains, and before the retrieval data are looked for."""
    said = "Stage blended: training data e5: expected other tasks.*, got 'retrieval alone'"
    with pytest.raises(InvalidValueError, match=said):
        trained(nv_embed.blended("paper"))


def test_fewer_hard_negatives_than_asked_for_are_said_once(tmp_path, recwarn):
    load(write(tmp_path), negatives=1)
    assert not recwarn
    load(write(tmp_path), negatives=7)
    assert [str(one.message) for one in recwarn] == [
        "tasks: 7 hard negatives are asked for, rows have 1: trained with 1."
    ]
