"""The sources of the packages that the workbook pins, and the file in which a corpus made of them is kept.

The same pinned versions give the same bytes, whatever the Python version, the platform, the optional extras or the
order of the file system.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import hashlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from os import environ
from pathlib import Path

import pandas as pd

from ..errors import DamagedFileError, MissingDataError
from ..files import ROOT, atomic_file, cache_path, locked

logger = logging.getLogger(__name__)

# fmt: off
DISTRIBUTIONS = (
    "numpy", "scipy", "pandas", "scikit-learn", "matplotlib", "seaborn", "networkx", "sympy", "mpmath", "torch",
    "transformers", "sentence-transformers", "datasets", "peft", "accelerate", "huggingface_hub", "mteb",
    "polars", "narwhals", "pydantic", "click", "typer", "rich", "requests", "urllib3", "fsspec", "joblib",
    "pillow", "Jinja2", "tqdm", "traitlets", "ipython", "jedi", "parso", "prompt_toolkit", "Pygments", "tornado",
    "anyio", "nbformat", "nbconvert", "nbclient", "jupyter_client", "jupyter_core", "papermill", "ipywidgets",
    "platformdirs", "fonttools", "pyparsing", "beautifulsoup4", "soupsieve", "bleach", "pyarrow", "gguf",
    "jsonschema", "referencing", "attrs", "cloudpickle", "dill", "multiprocess", "packaging", "python-dateutil",
    "filelock", "tenacity", "pexpect", "markdown-it-py", "mistune", "tinycss2", "stack-data", "executing",
)
# fmt: on
"""Distributions that every install has (the base dependencies and what they need), in reading order."""

_SKIPPED_FOLDERS = re.compile(r"(^|/)(\.\.|tests?|testing|_?vendor\w*|_?vendored_\w+|_?externals?|extern|third_party)/")
_SKIPPED_FILES = re.compile(
    r"(^|/)(conftest|version|_version|__config__|_distributor_init\w*|test_\w+|testing_\w+)\.py$"
)
_GENERATED = re.compile(rb"automatically generated|auto-?generated|DO NOT EDIT|do not edit|@generated", re.IGNORECASE)


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Version of each distribution, without local suffixes: torch 2.13.0+cpu has the text of torch 2.13.0.

    The versions are those of the first call in this process, like the modules that it has imported.

    Raises:
        MissingDataError: A distribution is not installed.
    """
    versions, missing = {}, []
    for name in distributions:
        try:
            versions[name] = _version(name).partition("+")[0]
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise MissingDataError(
            f"The corpora docs and roles are made of the sources of {len(versions) + len(missing)} packages; not "
            f"installed: {', '.join(missing)}. Another set of packages would be another corpus. Install the pinned set "
            "(`pip install -e . -c constraints.txt`), or carry docs.jsonl and roles.jsonl from a machine that has it "
            "to the folder that WORKBOOK_DATA names."
        )
    return versions


def sources(package: str) -> Iterator[tuple[str, bytes]]:
    """A distribution's own sources in the order of their paths, without tests, vendored copies and generated files.

    Args:
        package: Name of an installed distribution.

    Yields:
        The path below the folder of installed packages, with forward slashes, and the bytes of the file.

    Raises:
        MissingDataError: The distribution was installed without a list of its files.
    """
    installed = distribution(package)
    files = installed.files
    if files is None:
        raise MissingDataError(
            f"{package} is installed without a list of its files (RECORD), so its sources can't be read the same "
            f"way everywhere. Reinstall it with pip: `pip install --force-reinstall --no-deps {package}`."
        )
    folder = Path(installed.locate_file(""))
    for path in sorted(file.as_posix() for file in files if file.suffix == ".py"):
        if _SKIPPED_FOLDERS.search(path) or _SKIPPED_FILES.search(path):
            continue
        source = (folder / path).read_bytes()
        if not _GENERATED.search(source[:1500]):
            yield path, source


def module_name(path: str) -> str:
    """The dotted name of the module at a path from :func:`sources`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def syntax_tree(source: bytes) -> ast.Module | None:
    """The tree of a Python source, or None if Python 3.11 can't parse it, whichever Python runs this."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            return ast.parse(source, feature_version=(3, 11))
        except (SyntaxError, ValueError):
            return None


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off in the block: with it, parsing millions of syntax nodes takes twice as long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_table(
    corpus: str, path: str | Path | None, *, build: Callable[[Iterable[str]], pd.DataFrame], rules: int, pinned: str
) -> tuple[pd.DataFrame, str, dict[str, str]]:
    """Table, fingerprint and versions of a corpus: from a file, else from the cache, else built and put there.

    A corpus is one file and can be copied between machines: ``path``, or ``<corpus>.jsonl`` in the folder named by
    ``WORKBOOK_DATA``, is read as it is, whatever is installed here. A damaged file in the cache is built again.

    Args:
        corpus: Name of the corpus.
        path: A corpus file made on any machine, or None.
        build: Function of names of installed distributions that returns the table.
        rules: Number of the rules that ``build`` follows.
        pinned: Fingerprint of the versions in constraints.txt; with another there is a warning.

    Raises:
        MissingDataError: The file is absent, or a package that the corpus is made of is not installed.
        DamagedFileError: A file from elsewhere does not match its own checksum.
        OutputError: The cache can't be written.
    """
    carried = Path(environ["WORKBOOK_DATA"], f"{corpus}.jsonl") if environ.get("WORKBOOK_DATA") else None
    if path is None and carried and carried.is_file():
        path = carried
    found = _cached(corpus, build, rules) if path is None else read_table(Path(path), corpus)
    _, fingerprint, versions = found
    if fingerprint != pinned:
        warnings.warn(_difference(corpus, versions), stacklevel=3)  # at who called load_docs or load_roles
    return found


def table_path(corpus: str, rules: int) -> Path:
    """Path of a corpus of the installed versions in the cache.

    Args:
        corpus: Name of the corpus.
        rules: Number of the rules that it is built by.

    Raises:
        MissingDataError: A package that the corpus is made of is not installed.
    """
    key = json.dumps([rules, installed_versions(DISTRIBUTIONS)]).encode()
    return cache_path(corpus, f"{corpus}-{hashlib.sha256(key).hexdigest()[:12]}.jsonl")


def _cached(
    corpus: str, build: Callable[[Iterable[str]], pd.DataFrame], rules: int
) -> tuple[pd.DataFrame, str, dict[str, str]]:
    path = table_path(corpus, rules)
    found = _kept(path, corpus)
    logger.info("corpus %s: %s", corpus, "from the cache" if found else "not in the cache, is built")
    if found is None:
        # A cache that can't be written says so before the work, not after it.
        with locked(path.name):
            found = _kept(path, corpus)  # another process may have built it meanwhile
            if found is None:
                with atomic_file(path) as temporary:
                    write_table(temporary, corpus, build(DISTRIBUTIONS), installed_versions(DISTRIBUTIONS))
                found = read_table(path, corpus)
    return found


def _kept(path: Path, corpus: str) -> tuple[pd.DataFrame, str, dict[str, str]] | None:
    try:
        return read_table(path, corpus)
    except (MissingDataError, DamagedFileError):
        return None  # it is built anew: the packages are here


@cache  # the metadata of sixty distributions take a tenth of a second to read
def _version(name: str) -> str:
    return distribution(name).version


def _difference(corpus: str, versions: dict[str, str]) -> str:
    """Why a corpus is not the pinned one, for a reader who sees other numbers."""
    pinned = {}
    if (ROOT / "constraints.txt").is_file():
        lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    other = [
        f"{name} {version} instead of {pinned[name]}"
        for name, version in versions.items()
        if pinned.get(name, version) != version
    ]
    return (
        f"This {corpus} corpus is not the one of the pinned packages "
        f"({', '.join(other) or 'same versions, other files'}): numbers will differ from recorded ones. "
        "`pip install -e . -c constraints.txt` gives the pinned one, under Python 3.11."
    )


def write_table(path: Path, corpus: str, table: pd.DataFrame, versions: dict[str, str]) -> None:
    """Write one JSON line that describes the file, then one per row; the fingerprint is the sha256 of the latter.

    Args:
        path: The file to write.
        corpus: Name of the corpus.
        table: Values that JSON has: strings, numbers, lists of them.
        versions: Version of every distribution that was read.
    """
    rows = table.itertuples(index=False, name=None)
    body = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows).encode()
    header = {
        "corpus": corpus,
        "columns": list(table.columns),
        "rows": len(table),
        "fingerprint": hashlib.sha256(body).hexdigest(),
        "versions": versions,
    }
    path.write_bytes(json.dumps(header).encode() + b"\n" + body)


def read_table(path: Path, corpus: str) -> tuple[pd.DataFrame, str, dict[str, str]]:
    """Table, fingerprint and versions of a file from :func:`write_table`.

    Args:
        path: The file.
        corpus: Name of the corpus that it should hold.

    Raises:
        MissingDataError: No such file.
        DamagedFileError: The content does not match the fingerprint, or it is another corpus.
    """
    if not path.is_file():
        raise MissingDataError(
            f"Expected a {corpus} corpus file at {path}, found nothing. Copy it there from {cache_path(corpus)}."
        )
    first, _, body = path.read_bytes().partition(b"\n")
    try:
        header = json.loads(first)
        columns, fingerprint, versions = header["columns"], header["fingerprint"], header["versions"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(_damaged(path, "a first line that names columns, fingerprint and versions")) from error
    if header.get("corpus") != corpus:
        raise DamagedFileError(
            f"{path}: expected the corpus {corpus}, got {header.get('corpus')!r}. Copy the file of {corpus} there."
        )
    if hashlib.sha256(body).hexdigest() != fingerprint:
        raise DamagedFileError(_damaged(path, f"content with sha256 {fingerprint[:12]}"))
    return _parsed(body, tuple(columns)).copy(), fingerprint, versions


@lru_cache(maxsize=2)  # there are two corpora, and every task asks for its own again
def _parsed(body: bytes, columns: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame([json.loads(line) for line in body.splitlines()], columns=columns)


def _damaged(path: Path, expected: str) -> str:
    return f"{path}: expected {expected}, got something else: the file was cut or changed. Delete it or copy it again."
