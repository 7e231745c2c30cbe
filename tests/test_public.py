"""Readers of public data, on small files in the published formats."""

import gzip
import json

import huggingface_hub
import numpy as np
import pandas as pd
import pytest
from transformers import AutoTokenizer

from workbook.corpora import public
from workbook.errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError
from workbook.files import ROOT

RAW = " \n = Kettle = \n \n The kettle , once cold , sang again . \n A lid @-@ less one did not . \n"
LINES = ["= Kettle =", "The kettle , once cold , sang again .", "A lid @-@ less one did not ."]
CONLL2000 = "The DT B-NP\nkettle NN I-NP\nsang VBD B-VP\n. . O\n\nIt PRP B-NP\nstopped VBD B-VP\n\n"
CONLL2003 = "-DOCSTART- -X- -X- O\n\nOld JJ B-NP O\nYork NNP I-NP B-LOC\n\n\nsings VBZ B-VP O\n"


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """A folder of local data, empty; an empty cache; no Hub."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("WORKBOOK_DATA", str(folder))
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "cache"))
    return folder


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows(*numbers, **changed):
    return [
        {"query": f"question {i}", "positive": f"answer {i}", "negative": f"no answer {i}", **changed} for i in numbers
    ]


def jsonl(items):
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)


# Text


def test_wikitext_as_raw_text(data):
    write(data / "wikitext-103-raw" / "wiki.valid.raw", RAW)
    assert public.wikitext(split="validation") == LINES


def test_wikitext_as_parquet_in_parts(data):
    folder = data / "wikitext-103-raw-v1"
    folder.mkdir()
    texts = RAW.splitlines(keepends=True)
    pd.DataFrame({"text": ["", *texts[:2]]}).to_parquet(folder / "train-00000-of-00002.parquet")
    with pytest.raises(DamagedFileError, match=r"expected 2 files .*, got 1"):
        public.wikitext()
    pd.DataFrame({"text": texts[2:]}).to_parquet(folder / "train-00001-of-00002.parquet")
    assert public.wikitext() == public.wikitext(folder) == LINES


def test_a_parquet_file_that_is_none_or_has_other_fields(data):
    path = write(data / "some.parquet", "no parquet")
    with pytest.raises(DamagedFileError, match=r"some\.parquet: expected a parquet file with a field text, got "):
        public.wikitext(path)
    pd.DataFrame({"line": ["a"]}).to_parquet(path)
    with pytest.raises(DamagedFileError, match=r"some\.parquet: expected .* a field text, got .*text.* line"):
        public.wikitext(path)


def test_wiki1m_is_one_sentence_a_line(data):
    write(data / "wiki1m_for_simcse.txt", "YMCA in South Australia\n\n Zürich lies there.\r\n")
    assert public.wiki1m() == ["YMCA in South Australia", "Zürich lies there."]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected text, got none"),
        (b"\n \n", "expected text, got none"),
        (b"one sentence\n", "expected at least two sentences"),
        (b"fine\nbad \xe9\n", r"line 2: expected UTF-8, got byte 0xe9 at position 4"),
    ],
    ids=["empty", "blank", "one row", "bytes"],
)
def test_texts_that_are_none(data, content, message):
    write(data / "wiki1m_for_simcse.txt", content)
    with pytest.raises(DamagedFileError, match=rf"wiki1m_for_simcse\.txt.*{message}"):
        public.wiki1m()


def test_a_gzip_file_that_is_cut(data):
    path = write(data / "a.txt.gz", gzip.compress(b"one\ntwo\n" * 100)[:-12])
    with pytest.raises(DamagedFileError, match="expected a whole gzip file"):
        public.wiki1m(path)


# Chunks


@pytest.mark.parametrize("name", ["tiny_plain_tokenizer", "tiny_bos_tokenizer"])
def test_chunks_are_the_tokens_in_order_without_the_remainder(name):
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "tests" / "parity" / "_shared" / name)
    texts = [f"line {number} of the text" for number in range(1100)]
    tokens = [token for text in texts for token in tokenizer(text)["input_ids"]]
    found = public.chunks(iter(texts), tokenizer, 7)
    assert found.shape == (len(tokens) // 7, 7)
    assert found.dtype == np.int32
    assert found.ravel().tolist() == tokens[: found.size]
    assert 0 < len(tokens) - found.size < 7  # the test has a remainder
    if "bos" in name:
        assert (found == tokenizer.bos_token_id).sum() == pytest.approx(len(texts), abs=1)


def test_chunks_that_cannot_be():
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "tests" / "parity" / "_shared" / "tiny_plain_tokenizer")
    with pytest.raises(InvalidValueError, match="texts: expected at least 512 tokens"):
        public.chunks(["short"], tokenizer, 512)
    with pytest.raises(InvalidValueError, match=r"texts: expected at least 8 tokens.*got 0"):
        public.chunks([], tokenizer, 8)
    with pytest.raises(InvalidValueError, match="length"):
        public.chunks(["short"], tokenizer, 1)


# E5


def test_e5_has_the_instructions_of_the_table(data):
    for name in ("allnli", "quora_duplicates", "hotpot_qa"):
        write(data / "echo-data" / f"{name}.jsonl", jsonl(rows(0, 1, 2, id="left out")))
    found = public.e5(names=["allnli", "quora_duplicates", "hotpot_qa"])
    columns = ["query", "positive", "negative", "query_instruction", "document_instruction"]
    assert [part.column_names for part in found.values()] == [columns] * 3
    assert found["hotpot_qa"]["negative"][:] == ["no answer 0", "no answer 1", "no answer 2"]
    entailed, similar = (
        "Given a premise, retrieve a hypothesis that is entailed by the premise",
        "Retrieve semantically similar text",
    )
    assert found["allnli"]["query_instruction"][:] == [entailed, similar, entailed]
    assert found["allnli"]["document_instruction"][:] == ["", similar, ""]
    quora = found["quora_duplicates"]
    assert quora["query_instruction"][:] == quora["document_instruction"][:]
    assert len(set(quora["query_instruction"][:])) == 2
    assert set(found["hotpot_qa"]["document_instruction"][:]) == {""}


def test_every_e5_data_set_has_an_instruction(data):
    for name in public.E5_DATASETS:
        write(data / "echo-data" / f"{name}.jsonl", jsonl(rows(0, 1)))
    found = public.e5(data / "echo-data")
    assert list(found) == list(public.E5_DATASETS)
    assert all(all(part["query_instruction"]) for part in found.values())


def test_e5_follows_a_changed_file(data):
    path = write(data / "echo-data" / "nq.jsonl", jsonl(rows(0, 1)))
    assert public.e5(names=["nq"])["nq"].num_rows == 2
    write(path, jsonl(rows(0, 1, 2)))
    assert public.e5(names=["nq"])["nq"].num_rows == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected at least 2 rows .*, got 0"),
        (jsonl(rows(0)), "expected at least 2 rows .*, got 1"),
        (jsonl([*rows(0), {"query": "a", "positive": "b"}]), "line 2: expected a field negative, got query, positive"),
        (jsonl(rows(0) + rows(1, positive=" ")), "line 2, field positive: expected text, got ' '"),
        (jsonl(rows(0) + rows(1, negative=["a"])), r"line 2, field negative: expected text, got \['a'\]"),
        (jsonl(rows(0)) + '{"query": "a"', "line 2: expected JSON"),
        (jsonl(rows(0)) + "[1]\n", r"line 2: expected an object, got '\[1\]'"),
        (jsonl(rows(0)).encode() + b'{"query": "\xff"}\n', "line 2: expected UTF-8"),
    ],
    ids=["empty", "one row", "no field", "blank", "list", "cut", "no object", "bytes"],
)
def test_e5_files_that_are_wrong(data, content, message):
    write(data / "echo-data" / "nq.jsonl", content)
    with pytest.raises(DamagedFileError, match=rf"nq\.jsonl.*{message}"):
        public.e5(names=["nq"])


# CoNLL


def test_conll2000_in_gzip(data):
    write(data / "conll2000" / "train.txt.gz", gzip.compress(CONLL2000.encode()))
    found = public.conll("chunk", name="conll2000")
    assert found.words.tolist() == [["The", "kettle", "sang", "."], ["It", "stopped"]]
    assert found.tags.tolist() == [["B-NP", "I-NP", "B-VP", "O"], ["B-NP", "B-VP"]]
    assert public.conll("pos", name="conll2000").tags[1] == ["PRP", "VBD"]


@pytest.mark.parametrize("folder", [".", "..", "conll2000"])
@pytest.mark.parametrize("packed", [True, False])
def test_conll2000_is_found_in_a_folder_and_one_above_or_below(data, monkeypatch, folder, packed):
    content = gzip.compress(CONLL2000.encode()) if packed else CONLL2000
    write(data / "conll2000" / ("test.txt.gz" if packed else "test.txt"), content)
    write(data / "conll2003" / "test.txt", CONLL2003)
    monkeypatch.setenv("WORKBOOK_DATA", str(data / folder))
    assert public.conll("chunk", "test", name="conll2000").tags[1] == ["B-NP", "B-VP"]
    if folder == "." and not packed:  # a bare name is that of any data set
        (data / "conll2003" / "test.txt").unlink()
        with pytest.raises(MissingDataError):
            public.conll("ner", "test")


def test_samples_of_conll_are_parts_of_one_another(data):
    sentence = "word{0} NN B-NP\nsang{0} VBD B-VP\n\n"
    write(data / "conll2000" / "train.txt.gz", gzip.compress("".join(map(sentence.format, range(30))).encode()))
    write(data / "conll2000" / "test.txt.gz", gzip.compress("".join(map(sentence.format, range(30, 40))).encode()))
    small, large = (public.conll_samples("chunk", *counts) for counts in ((5, 3), (20, 100)))
    for one, other, count in zip(small, large, (20, 10), strict=True):
        assert one.equals(other.head(len(one)))
        assert len(other) == count
        assert other["tags"].tolist() == [["B-NP", "B-VP"]] * count
    numbers = [int(words[0].removeprefix("word")) for words in large[0]["words"]]
    assert numbers != sorted(numbers)
    assert max(numbers) < 30
    assert public.conll_samples("pos", 1, 1)[1]["tags"].tolist() == [["NN", "VBD"]]
    for counts in ((0, 1), (1, -1), (1.5, 1), (True, 1)):
        with pytest.raises(InvalidValueError, match="positive whole number of sentences"):
            public.conll_samples("pos", *counts)


def test_conll2003_without_document_lines(data):
    path = write(data / "conll2003" / "eng.testa", CONLL2003)
    for found in (public.conll("ner", "validation"), public.conll("ner", path=path)):
        assert found.words.tolist() == [["Old", "York"], ["sings"]]
        assert found.tags.tolist() == [["O", "B-LOC"], ["O"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected sentences in 3 columns"),
        ("a DT B-NP\nb NN\n", r"line 2: expected 3 columns \(word, pos, chunk\), got 2: 'b NN'"),
        (CONLL2003.partition("\n\n")[2], "line 1: expected 3 columns .*, got 4"),
        (b"a DT B-NP\n\xe9 NN I-NP\n", "line 2: expected UTF-8"),
    ],
    ids=["empty", "short", "long", "bytes"],
)
def test_conll_files_that_are_wrong(data, content, message):
    write(data / "conll2000" / "test.txt", content)
    with pytest.raises(DamagedFileError, match=rf"test\.txt.*{message}"):
        public.conll("pos", "test", name="conll2000")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: public.conll("ner", name="conll2000"), "word-level task 'ner'.*pos, chunk"),
        (lambda: public.conll("pos", "validation", name="conll2000"), "split 'validation'.*train, test"),
        (lambda: public.conll("pos", name="conll2012"), "CoNLL data set 'conll2012'"),
        (lambda: public.wikitext(split="dev"), "split 'dev'.*train, validation, test"),
        (lambda: public.e5(names=["hotpotqa"]), "E5 data set 'hotpotqa'. Did you mean 'hotpot_qa'"),
    ],
)
def test_unknown_names(call, message):
    with pytest.raises(UnknownNameError, match=message):
        call()


# Absence


@pytest.mark.parametrize(
    ("call", "files", "repository"),
    [
        (public.wikitext, r"wiki\.train\.raw", "Salesforce/wikitext"),
        (public.wiki1m, r"wiki1m_for_simcse\.txt", "princeton-nlp/datasets-for-simcse"),
        (public.e5, r"allnli\.jsonl", "liuqi6777/echo-data"),
    ],
)
def test_absent_data_say_where_they_were_looked_for(call, files, repository, data, monkeypatch):
    message = rf"{files}.* in the folder {data} \(WORKBOOK_DATA\) and on the .*{repository}.*Ways out: put .*HF_HOME"
    with pytest.raises(MissingDataError, match=message):
        call()
    monkeypatch.delenv("WORKBOOK_DATA")
    with pytest.raises(MissingDataError, match="WORKBOOK_DATA is not set"):
        call()
    with pytest.raises(MissingDataError, match=r"expected a file at .*nowhere"):
        call(data / "nowhere")


def test_absent_conll_files_are_not_looked_for_on_the_hub(data):
    with pytest.raises(MissingDataError, match=r"eng\.train or .* in the folder .*, found nothing\. Way out: put"):
        public.conll("ner")


def test_what_the_cache_of_the_hub_has_is_read_offline(data, tmp_path, monkeypatch):
    repository = tmp_path / "hub" / "datasets--liuqi6777--echo-data"
    write(repository / "refs" / "main", "0" * 40)
    write(repository / "snapshots" / ("0" * 40) / "nq.jsonl", jsonl(rows(0, 1)))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert public.e5(names=["nq"])["nq"]["query"][:] == ["question 0", "question 1"]
    with pytest.raises(MissingDataError, match=r"squad\.jsonl .*liuqi6777/echo-data: no such file there"):
        public.e5(names=["squad"])
