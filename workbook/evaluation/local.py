"""Tasks of real English from local files, none of which is part of the project: a table, and readers of the files.

The files lie in the folder that ``WORKBOOK_DATA`` names, or in one just below it. ``evaluation.frames`` makes tasks of
mteb of what the readers return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from ..corpora.reading import GET_AGAIN, lines, local_files, local_place, rows_of, texts_of
from ..errors import DamagedFileError, MissingDataError


def read_sts(path: Path) -> pd.DataFrame:
    """An STS Benchmark file in either published form: columns sentence1, sentence2 (strings), score (0 to 5).

    The forms: CSV without a header (sentence1, sentence2, score), and tab-separated without quoting (genre, file,
    year, id, score, sentence1, sentence2, and for some rows sources).

    Raises:
        DamagedFileError: A file in neither form, or a score outside 0 to 5.
    """
    rows = [line for _, line in lines(path)]
    try:
        if rows and rows[0].count("\t") >= 6:
            fields = [row.split("\t") for row in rows]
            frame = pd.DataFrame([(row[5], row[6], row[4]) for row in fields])
        else:
            frame = pd.read_csv(path, header=None, dtype=str, keep_default_na=False)
        frame.columns = ["sentence1", "sentence2", "score"]
    except (ValueError, IndexError) as error:
        raise DamagedFileError(f"{path}: expected an STS Benchmark file, got {error}. {GET_AGAIN}") from error
    return _numbers(path, frame, "score", 0, 5)


def read_sick(path: Path) -> pd.DataFrame:
    """Relatedness of SICK, tab-separated (score, two sentences, entailment): sentence1, sentence2, score (1 to 5).

    Raises:
        DamagedFileError: Another number of columns, a blank one, or a score outside 1 to 5.
    """
    frame = _columns(path, ["score", "sentence1", "sentence2", "entailment"], header=False)
    return _numbers(path, frame, "score", 1, 5)


def read_question_pairs(path: Path) -> pd.DataFrame:
    """Pairs of questions, tab-separated under a header: sentence1, sentence2 (strings), labels (1 for duplicates or 0).

    Raises:
        DamagedFileError: Other columns, a blank field, or a label that is neither 0 nor 1.
    """
    frame = _columns(path, ["label", "question1", "question2"])
    frame = _numbers(path, frame, "label", 0, 1, whole=True)
    return frame.rename(columns={"label": "labels", "question1": "sentence1", "question2": "sentence2"})


def read_questions(path: Path) -> pd.DataFrame:
    """Questions with the paragraph that answers each, as JSON lines: query, document (strings), score (1).

    Raises:
        DamagedFileError: A line that is not an object with texts query and positive, or no line.
    """
    frame = pd.DataFrame(rows_of(path, ("query", "positive")))
    return frame.rename(columns={"positive": "document"}).assign(score=1)


def read_beir(corpus: Path, queries: Path, judgements: Path) -> pd.DataFrame:
    """A folder of BEIR: query, document (title and text), score (int); a document alone has the query ``""``, score 0.

    Args:
        corpus: JSON lines with ``_id``, ``text`` and, if there are any, ``title``.
        queries: JSON lines with ``_id`` and ``text``.
        judgements: Tab-separated under a header: query-id, corpus-id, score, a whole number from 0.

    Raises:
        DamagedFileError: A file in another form, an id that is used twice, or a judgement of an unknown id.
    """
    documents = _by_id(corpus, optional=("title",))
    asked = {name: row["text"] for name, row in _by_id(queries).items()}
    # Some collections repeat the title at the head of the text.
    texts = {
        name: row["text"] if row["text"].startswith(row["title"]) else f"{row['title']} {row['text']}"
        for name, row in documents.items()
    }
    frame = _columns(judgements, ["query-id", "corpus-id", "score"])
    for column, known in (("query-id", asked), ("corpus-id", texts)):
        if unknown := sorted(set(frame[column]) - set(known)):
            raise DamagedFileError(
                f"{judgements}: expected each {column} to be in {queries.name if known is asked else corpus.name}, got "
                f"{unknown[0]!r}. {GET_AGAIN}"
            )
    frame = _numbers(judgements, frame, "score", 0, 10, whole=True)
    judged = pd.DataFrame({"query": frame["query-id"].map(asked), "document": frame["corpus-id"].map(texts)})
    alone = pd.DataFrame({"query": "", "document": list(texts.values()), "score": 0})
    return pd.concat([judged.assign(score=frame["score"]), alone], ignore_index=True)


def read_wikiqa(path: Path) -> pd.DataFrame:
    """WikiQA as published, tab-separated under a header: query, document (a sentence), score (1 if it answers, or 0).

    Raises:
        DamagedFileError: Other columns, a blank field, or a label that is neither 0 nor 1.
    """
    names = ["QuestionID", "Question", "DocumentID", "DocumentTitle", "SentenceID", "Sentence", "Label"]
    frame = _numbers(path, _columns(path, names), "Label", 0, 1, whole=True)
    frame = frame.rename(columns={"Question": "query", "Sentence": "document", "Label": "score"})
    return frame[["query", "document", "score"]]


def read_polarity(negative: Path, positive: Path) -> pd.DataFrame:
    """Two files of sentences, one a line: text, label (negative or positive).

    Args:
        negative: The sentences of one label.
        positive: Those of the other.

    Raises:
        DamagedFileError: Undecodable bytes, or a file without text.
    """
    named = {"negative": negative, "positive": positive}
    return pd.concat(
        [pd.DataFrame({"text": texts_of(path), "label": label}) for label, path in named.items()], ignore_index=True
    )


def read_labelled(*paths: Path, column: str = "text") -> pd.DataFrame:
    """Texts with their classes, as JSON lines or tab-separated under a header: text, label.

    Texts with CLINC150's label ``oos``, of no intent, are left out.

    Args:
        *paths: The files.
        column: Name of the texts there.

    Raises:
        DamagedFileError: A file in another form, or without rows.
    """
    names = [column, "label"]
    parts = [pd.DataFrame(rows_of(path, names)) if path.suffix == ".jsonl" else _columns(path, names) for path in paths]
    frame = pd.concat(parts, ignore_index=True).rename(columns={column: "text"})
    return frame[frame["label"] != "oos"]


@dataclass(frozen=True)
class Local:
    """A task whose data are local files.

    Attributes:
        kind: Its mteb type.
        what: One sentence: texts and source.
        files: For each file that is needed the paths where it may lie, below the folder of data.
        read: Reader of these files; ``evaluation.frames`` says which columns a type has.
        is_of_mteb: Whether the files are the published data of the mteb task of this name. Then it runs whole, as all
            tasks of mteb do, and without the files mteb's own is taken.
    """

    kind: str
    what: str
    files: tuple[tuple[str, ...], ...]
    read: Callable[..., pd.DataFrame]
    is_of_mteb: bool = False


def _each(*names: str) -> tuple[tuple[str, ...], ...]:
    """Files that may lie in one place each."""
    return tuple((name,) for name in names)


_STSB_TEST = (("stsb/stsb-en-test.csv", "stsbenchmark/sts-test.csv"),)
_STSB_DEV = (("stsb/stsb-en-dev.csv", "stsbenchmark/sts-dev.csv"),)
_CRANFIELD = _each("eval_cranfield_corpus.jsonl", "eval_cranfield_queries.jsonl", "eval_cranfield_qrels.tsv")
_FILMS = _each("sentence_polarity/rt-polarity.neg.gz", "sentence_polarity/rt-polarity.pos.gz")
_TITLES = _each("eval_stackoverflow_titles.tsv")
_EMOTIONS = _each("eval_emotion_val.tsv", "eval_emotion_test.tsv")

LOCAL: dict[str, Local] = {
    "STSBenchmark": Local("STS", "STS Benchmark, test split.", _STSB_TEST, read_sts, is_of_mteb=True),
    "STSBenchmark-dev": Local("STS", "STS Benchmark, dev split.", _STSB_DEV, read_sts),
    "SICK-trial": Local("STS", "Relatedness of captions, trial of SICK.", _each("eval_sick_trial.tsv"), read_sick),
    "QuoraPairs": Local(
        "PairClassification", "Duplicate questions of Quora.", _each("eval_quora_pairs.tsv"), read_question_pairs
    ),
    "XQuADParagraphs": Local(
        "Retrieval", "Questions over XQuAD's English paragraphs.", _each("eval_xquad_en.jsonl"), read_questions
    ),
    "CranfieldAbstracts": Local("Retrieval", "Questions over abstracts of aerodynamics.", _CRANFIELD, read_beir),
    "WikiQASentences": Local(
        "Reranking", "Sentences that answer a question, test split.", _each("eval_wikiqa_test.tsv"), read_wikiqa
    ),
    "FilmPolarity": Local("Classification", "Film reviews, Pang and Lee 2005.", _FILMS, read_polarity),
    "Intents": Local("Classification", "Requests of CLINC150.", _each("eval_clinc150.jsonl"), read_labelled),
    "Emotions": Local("Classification", "Short messages by emotion.", _EMOTIONS, read_labelled),
    "StackOverflowTitles": Local(
        "Clustering", "Titles of questions by tool.", _TITLES, partial(read_labelled, column="title")
    ),
    "NewsgroupPosts": Local("Clustering", "Posts of 20 newsgroups.", _each("eval_20newsgroups.jsonl"), read_labelled),
}
"""Tasks by name. A name that mteb knows stands for mteb's own data; where rows or a split are missing, or items are
chosen, the name is another. Texts may be in the training data of any published model.
"""


def is_local(name: str) -> bool:
    """Whether a task is read from local files: one of :data:`LOCAL`, and if mteb has it too, its files are there."""
    return name in LOCAL and not (LOCAL[name].is_of_mteb and None in _found(name))


def is_at_hand(name: str) -> bool:
    """Whether all files of a task of :data:`LOCAL` are on this machine."""
    return None not in _found(name)


def file_names(name: str) -> str:
    """The files of a task of :data:`LOCAL`, for a message; empty for another task."""
    return ", ".join(" or ".join(paths) for paths in LOCAL[name].files) if name in LOCAL else ""


def read(name: str) -> pd.DataFrame:
    """All data of a task of :data:`LOCAL`, in the columns that ``evaluation.frames`` describes.

    Args:
        name: A key of :data:`LOCAL`.

    Raises:
        MissingDataError: A file is absent; the message names it, ``WORKBOOK_DATA`` and the way out.
        DamagedFileError: A file is not in its form; the message names the file and, where it is one, the line.
    """
    local, found = LOCAL[name], _found(name)
    absent = [" or ".join(paths) for paths, path in zip(local.files, found, strict=True) if path is None]
    if absent:
        raise MissingDataError(
            f"Task {name}: looked for {', '.join(absent)} {local_place()}, found nothing. Way out: get the files "
            "(data/README.md describes them) and name their folder, or the one that it lies in, in WORKBOOK_DATA."
        )
    return local.read(*found)


def _found(name: str) -> list[Path | None]:
    return [next(iter(local_files(paths)), None) for paths in LOCAL[name].files]


def _columns(path: Path, names: Sequence[str], header: bool = True) -> pd.DataFrame:
    """A tab-separated table without quoting, all strings and none of them blank."""
    expected = ", ".join(names)
    rows = []
    for number, line in lines(path):
        fields = line.split("\t")
        if header and number == 1:
            if fields != list(names):
                raise DamagedFileError(
                    f"{path}, line 1: expected the columns {expected}, got {line[:60]!r}. {GET_AGAIN}"
                )
        elif len(fields) != len(names) or not all(field.strip() for field in fields):
            raise DamagedFileError(
                f"{path}, line {number}: expected {len(names)} values ({expected}) between tabs, got {line[:60]!r}. "
                f"{GET_AGAIN}"
            )
        else:
            rows.append(fields)
    if not rows:
        raise DamagedFileError(f"{path}: expected rows of {expected}, got none. {GET_AGAIN}")
    return pd.DataFrame(rows, columns=list(names))


def _numbers(
    path: Path, frame: pd.DataFrame, column: str, low: float, high: float, whole: bool = False
) -> pd.DataFrame:
    """The frame with a column as numbers from ``low`` to ``high``; NaN is none."""
    numbers = pd.to_numeric(frame[column], errors="coerce")
    bad = frame.loc[~numbers.between(low, high) | (whole & (numbers % 1 != 0)), column]
    if len(bad):
        expected, row = f"{column} {'a whole number ' if whole else ''}from {low} to {high}", bad.index[0] + 1
        raise DamagedFileError(f"{path}: expected {expected}, got {bad.iloc[0]!r} in row {row}. {GET_AGAIN}")
    return frame.assign(**{column: numbers.astype(int if whole else float)})


def _by_id(path: Path, optional: Sequence[str] = ()) -> dict[str, dict[str, str]]:
    """Texts of BEIR's JSON lines by their ids."""
    rows = list(rows_of(path, ("_id", "text"), optional))
    found = {row["_id"]: row for row in rows}
    if len(found) < len(rows):
        raise DamagedFileError(f"{path}: expected each _id once, got {len(rows)} rows of {len(found)}. {GET_AGAIN}")
    return found
