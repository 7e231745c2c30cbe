"""Real English from local files: small files in the same forms, at every size, damaged and absent."""

import gzip
import json

import mteb
import numpy as np
import pandas as pd
import pytest
from mteb.abstasks import AbsTaskClassification
from sklearn.base import clone

from workbook import build
from workbook.errors import DamagedFileError, MissingDataError, UnknownNameError
from workbook.evaluation import SUITES, compare, evaluate, frames, tasks
from workbook.evaluation.local import LOCAL, read, read_beir, read_labelled, read_sts
from workbook.scale import get_scale

SIZES = get_scale("quick").model_copy(update={"max_length": 192, "resamples": 20})
SMALL = SIZES.model_copy(update={"queries": 6, "documents": 8, "texts": 24, "pairs": 20})
COLOURS = ("red", "green", "blue", "white")
THINGS = ("kettle", "ladder", "window", "bicycle", "basket", "lantern")
NOUNS = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def tabs(*rows):
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def packed(lines):
    content = "".join(f"{line} \n" for line in lines).encode()
    return gzip.compress(content, mtime=0)  # else processes that collect in different seconds name tests differently


def labelled(labels, count=40):
    """Different texts of each class, with a word of their class."""
    return [
        (f"{label} {NOUNS[n % len(NOUNS)]} number {n}, said {label}", label) for label in labels for n in range(count)
    ]


def small_files():
    """Contents by path, in the forms of the published files."""
    scores = [round(n / 5 % 4 + 1, 1) for n in range(len(NOUNS))]
    pairs = [
        (score, f"A {noun} stands here.", f"The {noun} is here.") for score, noun in zip(scores, NOUNS, strict=True)
    ]
    wikiqa = ["QuestionID", "Question", "DocumentID", "DocumentTitle", "SentenceID", "Sentence", "Label"]
    # The last question has no answer among its sentences, so that nothing can be ranked.
    sentences = [
        (f"Q{n}", f"where is the {noun}", "D", "Things", f"D{n}-{m}", f"{noun} {where}", int(m == 1 and n < 11))
        for n, noun in enumerate(NOUNS[:12])
        for m, where in enumerate(("once was", "is in the hall", "costs little"))
    ]
    judged = [(n, m, 1 + (m == n)) for n in range(1, 9) for m in (n, n + 8)]
    return {
        "data/stsb/stsb-en-dev.csv": pd.DataFrame([(one, two, score) for score, one, two in pairs]).to_csv(
            header=False, index=False
        ),
        "english/eval_sick_trial.tsv": tabs(*((*pair, "NEUTRAL") for pair in pairs)),
        "english/eval_quora_pairs.tsv": tabs(
            ("label", "question1", "question2"), *((n % 2, one, two) for n, (_, one, two) in enumerate(pairs))
        ),
        "english/eval_xquad_en.jsonl": jsonl(
            {"query": f"Where is {noun} {n}?", "positive": f"The {noun} is in the hall.", "answer": "in the hall"}
            for noun in NOUNS[:16]
            for n in range(2)
        ),
        "english/eval_cranfield_corpus.jsonl": jsonl(
            {"_id": str(n + 1), "title": noun, "text": f"{noun} in a stream of air ." if n else "a jet"}
            for n, noun in enumerate(NOUNS)
        ),
        "english/eval_cranfield_queries.jsonl": jsonl(
            {"_id": str(n + 1), "text": f"what of the {noun}"} for n, noun in enumerate(NOUNS[:9])
        ),
        "english/eval_cranfield_qrels.tsv": tabs(("query-id", "corpus-id", "score"), *judged),
        "english/eval_wikiqa_test.tsv": tabs(wikiqa, *sentences),
        "data/sentence_polarity/rt-polarity.neg.gz": packed(text for text, _ in labelled(["dull"], 90)),
        "data/sentence_polarity/rt-polarity.pos.gz": packed(text for text, _ in labelled(["lively"], 90)),
        "english/eval_clinc150.jsonl": jsonl(
            {"text": text, "label": label, "split": "val"} for text, label in labelled([*"abcdefghijkl", "oos"])
        ),
        "english/eval_emotion_val.tsv": tabs(("text", "label"), *labelled(["joy", "fear"])),
        "english/eval_emotion_test.tsv": tabs(("text", "label"), *labelled(["anger", "love"])),
        "english/eval_stackoverflow_titles.tsv": tabs(("title", "label"), *labelled(range(1, 6))),
        "english/eval_20newsgroups.jsonl": jsonl({"text": text, "label": label} for text, label in labelled(THINGS)),
    }


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with one of data and one of English, named by the variable."""
    for path, content in small_files().items():
        write(tmp_path / path, content)
    monkeypatch.setenv("WORKBOOK_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def model():
    return build("mean", "tiny-llama", max_length=192)


def texts(task, side="corpus"):
    """The texts of a task, or those that it is about."""
    test = task.dataset.get("default", task.dataset)["test"]
    if isinstance(test, dict):
        return test[side]["text"][:]
    return test[next(name for name in ("sentence2", "sentences", "text") if name in test.column_names)][:]


# The suite


def test_the_whole_suite_has_scores_and_intervals_of_items(model, data):
    frame = evaluate(model, "english", scale=SMALL)
    assert set(frame["type"]) == {
        *("STS", "PairClassification", "Retrieval", "Reranking", "Classification", "Clustering"),
    }  # fmt: skip
    assert tuple(frame["task"]) == SUITES["english"].tasks
    assert set(frame["suite"]) == {"english"}
    assert {name: one.reproduces_score() for name, one in frame.attrs["outcomes"].items()} == dict.fromkeys(
        SUITES["english"].tasks, True
    )
    assert frame["score"].notna().all()
    assert frame.set_index("task")["items"].to_dict() == {
        "STSBenchmark-dev": 20,
        "SICK-trial": 20,
        "QuoraPairs": 12,
        "XQuADParagraphs": 6,
        "CranfieldAbstracts": 6,
        "WikiQASentences": 6,
        "FilmPolarity": 32,
        "Intents": 32,
        "Emotions": 32,
        "StackOverflowTitles": 24,
        "NewsgroupPosts": 24,
    }
    assert (compare(frame, frame)["difference"] == 0).all()


def test_a_task_by_name_needs_no_more_than_its_own_files(model, data, monkeypatch):
    frame = evaluate(model, ["QuoraPairs", "ParaphraseLadder"], scale=SMALL)
    assert list(frame["task"]) == ["QuoraPairs", "ParaphraseLadder"]
    for folder, name in (("english", "QuoraPairs"), ("data", "FilmPolarity"), ("data/stsb", "STSBenchmark-dev")):
        monkeypatch.setenv("WORKBOOK_DATA", str(data / folder))
        (task,) = tasks(name, SMALL)
        assert task.metadata.name == name


def test_names_of_mteb_stand_for_its_data_alone():
    known = {task.metadata.name for task in mteb.get_tasks(exclude_superseded=False)}
    assert {name for name in LOCAL if name in known} == {name for name, local in LOCAL.items() if local.is_of_mteb}


def test_a_task_of_mteb_runs_whole(data):
    write(data / "stsbenchmark" / "sts-test.csv", tabs(*(("g", "f", "2012", n, 1.5, f"a{n}", "b") for n in range(90))))
    (whole,) = tasks("STSBenchmark", SMALL)
    assert len(whole.dataset["test"]) == 90


# Sizes


def test_a_smaller_scale_takes_a_part_of_a_larger_one(data):
    large = SIZES.model_copy(update={"queries": 8, "documents": 20, "texts": 60, "pairs": 22})
    for one, other in zip(tasks("english", SMALL), tasks("english", large), strict=True):
        assert set(texts(one)) < set(texts(other)), one.metadata.name
        if one.metadata.type == "Classification":
            for split in ("train", "test"):
                assert set(one.dataset[split]["text"]) < set(other.dataset[split]["text"])
        if one.metadata.type in ("Retrieval", "Reranking"):
            assert set(texts(one, "queries")) < set(texts(other, "queries"))


def test_classes_are_balanced_and_halves_apart(data):
    made = {task.metadata.name: task.dataset for task in tasks("english", SMALL)}
    for name, classes in {"FilmPolarity": 2, "Intents": 4, "Emotions": 4}.items():
        for half in ("train", "test"):
            assert np.unique(made[name][half]["label"], return_counts=True)[1].tolist() == [32 // classes] * classes
        assert not set(made[name]["train"]["text"]) & set(made[name]["test"]["text"])
    for name in ("StackOverflowTitles", "NewsgroupPosts"):
        assert np.unique(made[name]["test"]["labels"], return_counts=True)[1].tolist() == [frames.EACH] * 3
    assert sum(made["QuoraPairs"]["test"]["labels"]) == 6
    plenty = SMALL.model_copy(update={"texts": 10_000})
    (intents,) = tasks("Intents", plenty)
    assert len(set(intents.dataset["test"]["label"])) == 12, "all but those without an intent"
    assert len(intents.dataset["train"]) == len(intents.dataset["test"]) == 12 * 20


def classes():
    return pd.DataFrame(labelled(["many"], 50) + labelled(["few"], 6), columns=["text", "label"])


def test_the_rarest_class_sets_the_number_of_each():
    test = frames.task("Some", "Classification", "Some.", classes(), SMALL).dataset["test"]
    assert np.unique(test["label"], return_counts=True)[1].tolist() == [3, 3]


def test_a_classifier_takes_a_step_whatever_the_numbers_are_like():
    # 8,192 numbers in a vector of length 1, as of a vocabulary: scikit-learn's classifier stays where it begins.
    random = np.random.default_rng(0)
    label = np.repeat(np.arange(50), 4)
    vectors = 20 + random.random((50, 8192))[label] / 2 + random.random((len(label), 8192))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    plain = clone(AbsTaskClassification.evaluator_model).fit(vectors, label)
    assert (plain.n_iter_.tolist(), len(set(plain.predict(vectors)))) == ([0], 1)
    stepping = frames.task("Some", "Classification", "Some.", classes(), SMALL).evaluator_model
    assert (stepping.fit(vectors, label).predict(vectors) == label).mean() > 0.9
    assert stepping.tol == plain.tol
    # Where a step was taken, nothing differs.
    np.testing.assert_array_equal(
        stepping.fit(1000 * vectors, label).coef_, clone(plain).fit(1000 * vectors, label).coef_
    )


def test_documents_are_those_of_the_queries_and_others(data):
    retrieval, abstracts, reranking = (task.dataset["default"]["test"] for task in tasks("english", SMALL)[3:6])
    for test in (retrieval, abstracts):
        ids = set(test["corpus"]["id"])
        assert [*test["relevant_docs"]] == test["queries"]["id"][:]
        assert all(relevant and set(relevant) <= ids for relevant in test["relevant_docs"].values())
    assert len(retrieval["corpus"]) == 8
    assert len(abstracts["corpus"]) == 12, "two are relevant to each of six queries, more than the scale's documents"
    assert {score for relevant in abstracts["relevant_docs"].values() for score in relevant.values()} == {1, 2}
    (everything,) = tasks("CranfieldAbstracts", SMALL.model_copy(update={"queries": 99, "documents": 99}))
    everything = everything.dataset["default"]["test"]
    assert (len(everything["queries"]), len(everything["corpus"])) == (8, 24), "a query without judgements is left out"
    assert {"red kettle a jet", "red ladder in a stream of air ."} <= set(everything["corpus"]["text"])
    text = dict(zip(reranking["corpus"]["id"], reranking["corpus"]["text"], strict=True))
    asked = dict(zip(reranking["queries"]["id"], reranking["queries"]["text"], strict=True))
    for query, candidates in reranking["top_ranked"].items():
        noun = asked[query].removeprefix("where is the ")
        ends = [text[one].removeprefix(f"{noun} ") for one in candidates]
        assert ends == ["once was", "is in the hall", "costs little"]
        assert reranking["relevant_docs"][query] == {candidates[1]: 1}
    (all_of_them,) = tasks("WikiQASentences", SMALL.model_copy(update={"queries": 99}))
    assert len(all_of_them.dataset["default"]["test"]["queries"]) == 11


# Readers


ROWS = [("A dog runs.", "A dog is running.", 4.8), ("A dog runs.", "A cat sits, alone.", 1.2), ("Rain.", "Sun.", 0.0)]
CSV = pd.DataFrame(ROWS).to_csv(header=False, index=False)
TABS = tabs(*(("main-news", "f", "2012", n, score, one, two) for n, (one, two, score) in enumerate(ROWS)))


@pytest.mark.parametrize(("file", "content"), [("stsb/stsb-en-dev.csv", CSV), ("stsbenchmark/sts-dev.csv", TABS)])
def test_sts_is_read_from_published_files(tmp_path, monkeypatch, file, content):
    path = write(tmp_path / file, content)
    assert list(read_sts(path).itertuples(index=False, name=None)) == ROWS
    monkeypatch.setenv("WORKBOOK_DATA", str(tmp_path))
    assert list(read("STSBenchmark-dev").itertuples(index=False, name=None)) == ROWS


@pytest.mark.parametrize("content", ["", "a,b\n", "a,b,high\n", "a,b,7\n", "a\tb\tc\td\t1\te\tf\na\tb\n", b"\xff\xfe"])
def test_a_damaged_sts_file_is_named(tmp_path, content):
    with pytest.raises(DamagedFileError, match=r"sts\.csv.*: expected"):
        read_sts(write(tmp_path / "sts.csv", content))


PAIRS_HEAD = "label\tquestion1\tquestion2\n"
JUDGED_HEAD = "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("SICK-trial", "sick_trial.tsv", "", "expected rows of score, sentence1, sentence2, entailment, got none"),
        ("SICK-trial", "sick_trial.tsv", "3\ta\tb\tX\n3\ta\tb\n", r"line 2: expected 4 values .*got '3\\ta\\tb'"),
        ("SICK-trial", "sick_trial.tsv", "3\ta\t \tX\n", "line 1: expected 4 values"),
        ("SICK-trial", "sick_trial.tsv", "3\ta\tb\tX\n5.5\ta\tb\tX\n", "score from 1 to 5, got '5.5' in row 2"),
        ("SICK-trial", "sick_trial.tsv", "high\ta\tb\tX\n", "score from 1 to 5, got 'high' in row 1"),
        ("QuoraPairs", "quora_pairs.tsv", "label\tquestion1\n", "line 1: expected the columns label, question1, quest"),
        ("QuoraPairs", "quora_pairs.tsv", PAIRS_HEAD, "expected rows of label"),
        ("QuoraPairs", "quora_pairs.tsv", PAIRS_HEAD + "0.5\ta\tb\n", "label a whole number from 0 to 1, got '0.5'"),
        ("XQuADParagraphs", "xquad_en.jsonl", '{"query": "a"}\n', "line 1: expected a field positive, got query"),
        ("CranfieldAbstracts", "qrels.tsv", JUDGED_HEAD + "99\t1\t1\n", "query-id to be in .*queries.jsonl, got '99'"),
        ("CranfieldAbstracts", "qrels.tsv", JUDGED_HEAD + "1\t99\t1\n", "corpus-id to be in .*corpus.jsonl, got '99'"),
        ("CranfieldAbstracts", "queries.jsonl", '{"_id": "1", "text": "a"}\n' * 2, "each _id once, got 2 rows of 1"),
        ("WikiQASentences", "wikiqa_test.tsv", "Question\tSentence\tLabel\n", "line 1: expected the columns QuestionI"),
        ("FilmPolarity", "rt-polarity.pos.gz", b"film", "expected a whole gzip file"),
        ("FilmPolarity", "rt-polarity.neg.gz", packed([" "]), "expected text, got none"),
        ("Intents", "clinc150.jsonl", '{"text": "a", "label": 3}\n', "line 1, field label: expected text, got 3"),
        ("Emotions", "emotion_test.tsv", b"text\tlabel\n\xff\tjoy\n", "line 2: expected UTF-8"),
        ("StackOverflowTitles", "titles.tsv", "text\tlabel\n", "line 1: expected the columns title, label, got 'text"),
    ],
)
def test_damaged_files_are_named(data, name, file, content, message):
    (path,) = (path for path in small_files() if path.endswith(file))
    write(data / path, content)
    with pytest.raises(DamagedFileError, match=f"{file}.*{message}"):
        tasks(name, SMALL)


def test_what_the_readers_leave_out(data):
    assert "oos" not in set(read("Intents")["label"])
    assert len(read("Intents")) == 12 * 40
    frame = read_labelled(data / "english" / "eval_emotion_val.tsv", data / "english" / "eval_emotion_test.tsv")
    assert set(frame["label"]) == {"joy", "fear", "anger", "love"}
    folder = data / "english"
    files = [folder / f"eval_cranfield_{part}" for part in ("corpus.jsonl", "queries.jsonl", "qrels.tsv")]
    assert set(read_beir(*files).query("query == ''")["score"]) == {0}


# Absence


def test_absent_files_are_said_with_the_variable_and_the_way_out(model, data, monkeypatch):
    (data / "english" / "eval_cranfield_qrels.tsv").unlink()
    told = rf"CranfieldAbstracts: looked for eval_cranfield_qrels\.tsv in the folder {data} \(WORKBOOK_DATA\).*Way out"
    with pytest.raises(MissingDataError, match=told):
        evaluate(model, "english", scale=SMALL)
    monkeypatch.delenv("WORKBOOK_DATA")
    told = r"STSBenchmark-dev: looked for stsb/stsb-en-dev\.csv or .*WORKBOOK_DATA is not set.*Way out: get the files"
    with pytest.raises(MissingDataError, match=told):
        evaluate(model, "english", scale=SMALL)
    with pytest.raises(UnknownNameError, match="Did you mean 'Emotions'"):
        tasks("Emotion")
