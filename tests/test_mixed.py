"""A file of all tasks, and what an evaluation holds is not in it."""

import json

import numpy as np
import pandas as pd
import pytest
from test_curation import teacher

from workbook import build
from workbook.corpora.near import near_duplicates
from workbook.corpora.reading import records
from workbook.data import rows as training_data
from workbook.data.filters import CLOSE, bm25_similarity, leaked
from workbook.data.mixed import labelled_set, task_rows, write_rows
from workbook.errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError
from workbook.methods import nv_embed
from workbook.training import Recipe, train

SENTENCES = [
    "the old heron waits by the river for a fish",
    "a parcel for the neighbour came this morning",
    "I never want to eat in that place again",
    "rain is expected in the north by the evening",
]


def test_what_an_evaluation_holds_is_found():
    held_out = ["The old heron waits, by the river, for a fish!", "I never want to eat in that place again.", "Yes."]
    texts = [
        SENTENCES[0],  # but for case and punctuation
        "I never want to eat in that dull place again",  # nearly
        SENTENCES[1],
        "yes",  # too short for a triple of words
        "I never want to go there again",
    ]
    assert leaked(texts, held_out).tolist() == [True, True, False, True, False]
    assert not leaked(texts, []).any()
    assert leaked([], held_out).shape == (0,)


def jaccard(one, other):
    one, other = ({*zip(text.split(), text.split()[1:], text.split()[2:], strict=False)} for text in (one, other))
    return len(one & other) / max(len(one | other), 1)


@pytest.mark.parametrize("rows", [3, 20_000])
def test_near_duplicates_are_all_those_of_a_naive_loop(rows, monkeypatch):
    monkeypatch.setattr("workbook.corpora.near._ROWS", rows)
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(["a", "b", "c"], draw.integers(0, 9))) for _ in range(60)]
    naive = [(one, other) for one in range(40) for other in range(20)
             if jaccard(texts[one], texts[40 + other]) >= 0.5]  # fmt: skip
    assert sorted(zip(*near_duplicates(texts[:40], texts[40:]), strict=True)) == naive
    assert len(naive) == 5
    within = [(one, other) for one in range(60) for other in range(one + 1, 60)
              if jaccard(texts[one], texts[other]) >= 0.5]  # fmt: skip
    assert sorted(zip(*near_duplicates(texts), strict=True)) == within
    assert [list(places) for places in near_duplicates(["a b", ""])] == [[], []]


def test_similarity_by_bm25():
    close = bm25_similarity(
        [SENTENCES[0], "the old heron waits by the river for a frog", "a letter for me came this evening", "xyz", ""],
        [*SENTENCES, ""],
    )
    assert close[0] == pytest.approx(1)
    assert 1 > close[1] > CLOSE > close[2] > 0
    assert close[3:].tolist() == [0, 0]
    assert bm25_similarity(["?"], ["!"]).tolist() == [0]
    # A long text that holds a short one is not the same.
    assert bm25_similarity([" ".join(SENTENCES)], SENTENCES)[0] < CLOSE
    with pytest.raises(InvalidValueError, match="held_out: expected texts of an evaluation"):
        bm25_similarity(["a"], [])


# Data sets


def test_data_sets_as_published(tmp_path):
    rows = [
        {"text": "good", "label": 1, "label_text": "positive"},
        {"text": "bad", "label": 0, "label_text": "negative"},
    ]
    (tmp_path / "classes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    expected = pd.DataFrame({"text": ["good", "bad"], "label": ["positive", "negative"]})
    assert labelled_set(tmp_path / "classes.jsonl").equals(expected)
    (tmp_path / "classes.csv").write_text("text,label\ngood,1\nbad,0\n")
    assert list(labelled_set(tmp_path / "classes.csv")["label"]) == ["1", "0"]
    pd.DataFrame({"sentences": [["a", "b"], ["c"]], "labels": [["x", "y"], ["x"]]}).to_parquet(tmp_path / "old.parquet")
    assert labelled_set(tmp_path / "old.parquet").to_numpy().tolist() == [["a", "x"], ["b", "y"], ["c", "x"]]
    (tmp_path / "graded.csv").write_text("sentence1,sentence2,score,genre\na,b,4.5,x\n")
    graded = labelled_set(tmp_path / "graded.csv")
    assert graded.to_dict("records") == [{"sentence1": "a", "sentence2": "b", "score": 4.5}]


def test_a_folder_is_read_as_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    for split in ("train", "test"):
        (tmp_path / "set" / f"{split}.jsonl").write_text(json.dumps({"text": split, "label": "x"}) + "\n")
    assert labelled_set(tmp_path / "set")["text"].tolist() == ["train"]
    assert labelled_set(tmp_path / "set", "test")["text"].tolist() == ["test"]


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("absent.jsonl", None, MissingDataError, "expected a file at .*absent.jsonl, found nothing"),
        ("other.jsonl", '{"question": "a", "label": 1}', InvalidValueError, "text and label, or .*'question, label'"),
        ("other.parquet", "text", DamagedFileError, "expected a parquet file"),
        ("nowhere", None, MissingDataError, "nowhere, split train: looked for a folder and on the Hugging Face Hub"),
    ],
)
def test_data_sets_that_are_refused(tmp_path, name, content, error, message):
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises(error, match=message):
        labelled_set(tmp_path / name)


# Rows


def classes(count):
    words = ["heron", "parcel", "place", "rain", "river"]
    return pd.DataFrame({"text": [f"{words[n % count]} number {n}" for n in range(40)],
                         "label": [words[n % count] for n in range(40)]})  # fmt: skip


@pytest.fixture
def graded():
    pairs = [(f"{one} {n}", f"{one} {n} again", 5.0 - n % 3) for n, one in enumerate(SENTENCES * 6)]
    return pd.DataFrame(pairs, columns=["sentence1", "sentence2", "score"])


@pytest.fixture
def vectors(graded):
    draw = np.random.default_rng(0)
    found = {text: draw.normal(size=8).astype(np.float32) for text in graded["sentence1"]}
    near = {other: found[one] + 0.1 for one, other in zip(graded["sentence1"], graded["sentence2"], strict=True)}
    return found | near


def test_what_represents_a_class_and_who_gets_the_instruction(graded, vectors):
    two = task_rows(classes(2), "classification", "Sort.", negatives=7)
    assert set(two["positive"]) == {"heron", "parcel"}
    assert [name for name in two if name.startswith("negative")] == ["negative_1"]
    assert two["document_instruction"].eq("").all()
    for rows in (task_rows(classes(5), "classification", "Sort."), task_rows(classes(2), "clustering", "Sort.")):
        assert rows["positive"].str.contains("number").all()
        assert rows["document_instruction"].eq("Sort.").all()
        assert "negative_7" in rows
    alike = task_rows(graded, "sts", "Say the same.", teacher=teacher(vectors), negatives=3)
    assert len(alike) == 2 * graded["score"].ge(4).sum()
    assert {*alike["document_instruction"], *alike["instruction"]} == {"Say the same."}
    assert not (alike["negative_1"] == alike["positive"]).any()
    asked = pd.DataFrame({"query": ["q"], "positive": ["d"], "negative_1": ["e"], "negative_2": ["f"]})
    found = task_rows(asked, "retrieval", "Find it.", negatives=1)
    assert found.to_dict("records") == [
        {"task": "retrieval", "query": "q", "positive": "d", "negative_1": "e", "instruction": "Find it.",
         "document_instruction": ""}
    ]  # fmt: skip


def test_what_the_evaluation_holds_gives_no_rows():
    frame = pd.DataFrame(
        {"text": [*SENTENCES, SENTENCES[3].replace("north", "far south")], "label": ["a", "b", "b", "a", "a"]}
    )
    with pytest.warns(UserWarning, match="1 of 5 rows are in the evaluation, or close: left out"):
        rows = task_rows(frame, "classification", "Sort.", held_out=[SENTENCES[1].upper()])
    assert SENTENCES[1] not in set(rows["query"])
    close = ["evening rain is expected in the north"]
    with pytest.warns(UserWarning, match="2 of 5"):
        rows = task_rows(frame, "classification", "Sort.", held_out=[*close, SENTENCES[1]], similarity=0.6)
    assert SENTENCES[3] not in set(rows["query"])
    with pytest.raises(InvalidValueError, match="rows that no evaluation holds"), pytest.warns(match="5 of 5"):
        task_rows(frame, "classification", "Sort.", held_out=frame["text"])


def test_a_limit_is_a_part_drawn_by_the_seed():
    parts = [task_rows(classes(5), "clustering", "Sort.", limit=20, seed=seed)["query"].tolist() for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]
    assert len(parts[0]) == 20


@pytest.mark.parametrize(
    ("frame", "task", "error", "message"),
    [
        (classes(2), "sorting", UnknownNameError, "task 'sorting'.*retrieval, classification, clustering, sts"),
        (classes(2), "sts", InvalidValueError, "columns sentence1, sentence2, score, got 'no sentence1'"),
        (pd.DataFrame({"sentence1": ["a"], "sentence2": ["b"], "score": [5.0]}), "sts", InvalidValueError, "teacher"),
    ],
)
def test_rows_that_are_refused(frame, task, error, message):
    with pytest.raises(error, match=message):
        task_rows(frame, task, "Sort.")


# The file


def test_rows_with_fewer_negatives_repeat_theirs_and_repeated_rows_are_left_out(tmp_path):
    one = pd.DataFrame({"task": "retrieval", "query": ["q", "Q "], "positive": ["d", "d"], "negative": ["e", "f"]})
    other = pd.DataFrame({"query": ["r"], "positive": ["d"], "negative_1": ["x"], "negative_2": ["y"],
                          "negative_3": ["z"]})  # fmt: skip
    with pytest.warns(UserWarning, match="all.jsonl: 1 rows repeat another"):
        path = write_rows(tmp_path / "all.jsonl", one, other)
    assert [row for _, row in records(path)] == [
        {"task": "retrieval", "query": "q", "positive": "d", **{f"negative_{n}": "e" for n in (1, 2, 3)}},
        {"query": "r", "positive": "d", "negative_1": "x", "negative_2": "y", "negative_3": "z"},
    ]
    for parts in ((), (one.drop(columns="negative"),)):
        with pytest.raises(InvalidValueError, match="rows with hard negatives"):
            write_rows(tmp_path / "all.jsonl", *parts)
    with pytest.raises(InvalidValueError, match=r"ends in \.jsonl"):
        write_rows(tmp_path / "all.csv", one)


def test_the_published_second_stage_trains_on_it(own, tmp_path, graded, vectors):
    """All of table 11 but for what a test has no time for; the second stage of `paper`, refused without such rows."""
    asked = pd.DataFrame({"query": [f"where is {text}" for text in SENTENCES], "positive": SENTENCES,
                          "negative_1": SENTENCES[1:] + SENTENCES[:1]})  # fmt: skip
    path = write_rows(
        tmp_path / "all.jsonl",
        task_rows(asked, "retrieval", "Find it."),
        task_rows(classes(2), "classification", "Sort."),
        task_rows(classes(5), "clustering", "Group."),
        task_rows(graded, "sts", "Say the same.", teacher=teacher(vectors)),
    )
    model = build("nv-embed", "tiny-llama")
    small = {"blended.steps": 2, "blended.batch_size": 16, "blended.max_length": 64, "blended.warmup_steps": 1}
    recipe = Recipe(stages=(nv_embed.blended("paper"),)).changed(small)
    found = train(model, recipe, data={"blended": str(path)}, progress=False)
    assert np.isfinite(found.history["loss"]).all()
    loaded = training_data.load(**recipe.stages[0].reading() | {"source": path}, tokenizer=model.tokenizer)
    assert loaded.fingerprint == found.manifest["stages"]["blended"]["data"]
    said = {value["instruction"] for row in loaded.datasets["blend"] for value in row.values()}
    assert said == {"Find it.", "Sort.", "Group.", "Say the same.", ""}
    assert loaded.datasets["blend"].num_columns == 9
    bare = write_rows(tmp_path / "bare.jsonl", task_rows(asked, "retrieval", "Find it."))
    with pytest.raises(InvalidValueError, match="retrieval alone"):
        train(model, recipe, data={"blended": str(bare)}, progress=False)
