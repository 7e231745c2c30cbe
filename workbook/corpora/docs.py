"""The ``docs`` corpus: docstrings of the packages that the workbook pins, as (query, document) pairs.

Real text on every machine, with nothing to download and nothing redistributed. The same pinned versions give the same
bytes whatever the Python version, the platform, the optional extras or the order of the file system.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from os import environ
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import CountVectorizer
from tqdm.auto import tqdm

from ..errors import DamagedFileError, UnknownNameError
from ..files import atomic_file, cache_path
from .docstrings import pairs_of
from .sources import (
    DISTRIBUTIONS,
    difference,
    installed_versions,
    no_garbage_collection,
    read_table,
    sources,
    write_table,
)

SPLITS = {"train": 80, "dev": 5, "test": 15}
"""Shares of the splits in per cent; a pair's side follows from its content alone."""

FINGERPRINT = "f534e107c10fbb3967f1b6d293f3c9f8fa1f2c418953209a2c37de5e94eeb484"
"""Fingerprint of the corpus that the versions in constraints.txt give."""

_RULES = 2  # raise it whenever the rules change, so that no older file is taken for the new corpus
_NEAR = 0.5  # two texts that share half of their word triples say the same
_COLUMNS = ["id", "query", "document", "package", "module", "name", "split"]


@dataclass(frozen=True)
class Docs:
    """The corpus.

    Attributes:
        pairs: One row a pair: id, query (summary line), document (description), package, module, name, split.
        fingerprint: sha256 over the content of the pairs; it names the corpus in recorded runs.
        versions: Version of every distribution read, without local suffixes such as ``+cpu``.
    """

    pairs: pd.DataFrame
    fingerprint: str
    versions: dict[str, str]

    def split(self, name: str) -> pd.DataFrame:
        """The pairs of one split, ``train``, ``dev`` or ``test``, numbered from 0.

        Raises:
            UnknownNameError: No such split.
        """
        if name not in SPLITS:
            raise UnknownNameError("split", name, SPLITS)
        return self.pairs[self.pairs.split == name].reset_index(drop=True)


def load_docs(path: str | Path | None = None) -> Docs:
    """The docs corpus: from a file, else from the cache, else built from the installed packages (about 25 s, once).

    A corpus is one file, and it can be carried: ``path``, or ``docs.jsonl`` in the folder that ``WORKBOOK_DATA`` names,
    is read as it stands, whatever is installed here. A file in the cache that was damaged is built anew.

    Args:
        path: A corpus file made on any machine (:func:`docs_path` says where the cache keeps it).

    Raises:
        MissingDataError: The file is absent, or a package that the corpus is made of is not installed.
        DamagedFileError: A file that was carried here does not match its own checksum.
        OutputError: The cache can't be written.
    """
    carried = Path(environ["WORKBOOK_DATA"], "docs.jsonl") if environ.get("WORKBOOK_DATA") else None
    if path is None and carried and carried.is_file():
        path = carried
    docs = _cached() if path is None else Docs(*read_table(Path(path), "docs"))
    if docs.fingerprint != FINGERPRINT:
        warnings.warn(difference("docs", docs.versions), stacklevel=2)
    return docs


def docs_path() -> Path:
    """Where the cache keeps the corpus of the installed versions.

    Raises:
        MissingDataError: A package that the corpus is made of is not installed.
    """
    key = json.dumps([_RULES, installed_versions()]).encode()
    return cache_path("docs", f"docs-{hashlib.sha256(key).hexdigest()[:12]}.jsonl")


def _cached() -> Docs:
    path = docs_path()
    if path.is_file():
        try:
            return Docs(*read_table(path, "docs"))
        except DamagedFileError:
            pass  # built anew below: the packages are here
    with atomic_file(path) as temporary:  # a cache that can't be written says so before the work, not after it
        write_table(temporary, "docs", build(DISTRIBUTIONS), installed_versions())
    return Docs(*read_table(path, "docs"))


def build(distributions: Iterable[str]) -> pd.DataFrame:
    """Pairs of the installed distributions, without repeated or nearly repeated ones, in the order they were read.

    Args:
        distributions: Names of installed distributions.

    Returns:
        Columns id, query, document, package, module, name, split.
    """
    rows = []
    with no_garbage_collection():
        for package in tqdm(list(distributions), desc="docs corpus", leave=False, disable=None):
            for path, source in sources(package):
                module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                rows += [(pair.query, pair.document, package, module, pair.name) for pair in pairs_of(source)]
    pairs = pd.DataFrame(rows, columns=["query", "document", "package", "module", "name"])
    pairs = _distinct(pairs)
    digests = [
        hashlib.sha256(f"{q}\n{d}".encode()).hexdigest() for q, d in zip(pairs["query"], pairs.document, strict=True)
    ]
    pairs["id"] = [digest[:12] for digest in digests]
    pairs["split"] = [_side(digest) for digest in digests]
    return pairs[_COLUMNS]


def _distinct(pairs: pd.DataFrame) -> pd.DataFrame:
    """Pairs in their order, each kept only if no kept one before it says the same.

    The same means: equal query or document but for case, or a Jaccard similarity of the sets of word triples of at
    least 0.5 (w-shingling; Broder 1997). The similarity is exact, by a sparse product, so nothing is left to chance
    and no near duplicate can stand on the other side of a split.
    """
    for column in ("query", "document"):
        pairs = pairs[~pairs[column].str.casefold().duplicated()]
    pairs = pairs.reset_index(drop=True)
    count = CountVectorizer(ngram_range=(3, 3), binary=True, token_pattern=r"\w+", dtype=np.int32)
    shingles = count.fit_transform(pairs["query"] + " " + pairs["document"])
    shared = (shingles @ shingles.T).tocoo()
    sizes = np.diff(shingles.indptr)
    near = shared.data >= _NEAR * (sizes[shared.row] + sizes[shared.col] - shared.data)
    near &= shared.row < shared.col
    earlier: dict[int, list[int]] = {}
    for row, column in zip(shared.row[near].tolist(), shared.col[near].tolist(), strict=True):
        earlier.setdefault(column, []).append(row)
    kept = np.ones(len(pairs), dtype=bool)
    for row in sorted(earlier):
        kept[row] = not kept[earlier[row]].any()
    return pairs[kept].reset_index(drop=True)


def _side(digest: str) -> str:
    place = int(digest, 16) % 100
    for name, share in SPLITS.items():
        place -= share
        if place < 0:
            return name
    raise AssertionError("SPLITS add up to 100")
