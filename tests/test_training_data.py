"""The data of a training stage, from the docs corpus, small files in the published formats, and users' files."""

import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import warnings

import pytest
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

import workbook
from workbook import backbones
from workbook.corpora import authored, public
from workbook.corpora.packages import write_table
from workbook.data import rows as data
from workbook.data.sources import _sentences
from workbook.errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError
from workbook.files import ROOT, cache_path
from workbook.objectives import Contrastive
from workbook.texts import LONGEST

TOKENIZER = backbones.load_tokenizer("tiny-llama")
QUESTIONS = [{"query": f"question {number}", "positive": f"answer {number}"} for number in range(6)]


def load(source, objective, **options):
    return data.load(source, objective, **{"tokenizer": TOKENIZER, "max_length": 8, **options})


def jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def table(rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file into the folder of local data; the cache is empty."""
    monkeypatch.setenv("WORKBOOK_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "cache"))

    def written(name, content):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


def rows(dataset):
    return [tuple(row.values()) for row in dataset]


# The docs corpus


def held_out(docs):
    return docs.pairs[docs.pairs.split != "train"]


def test_docs_pairs_are_those_of_the_train_split(docs):
    found = load("docs", "contrastive")
    assert found.datasets["docs"].column_names == ["query", "positive"]
    train = docs.split("train")
    assert sorted(rows(found.datasets["docs"])) == sorted(zip(train["query"], train["document"], strict=True))
    assert not set(found.datasets["docs"]["query"]) & set(held_out(docs)["query"])
    assert not set(found.datasets["docs"]["positive"]) & set(held_out(docs)["document"])


def test_docs_queries_have_the_instruction_of_the_retrieval_task():
    table = authored.instructions("docs").set_index("task")
    expected = {"docs": {"query": table.loc["DocsRetrieval", "instruction"]}}
    assert load("docs", "contrastive", limit=2).prompts == expected
    assert load("docs", "contrastive", limit=2, instructions=False).prompts == {"docs": {}}


def test_docs_sentences_are_of_the_train_split_alone(docs):
    found = load("docs", "simcse").datasets["docs"]
    assert found.column_names == ["text"]
    texts = found["text"][:]
    train = docs.split("train")
    train = "\n".join([*train["query"], *train["document"]])
    assert all(text in train for text in texts[:2000])
    others = [*held_out(docs)["query"], *held_out(docs)["document"]]
    sentences = {part.casefold() for text in others for part in re.split(r"(?<=[.!?])\s+", text)}
    assert not sentences & {text.casefold() for text in texts}
    words = [" ".join(re.findall(r"\w+", text.casefold())) for text in ("\n".join(others), *texts[:2000])]
    assert not any(f" {text} " in words[0] for text in words[1:])
    assert len({text.casefold() for text in texts}) == len(texts) > 20_000
    assert all(5 <= len(text.split()) <= 60 for text in texts)


@pytest.mark.filterwarnings("ignore:This docs corpus is not the one of the pinned packages")
def test_docs_chunks_are_those_of_the_train_split(docs, write):
    few = docs.pairs.iloc[::150]
    assert set(few["split"]) == {"train", "dev", "test"}
    write_table(write("docs.jsonl", ""), "docs", few, docs.versions)
    found = load("docs", "mntp", max_length=32).datasets["docs"]
    assert found.column_names == ["chunk"]
    train = few[few.split == "train"]
    texts = [f"{query}\n{document}" for query, document in zip(train["query"], train["document"], strict=True)]
    assert sorted(found["chunk"]) == sorted(public.chunks(texts, TOKENIZER, 32).tolist())


def test_sentences_end_where_they_end():
    import pandas as pd

    document = (
        "Add two arrays, e.g. NumPy arrays or lists. See Cohen et al. (1996) for the whole proof! Too short. "
        f"{'word ' * 61}."
    )
    found = list(_sentences(pd.DataFrame({"query": ["Sum of two given arrays"], "document": [document]})))
    assert found == [
        "Sum of two given arrays",
        "Add two arrays, e.g. NumPy arrays or lists.",
        "See Cohen et al. (1996) for the whole proof!",
    ]


# Public data


def test_wikitext_and_wiki1m(write):
    write("wikitext-103-raw/wiki.train.raw", " \n = Kettle = \n \n The kettle , once cold , sang again . \n")
    write("wiki1m_for_simcse.txt", "A kettle sang.\nA lid did not.\nA kettle sang.\n")
    lines = ["= Kettle =", "The kettle , once cold , sang again ."]
    assert set(load("wikitext", "simcse").datasets["wikitext"]["text"]) == set(lines)
    with pytest.warns(UserWarning, match=r"wiki1m: 1 of 3 rows repeat another: left out \(3\)\."):
        assert set(load("wiki1m", "simcse").datasets["wiki1m"]["text"]) == {"A kettle sang.", "A lid did not."}
    chunks = load("wikitext", "mntp").datasets["wikitext"]["chunk"]
    assert sorted(chunks) == sorted(public.chunks(lines, TOKENIZER, 8).tolist())


def test_e5_has_one_data_set_for_each_instruction(write):
    hard = [{**row, "negative": f"no answer {number}"} for number, row in enumerate(QUESTIONS)]
    for name in public.E5_DATASETS:
        write(f"echo-data/{name}.jsonl", jsonl(hard))
    found = load("e5", "contrastive")
    split = [f"{name}/{number}" for name in ("allnli", "quora_duplicates") for number in (1, 2)]
    assert set(found.datasets) == set(public.E5_DATASETS) - {"allnli", "quora_duplicates"} | set(split)
    assert all(part.column_names == ["query", "positive", "negative"] for part in found.datasets.values())
    as_read = public.e5(names=["allnli"])["allnli"]
    for number in (1, 2):
        name = f"allnli/{number}"
        expected = [tuple(row.values()) for row in as_read if row["query_instruction"] == found.prompts[name]["query"]]
        assert sorted(rows(found.datasets[name])) == sorted(row[:3] for row in expected)
        assert len(expected) == 3
    entailed, similar = found.prompts["allnli/1"], found.prompts["allnli/2"]
    assert entailed == {"query": "Given a premise, retrieve a hypothesis that is entailed by the premise"}
    assert similar == dict.fromkeys(("query", "positive", "negative"), "Retrieve semantically similar text")
    bare = load("e5", "contrastive", instructions=False)
    assert bare.prompts == {name: {} for name in found.datasets}
    assert {name: rows(part) for name, part in bare.datasets.items()} == {
        name: rows(part) for name, part in found.datasets.items()
    }
    assert bare.fingerprint != found.fingerprint


# Users' files


def test_texts_of_every_kind(write):
    texts = ["A kettle sang.", "Ein Deckel, zwölf Töpfe."]
    fields = [{"text": f" {text} "} for text in texts]
    paths = [
        write("one.txt", "\n\n".join(texts)),
        write("one.jsonl", jsonl(fields)),
        write("one.csv", table(fields)),
        write("one.CSV", b"\xef\xbb\xbf" + table(fields).encode()),
    ]
    found = [load(path, "simcse") for path in paths]
    assert {tuple(part.datasets["one"]["text"]) for part in found} in [{tuple(texts)}, {tuple(texts[::-1])}]
    assert len({part.fingerprint for part in found}) == 1
    chunks = [load(str(path), "mntp").datasets["one"]["chunk"][:] for path in paths]
    assert sorted(chunks[0]) == sorted(public.chunks(texts, TOKENIZER, 8).tolist())
    assert chunks == [chunks[0]] * 4


@pytest.mark.parametrize(("ending", "as_text"), [("jsonl", jsonl), ("csv", table)])
def test_pairs_with_negatives_and_instructions(ending, as_text, write):
    given = [
        {
            "negative_10": f"far {number}",
            "instruction": "Find the same" if number % 2 else "Find the answer",
            "negative_2": f"near {number}, or\nnot",
            "query": f'a "question" {number}',
            "negative": f"no {number}",
            "document_instruction": "Find the same" if number % 2 else "",
            "positive": f"yes {number}",
        }
        for number in range(4)
    ]
    found = load(write(f"mine.{ending}", as_text(given)), "contrastive")
    columns = ["query", "positive", "negative", "negative_2", "negative_10"]
    assert list(found.datasets) == ["mine/1", "mine/2"]
    for first, part in enumerate(found.datasets.values()):
        assert part.column_names == columns
        assert sorted(rows(part)) == [tuple(row[column] for column in columns) for row in given[first::2]]
    both = dict.fromkeys(columns, "Find the same")
    assert found.prompts == {"mine/1": {"query": "Find the answer"}, "mine/2": both}


def test_a_changed_file_is_read_again(write):
    assert len(load(write("mine.jsonl", jsonl(QUESTIONS)), "contrastive").datasets["mine"]) == 6
    assert len(load(write("mine.jsonl", jsonl(QUESTIONS[:4])), "contrastive").datasets["mine"]) == 4


def test_the_trainer_takes_data_and_prompts_as_they_are(write, tmp_path):
    said = [{**row, "query": f"other {row['query']}", "instruction": "Find the answer"} for row in QUESTIONS]
    found = load(write("mine.jsonl", jsonl(QUESTIONS + said)), "contrastive")
    assert found.prompts == {"mine/1": {}, "mine/2": {"query": "Find the answer"}}
    model = workbook.build("mean", "tiny-llama", dtype="float32", device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"), num_train_epochs=1, per_device_train_batch_size=3, report_to=[],
        disable_tqdm=True, save_strategy="no", use_cpu=True, prompts=found.prompts,
    )  # fmt: skip
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(TOKENIZER.decode(inputs[0]["input_ids"][0])))
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=found.datasets, loss=Contrastive(model)
    ).train()
    queries = [text for text in seen if "question" in text]
    assert len(queries) == 4
    assert all(("Find the answer" in text) == ("other" in text) for text in queries)
    assert sum("other" in text for text in queries) == 2
    assert not any("Find" in text for text in seen if "question" not in text)


# Order, limit and fingerprint


def digest(row):
    return hashlib.sha256(json.dumps(list(row.values())).encode()).hexdigest()


def test_rows_are_in_the_order_of_their_sha256_whatever_that_of_the_file(write):
    expected = [tuple(row.values()) for row in sorted(QUESTIONS, key=digest)]
    first = load(write("mine.jsonl", jsonl(QUESTIONS)), "contrastive")
    again = load(write("other/mine.csv", table(QUESTIONS[::-1])), "contrastive")
    assert rows(first.datasets["mine"]) == rows(again.datasets["mine"]) == expected
    assert first.fingerprint == again.fingerprint
    assert expected not in (rows_in(QUESTIONS), rows_in(QUESTIONS[::-1]))


def rows_in(items):
    return [tuple(item.values()) for item in items]


def test_a_limit_takes_the_first_of_all_data_sets_together(write):
    numbers = range(40)
    few = [{"query": f"f{n}", "positive": f"g{n}", "instruction": "few"} for n in numbers[:10]]
    many = [{"query": f"m{n}", "positive": f"n{n}", "instruction": "many"} for n in numbers]
    path = write("mine.jsonl", jsonl(few + many))
    whole = load(path, "contrastive")
    for limit in (30, 20, 50, 60):
        part = load(path, "contrastive", limit=limit)
        sizes = {name: len(dataset) for name, dataset in part.datasets.items()}
        assert sum(sizes.values()) == min(limit, 50)
        assert sizes["mine/1"] < sizes["mine/2"]
        for name, size in sizes.items():
            assert rows(part.datasets[name]) == rows(whole.datasets[name])[:size]
        assert (part.fingerprint == whole.fingerprint) == (limit >= 50)


def test_a_limit_leaves_out_what_gets_a_single_row_and_says_when_nothing_is_left(write):
    given = [{**row, "instruction": str(number // 2)} for number, row in enumerate(QUESTIONS)]
    path = write("mine.jsonl", jsonl(given))
    sizes = [
        {name: len(part) for name, part in load(path, "contrastive", limit=limit).datasets.items()} for limit in (4, 5)
    ]
    assert all(set(found.values()) == {2} for found in sizes)
    ordered = sorted(range(6), key=lambda number: digest(QUESTIONS[number]))
    limit = next(limit for limit in (2, 3) if len({number // 2 for number in ordered[:limit]}) == limit)
    with pytest.raises(InvalidValueError, match=rf"mine\.jsonl with limit {limit}: expected at least two .*higher"):
        load(path, "contrastive", limit=limit)


@pytest.mark.journey
def test_the_fingerprint_is_of_the_content_alone(write):
    given = [{**row, "instruction": "Find the answer"} for row in QUESTIONS]
    path = write("mine.jsonl", jsonl(given))
    expected = load(path, "contrastive").fingerprint
    assert expected == "37a0e62263e4cbc711ff85a20eb19583f52b9c2c320ca234cf52577c46afb148"
    program = (
        "import sys; from workbook.data import rows; "
        "print(rows.load(sys.argv[1], 'contrastive', tokenizer=None, max_length=8).fingerprint)"
    )
    moved = write("elsewhere/mine.jsonl", path.read_bytes())
    environment = {**os.environ, "PYTHONHASHSEED": "7", "WORKBOOK_CACHE": str(moved.parent)}
    result = subprocess.run(
        [sys.executable, "-c", program, moved], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == expected
    others = {
        "row": write("row/mine.jsonl", jsonl([{**given[0], "positive": "another"}, *given[1:]])),
        "instruction": write("said/mine.jsonl", jsonl([{**row, "instruction": "Find"} for row in given])),
        "side": write("side/mine.jsonl", jsonl([{**row, "document_instruction": "Find"} for row in given])),
        "fewer": write("fewer/mine.jsonl", jsonl(given[:5])),
        "name": write("yours.jsonl", jsonl(given)),
        "column": write("column/mine.jsonl", jsonl([{**row, "negative": "no"} for row in given])),
    }
    found = {name: load(other, "contrastive").fingerprint for name, other in others.items()}
    found["bare"] = load(path, "contrastive", instructions=False).fingerprint
    assert len({expected, *found.values()}) == 8


# Rows that teach nothing


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (QUESTIONS[:2], r"mine: 2 of 8 rows repeat another: left out \(7, 8\)\."),
        ([{"query": "same", "positive": " same "}], r"1 of 7 rows have their query as positive: left out \(7\)\."),
        (
            [{"query": f"q{number}", "positive": f"q{number}"} for number in range(7)],
            r"7 of 13 rows have their query as positive: left out \(7, 8, 9, 10, 11, \.\.\.\)\.",
        ),
    ],
    ids=["again", "own", "many"],
)
def test_rows_left_out(extra, message, write):
    path = write("mine.jsonl", jsonl(QUESTIONS + extra))
    with pytest.warns(UserWarning, match=message) as told:
        found = load(path, "contrastive")
    assert len(told) == 1
    assert sorted(rows(found.datasets["mine"])) == rows_in(QUESTIONS)


def test_rows_whose_negative_is_their_positive_are_named_by_their_place_in_the_file(write):
    given = [
        {**row, "negative": f"no {number}", "negative_1": "not so", "instruction": "ab"[number % 2]}
        for number, row in enumerate(QUESTIONS)
    ]
    given[3]["negative_1"] = given[3]["positive"]
    path = write("mine.jsonl", jsonl(given))
    with pytest.warns(UserWarning, match=r"mine/2: 1 of 3 rows have their positive as negative: left out \(4\)\."):
        found = load(path, "contrastive")
    assert [len(part) for part in found.datasets.values()] == [3, 2]


def test_the_same_pair_under_two_instructions_is_no_repetition(write):
    path = write("mine.jsonl", jsonl([{**row, "instruction": said} for said in "ab" for row in QUESTIONS]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [len(part) for part in load(path, "contrastive").datasets.values()] == [6, 6]
        assert sum(len(part) for part in load(path, "contrastive", limit=5).datasets.values()) in (4, 5)


def test_a_single_row_with_its_own_instruction_is_left_out(write):
    path = write("mine.jsonl", jsonl([*QUESTIONS, {"query": "a", "positive": "b", "instruction": "Alone"}]))
    with pytest.warns(UserWarning, match=r"mine/2: expected at least two .*got 1: left out\. .*'query': 'Alone'"):
        assert list(load(path, "contrastive").datasets) == ["mine/1"]


def test_fields_that_are_not_read_are_told(write):
    path = write("mine.csv", table([{**row, "negatives": "a|b", "id": "1"} for row in QUESTIONS]))
    with pytest.warns(UserWarning, match=r"mine\.csv: these fields are not read: 'id', 'negatives'\."):
        load(path, "contrastive")


@pytest.mark.filterwarnings("ignore:.*fields are not read")
def test_columns_without_a_name_may_be_several(write):
    path = write("mine.csv", "query,positive,,\na,b,,\nc,d,,\n")
    assert sorted(rows(load(path, "contrastive").datasets["mine"])) == [("a", "b"), ("c", "d")]


def test_a_long_field_of_a_table_is_read_and_the_limit_of_others_stays(write):
    long = "word " * 30_000 + "end"
    before = csv.field_size_limit()
    path = write("mine.csv", table([{"query": "long", "positive": long}, *QUESTIONS]))
    assert long in load(path, "contrastive").datasets["mine"]["positive"][:]
    assert csv.field_size_limit() == before < len(long)


# The table in the cache


def tables():
    return [*cache_path("datasets").rglob("*.arrow")]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.replace(b"answer 3", b"anther 3"),
        lambda content: content[: len(content) // 2],
        lambda content: b"",
    ],
    ids=["changed", "cut", "emptied"],
)
def test_a_table_that_was_damaged_is_not_read(damage, write):
    path = write("mine.jsonl", jsonl(QUESTIONS))
    load(path, "contrastive")
    (kept,) = tables()
    kept.write_bytes(damage(kept.read_bytes()))
    with pytest.raises(DamagedFileError, match=rf"{kept}: expected sha256 .* Delete {kept.parent}; it is made again"):
        load(path, "contrastive")


@pytest.mark.parametrize("pattern", ["*.arrow", "*"])
def test_a_table_of_which_something_was_cleaned_away_is_made_again(pattern, write):
    path = write("mine.jsonl", jsonl(QUESTIONS))
    load(path, "contrastive")
    (kept,) = tables()
    for file in kept.parent.glob(pattern):
        file.unlink()
    assert sorted(rows(load(path, "contrastive").datasets["mine"])) == rows_in(QUESTIONS)


def test_a_file_of_many_rows_is_read_whole(write):
    many = [{"query": f"q{number}", "positive": f"p{number}"} for number in range(2500)]
    assert sorted(rows(load(write("mine.jsonl", jsonl(many)), "contrastive").datasets["mine"])) == sorted(rows_in(many))


# Bad input

NO_TEXT = {"query": "a", "positive": "b"}


@pytest.mark.parametrize(
    ("source", "objective", "error", "message"),
    [
        (
            "dcos",
            "mntp",
            UnknownNameError,
            r"source 'dcos'. Did you mean 'docs'\? .*docs, docs-mined, .*, wikitext, wiki1m, e5, bge-full\..*\.csv",
        ),
        ("docs", "simsce", UnknownNameError, "objective 'simsce'. Did you mean 'simcse'"),
        (
            "e5",
            "simcse",
            InvalidValueError,
            r"source: expected one that has texts \(docs, wikitext, wiki1m, or a",
        ),
        ("wiki1m", "contrastive", InvalidValueError, r"has pairs \(docs, .*e5, bge-full, or a file\), got 'wiki1m'"),
        ("nowhere/mine.jsonl", "simcse", MissingDataError, r"expected a file .* at nowhere/mine\.jsonl, found nothing"),
        ("mine.txt", "simcse", MissingDataError, r"at mine\.txt, found nothing"),
        ("tests", "simcse", MissingDataError, "at tests, found a folder"),
        ("x" * 300 + ".txt", "simcse", MissingDataError, "found nothing"),
        (None, "simcse", InvalidValueError, "expected one of docs, .*, or the path of a file, got None"),
        ("README.md", "simcse", UnknownNameError, r"kind of training file '.*README\.md'.*\.jsonl, \.csv, \.txt"),
    ],
)
def test_sources_that_are_none(source, objective, error, message, write, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(error, match=message):
        load(source, objective)


@pytest.mark.parametrize("limit", [0, 1, -3, 2.0, True, "10"])
def test_limits_that_are_none(limit):
    with pytest.raises(InvalidValueError, match="limit: expected a whole number of rows from 2"):
        load("docs", "contrastive", limit=limit)


@pytest.mark.filterwarnings("ignore:.*fields are not read")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"expected at least 2 rows \(query, positive\), got 0"),
        (jsonl(QUESTIONS[:1]), "expected at least 2 rows .*, got 1"),
        (jsonl([{"question": "a", "answer": "b"}] * 2), "line 1: expected a field query, got question, answer"),
        (jsonl([*QUESTIONS, {"query": "a"}]), "line 7: expected a field positive, got query"),
        (jsonl([*QUESTIONS, {**NO_TEXT, "negative": "c"}]), "line 1: expected a field negative, got query, positive"),
        ("\n" + jsonl([*QUESTIONS, {**NO_TEXT, "positive": " \t"}]), "line 8, field positive: expected text, got ' "),
        (jsonl([*QUESTIONS, {**NO_TEXT, "query": 7}]), "line 7, field query: expected text, got 7"),
        (jsonl([*QUESTIONS, {**NO_TEXT, "query": None}]), "line 7, field query: expected text, got None"),
        (jsonl([{**NO_TEXT, "negative": ["c"]}] * 2), r"line 1, field negative: expected text, got \['c'\]"),
        (jsonl([{**NO_TEXT, "instruction": 3}] * 2), "line 1, field instruction: expected text, got 3"),
        ('{"query": "\\ud800", "positive": "b"}', "line 1, field query: expected text, got '.ud800'"),
        (jsonl(QUESTIONS) + '{"query": "a', "line 7: expected JSON"),
        (jsonl(QUESTIONS) + "[1]", "line 7: expected an object"),
        ('{"query": "a", "positive": "b", "positive": "c"}', "line 1: expected JSON, got several fields named 'pos"),
        (jsonl(QUESTIONS) + "[" * 100_000, "line 7: expected JSON, got maximum recursion depth"),
        (jsonl(QUESTIONS).encode() + b'{"query": "\xff"}\n', "line 7: expected UTF-8"),
        (jsonl([{"text": "a"}] * 2), "expected pairs, in fields query and positive; got texts.*simcse"),
    ],
)  # fmt: skip
def test_jsonl_files_that_are_wrong(content, message, write):
    path = write("mine.jsonl", content)
    with pytest.raises(DamagedFileError, match=rf"mine\.jsonl.*{message}"):
        load(path, "contrastive")


@pytest.mark.filterwarnings("ignore:.*fields are not read")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"expected at least 2 rows \(query, positive\), got 0"),
        ("query,positive\n", "expected at least 2 rows .*, got 0"),
        ("query,positive\na,b\n", "expected at least 2 rows .*, got 1"),
        ("query;positive\na;b\n", "line 2: expected a field query, got query;positive"),
        ("query,positive\na,b\nc,d, e\n", r"line 3: expected 2 fields \(query, positive\), got 3\. Put a text that"),
        ("query,positive\na,b\nc\n", r"line 3: expected 2 fields \(query, positive\), got 1\. "),
        ("query,positive\na,b\nc,\n", "line 3, field positive: expected text, got ''"),
        ('query,positive\na,b\nc,"d\n', "line 3: expected CSV, got unexpected end of data"),
        (b"query,positive\na,\xe9\n", "line 2: expected UTF-8, got byte 0xe9"),
        ("text\na\nb\n", "expected pairs, in fields query and positive; got texts"),
        (
            "query,positive,positive,note,note\na,b,c,d,e\n",
            "line 1: expected columns of different names, got several named 'positive', 'note'",
        ),
    ],
)
def test_csv_files_that_are_wrong(content, message, write):
    path = write("mine.csv", content)
    with pytest.raises(DamagedFileError, match=rf"mine\.csv.*{message}"):
        load(path, "contrastive")


@pytest.mark.filterwarnings("ignore:.*fields are not read")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mine.txt", "", "expected text, got none"),
        ("mine.txt", " \n\t\n", "expected text, got none"),
        ("mine.txt", b"fine\n\xe9\n", "line 2: expected UTF-8"),
        ("mine.jsonl", "", r"expected at least 1 row \(text\), got 0"),
        ("mine.jsonl", jsonl([{"text": "a"}, {"text": " "}]), "line 2, field text: expected text, got ' '"),
        ("mine.jsonl", jsonl([{"text": "a"}, {"line": "b"}]), "line 2: expected a field text, got line"),
        ("mine.jsonl", jsonl(QUESTIONS), "expected texts, in a field text; got pairs.*contrastive"),
        ("mine.csv", table(QUESTIONS), "expected texts, in a field text; got pairs.*contrastive"),
        ("mine.csv", "line\na\nb\n", "line 2: expected a field text, got line"),
    ],
)
@pytest.mark.parametrize("objective", ["mntp", "simcse"])
def test_files_of_texts_that_are_wrong(name, content, message, objective, write):
    path = write(name, content)
    with pytest.raises(DamagedFileError, match=rf"{re.escape(name)}.*{message}"):
        load(path, objective)


def test_lines_are_no_pairs(write):
    with pytest.raises(DamagedFileError, match=r"mine\.txt: expected pairs .*\.jsonl or \.csv.*; got texts.*simcse"):
        load(write("mine.txt", "one\ntwo\n"), "contrastive")


def test_too_little_that_differs(write):
    with pytest.raises(InvalidValueError, match=r"mine\.txt: expected at least two usable rows .*got 'mine: 1'"):
        load(write("mine.txt", "one\n"), "simcse")
    path = write("mine.jsonl", jsonl([QUESTIONS[0]] * 2))
    with (
        pytest.warns(UserWarning, match="1 of 2 rows repeat"),
        pytest.raises(InvalidValueError, match=r"mine\.jsonl: expected at least two usable rows"),
    ):
        load(path, "contrastive")
    given = [{**row, "instruction": str(number)} for number, row in enumerate(QUESTIONS)]
    with pytest.raises(InvalidValueError, match=r"alone\.jsonl: expected .*got 'alone/1: 1, alone/2: 1"):
        load(write("alone.jsonl", jsonl(given)), "contrastive")


def test_a_text_of_absurd_length_is_named_by_its_row(write):
    long = "a" * (LONGEST + 1)
    told = r"expected at most 5,000,000 characters in a text, got '5,000,001 characters: aaaa.*Cut it"
    path = write("mine.jsonl", jsonl([*QUESTIONS, {"query": "long", "positive": long}]))
    with pytest.raises(InvalidValueError, match=f"^mine, row 7: {told}"):
        load(path, "contrastive")
    path = write("texts.jsonl", jsonl([{"text": "short"}, {"text": long}]))
    with pytest.raises(InvalidValueError, match=f"^texts, row 2: {told}"):
        load(path, "simcse")


def test_repeated_chunks_are_left_out_without_a_word(write, recwarn):
    found = load(write("mine.txt", "short\nshort\nother\n"), "mntp", max_length=6)
    assert len(found.datasets["mine"]) < 3
    assert not recwarn


def test_too_little_text_for_a_chunk(write):
    path = write("mine.txt", "short\n")
    with pytest.raises(
        InvalidValueError, match=r"training data .*: expected at least 8 tokens, to fill one chunk, got 6"
    ):
        load(path, "mntp")
    assert load(path, "mntp", max_length=6).datasets["mine"]["chunk"][:] == [TOKENIZER("short")["input_ids"]]
