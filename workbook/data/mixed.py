"""A file of all tasks for a stage that blends them: labelled data sets as they are published, as contrastive rows."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..corpora.reading import records
from ..corpora.scored import RETRIEVAL
from ..errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError, whole
from ..files import atomic_file
from .curation import from_classes, from_graded, mine
from .filters import bm25_similarity, leaked
from .prompts import plain

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

COLUMNS = {
    RETRIEVAL: ("query", "positive"),
    "classification": ("text", "label"),
    "clustering": ("text", "label"),
    "sts": ("sentence1", "sentence2", "score"),
}
"""Tasks, and the columns that their data sets have."""

_COMPARED = ("query", "text", "sentence1", "sentence2")  # columns whose texts an evaluation must not hold
_FILES = (".jsonl", ".csv", ".gz", ".parquet")


def labelled_set(source: str | os.PathLike, split: str = "train", subset: str | None = None) -> pd.DataFrame:
    """A data set of classes, clusters or graded pairs in the columns in which mteb publishes it.

    Args:
        source: A file (``.jsonl``, ``.csv``, ``.parquet``), or what ``datasets.load_dataset`` takes: a folder of such
            files or a Hub id, such as ``mteb/banking77``.
        split: Of a folder or a Hub id; the training split, unless you want the texts of an evaluation.
        subset: Of the same, such as ``en``.

    Returns:
        Columns text and label (strings), or sentence1, sentence2 (strings) and score (float64). A class is called by
        its ``label_text`` if there is one; clusters that are published as lists become one row per text.

    Raises:
        MissingDataError: No such file, folder or id; the message says why.
        DamagedFileError: A file in another form.
        InvalidValueError: Other columns; the message lists them.
    """
    path = Path(source).expanduser()
    frame = _read_file(path) if path.suffix in _FILES else _read_dataset(str(source), split, subset)
    if {"sentences", "labels"} <= {*frame}:
        frame = frame[["sentences", "labels"]].explode(["sentences", "labels"])
        frame = frame.rename(columns={"sentences": "text", "labels": "label"})
    if {*COLUMNS["sts"]} <= {*frame}:
        return frame[list(COLUMNS["sts"])].astype({"score": float}).reset_index(drop=True)
    if "text" in frame and {"label", "label_text"} & {*frame}:
        label = frame["label_text"] if "label_text" in frame else frame["label"]
        return pd.DataFrame({"text": frame["text"].tolist(), "label": [*map(str, label)]})
    raise InvalidValueError(
        f"data set {source}", "columns text and label, or sentence1, sentence2 and score", ", ".join(frame)
    )


def _read_file(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise MissingDataError(f"Data set: expected a file at {path}, found nothing. Check the path.")
    if path.suffix == ".parquet":
        try:
            return pd.read_parquet(path)
        except (ValueError, OSError) as error:  # pyarrow's errors are such
            raise DamagedFileError(f"{path}: expected a parquet file, got {error}.") from error
    return pd.DataFrame(row for _, row in records(path))


def _read_dataset(name: str, split: str, subset: str | None) -> pd.DataFrame:
    from datasets import ClassLabel, load_dataset

    try:
        found = load_dataset(name, subset, split=split)
    except Exception as error:  # the Hub, its cache, the network and the disk each raise their own errors
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise MissingDataError(
            f"Data set {name}, split {split}: looked for a folder and on the Hugging Face Hub: {reason}. Ways out: "
            "give a file; connect to the network (and unset HF_HUB_OFFLINE)."
        ) from error
    frame = found.to_pandas()
    if isinstance(kind := found.features.get("label"), ClassLabel):
        frame["label"] = frame["label"].map(kind.int2str)
    return frame


def task_rows(
    frame: pd.DataFrame,
    task: str,
    instruction: str,
    *,
    negatives: int = 7,
    teacher: SentenceTransformer | None = None,
    held_out: Iterable[str] = (),
    similarity: float | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The contrastive rows of a data set, with its task and instructions.

    Two classes are represented by their labels, more of them and clusters by examples. Of graded pairs those of a high
    grade are taken, both ways, with mined negatives among all texts. Where documents are texts like the query, they get
    the instruction too.

    Args:
        frame: Columns of :data:`COLUMNS`; for classes, clusters and graded pairs see :func:`labelled_set`. Pairs of
            retrieval have their hard negatives already, from :func:`~.curation.mine`.
        task: A key of :data:`COLUMNS`.
        instruction: What the task is, as in ``workbook.corpora.authored.instructions("nv_embed")``.
        negatives: Hard negatives per row; two classes have one.
        teacher: Mines the negatives of graded pairs; others need none.
        held_out: Texts of the evaluation: what repeats one, or nearly, is left out, with a warning.
        similarity: Leave out what is as close to one of them by BM25, too: see :func:`~.filters.bm25_similarity`. None
            to leave that, as the paper does but for Emotion and AmazonCounterfactual.
        limit: Number of rows of the frame that are used, drawn at random; None for all.
        seed: Of the draws.

    Returns:
        Columns task, query, positive, negative_1, ..., instruction and document_instruction (strings).

    Raises:
        UnknownNameError: No such task.
        InvalidValueError: Other columns, nothing left, graded pairs without a teacher, or as
            :func:`~.curation.from_classes`, :func:`~.curation.from_graded` and :func:`~.curation.mine`.

    Source: NV-Embed, section 4.2 and table 12.
    """
    if task not in COLUMNS:
        raise UnknownNameError("task", task, COLUMNS)
    if absent := [column for column in COLUMNS[task] if column not in frame]:
        raise InvalidValueError(f"data of {task}", f"the columns {', '.join(COLUMNS[task])}", f"no {absent[0]}")
    frame = _kept(frame, list(held_out), similarity)
    if limit is not None and whole("limit", limit) < len(frame):
        frame = frame.sample(limit, random_state=seed)
    if frame.empty:
        raise InvalidValueError("data", "rows that no evaluation holds", "none")
    symmetric = True
    if task == RETRIEVAL:
        hard = [name for name in frame if name.startswith("negative")][:negatives]
        rows, symmetric = frame[["query", "positive", *hard]], False
    elif task == "sts":
        if teacher is None:
            raise InvalidValueError("teacher", "a model that mines negatives of graded pairs", teacher)
        corpus = [*frame["sentence1"], *frame["sentence2"]]
        rows = mine(from_graded(frame), teacher, negatives=negatives, corpus=corpus)
    else:
        symmetric = task == "clustering" or frame["label"].nunique() > 2
        documents = "examples" if symmetric else "labels"
        rows = from_classes(
            list(frame["text"]), list(frame["label"]), documents=documents, negatives=negatives, seed=seed
        )
    rows = rows.reset_index(drop=True)
    rows.insert(0, "task", task)
    return rows.assign(instruction=instruction, document_instruction=instruction if symmetric else "")


def _kept(frame: pd.DataFrame, held_out: list[str], similarity: float | None) -> pd.DataFrame:
    """The rows none of whose texts is in the evaluation, or close to it."""
    out = np.zeros(len(frame), dtype=bool)
    for column in _COMPARED if held_out else ():
        if column in frame:
            out |= leaked(frame[column], held_out)
            if similarity is not None:
                out |= bm25_similarity(frame[column], held_out) >= similarity
    if out.any():
        warnings.warn(f"{out.sum()} of {len(frame)} rows are in the evaluation, or close: left out.", stacklevel=3)
    return frame[~out]


def write_rows(path: str | os.PathLike, *parts: pd.DataFrame) -> Path:
    """Write the rows of all tasks into one file of training data, for ``--data STAGE=FILE``.

    Args:
        path: A ``.jsonl`` file; one that is there is replaced.
        *parts: Rows of :func:`task_rows`. Those with fewer hard negatives than others repeat theirs. Of rows with the
            same query and positive, but for case and spaces, the first is kept, and a warning counts the others.

    Returns:
        The path.

    Raises:
        InvalidValueError: No part, or one without hard negatives.
        OutputError: The file can't be written.
    """
    path = Path(path).expanduser()
    if path.suffix != ".jsonl":
        raise InvalidValueError("path", "a file that ends in .jsonl", str(path))
    hard = [[name for name in part if name.startswith("negative")] for part in parts]
    if not all(hard) or not parts:
        raise InvalidValueError("parts", "rows with hard negatives", "none", "Mine them (workbook.data.curation.mine).")
    width = max(map(len, hard))
    rows, seen = [], set()
    for part, own in zip(parts, hard, strict=True):
        for row in part.to_dict("records"):
            said = (plain(row["query"]), plain(row["positive"]))
            if said not in seen:
                seen.add(said)
                repeated = {f"negative_{place + 1}": row[own[place % len(own)]] for place in range(width)}
                rows.append({name: text for name, text in row.items() if name not in own} | repeated)
    if again := sum(map(len, parts)) - len(rows):
        warnings.warn(f"{path.name}: {again} rows repeat another: left out.", stacklevel=2)
    with atomic_file(path) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
