"""Training data of all tasks with a teacher's scores, as bge-en-icl's are published, from local files alone.

A row has a query, positives, hard negatives, the instruction and the kind of its task, and in retrieval the scores of a
reranker for each positive and negative. None of these data are part of the project.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DamagedFileError, MissingDataError, whole
from ..texts import is_text
from .reading import GET_AGAIN, arrow, local_folders, local_place, records

if TYPE_CHECKING:
    from datasets import Dataset

FOLDER = "bge-full-data"
"""Name of the folder below ``WORKBOOK_DATA``."""

REPOSITORY = "cfli/bge-full-data"
"""Where the data are published, on the Hugging Face Hub."""

NEGATIVES = 7
"""Hard negatives per row. Source: LENS, section 4.1."""

RETRIEVAL = "retrieval"
"""The task of rows that name none."""

TASK, SCORES = "task", "scores"
"""Columns of the task of a row, and of a teacher's scores for its positive and hard negatives."""

_FIELDS = ("query", "pos", "neg", "prompt", "type")
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
_ENDINGS = (".jsonl", ".parquet")
_ROWS = 1000  # of a parquet file in memory at a time
_KINDS = {"class": "classification", "clustering": "clustering", "sts": "sts"}
_ONE = "only_1neg"  # the type of rows that are trained with a single negative


def bge_full(folder: str | Path | None = None, negatives: int = NEGATIVES) -> dict[str, Dataset]:
    """The training data of bge-en-icl, which are LENS' too: retrieval, reranking, classes, clusters and graded pairs.

    A data set is one file, or numbered parts such as ``fever-00000-of-00004.parquet``; of JSON lines or parquet, as
    they are downloaded. They are read once into Arrow tables in the cache, which stay on disk.

    Args:
        folder: The folder; None for :data:`FOLDER` below the folder named by ``WORKBOOK_DATA``, or just below one of
            its folders. The Hub is not asked.
        negatives: Largest number of hard negatives per row.

    Returns:
        Data sets by name, with the columns of :func:`scored`.

    Raises:
        MissingDataError: No such folder, or no file in it; the message says how to get the data.
        DamagedFileError: A part is missing, two files are of one data set, or as :func:`scored`.

    Source:
        LENS, section 4.1 and appendix A.2.
    """
    place = _folder(folder)
    return {name: scored(paths, negatives) for name, paths in sorted(_parts(place).items())}


def scored(paths: Path | Sequence[Path], negatives: int | None = NEGATIVES) -> Dataset:
    """The rows of one data set.

    Of several positives one is taken, and of more hard negatives than are wanted so many, both drawn by the sha256 of
    their texts: the same on every machine, where the released code draws again at each reading. Rows with fewer hard
    negatives than others of their data set repeat theirs.

    The task follows the field ``type``, as in the released code: ``symmetric_class``, ``symmetric_clustering`` and
    ``symmetric_sts`` are classification, clustering and sts, all else is retrieval. ``only_1neg`` takes a single
    negative. Clusters and graded pairs have the instruction on both sides.

    Args:
        paths: The file, or its parts in their order; ``.jsonl`` or ``.parquet``.
        negatives: Largest number of hard negatives per row; None for all.

    Returns:
        The string columns query, positive, negative_1 and so on, query_instruction, document_instruction, task; and
        scores, a list of as many numbers as a row has documents, on the scale of logits, or None.

    Raises:
        InvalidValueError: A number of negatives that is not a positive whole one.
        DamagedFileError: A field that is missing or of another form, or a list of scores that is not as long as its
            texts; the message names file, line and field. Or fewer than two rows.

    Source:
        LENS, section 4.1 and appendix A.2.
    """
    paths = [paths] if isinstance(paths, Path) else list(paths)
    wanted = None if negatives is None else whole("negatives", negatives, of="hard negatives")
    return arrow(paths, contrastive_rows, numbers=(SCORES,), negatives=wanted)


def task_of(kind: str) -> str:
    """The task of a published ``type``.

    Examples:
        >>> task_of("symmetric_class"), task_of("normal")
        ('classification', 'retrieval')
    """
    if "symmetric" not in kind:
        return RETRIEVAL
    return next((task for name, task in _KINDS.items() if name in kind), RETRIEVAL)


def contrastive_rows(paths: Sequence[Path], negatives: int | None) -> Iterator[dict[str, Any]]:
    """The rows of :func:`scored`, one after the other; all are read twice, for the most negatives of a row.

    Args:
        paths: The parts of one data set.
        negatives: Largest number of hard negatives per row; None for all.
    """
    sizes = [_wanted(row, negatives) for path in paths for row in _rows(path)]
    if len(sizes) < 2:
        raise DamagedFileError(f"{paths[0]}: expected at least 2 rows ({', '.join(_FIELDS)}), got {len(sizes)}.")
    width = max(sizes)
    for path in paths:
        for row in _rows(path):
            positive, *_ = _drawn(row.query, row.pos)
            taken = _drawn(row.query, row.neg)[: _wanted(row, negatives)]
            taken = [taken[place % len(taken)] for place in range(width)]
            task = task_of(row.kind)
            kept = row.scores is not None and task == RETRIEVAL
            yield {
                "query": row.query,
                "positive": row.pos[positive],
                **{f"negative_{number}": row.neg[place] for number, place in enumerate(taken, 1)},
                "query_instruction": row.prompt.strip(),
                "document_instruction": row.prompt.strip() if task in ("clustering", "sts") else "",
                TASK: task,
                SCORES: [row.scores[0][positive], *(row.scores[1][place] for place in taken)] if kept else None,
            }


class _Row(NamedTuple):
    """A row as it is published, checked; its scores are those of the positives and those of the negatives."""

    query: str
    pos: list[str]
    neg: list[str]
    prompt: str
    kind: str
    scores: tuple[list[float], list[float]] | None


def _wanted(row: _Row, negatives: int | None) -> int:
    return min(len(row.neg), 1 if _ONE in row.kind else negatives or len(row.neg))


def _drawn(query: str, texts: list[str]) -> list[int]:
    """Places of the texts of a row, in an order as good as random."""
    return sorted(range(len(texts)), key=lambda place: hashlib.sha256(f"{query}\0{texts[place]}".encode()).digest())


def _rows(path: Path) -> Iterator[_Row]:
    parquet = path.suffix.lower() == ".parquet"
    for number, row in _parquet(path) if parquet else records(path):
        where = f"{path}, {'row' if parquet else 'line'} {number}"
        for field in _FIELDS:
            if field not in row:
                got = ", ".join(row) or "none"
                raise DamagedFileError(f"{where}: expected a field {field}, got {got}. {GET_AGAIN}")
        for field in ("query", "prompt", "type"):
            if not is_text(row[field]) or (field == "query" and not row[field].strip()):
                raise _other(where, field, "text", row[field])
        for field in ("pos", "neg"):
            texts = row[field]
            if not isinstance(texts, list) or not texts or not all(is_text(one) and one.strip() for one in texts):
                raise _other(where, field, "a list of texts", texts)
        yield _Row(*(row[field] for field in _FIELDS), _scores(where, row))


def _scores(where: str, row: dict[str, Any]) -> tuple[list[float], list[float]] | None:
    found = {}
    for field in ("pos", "neg"):
        name = f"{field}_scores"
        given = row.get(name)
        if given is None or (isinstance(given, list) and given and all(one is None for one in given)):
            continue
        if not isinstance(given, list) or not all(map(_is_number, given)):
            raise _other(where, name, "a list of numbers", given)
        if len(given) != len(row[field]):
            raise DamagedFileError(
                f"{where}, field {name}: expected {len(row[field])} scores, one for each text of {field}, got "
                f"{len(given)}. {GET_AGAIN}"
            )
        found[field] = [float(one) for one in given]
    if len(found) == 1:
        (only,) = found
        missing = "neg" if only == "pos" else "pos"
        raise DamagedFileError(f"{where}: expected {missing}_scores beside {only}_scores, got none. {GET_AGAIN}")
    return (found["pos"], found["neg"]) if found else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _other(where: str, field: str, expected: str, got: object) -> DamagedFileError:
    return DamagedFileError(f"{where}, field {field}: expected {expected}, got {repr(got)[:60]}. {GET_AGAIN}")


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a parquet file, numbered from 1."""
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            read = [name for name in file.schema_arrow.names if name in (*_FIELDS, "pos_scores", "neg_scores")]
            for batch in file.iter_batches(_ROWS, columns=read):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (ValueError, OSError) as error:  # pyarrow's errors are such
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise DamagedFileError(f"{path}: expected a parquet file, got {reason}. {GET_AGAIN}") from error


def _folder(given: str | Path | None) -> Path:
    """The folder of the data."""
    get = f"Way out: hf download {REPOSITORY} --repo-type dataset --local-dir"
    if given is not None:
        place = Path(given).expanduser()
        if not place.is_dir():
            raise MissingDataError(f"{REPOSITORY}: expected a folder at {place}, found none. {get} {place}.")
        return place
    folders = local_folders()
    places = [one / FOLDER for one in folders] + [one for one in folders[:1] if one.name == FOLDER]
    if found := next((one for one in places if one.is_dir()), None):
        return found
    raise MissingDataError(
        f"{REPOSITORY}: looked for a folder {FOLDER} {local_place()}, found none. {get} FOLDER/{FOLDER}, and name "
        "FOLDER in WORKBOOK_DATA."
    )


def _parts(folder: Path) -> dict[str, list[Path]]:
    """The files of each data set, by its name."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)  # of a download that goes on
        if path.suffix.lower() in _ENDINGS and not hidden and path.is_file():
            part = _PART.fullmatch(path.stem)
            found[part[1] if part else path.stem].append(path)
    if not found:
        raise MissingDataError(
            f"{REPOSITORY}: expected files ({', '.join(_ENDINGS)}) in {folder}, found none. Way out: hf download "
            f"{REPOSITORY} --repo-type dataset --local-dir {folder}."
        )
    return {name: _in_order(folder, name, paths) for name, paths in found.items()}


def _in_order(folder: Path, name: str, paths: list[Path]) -> list[Path]:
    """The one file of a data set, or its numbered parts, all of them."""
    numbered = [part for path in paths if (part := _PART.fullmatch(path.stem))]
    if len(paths) == 1 and not numbered:
        return paths
    places = dict(zip((int(part[2]) for part in numbered), paths, strict=False))
    if len(places) < len(paths) or len({part[3] for part in numbered}) > 1:
        got = ", ".join(str(path.relative_to(folder)) for path in paths)
        raise DamagedFileError(
            f"{folder}: expected one file of {name}, or its numbered parts, got {got}. Leave one of them there."
        )
    total = int(numbered[0][3])
    if missing := sorted({*range(total)} - {*places}):
        raise DamagedFileError(
            f"{folder}: expected {total} files {name}-*-of-{total:05d}, got {len(places)} without "
            f"{', '.join(f'{number:05d}' for number in missing)}. Download the others too."
        )
    return [places[number] for number in range(total)]
