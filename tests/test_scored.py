"""Training data with a teacher's scores, read as they are published: rows, tasks, draws, and errors that say where."""

import json
import random

import pandas as pd
import pytest

from workbook import backbones
from workbook.corpora.scored import bge_full, scored, task_of
from workbook.data import rows as data
from workbook.errors import DamagedFileError, InvalidValueError, MissingDataError

TYPES = {"fever": "normal", "reviews": "symmetric_class", "topics": "symmetric_clustering", "sts": "symmetric_sts"}


def published(name, count=6, negatives=9, kind="normal"):
    """Rows as they are published; scores in retrieval alone, the same for a text wherever it stands."""
    rows = []
    for number in range(count):
        pos = [f"{name} positive {number} {place}" for place in range(2)]
        neg = [f"{name} negative {number} {place}" for place in range(negatives)]
        row = {"query": f"{name} query {number}", "pos": pos, "neg": neg, "prompt": f"Find {name}.", "type": kind}
        known = kind == "normal"
        row["pos_scores"] = [score(text) for text in pos] if known else None
        row["neg_scores"] = [score(text) for text in neg] if known else None
        rows.append(row)
    return rows


def score(text):
    return random.Random(text).uniform(-9, 9)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def folder(own, tmp_path, monkeypatch):
    """The published folder below WORKBOOK_DATA: a data set in two parts, and three of other tasks."""
    monkeypatch.setenv("WORKBOOK_DATA", str(tmp_path / "public"))
    place = tmp_path / "public" / "bge-full-data" / "data"
    for name, kind in TYPES.items():
        rows = published(name, kind=kind, negatives={"reviews": 1, "topics": 3}.get(name, 9))
        if name == "fever":
            write(place / "fever-00000-of-00002.parquet", rows[:4])
            write(place / "fever-00001-of-00002.parquet", rows[4:])
        else:
            write(place / f"{name}.jsonl", rows)
    return place


def test_rows_of_all_tasks(folder):
    found = bge_full()
    assert list(found) == sorted(TYPES)
    assert {name: len(dataset) for name, dataset in found.items()} == dict.fromkeys(found, 6)
    tasks = {name: set(dataset["task"]) for name, dataset in found.items()}
    assert tasks == {"fever": {"retrieval"}, "reviews": {"classification"}, "sts": {"sts"}, "topics": {"clustering"}}
    columns = {name: [*dataset.column_names] for name, dataset in found.items()}
    wide = {name: sum(column.startswith("negative") for column in own) for name, own in columns.items()}
    assert wide == {"fever": 7, "reviews": 1, "sts": 7, "topics": 3}
    for name, dataset in found.items():
        both = name in ("sts", "topics")
        assert set(dataset["query_instruction"]) == {f"Find {name}."}
        assert set(dataset["document_instruction"]) == ({f"Find {name}."} if both else {""})
        assert (dataset["scores"][0] is None) == (name != "fever")


def test_scores_are_those_of_the_texts_of_their_row(folder):
    for row in bge_full()["fever"]:
        texts = [row["positive"], *(row[f"negative_{place}"] for place in range(1, 8))]
        assert row["scores"] == pytest.approx([score(text) for text in texts])
        number = row["query"].split()[-1]
        assert {text.split()[2] for text in texts} == {number}
        assert len({*texts}) == 8


def test_what_is_drawn_is_a_part_of_what_more_would_be(folder):
    """And not the first of the file: neither of the positives nor of the negatives."""
    more, fewer = bge_full(negatives=7)["fever"], bge_full(negatives=3)["fever"]
    for number in range(1, 4):
        assert list(more[f"negative_{number}"]) == list(fewer[f"negative_{number}"])
    assert [row[:4] for row in fewer["scores"]] == [row[:4] for row in more["scores"]]
    assert {text[-1] for text in more["positive"]} == {"0", "1"}
    assert {text[-1] for text in more["negative_1"]} != {"0"}


def test_parquet_is_json_lines(own, tmp_path):
    rows = published("nq")
    one, other = (scored(write(tmp_path / f"nq.{ending}", rows)) for ending in ("jsonl", "parquet"))
    assert one.column_names == other.column_names
    assert one[:] == other[:]
    parts = [write(tmp_path / f"nq-{n}.parquet", part) for n, part in enumerate((rows[:1], rows[1:]))]
    assert scored(parts)[:] == one[:]


def test_rows_with_fewer_negatives_repeat_theirs(own, tmp_path):
    rows = published("nq", count=3, negatives=5)
    rows[1] = {**rows[1], "neg": rows[1]["neg"][:2], "neg_scores": rows[1]["neg_scores"][:2]}
    short = scored(write(tmp_path / "nq.jsonl", rows))[1]
    texts = [short[f"negative_{place}"] for place in range(1, 6)]
    assert texts == [*texts[:2], *texts[:2], texts[0]]
    assert len({*texts}) == 2
    assert short["scores"][1:] == pytest.approx([score(text) for text in texts])


def test_a_single_negative_where_the_type_says_so(own, tmp_path):
    dataset = scored(write(tmp_path / "nq.jsonl", published("nq", kind="only_1neg")))
    assert [name for name in dataset.column_names if name.startswith("negative")] == ["negative_1"]
    assert (task_of("only_1neg"), task_of("symmetric_sts")) == ("retrieval", "sts")


# What is wrong with a file


def changed(**fields):
    def change(rows):
        rows[2] = {name: value for name, value in {**rows[2], **fields}.items() if value != "left out"}

    return change


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query": " "}, "field query: expected text, got ' '"),
        ({"pos": []}, r"field pos: expected a list of texts, got \[\]"),
        ({"neg": []}, r"field neg: expected a list of texts, got \[\]"),
        ({"neg": ["one", ""] * 4}, r"field neg: expected a list of texts, got \['one', ''"),
        ({"prompt": None}, "field prompt: expected text, got None"),
        ({"type": None}, "field type: expected text, got None"),
        ({"pos_scores": [1.0]}, "field pos_scores: expected 2 scores, one for each text of pos, got 1"),
        ({"neg_scores": [1.0] * 10}, "field neg_scores: expected 9 scores, one for each text of neg, got 10"),
        ({"neg_scores": [1.0] * 8 + [None]}, r"field neg_scores: expected a list of numbers, got \[1.0"),
        ({"neg_scores": None}, "expected neg_scores beside pos_scores, got none"),
        ({"pos_scores": None}, "expected pos_scores beside neg_scores, got none"),
    ],
)
def test_a_field_of_another_form(own, tmp_path, ending, fields, message):
    rows = published("nq")
    changed(**fields)(rows)
    path = write(tmp_path / f"nq.{ending}", rows)
    where = f"nq.{ending}, {'line' if ending == 'jsonl' else 'row'} 3"
    with pytest.raises(DamagedFileError, match=f"{where}(, |: ){message}"):
        scored(path)


@pytest.mark.parametrize("field", ["query", "pos", "neg", "prompt", "type"])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_missing_field(own, tmp_path, ending, field):
    rows = [{name: value for name, value in row.items() if name != field} for row in published("nq")]
    where = rf"nq\.{ending}, (line|row) 1: expected a field {field}, got "
    with pytest.raises(DamagedFileError, match=where):
        scored(write(tmp_path / f"nq.{ending}", rows))


def test_files_that_are_not_what_they_are_called(own, tmp_path):
    (tmp_path / "cut.parquet").write_bytes(write(tmp_path / "nq.parquet", published("nq")).read_bytes()[:200])
    with pytest.raises(DamagedFileError, match=r"cut\.parquet: expected a parquet file, got "):
        scored(tmp_path / "cut.parquet")
    with pytest.raises(DamagedFileError, match=r"one\.jsonl: expected at least 2 rows .*, got 1"):
        scored(write(tmp_path / "one.jsonl", published("nq")[:1]))
    with pytest.raises(InvalidValueError, match="negatives: expected a positive whole number of hard negatives, got 0"):
        scored(tmp_path / "nq.parquet", negatives=0)


def test_a_missing_part(folder):
    (folder / "fever-00000-of-00002.parquet").unlink()
    said = r"expected 2 files fever-\*-of-00002, got 1 without 00000\. Download the others too"
    with pytest.raises(DamagedFileError, match=said):
        bge_full()


def test_two_files_of_one_data_set(folder):
    write(folder.parent / "again" / "sts.jsonl", published("sts"))
    said = r"expected one file of sts, or its numbered parts, got again/sts\.jsonl, data/sts\.jsonl"
    with pytest.raises(DamagedFileError, match=said):
        bge_full()


def test_a_download_that_goes_on_is_not_read(folder):
    write(folder.parent / ".cache" / "download" / "sts.jsonl", published("sts"))
    assert list(bge_full()) == sorted(TYPES)


def test_data_that_are_not_there(own, tmp_path, monkeypatch):
    monkeypatch.delenv("WORKBOOK_DATA", raising=False)
    way = "Way out: hf download cfli/bge-full-data --repo-type dataset --local-dir FOLDER/bge-full-data"
    with pytest.raises(MissingDataError, match=rf"in no local folder \(WORKBOOK_DATA is not set\), found none. {way}"):
        bge_full()
    monkeypatch.setenv("WORKBOOK_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match=rf"looked for a folder bge-full-data in the folder {tmp_path}"):
        bge_full()
    with pytest.raises(MissingDataError, match="expected a folder at"):
        bge_full(tmp_path / "nowhere")
    (tmp_path / "bge-full-data").mkdir()
    with pytest.raises(MissingDataError, match=r"expected files \(\.jsonl, \.parquet\) in .*bge-full-data, found none"):
        bge_full()


def test_the_folder_may_lie_one_deeper_or_be_the_named_one(folder, monkeypatch):
    monkeypatch.setenv("WORKBOOK_DATA", str(folder.parents[2]))
    assert list(bge_full()) == sorted(TYPES)
    monkeypatch.setenv("WORKBOOK_DATA", str(folder.parent))
    assert list(bge_full()) == sorted(TYPES)


# As the data of a stage


def load(source="bge-full", **options):
    tokenizer = backbones.load_tokenizer("tiny-llama")
    return data.load(str(source), "contrastive", tokenizer=tokenizer, max_length=64, **options)


def test_a_stage_reads_tasks_and_scores_where_it_asks_for_them(folder):
    plain, told = load(), load(tasks=True, scores=True)
    assert (plain.tasks, [name for name in plain.datasets if plain.scored(name)]) == ({}, [])
    assert told.tasks == {"fever": "retrieval", "reviews": "classification", "sts": "sts", "topics": "clustering"}
    assert [name for name in told.datasets if told.scored(name)] == ["fever"]
    assert told.texts("fever") == plain.datasets["fever"].column_names
    assert told.prompts == plain.prompts
    assert told.prompts["sts"] == dict.fromkeys(plain.datasets["sts"].column_names, "Find sts.")
    assert told.prompts["fever"] == {"query": "Find fever."}
    assert len({plain.fingerprint, told.fingerprint, load(tasks=True).fingerprint}) == 3
    assert len([*told.examples()]) == len([*plain.examples()]) == 9 + 3 + 9 + 5  # texts, and no scores


def test_scores_follow_rows_and_negatives(folder):
    for negatives in (1, 4, 7):
        for row in load(tasks=True, scores=True, negatives=negatives).datasets["fever"]:
            texts = [value for name, value in row.items() if name not in ("query", "scores")]
            assert len(texts) == 1 + negatives
            assert row["scores"] == pytest.approx([score(text) for text in texts])


def test_other_scores_are_other_data(own, tmp_path):
    rows = published("nq")
    other = [dict(row) for row in rows]
    other[3]["neg_scores"] = [value + 1 for value in other[3]["neg_scores"]]
    paths = [write(tmp_path / place / "nq.jsonl", given) for place, given in (("one", rows), ("other", other))]
    assert len({load(path, scores=True).fingerprint for path in paths}) == 2
    assert len({load(path).fingerprint for path in paths}) == 1


def test_rows_without_scores(own, tmp_path, recwarn):
    bare = [row | {"pos_scores": None, "neg_scores": None} for row in published("nq")]
    said = "expected rows of retrieval with a teacher's scores .*, got 'none'.*or a reranker or an encoder as"
    with pytest.raises(InvalidValueError, match=said):
        load(write(tmp_path / "bare.jsonl", bare), scores=True)
    some = [*published("nq")[:4], *bare[4:]]
    said = "expected a teacher's scores in every row, or in none, got 'none in 2 of 6 rows, the first of them row 5'"
    with pytest.raises(InvalidValueError, match=said):
        load(write(tmp_path / "some.jsonl", some), scores=True)
    assert not recwarn.list


def test_a_data_set_without_scores_beside_one_with_them(folder):
    bare = [row | {"pos_scores": None, "neg_scores": None} for row in published("nq")]
    write(folder / "nq.jsonl", bare)
    with pytest.warns(UserWarning, match="^nq: no scores of a teacher in the rows: trained without"):
        found = load(tasks=True, scores=True)
    assert [name for name in found.datasets if found.scored(name)] == ["fever"]


def test_a_blend_has_no_tasks_of_their_own(folder):
    for options in ({"tasks": True}, {"scores": True}):
        with pytest.raises(InvalidValueError, match="blend: expected False where tasks are told apart or have scores"):
            load(blend=True, **options)


def test_tasks_of_a_users_own_file(own, tmp_path):
    """Rows with the same instructions and another task are another data set."""
    rows = [{"query": f"q {n}", "positive": f"p {n}", "negative": f"n {n}"} for n in range(8)]
    path = write(tmp_path / "mine.jsonl", [row | {"task": "sts"} if n < 4 else row for n, row in enumerate(rows)])
    told = load(path, tasks=True)
    assert told.tasks == {"mine/1": "sts", "mine/2": "retrieval"}
    assert {row["query"] for row in told.datasets["mine/1"]} == {f"q {n}" for n in range(4)}
    assert list(load(path).datasets) == ["mine"]
    with pytest.raises(InvalidValueError, match="other tasks than retrieval too"):
        load(write(tmp_path / "alone.jsonl", rows), tasks=True)


def test_retrieval_alone_by_the_fields_that_are_read(own, tmp_path):
    """``type`` in a file of pairs, or ``task`` in the published form, is not what tells tasks apart there."""
    pairs = [{"query": f"q {n}", "positive": f"p {n}", "type": "symmetric_sts"} for n in range(4)]
    other = [row | {"task": "sts"} for row in published("nq")]
    for name, rows in (("pairs", pairs), ("other", other)):
        with pytest.raises(InvalidValueError, match="other tasks than retrieval too"):
            load(write(tmp_path / f"{name}.jsonl", rows), tasks=True)


def test_a_users_own_file_has_all_its_negatives(own, tmp_path, recwarn):
    path = write(tmp_path / "nq.jsonl", published("nq", negatives=15))
    for wanted, kept in ((None, 15), (15, 15), (3, 3)):
        [columns] = [list(found) for found in load(path, negatives=wanted).datasets.values()]
        assert sum(name.startswith("negative_") for name in columns[0]) == kept
    assert not recwarn.list


def test_tasks_of_the_offline_blend():
    tasks = load("docs-blend", tasks=True).tasks
    assert tasks == {"retrieval": "retrieval", "packages": "clustering", "reviews": "classification", "graded": "sts"}
