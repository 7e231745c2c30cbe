"""The data of a training stage: a source by name or a user's file, as data sets with their instructions.

Useless rows are dropped, with a warning: repeated ones, and those whose query or hard negative is the positive itself.
The others are in the order of the sha256 of the rows, which is as good as random and the same on every machine, so that
a smaller stage reads a part of what a larger one reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from safetensors.numpy import load_file, save_file

from ..checksums import make_once, verify_checksums, write_checksums
from ..corpora.public import chunks
from ..corpora.scored import RETRIEVAL, SCORES, TASK
from ..errors import InvalidValueError, whole
from ..files import cache_path
from ..objectives import get as get_objective
from ..texts import check_text
from .sources import INSTRUCTIONS, SOURCES, read

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["SOURCES", "TrainingData", "load"]

_SHOWN = 5  # rows that a warning names


@dataclass(frozen=True)
class TrainingData:
    """The data of one training stage.

    Attributes:
        datasets: Data sets by name; a batch comes from one of them, since all its rows share their instructions. The
            columns are in the order of the loss: ``chunk`` (lists of token ids, all of one length); or ``text``; or
            ``query``, ``positive`` and hard negatives (strings; in a blend each with its instruction), with a teacher's
            scores as the last column, a list of numbers for each row.
        prompts: The bare instruction by data set and column. A column without one is left out.
        fingerprint: Hex sha256 over names, columns, prompts and rows in their order; the same content has the same
            fingerprint in every process and on every machine, wherever its file is.
        tasks: The task by data set, where tasks are told apart.
    """

    datasets: dict[str, Dataset]
    prompts: dict[str, dict[str, str]]
    fingerprint: str
    tasks: dict[str, str] = field(default_factory=dict)

    def texts(self, name: str) -> list[str]:
        """Names of the columns of a data set that the model reads."""
        return [column for column in self.datasets[name].column_names if column != SCORES]

    def scored(self, name: str) -> bool:
        """Whether the rows of a data set have a teacher's scores."""
        return SCORES in self.datasets[name].column_names

    def examples(self) -> Iterator[tuple[str, str | None]]:
        """The first text of each data set, column and instruction, with the instruction or None."""
        for name, dataset in self.datasets.items():
            for column in self.texts(name):
                if not isinstance(dataset[0][column], dict):
                    yield dataset[0][column], self.prompts[name].get(column)
                    continue
                values = dataset.data.column(column)  # as they lie there: rows in their order are gathered one by one
                said = pc.struct_field(values, "instruction").to_pandas()
                for row in said.drop_duplicates().index:
                    yield values[row].as_py()["text"], said[row]


def load(
    source: str | os.PathLike,
    objective: str,
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    instructions: bool = True,
    limit: int | None = None,
    negatives: int | None = None,
    blend: bool = False,
    mixed: bool = False,
    tasks: bool = False,
    scores: bool = False,
) -> TrainingData:
    """The data of a training stage, from a source by name or from a file.

    A file of texts is ``.txt``, one per line, or ``.jsonl`` or ``.csv`` with the field ``text``. A file of pairs is
    ``.jsonl`` or ``.csv`` with the fields ``query`` and ``positive``; hard negatives are ``negative``, ``negative_1``,
    ..., in every row or in none; ``instruction`` (of the query) and ``document_instruction`` may be absent or blank.
    For a symmetric task give the instruction in both. Rows with different instructions become different data sets.
    ``task`` names the task of a row if it is not retrieval; it is only read for ``mixed`` and ``tasks``.
    A ``.jsonl`` file may also be as bge-en-icl's data are published, with a teacher's scores: see
    :func:`~workbook.corpora.scored.scored`. Hard negatives are left out for an objective that does not use them.

    A data set with a single remaining row is left out with a warning, except in a blend: its batches would have no
    negatives. Warnings number the rows of a file from 1, without blank lines and the header.

    Args:
        source: One of :data:`SOURCES`, or a path.
        objective: A name from :data:`workbook.objectives.OBJECTIVES`, which decides the kind of data.
        tokenizer: The tokenizer, for chunks.
        max_length: Tokens of a chunk; longer texts and pairs are cut by the model.
        instructions: Whether to return prompts; the data sets are the same without.
        limit: Largest number of rows in all. Each data set gets about its share, and is left out if that is a single
            row, except in a blend.
        negatives: Largest number of hard negatives per row, the first of those that it has; None for all. A warning
            says if no data set has as many.
        blend: Make one data set of all pairs, named ``blend``, whose values are {instruction, text}: a batch then mixes
            tasks. Rows with fewer hard negatives than others repeat theirs.
        mixed: Refuse pairs that are all of retrieval.
        tasks: Make rows of different tasks different data sets, and refuse pairs that are all of retrieval.
        scores: Keep the scores that a teacher gave rows of retrieval. A warning names data sets without them.

    Raises:
        UnknownNameError: No such source, objective or kind of file.
        MissingDataError: No such file, or the public data can't be found.
        InvalidValueError: A source without the kind of data that the objective reads, too little text for a chunk, too
            few distinct rows, a text of more than ``workbook.texts.LONGEST`` characters, an impossible limit, hard
            negatives that nothing reads, a blend of rows with and without them, a blend where tasks or scores are
            wanted, retrieval alone, or no scores, or not in every row of a data set.
        DamagedFileError: A file with a missing, blank or non-string field, or without rows; the message names file,
            line and field.

    Source:
        LLM2Vec, sections 2.2 and 5.1 and appendix G.1: wikitext-103 for MNTP, wiki1m for SimCSE, E5 for contrastive
        training.
    """
    kind = get_objective(objective)
    limit = None if limit is None else whole("limit", limit, 2, of="rows", hint="None takes all.")
    if blend and kind.reads != "pairs":
        raise InvalidValueError("blend", f"False for {objective}, whose texts have no instructions", blend)
    if kind.reads == "pairs" and not kind.hard_negatives:
        if negatives:
            raise InvalidValueError("negatives", f"none for {objective}, which has no use for them", negatives)
        negatives = 0
    if blend and (tasks or scores):
        raise InvalidValueError("blend", "False where tasks are told apart or have scores", blend)
    name, found = read(source, kind.reads, mixed or tasks, tasks)
    if kind.reads == "chunks":
        parts = [_part(name, Dataset.from_dict({"chunk": list(_chunks(found, tokenizer, max_length, source))}))]
    elif kind.reads == "texts":
        parts = [_part(name, Dataset.from_dict({"text": found}))]
    else:
        left = {*([] if tasks else [TASK]), *([] if scores else [SCORES])}
        found = {name: pairs.remove_columns(sorted(left & {*pairs.column_names})) for name, pairs in found.items()}
        narrowed = _narrowed(found, negatives)
        parts = [part for name, pairs in narrowed.items() for part in _by_instructions(name, pairs)]
        if scores:
            _tell_unscored(parts, source)
    alone = kind.reads == "chunks" or blend  # a single row is enough
    parts = _large_enough(_limited(parts, limit), 1 if alone else 2, source, limit)
    if blend:
        parts = [_blended(parts, instructions, source)]
    prompts = {part.name: part.prompts if instructions else {} for part in parts}
    content = hashlib.sha256()
    for name, dataset, digests, _, task in parts:
        known = [name, dataset.column_names, prompts[name], len(dataset), *([task] if tasks else [])]
        content.update(json.dumps(known).encode())
        content.update(digests.tobytes())
    told = {part.name: part.task for part in parts} if tasks else {}
    return TrainingData({part.name: part.dataset for part in parts}, prompts, content.hexdigest(), told)


def _chunks(texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int, source: str | os.PathLike) -> np.ndarray:
    """:func:`~workbook.corpora.public.chunks`, kept in the cache: tokenizing all of wikitext-103 takes minutes."""
    content = hashlib.sha256(json.dumps([length, tokenizer.backend_tokenizer.to_str(), texts]).encode()).hexdigest()
    kept = cache_path("chunks", content[:24])

    def write(folder: Path) -> None:
        made = chunks(texts, tokenizer, length, f"training data {source}")
        save_file({"chunks": made}, folder / "chunks.safetensors")
        write_checksums(folder)

    make_once(kept, write)
    verify_checksums(kept, f"Delete {kept}; it is made again.")
    return load_file(kept / "chunks.safetensors")["chunks"]


class _Part(NamedTuple):
    """One data set, in the order of the sha256 of its rows: bytes (rows,)."""

    name: str
    dataset: Dataset
    digests: np.ndarray
    prompts: dict[str, str]
    task: str = RETRIEVAL


def _narrowed(found: dict[str, Dataset], negatives: int | None) -> dict[str, Dataset]:
    """The pairs with their first hard negatives only."""
    hard = {name: [one for one in found[name].column_names if one.startswith("negative")] for name in found}
    most = max(map(len, hard.values()))
    if negatives is None:
        return found
    if negatives > most:
        warnings.warn(
            f"{', '.join(found)}: {negatives} hard negatives are asked for, rows have {most}: trained with {most}.",
            stacklevel=3,
        )
    return {name: _cut(pairs.remove_columns(hard[name][negatives:]), 1 + negatives) for name, pairs in found.items()}


def _cut(pairs: Dataset, documents: int) -> Dataset:
    """The pairs with the scores of their first documents only."""
    if SCORES not in pairs.column_names:
        return pairs
    table, place = pairs.with_format("arrow")[:], pairs.column_names.index(SCORES)
    return Dataset(table.set_column(place, SCORES, pc.list_slice(table.column(SCORES), 0, documents)))


def _by_instructions(name: str, pairs: Dataset) -> Iterator[_Part]:
    """The rows of each pair of instructions, and of each task if it is known, numbered in the order of their first
    rows; the text stays on disk."""
    keys = [*INSTRUCTIONS, *([TASK] if TASK in pairs.column_names else [])]
    said, texts = pairs.select_columns(keys).to_pandas(), pairs.remove_columns(keys)
    groups = said.groupby(keys, sort=False).ngroup().to_numpy()
    for group in range(groups.max() + 1):
        rows = np.flatnonzero(groups == group)
        query, document, *known = said.iloc[rows[0]]
        task = (known[0] if known else "") or RETRIEVAL
        own = name if groups.max() == 0 else f"{name}/{group + 1}"
        taken = _scored_or_not(own, texts.select(rows), task, rows)
        by_column = {column: query if column == "query" else document for column in taken.column_names}
        prompts = {column: told for column, told in by_column.items() if told and column != SCORES}
        yield _part(own, taken, prompts, rows)._replace(task=task)


def _scored_or_not(name: str, dataset: Dataset, task: str, rows: np.ndarray) -> Dataset:
    """The data set with the scores of its rows if all have them; without, if none has, or if it is not retrieval."""
    if SCORES not in dataset.column_names:
        return dataset
    found = dataset.select_columns(SCORES).with_format("arrow")[:].column(SCORES)
    absent = np.flatnonzero(found.is_null().to_numpy()) if task == RETRIEVAL else rows
    if 0 < len(absent) < len(rows):
        raise InvalidValueError(
            f"training data {name}", "a teacher's scores in every row, or in none",
            f"none in {len(absent)} of {len(rows)} rows, the first of them row {rows[absent[0]] + 1}",
            "Score them, leave them out, or name a reranker or an encoder as the teacher.",
        )  # fmt: skip
    return dataset.remove_columns(SCORES) if len(absent) else dataset


def _tell_unscored(parts: list[_Part], source: str | os.PathLike) -> None:
    """Refuse retrieval without any scores, and name the data sets that have none beside others that do."""
    retrieval = [part for part in parts if part.task == RETRIEVAL]
    bare = [part.name for part in retrieval if SCORES not in part.dataset.column_names]
    if len(bare) == len(retrieval):
        raise InvalidValueError(
            f"training data {source}", "rows of retrieval with a teacher's scores (pos_scores and neg_scores)", "none",
            "Give such rows, or a reranker or an encoder as the teacher.",
        )  # fmt: skip
    if bare:
        warnings.warn(f"{', '.join(bare)}: no scores of a teacher in the rows: trained without.", stacklevel=3)


def _part(name: str, dataset: Dataset, prompts: dict[str, str] | None = None, rows: np.ndarray | None = None) -> _Part:
    """A data set without useless rows, which a warning counts and names by their places in the file."""
    rows = np.arange(len(dataset)) if rows is None else rows
    digests, own, false = [], [], []
    first_column = dataset.column_names[0]
    width = len(dataset.column_names) - (SCORES in dataset.column_names)
    for batch in dataset.iter(1000):
        for values in zip(*batch.values(), strict=True):
            texts = values[:width]
            for text in texts if first_column != "chunk" else ():
                check_text(f"{name}, row {rows[len(digests)] + 1}", text)
            if first_column == "query":
                query, positive, *negatives = (text.strip() for text in texts)
                if query == positive:
                    own.append(len(digests))
                elif positive in negatives:
                    false.append(len(digests))
            digests.append(hashlib.sha256(json.dumps(values).encode()).digest())
    ordered, first = np.unique(np.array(digests, dtype="S32"), return_index=True)
    again = np.setdiff1d(np.arange(len(digests)), first)
    reasons = {"repeat another": again, "have their query as positive": own, "have their positive as negative": false}
    if first_column == "chunk":
        reasons = {}  # where running text happens to be cut is nobody's mistake, and the chunks are in no file
    for reason, places in reasons.items():
        if len(places):
            named = ", ".join(map(str, rows[places][:_SHOWN] + 1)) + (", ..." if len(places) > _SHOWN else "")
            warnings.warn(f"{name}: {len(places)} of {len(dataset)} rows {reason}: left out ({named}).", stacklevel=3)
    kept = ~np.isin(first, own + false)
    return _Part(name, dataset.select(first[kept]), ordered[kept], prompts or {})


def _limited(parts: list[_Part], limit: int | None) -> list[_Part]:
    """The first rows of all data sets together."""
    owners = np.repeat(np.arange(len(parts)), [len(part.digests) for part in parts])
    order = np.argsort(np.concatenate([part.digests for part in parts]), kind="stable")[:limit]
    counts = np.bincount(owners[order], minlength=len(parts))
    return [
        part._replace(dataset=part.dataset.select(range(count)), digests=part.digests[:count])
        for part, count in zip(parts, counts, strict=True)
    ]


def _blended(parts: list[_Part], instructions: bool, source: str | os.PathLike) -> _Part:
    """All rows as one data set, each value with its own instruction."""
    widths = {part.name: part.dataset.num_columns for part in parts}
    width = max(widths.values())
    if bare := [name for name, own in widths.items() if own == 2 < width]:
        raise InvalidValueError(
            f"training data {source}", "hard negatives in all data sets of a blend, or in none", f"none in {bare[0]}",
            "Mine them (workbook.data.curation.mine).",
        )  # fmt: skip
    names = ["query", "positive", *(f"negative_{number}" for number in range(1, width - 1))]
    tables, digests = [], []
    for part in parts:
        own, rows = part.dataset.column_names, part.dataset.with_format("arrow")[:]
        taken = [own[place] if place < len(own) else own[2 + (place - 2) % (len(own) - 2)] for place in range(width)]
        prompts = [part.prompts.get(name, "") if instructions else "" for name in taken]
        said = [pa.repeat(prompt, len(rows)) for prompt in prompts]
        texts = [rows.column(name).cast(pa.string()).combine_chunks() for name in taken]
        values = [pa.StructArray.from_arrays(pair, ["instruction", "text"]) for pair in zip(said, texts, strict=True)]
        tables.append(pa.table(values, names))
        with_prompts = hashlib.sha256(json.dumps(prompts).encode()).digest()
        digests += [hashlib.sha256(with_prompts + bytes(digest)).digest() for digest in part.digests]
    digests = np.array(digests, dtype="S32")
    order = np.argsort(digests, kind="stable")
    return _Part("blend", Dataset(pa.concat_tables(tables)).select(order), digests[order], {})


def _large_enough(parts: list[_Part], least: int, source: str | os.PathLike, limit: int | None) -> list[_Part]:
    """The data sets that are large enough for a batch."""
    large = [part for part in parts if len(part.dataset) >= least]
    if not large:
        raise InvalidValueError(
            f"training data {source}" + (f" with limit {limit}" if limit else ""),
            "at least two usable rows with the same instructions, since a row needs another to be told from",
            ", ".join(f"{part.name}: {len(part.dataset)}" for part in parts),
            "Give more rows" + (", or a higher limit." if limit else "."),
        )
    for part in parts:
        if len(part.dataset) < least and limit is None:
            warnings.warn(
                f"{part.name}: expected at least two usable rows with the same instructions, got "
                f"{len(part.dataset)}: left out. Instructions: {part.prompts or 'none'}.",
                stacklevel=3,
            )
    return large
