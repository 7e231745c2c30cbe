"""Sources of training data: by name, and a user's own files."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset

from ..corpora.authored import MININGS, instruction_of
from ..corpora.docs import load_docs
from ..corpora.public import e5, wiki1m, wikitext
from ..corpora.reading import arrow, records, rows_of, texts_of
from ..corpora.scored import RETRIEVAL, TASK, bge_full, scored, task_of
from ..errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError
from .blend import docs_blend, docs_mined

INSTRUCTIONS = ("query_instruction", "document_instruction")
"""Columns of pairs that hold the instructions, or empty strings."""

ENDINGS = (".jsonl", ".csv", ".txt")
"""Endings of a user's file."""

_OTHER_MININGS = ("random", "bm25", *(one for one in MININGS if one != "95"))
_NEGATIVE = re.compile(r"negative(?:_(\d+))?")
_WORDS = (5, 60)  # of a sentence of the docs corpus
# Neither a single letter nor one of these abbreviations ends a sentence: "e.g. NumPy", "Cohen et al. (1996)".
_PUBLISHED = {"query", "pos", "neg"}  # fields of bge-en-icl's data
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b\w\.)(?<!\b(?:al|cf|vs|Eq)\.)\s+(?=[A-Z\"(])")


def read(
    source: str | os.PathLike, kind: str, mixed: bool = False, tasks: bool = False
) -> tuple[str, list[str] | dict[str, Dataset]]:
    """Name and content of a source or a file.

    Args:
        source: One of :data:`SOURCES`, or a path.
        kind: ``pairs``, ``texts``, or ``chunks`` for texts that are cut into chunks afterwards.
        mixed: Refuse retrieval alone.
        tasks: Read the task of each row of a file; those of sources are known.

    Returns:
        The name of the source or the stem of the file; and texts, or data sets of pairs by name, with the columns
        query, positive, hard negatives and :data:`INSTRUCTIONS`. Pairs may have their task too, and a teacher's scores,
        see :func:`~workbook.corpora.scored.scored`.

    Raises:
        UnknownNameError, MissingDataError, InvalidValueError, DamagedFileError: As :func:`~.rows.load`.
    """
    if source in SOURCES:
        if kind not in SOURCES[source]:
            able = ", ".join(name for name, readers in SOURCES.items() if kind in readers)
            raise InvalidValueError("training source", f"one that has {kind} ({able}, or a file)", source)
        if mixed and source not in MIXED:
            raise _retrieval_alone(source)
        return source, SOURCES[source][kind]()
    if not isinstance(source, str | os.PathLike):
        raise InvalidValueError("training source", f"one of {', '.join(SOURCES)}, or the path of a file", source)
    path = Path(source).expanduser()
    endings = ", ".join(ENDINGS)
    if not os.path.exists(path) and path.name == str(source) == path.stem:
        raise UnknownNameError("training source", source, SOURCES, f"The path of a file ({endings}) works too.")
    if not os.path.isfile(path):  # unlike Path.is_file, False for a name that no file system takes
        got = "a folder" if os.path.isdir(path) else "nothing"
        raise MissingDataError(f"Training data: expected a file ({endings}) at {path}, found {got}. Check the path.")
    if path.suffix.lower() not in ENDINGS:
        raise UnknownNameError("kind of training file", path.name, ENDINGS, "Convert it to one of these.")
    if mixed and all(_task(row) == RETRIEVAL for _, row in records(path)):
        raise _retrieval_alone(path)
    return path.stem, _pairs(path, tasks) if kind == "pairs" else _texts(path)


def _task(row: dict[str, Any]) -> str:
    """The task of a row, as :func:`_pairs` reads it."""
    return task_of(str(row.get("type", ""))) if row.keys() >= _PUBLISHED else row.get(TASK) or RETRIEVAL


def _docs_texts() -> list[str]:
    train = load_docs().split("train")
    return [f"{query}\n{document}" for query, document in zip(train["query"], train["document"], strict=True)]


def _docs_sentences() -> list[str]:
    """Sentences and queries of the train split, each once, but none that other splits hold word for word."""
    docs = load_docs()
    others = docs.pairs[docs.pairs["split"] != "train"]
    held_out = {run for text in (*others["query"], *others["document"]) for run in _runs(text)}
    found = {text.casefold(): text for text in _sentences(docs.split("train"))}
    return [text for text in found.values() if not _runs(text) <= held_out]


def _runs(text: str) -> set[tuple[str, ...]]:
    """All runs of five words, the length of the shortest sentences."""
    words = re.findall(r"\w+", text.casefold())
    return set(zip(*(words[start:] for start in range(_WORDS[0])), strict=False))


def _sentences(pairs: pd.DataFrame) -> Iterator[str]:
    for text in (*pairs["query"], *pairs["document"]):
        yield from (part for part in _SENTENCE_END.split(text) if _WORDS[0] <= len(part.split()) <= _WORDS[1])


def _docs_pairs() -> dict[str, Dataset]:
    """Summary lines with their descriptions, the former with the instruction of the offline retrieval task."""
    train = load_docs().split("train")
    said = {INSTRUCTIONS[0]: [instruction_of("DocsRetrieval")] * len(train), INSTRUCTIONS[1]: [""] * len(train)}
    return {"docs": Dataset.from_dict({"query": list(train["query"]), "positive": list(train["document"]), **said})}


SOURCES: dict[str, dict[str, Callable[[], Any]]] = {
    "docs": {"chunks": _docs_texts, "texts": _docs_sentences, "pairs": _docs_pairs},
    "docs-mined": {"pairs": docs_mined},
    "docs-mined-large": {"pairs": partial(docs_mined, None)},
    "docs-blend": {"pairs": docs_blend},
    "docs-blend-labels": {"pairs": partial(docs_blend, "labels")},
    "docs-blend-examples": {"pairs": partial(docs_blend, "examples", "examples")},
    **{f"docs-mined-{mining}": {"pairs": partial(docs_mined, mining=mining)} for mining in _OTHER_MININGS},
    "wikitext": {"chunks": wikitext, "texts": wikitext},
    "wiki1m": {"chunks": wiki1m, "texts": wiki1m},
    "e5": {"pairs": e5},
    "bge-full": {"pairs": bge_full},
}
"""Sources by name, with a reader for each kind of data that they have."""

MIXED = ("docs-blend", "docs-blend-labels", "docs-blend-examples", "bge-full")
"""Those of them that hold other tasks than retrieval too."""


def _texts(path: Path) -> list[str]:
    if path.suffix.lower() == ".txt":
        return texts_of(path)
    fields = {field for _, row in records(path) for field in row}
    if "text" not in fields and {"query", "positive"} <= fields:
        raise _other_kind(path, "texts, in a field text", "pairs, query and positive", "contrastive")
    _tell_unread(path, fields - {"text"})
    return [row["text"].strip() for row in rows_of(path, ["text"])]


def _pairs(path: Path, tasks: bool) -> dict[str, Dataset]:
    if path.suffix.lower() == ".txt":
        raise _other_kind(path, "pairs (.jsonl or .csv, fields query and positive)", "texts, one a line", "simcse")
    fields = {field for _, row in records(path) for field in row}
    if "text" in fields and not {"query", "positive"} & fields:
        raise _other_kind(path, "pairs, in fields query and positive", "texts, in a field text", "simcse")
    if fields >= _PUBLISHED:
        return {path.stem: scored(path, negatives=None)}
    negatives = sorted(filter(None, map(_NEGATIVE.fullmatch, fields)), key=lambda match: int(match[1] or 0))
    wanted = ("query", "positive", *(match[0] for match in negatives))
    optional = ("instruction", "document_instruction", *([TASK] if tasks else []))
    _tell_unread(path, fields - {*wanted, *optional, TASK})
    pairs = arrow(path, rows_of, fields=wanted, optional=optional, least=2)
    return {path.stem: pairs.rename_column("instruction", INSTRUCTIONS[0])}


def _other_kind(path: Path, expected: str, got: str, objective: str) -> DamagedFileError:
    return DamagedFileError(f"{path}: expected {expected}; got {got}. The objective {objective} reads these.")


def _retrieval_alone(source: str | Path) -> InvalidValueError:
    return InvalidValueError(
        f"training data {source}", "other tasks than retrieval too: classes, clusters or graded pairs",
        "retrieval alone", "Give a file whose rows name their task, as in --data blended=FILE.",
    )  # fmt: skip


def _tell_unread(path: Path, fields: set[str]) -> None:
    if fields:
        warnings.warn(f"{path}: these fields are not read: {', '.join(sorted(map(repr, fields)))}.", stacklevel=5)
