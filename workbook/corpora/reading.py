"""Finding published data, and reading its files with errors that name the file, the line and the field."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import re
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checksums import make_once, sha256, verify_checksums, write_checksums
from ..errors import DamagedFileError, MissingDataError
from ..files import cache_path
from ..texts import is_text

if TYPE_CHECKING:
    from datasets import Dataset

_TABLE, _BATCH = "rows.arrow", 1000
_FIELD_LIMIT = threading.Lock()
"""Held while csv's limit is changed: there is one for the whole process."""

GET_AGAIN = "Mend the file or download it again."


def located(
    what: str, patterns: Sequence[str], path: str | Path | None = None, repository: str | None = None
) -> list[Path]:
    """The files of a data set: those given, else those below ``WORKBOOK_DATA``, else those on the Hub or in its cache.

    Args:
        what: Name of the data set, for the message.
        patterns: Globs below a folder of data; the first that matches counts. The last part alone may match too.
        path: A file, or a folder, which is then the only place of search.
        repository: Data set repository on the Hub, or None.

    Raises:
        MissingDataError: Nothing found; the message says what was looked for, where, and the ways out.
        DamagedFileError: One of several files numbered like ``-00000-of-00002`` is missing.
    """
    names = " or ".join(patterns)
    if path is not None:
        path = Path(path).expanduser()
        found = [path] if path.is_file() else _within(path, patterns)
        if not found:
            raise MissingDataError(
                f"{what}: expected a file at {path}, or {names} in that folder, found nothing. Give the path of the "
                "published file or of its folder."
            )
        return found
    found = local_files(patterns)
    if found:
        return found
    where = local_place()
    ways = f"put {names} into a folder and name that in WORKBOOK_DATA, or give the path"
    if repository is None:
        raise MissingDataError(f"{what}: looked for {names} {where}, found nothing. Way out: {ways}.")
    snapshot, reason = _snapshot(repository, patterns)
    found = _within(snapshot, patterns) if snapshot else []
    if not found:
        raise MissingDataError(
            f"{what}: looked for {names} {where} and on the Hugging Face Hub and in its cache as {repository}: "
            f"{reason}. Ways out: {ways}; connect to the network (and unset HF_HUB_OFFLINE); or copy the Hugging Face "
            "cache from a machine that has the data and set HF_HOME."
        )
    return found


def local_files(patterns: Sequence[str]) -> list[Path]:
    """The files below ``WORKBOOK_DATA`` of the first pattern that matches, there or in one of its folders; or none.

    Args:
        patterns: Globs below a folder of data; in that of ``WORKBOOK_DATA`` itself, the last part alone may match too.

    Raises:
        DamagedFileError: One of several files numbered like ``-00000-of-00002`` is missing.
    """
    if not (folders := local_folders()):
        return []
    # In a folder of folders a bare name such as test.txt may be that of another data set.
    folder, *below = folders
    return _within(folder, patterns) or next(filter(None, (_within(one, patterns, bare=False) for one in below)), [])


def local_folders() -> list[Path]:
    """The folder that ``WORKBOOK_DATA`` names, and the folders in it; none where it names none."""
    if not (named := os.environ.get("WORKBOOK_DATA")):
        return []
    folder = Path(named).expanduser()
    return [folder, *sorted(one for one in folder.glob("*") if one.is_dir())]


def local_place() -> str:
    """Where :func:`local_files` looks, in words for a message."""
    folder = os.environ.get("WORKBOOK_DATA")
    return f"in the folder {folder} (WORKBOOK_DATA)" if folder else "in no local folder (WORKBOOK_DATA is not set)"


def _within(folder: Path, patterns: Sequence[str], bare: bool = True) -> list[Path]:
    """All files of the first pattern that matches; or, if bare names count, of the first whose last part does."""
    for pattern in (*patterns, *(pattern.rpartition("/")[2] for pattern in patterns if bare)):
        found = sorted(file for file in folder.glob(pattern) if file.is_file())
        total = re.search(r"-of-(\d+)\.", found[0].name) if found else None
        if total and len(found) != int(total[1]):
            raise DamagedFileError(
                f"{folder}: expected {int(total[1])} files {pattern}, got {len(found)}. Download the others too."
            )
        if found:
            return found
    return []


def _snapshot(repository: str, patterns: Sequence[str]) -> tuple[Path | None, str]:
    """The local folder of a repository's matching files, or None; and the reason if there is none."""
    from huggingface_hub import snapshot_download

    wanted = [*patterns, *(pattern.rpartition("/")[2] for pattern in patterns)]
    try:
        return Path(snapshot_download(repository, repo_type="dataset", allow_patterns=wanted)), "no such file there"
    except Exception as error:  # the Hub, its cache, the network and the disk each raise their own errors
        return None, str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file in UTF-8, gzip or plain, numbered from 1, without line ends.

    Raises:
        DamagedFileError: Undecodable bytes (the message names the line), or a truncated gzip file.
    """
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        got = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise DamagedFileError(f"{path}, line {number}: expected UTF-8, got {got}. {GET_AGAIN}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedFileError(f"{path}: expected a whole gzip file, got {error}. {GET_AGAIN}") from error


def texts_of(path: Path) -> list[str]:
    """The lines that are not blank, stripped.

    Raises:
        DamagedFileError: Undecodable bytes, or no text at all.
    """
    return _some(path, [text for _, line in lines(path) if (text := line.strip())])


def parquet_texts(path: Path) -> list[str]:
    """The column ``text`` of a parquet file, stripped, without blank ones.

    Raises:
        DamagedFileError: Not a parquet file, no such column, or no text at all.
    """
    import pandas as pd

    try:
        column = pd.read_parquet(path, columns=["text"])["text"]
    except (ValueError, OSError) as error:  # pyarrow's errors are such
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise DamagedFileError(
            f"{path}: expected a parquet file with a field text, got {reason}. {GET_AGAIN}"
        ) from error
    return _some(path, [text.strip() for text in column if text and text.strip()])


def _some(path: Path, texts: list[str]) -> list[str]:
    if not texts:
        raise DamagedFileError(f"{path}: expected text, got none: the file is empty or blank. {GET_AGAIN}")
    return texts


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, or the rows of a ``.csv`` table as strings; blank lines are left out.

    Yields:
        The number of the line, from 1 (the last one of a row of several lines), and the values by field.

    Raises:
        DamagedFileError: A line that is not a JSON object, a row that is not as long as the header, or two fields of
            one name.
    """
    if path.suffix.lower() == ".csv":
        yield from _csv_records(path)
        return
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise DamagedFileError(f"{path}, line {number}: expected JSON, got {error}. {GET_AGAIN}") from error
        if not isinstance(row, dict):
            raise DamagedFileError(f"{path}, line {number}: expected an object, got {line[:60]!r}. {GET_AGAIN}")
        yield number, row


def _once(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these fields; two of one name are an error, where JSON would silently keep the last."""
    row = dict(fields)
    if len(row) < len(fields):
        raise ValueError(f"several fields named {_repeated(name for name, _ in fields)}")
    return row


def _repeated(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name, count in Counter(names).items() if count > 1)


def _csv_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    # csv and not pandas: that fills a short row, and takes the first field of a long one for an index.
    table = csv.reader((f"{line}\n" for _, line in lines(path)), strict=True)
    quotes = "Put a text that holds a comma, a quote or a line break between double quotes, and double its own."
    try:
        header = _next_row(table) or []
        if again := _repeated(filter(None, header)):  # spreadsheets leave columns without a name behind
            raise DamagedFileError(
                f"{path}, line {table.line_num}: expected columns of different names, got several named {again}. "
                "Name each once, such as negative_1 and negative_2."
            )
        for row in filter(None, iter(lambda: _next_row(table), None)):
            if len(row) != len(header):
                raise DamagedFileError(
                    f"{path}, line {table.line_num}: expected {len(header)} fields ({', '.join(header)}), got "
                    f"{len(row)}. {quotes}"
                )
            yield table.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DamagedFileError(f"{path}, line {table.line_num}: expected CSV, got {error}. {quotes}") from error


def _next_row(table: Iterator[list[str]]) -> list[str] | None:
    """The next row of a CSV table, with fields of any length; None at its end."""
    with _FIELD_LIMIT:
        before = csv.field_size_limit(2**31 - 1)
        try:
            return next(table, None)
        finally:
            csv.field_size_limit(before)


def rows_of(
    path: Path, fields: Sequence[str], optional: Sequence[str] = (), least: int = 1
) -> Iterator[dict[str, str]]:
    """The rows of a file of JSON lines or of a ``.csv`` table, with these fields alone.

    Args:
        path: The file.
        fields: Names of the fields; values are strings that are not blank.
        optional: Names of fields that a row may have; values are strings, stripped, and empty if absent.
        least: Smallest number of rows.

    Raises:
        DamagedFileError: A line or a field that is not as described, or too few rows.
    """
    count = 0
    for number, row in records(path):
        for field in fields:
            if field not in row:
                got = ", ".join(row) or "none"
                raise DamagedFileError(f"{path}, line {number}: expected a field {field}, got {got}. {GET_AGAIN}")
        values = {field: row[field] for field in fields} | {field: row.get(field) or "" for field in optional}
        for field, value in values.items():
            if not is_text(value) or (field in fields and not value.strip()):
                got = repr(value)[:60]
                raise DamagedFileError(f"{path}, line {number}, field {field}: expected text, got {got}. {GET_AGAIN}")
        yield values | {field: values[field].strip() for field in optional}
        count += 1
    if count < least:
        raise DamagedFileError(
            f"{path}: expected at least {least} row{'s'[: least > 1]} ({', '.join(fields)}), got {count}. {GET_AGAIN}"
        )


def arrow(
    path: Path | Sequence[Path],
    rows: Callable[..., Iterator[dict[str, Any]]],
    numbers: Sequence[str] = (),
    **options: Any,
) -> Dataset:
    """Rows of a file as an Arrow table in the cache, made once for the file's content; it stays on disk.

    Args:
        path: The file, or the files that are one table.
        rows: A function of a module that reads it: of ``path`` and the options, it returns rows of strings.
        numbers: Names of fields that are no strings: lists of numbers, or None.
        **options: Values that JSON takes.

    Raises:
        DamagedFileError: As ``rows``, or a table in the cache that is not the one that was written.
        OutputError: The table is not in the cache, which can't be written.
    """
    from datasets import Dataset

    parts = sha256(path) if isinstance(path, Path) else [sha256(one) for one in path]
    content = json.dumps([parts, rows.__module__, rows.__qualname__, options])
    kept = cache_path("datasets", hashlib.sha256(content.encode()).hexdigest()[:24])

    def write(folder: Path) -> None:
        _write_table(folder / _TABLE, rows(path, **options), numbers)
        write_checksums(folder, [_TABLE])

    make_once(kept, write)
    verify_checksums(kept, f"Delete {kept}; it is made again.")
    return Dataset.from_file(str(kept / _TABLE))


def _write_table(path: Path, rows: Iterator[dict[str, Any]], numbers: Sequence[str]) -> None:
    """Write rows of strings, and lists of numbers, as an Arrow stream, with one batch in memory at a time."""
    import pyarrow as pa

    batch = list(islice(rows, _BATCH))
    schema = pa.schema([(name, pa.list_(pa.float64()) if name in numbers else pa.string()) for name in batch[0]])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        while batch:
            stream.write_batch(pa.RecordBatch.from_pylist(batch, schema))
            batch = list(islice(rows, _BATCH))
