"""The ``roles`` corpus: the roles of names in a line of source code, for probing words offline.

A snippet is one line of the packages that the workbook pins, as a row of words. Each name in it has a role from the
syntax tree of the whole file: function, parameter, module and so on. As in tagging parts of speech, a model has to read
a word by its context on both sides, and the labels cost nothing.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from tqdm import tqdm

from ..errors import UnknownNameError
from .packages import load_table, module_name, no_garbage_collection, sources, syntax_tree

ROLES = (
    *("function", "method", "class", "parameter", "keyword", "attribute"),
    *("module", "imported", "local", "global", "builtin"),
)
"""The tags: ``keyword`` is the name of an argument in a call, ``imported`` a name taken from a module."""

NO_ROLE = ""
"""The tag of words that are not names, and of ``self`` and ``cls``: they are context and not scored."""

SIZES = {"train": 2000, "test": 500}
"""Number of snippets of each split; a file is in one split only."""

FINGERPRINT = "9b6e97dca312a479997da9ef229e9de4aec4bd92f2e6ab6389aefccda326c970"
"""Fingerprint of the corpus from the versions in constraints.txt."""

_RULES = 1  # raise it whenever the rules change, so that no older file passes for the new corpus
_COLUMNS = ["words", "tags", "package", "module", "line", "split"]
_WORD = re.compile(r"\w+|[^\w\s]")
_QUOTES = re.compile(r"[\"'#\\]")  # strings and comments are prose, and Python versions differ in where f-strings lie
_LENGTHS = (6, 40)  # words of a snippet
_NAMES = 3  # a snippet has at least as many names with a role
_FILES = 24  # of a package, so that no large one fills the corpus
_SNIPPETS = 4  # of a file


class Snippet(NamedTuple):
    """One line of source: its number in the file, its words, and the role of each, or ``NO_ROLE``."""

    line: int
    words: list[str]
    tags: list[str]


@dataclass(frozen=True)
class Roles:
    """The corpus.

    Attributes:
        snippets: One row per snippet: words and tags (lists of strings, equally long), package, module, line (number
            in the file), split (train or test).
        fingerprint: sha256 over the content of the snippets; it identifies the corpus in recorded runs.
        versions: Version of every distribution that was read.
    """

    snippets: pd.DataFrame
    fingerprint: str
    versions: dict[str, str]

    def split(self, name: str) -> pd.DataFrame:
        """The snippets of one split, ``train`` or ``test``, numbered from 0.

        Raises:
            UnknownNameError: No such split.
        """
        if name not in SIZES:
            raise UnknownNameError("split", name, SIZES)
        return self.snippets[self.snippets.split == name].reset_index(drop=True)


def load_roles(path: str | Path | None = None) -> Roles:
    """The roles corpus: from a file, else from the cache, else built from the installed packages (seconds, once).

    Args:
        path: A corpus file made on any machine; None for ``roles.jsonl`` in the folder named by ``WORKBOOK_DATA``, if
            it is there.

    Raises:
        MissingDataError: The file is absent, or a package that the corpus is made of is not installed.
        DamagedFileError: A file from elsewhere does not match its own checksum.
        OutputError: The cache can't be written.
    """
    return Roles(*load_table("roles", path, build=build, rules=_RULES, pinned=FINGERPRINT))


def build(distributions: Iterable[str]) -> pd.DataFrame:
    """Snippets of the installed distributions, chosen and ordered by hash, no two with the same words.

    Args:
        distributions: Names of installed distributions.

    Returns:
        At most ``SIZES`` rows per split; columns words, tags, package, module, line, split.

    Raises:
        MissingDataError: A distribution was installed without a list of its files.
    """
    rows = []
    with no_garbage_collection():
        for package in tqdm(list(distributions), desc="roles corpus", leave=False, disable=None):
            for path, source in sorted(sources(package), key=lambda file: _digest(file[0]))[:_FILES]:
                module = module_name(path)
                split = "test" if int(_digest(path, "split"), 16) % 5 == 0 else "train"
                found = sorted(snippets_of(source), key=lambda snippet: _digest(path, *snippet.words))
                rows += [(list(s.words), list(s.tags), package, module, s.line, split) for s in found[:_SNIPPETS]]
    table = pd.DataFrame(rows, columns=_COLUMNS)
    table["order"] = [_digest(*words) for words in table.words]
    table = table.drop_duplicates("order").sort_values("order")
    parts = [table[table.split == split].head(size) for split, size in SIZES.items()]
    return pd.concat(parts, ignore_index=True)[_COLUMNS]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def snippets_of(source: bytes) -> Iterator[Snippet]:
    """The lines of one Python source that hold a whole statement, or the head of a function or class.

    Imports, lines with strings, comments or letters beyond ASCII, and lines with few names are left out. A source that
    Python 3.11 can't parse has no snippets, whichever Python runs this.

    Args:
        source: The bytes of a .py file.
    """
    tree = syntax_tree(source)
    if tree is None:
        return
    lines = source.decode("utf-8-sig", errors="replace").split("\n")  # what is replaced is beyond ASCII
    names = _Names()
    names.visit(tree)
    for number in sorted(names.whole):
        text = lines[number - 1].rstrip("\r") if number <= len(lines) else ""
        if not text.isascii() or _QUOTES.search(text):
            continue
        found = list(_WORD.finditer(text))
        words = [match.group() for match in found]
        tags = [names.roles.get((number, match.start(), match.group()), NO_ROLE) for match in found]
        if _LENGTHS[0] <= len(words) <= _LENGTHS[1] and sum(tag != NO_ROLE for tag in tags) >= _NAMES:
            yield Snippet(number, words, tags)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)


class _Names(ast.NodeVisitor):
    """Walks a file, and keeps the role of each name by its place and the lines that a statement fills.

    Attributes:
        roles: Role by line (from 1), column (in bytes, from 0) and name.
        whole: Numbers of lines that hold a statement, or the head of a definition.
    """

    def __init__(self):
        self.roles: dict[tuple[int, int, str], str] = {}
        self.whole: set[int] = set()
        self._scopes: list[tuple[ast.AST, dict[str, str]]] = []

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.Import, ast.ImportFrom)):
            definition = isinstance(node, (*_FUNCTIONS, ast.ClassDef))
            end = node.body[0].lineno - 1 if definition else node.end_lineno
            if end == node.lineno:
                self.whole.add(node.lineno)
        self._name(node)
        if not isinstance(node, (ast.Module, *_SCOPES)):
            self.generic_visit(node)
            return
        inside = _inside(node)
        for child in ast.iter_child_nodes(node):
            if child not in inside:
                self.visit(child)
        self._scopes.append((node, _bindings(node)))
        for child in inside:
            self.visit(child)
        self._scopes.pop()

    def _name(self, node: ast.AST) -> None:
        match node:
            case ast.Name():
                self._keep(node.lineno, node.col_offset, node.id, self._lookup(node.id))
            case ast.Call(func=ast.Attribute() as called):
                self._keep(called.end_lineno, called.end_col_offset - len(called.attr), called.attr, "method")
            case ast.Attribute():
                self._keep(node.end_lineno, node.end_col_offset - len(node.attr), node.attr, "attribute")
            case ast.arg():
                self._keep(node.lineno, node.col_offset, node.arg, "parameter")
            case ast.keyword(arg=str()):
                self._keep(node.lineno, node.col_offset, node.arg, "keyword")
            case ast.ClassDef():
                self._keep(node.lineno, node.col_offset + len("class "), node.name, "class")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                role = "method" if isinstance(self._scopes[-1][0], ast.ClassDef) else "function"
                start = len("def " if isinstance(node, ast.FunctionDef) else "async def ")
                self._keep(node.lineno, node.col_offset + start, node.name, role)

    def _keep(self, line: int, column: int, name: str, role: str) -> None:
        if name not in ("self", "cls", "_"):
            self.roles.setdefault((line, column, name), role)  # a called attribute is met as a call first

    def _lookup(self, name: str) -> str:
        """The role of a name at this point of the walk: innermost scope first; functions don't see a class around."""
        for depth, (node, bound) in enumerate(reversed(self._scopes)):
            if name in bound and (depth == 0 or not isinstance(node, ast.ClassDef)):
                return bound[name]
        return "builtin"


def _inside(scope: ast.AST) -> list[ast.AST]:
    """The nodes evaluated in a scope; decorators, defaults, annotations and bases belong to the one around it."""
    if isinstance(scope, ast.Lambda):
        return [scope.body]
    return list(ast.iter_child_nodes(scope)) if isinstance(scope, _COMPREHENSIONS) else scope.body


def _bindings(scope: ast.AST) -> dict[str, str]:
    """The names that a scope binds itself, and the role of each; the first binding counts."""
    bound: dict[str, str] = {}
    if isinstance(scope, _FUNCTIONS):
        bound = {node.arg: "parameter" for node in ast.walk(scope.args) if isinstance(node, ast.arg)}
    stored = {ast.Module: "global", ast.ClassDef: "attribute"}.get(type(scope), "local")
    for node in _own(_inside(scope)):
        match node:
            case ast.Name(ctx=ast.Store()):
                bound.setdefault(node.id, stored)
            case ast.Import():
                for alias in node.names:
                    bound.setdefault(alias.asname or alias.name.partition(".")[0], "module")
            case ast.ImportFrom():
                for alias in node.names:
                    bound.setdefault(alias.asname or alias.name, "imported")
            case ast.ClassDef():
                bound.setdefault(node.name, "class")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                bound.setdefault(node.name, "method" if isinstance(scope, ast.ClassDef) else "function")
            case ast.ExceptHandler(name=str()):
                bound.setdefault(node.name, "local")
    return bound


def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes in the order of the source, without those inside scopes that begin among them."""
    for node in nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _own(ast.iter_child_nodes(node))
