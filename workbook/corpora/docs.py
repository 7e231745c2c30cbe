"""The ``docs`` corpus: docstrings of the packages that the workbook pins, as (query, document) pairs.

Real text on every machine, without download or redistribution. The same pinned versions give the same bytes, whatever
the Python version, the platform, the optional extras or the order of the file system.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from tqdm import tqdm

from ..errors import UnknownNameError
from .docstrings import pairs_of
from .near import near_duplicates
from .packages import load_table, module_name, no_garbage_collection, sources, table_path

SPLITS = {"train": 80, "dev": 5, "test": 15}
"""Shares of the splits in per cent; a pair's split depends on its content alone."""

FINGERPRINT = "f534e107c10fbb3967f1b6d293f3c9f8fa1f2c418953209a2c37de5e94eeb484"
"""Fingerprint of the corpus from the versions in constraints.txt."""

_RULES = 2  # raise it whenever the rules change, so that no older file passes for the new corpus
_CLUSTER = 150  # fewest pairs of a package that is a cluster
_COLUMNS = ["id", "query", "document", "package", "module", "name", "split"]


@dataclass(frozen=True)
class Docs:
    """The corpus.

    Attributes:
        pairs: One row per pair: id, query (summary line), document (description), package, module, name, split.
        fingerprint: sha256 over the content of the pairs; it identifies the corpus in recorded runs.
        versions: Version of every distribution that was read, without local suffixes such as ``+cpu``.
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

    def packages(self, split: str, each: int) -> pd.DataFrame:
        """Pairs of one split from large packages, which serve as clusters: those with at least 150 pairs in ``train``.

        Args:
            split: ``train``, ``dev`` or ``test``.
            each: Largest number of pairs per package, chosen by their ids and so at random.

        Raises:
            UnknownNameError: No such split.
        """
        sizes = self.split("train")["package"].value_counts()
        pairs = self.split(split).sort_values("id")
        pairs = pairs[pairs["package"].isin(sizes.index[sizes >= _CLUSTER])]
        return pairs.groupby("package").head(each).reset_index(drop=True)


def load_docs(path: str | Path | None = None) -> Docs:
    """The docs corpus: from a file, else from the cache, else built from the installed packages (half a minute, once).

    A corpus is one file and can be copied between machines: ``path``, or ``docs.jsonl`` in the folder named by
    ``WORKBOOK_DATA``, is read as it is, whatever is installed here. A damaged file in the cache is built again.

    Args:
        path: A corpus file made on any machine (:func:`docs_path` says where the cache keeps it).

    Raises:
        MissingDataError: The file is absent, or a package that the corpus is made of is not installed.
        DamagedFileError: A file from elsewhere does not match its own checksum.
        OutputError: The cache can't be written.
    """
    return Docs(*load_table("docs", path, build=build, rules=_RULES, pinned=FINGERPRINT))


def docs_path() -> Path:
    """Path of the corpus of the installed versions in the cache.

    Raises:
        MissingDataError: A package that the corpus is made of is not installed.
    """
    return table_path("docs", _RULES)


def build(distributions: Iterable[str]) -> pd.DataFrame:
    """Pairs of the installed distributions, without repeated or nearly repeated ones, in reading order.

    Args:
        distributions: Names of installed distributions.

    Returns:
        Columns id, query, document, package, module, name, split.

    Raises:
        MissingDataError: A distribution was installed without a list of its files.
    """
    distributions = list(distributions)
    files = (
        delayed(_rows)(package, path, source)
        for package in tqdm(distributions, desc="docs corpus", leave=False, disable=None)
        for path, source in sources(package)
    )
    found = Parallel(n_jobs=min(2, len(distributions)), return_as="generator", batch_size=32)(files)
    rows = chain.from_iterable(found)
    pairs = pd.DataFrame(rows, columns=["query", "document", "package", "module", "name"])
    pairs = _distinct(pairs)
    digests = [
        hashlib.sha256(f"{q}\n{d}".encode()).hexdigest() for q, d in zip(pairs["query"], pairs.document, strict=True)
    ]
    pairs["id"] = [digest[:12] for digest in digests]
    pairs["split"] = [_side(digest) for digest in digests]
    return pairs[_COLUMNS]


def _rows(package: str, path: str, source: bytes) -> list[tuple[str, ...]]:
    with no_garbage_collection():
        return [(pair.query, pair.document, package, module_name(path), pair.name) for pair in pairs_of(source)]


def _distinct(pairs: pd.DataFrame) -> pd.DataFrame:
    """Pairs in their order, each kept only if no kept one before it says the same.

    Two pairs say the same if query or document are equal but for case, or if they are near duplicates. These are found
    exactly, so that none can be in another split.
    """
    for column in ("query", "document"):
        pairs = pairs[~pairs[column].str.casefold().duplicated()]
    pairs = pairs.reset_index(drop=True)
    places = near_duplicates(list(pairs["query"] + " " + pairs["document"]))
    earlier: dict[int, list[int]] = {}
    for row, column in zip(*(place.tolist() for place in places), strict=True):
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
