"""(query, document) pairs from a Python source: the summary line of a docstring and its description.

Everything here depends on the text alone. Sources are parsed, never imported, so neither the Python version nor other
installed packages can change a pair.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from .packages import syntax_tree

QUERY_WORDS = (3, 30)
"""Fewest and most words of a summary."""
DOCUMENT_WORDS = (10, 240)
"""Fewest and most words of a description; a longer one is cut after the last whole paragraph or sentence."""

_PROSE_SECTIONS = {"note", "notes", "description", "details", "extended summary", "overview", "explanation", "theory"}
_SECTIONS = (
    "args|arguments|parameters?|params|other parameters|inputs?|outputs?|kwargs|keyword arguments|keyword args|"
    "returns?|yields?|raises?|receives?|warns?|attributes|methods|"
    "examples?|example usage|usage|references?|see also|todo|shape|"
    "variables|properties|sources?|fields|citation|keywords?|options|signature|caution|warnings?|tips?|hint|important|"
    + "|".join(sorted(_PROSE_SECTIONS))
)
_HEADER = re.compile(rf"(?:\#+\s*)?[*_]*({_SECTIONS})[*_]*\s*:{{0,2}}[*_]*", re.IGNORECASE)
_UNDERLINE = re.compile(r"([-=~^\"'*#+])\1{2,}")
_NOT_PROSE = re.compile(
    r">>>|\.\.\. |\.\. |:\w[\w ]*:(?!`)|[@|+$!%<{\[\\]|In \[|```|-{3,}|={3,}|\w+\s*=\s|from \w+ import|import \w"
    r"|\*{0,2}[a-z_]\w*\s?:\s|[`*\w]+ \(.{1,120}?\):\s|where "
)
_BULLET = re.compile(r"^(?:[-*•+]|\(?(?:\d{1,2}|[a-z])[.)])\s+")
_MARKUP = [
    (re.compile(r"<[a-z/][^<>]{0,80}>"), ""),  # HTML and doc-builder tags
    (re.compile(r"!?\[([^\]\[]+)\]\([^)\s]*\)"), r"\1"),  # [text](address)
    (re.compile(r"(?::[a-z:+-]+:)`[~!]?(?:[\w.]*\.)?([^`<]*?)(?:\s+<[^`>]+>)?`"), r"\1"),  # :class:`~package.Name`
    (re.compile(r"`([^`<]+?)\s*<[^`>]+>`_{0,2}"), r"\1"),  # `text <address>`_
    (re.compile(r"\[`~?(?:[\w.]*\.)?([^`\]]+)`\]"), r"\1"),  # [`~Name`]
    (re.compile(r"`+([^`]+)`+_?"), r"\1"),
    (re.compile(r"\s*\[[\w*#-]{1,12}\]_"), ""),  # citations
    (re.compile(r"(?<![\w*])\*{1,2}(\w(?:[^*]*[^*\s])?)\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"\|(\w+)\|"), r"\1"),
    (re.compile(r"\s+([.,;:])(?=\s|$)"), r"\1"),
    (re.compile(r"\s+"), " "),
]
_TYPOGRAPHY = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."})
_AWKWARD = re.compile(r"https?://|Args:|^note\b|^deprecated\b|[{`$]|\s-\s.*\s-\s", re.IGNORECASE)
_STRAY = re.compile(r"\\|``|>>>")  # marks that were left over
_NOT_LETTERS = re.compile(r"[^A-Za-z\s]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"(])")
_WHOLE_SENTENCES = re.compile(r"^.*[.!?](?=\s|$)")
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an the of to in on for with by from as at into and or not no if when then than that this these those which "
        "it its is are was be been has have will can may must should do does you we all any each only where how what "
        "such also",
    )
)


class Pair(NamedTuple):
    """One docstring: the dotted name of its owner inside its module, its summary and its description."""

    name: str
    query: str
    document: str


def pairs_of(source: bytes) -> Iterator[Pair]:
    """The pairs of one Python source, in the order of the file.

    Docstrings of special methods and modules are left out: the former say the same everywhere, the latter are mostly
    tables of contents. A source that Python 3.11 can't parse has no pairs, whichever Python runs this.

    Args:
        source: The bytes of a .py file.
    """
    tree = syntax_tree(source)
    if tree is None:
        return
    for name, node in _definitions(tree, ""):
        text = ast.get_docstring(node)
        pair = text and split_docstring(text)
        if pair:
            yield Pair(name, *pair)


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Functions and classes under a node with their dotted names; functions inside functions are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not child.name.startswith("__"):
                yield prefix + child.name, child
                if isinstance(child, ast.ClassDef):
                    yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, (ast.If, ast.Try)):
            yield from _definitions(child, prefix)


def split_docstring(text: str) -> tuple[str, str] | None:
    """Summary and description of a docstring as plain prose, or None if they don't make a pair.

    Args:
        text: A docstring with its indentation removed, in RST, numpydoc, Google style or Markdown.
    """
    summary, *rest = re.split(r"\n\s*\n", text.strip(), maxsplit=1)
    if not rest or _NOT_PROSE.match(summary) or _UNDERLINE.search(summary) or summary.rstrip().endswith(":"):
        return None
    first, *more = _SENTENCE_END.split(plain(summary), maxsplit=1)
    if _HEADER.fullmatch(first):
        return None
    query = first.rstrip(" .:")
    document = _shorten([*more, *(plain(paragraph) for paragraph in _prose(rest[0]))])
    if _AWKWARD.search(query) or query.casefold() in document.casefold():
        return None
    if not (_reads_well(query, QUERY_WORDS, 0.08) and _reads_well(document, DOCUMENT_WORDS, 0.2)):
        return None
    return query, document


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a description, without sections of parameters, examples, code, tables and directives."""
    skipping = False  # inside a section that is not prose
    code_at = None  # indentation whose deeper lines are code or a directive's body
    introduction = ""  # a paragraph that ends in a colon
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        if code_at is not None and indent > code_at:
            continue
        code_at = None
        underlined = len(lines) > 1 and _UNDERLINE.fullmatch(lines[1].strip())
        header = _HEADER.fullmatch(lines[0].strip())
        if underlined or header:
            title = header[1] if header else lines[0]
            skipping = title.strip().casefold() not in _PROSE_SECTIONS
            lines = lines[2:] if underlined else lines[1:]
        elif skipping and indent == 0 and not _numpydoc(text):
            skipping = False  # a Google section ends where the indentation does
        if skipping or not lines:
            introduction = ""
            continue
        first = lines[0].strip()
        if first.startswith(".. ") or lines[-1].rstrip().endswith("::"):
            code_at = indent
        if code_at is not None or _NOT_PROSE.match(first) or (indent >= 4 and not underlined and not header):
            introduction = ""
            continue
        paragraph = _joined(lines)
        if paragraph.endswith(":"):
            introduction = paragraph  # of what follows, if that is kept
        elif paragraph:
            yield f"{introduction} {paragraph}".strip()
            introduction = ""


def _joined(lines: list[str]) -> str:
    """The lines of a paragraph up to the first that is not prose, as whole sentences; list items are sentences."""
    text, cut = "", False
    for line in map(str.strip, lines):
        line = line.removeprefix("> ")
        if line.startswith("[!"):  # a Markdown admonition
            continue
        if _NOT_PROSE.match(line) or _HEADER.fullmatch(line):
            cut = True
            break
        item = _BULLET.sub("", line)
        if item != line and text and text[-1] not in ".:;,!?":
            text += "."
        text = f"{text} {item}".strip()
    if text[-1:] in tuple(".!?") or (text.endswith(":") and not cut):
        return text
    dangling = cut or text.endswith((",", ";", ":")) or text.rpartition(" ")[2].lower() in _FUNCTION_WORDS
    return "".join(_WHOLE_SENTENCES.findall(text)) if dangling else f"{text}." if text else ""


def _numpydoc(text: str) -> bool:
    return re.search(r"^[-=]{3,}\s*$", text, re.MULTILINE) is not None


def plain(text: str) -> str:
    """Text without RST and Markdown marks, on one line."""
    text = text.translate(_TYPOGRAPHY)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


def _shorten(paragraphs: list[str]) -> str:
    """Whole paragraphs, then whole sentences, up to the longest document allowed."""
    kept, room = [], DOCUMENT_WORDS[1]
    for sentence in (s for paragraph in paragraphs for s in _SENTENCE_END.split(paragraph)):
        room -= len(sentence.split())
        if room < 0:
            break
        kept.append(sentence)
    return " ".join(kept)


def _reads_well(text: str, words: tuple[int, int], function_words: float) -> bool:
    """True if a text is English prose of a length within ``words``: mostly letters, with enough function words."""
    parts = text.split()
    if not words[0] <= len(parts) <= words[1] or not text.isascii():
        return False
    letters = len(_NOT_LETTERS.sub("", text)) / len(text)
    binding = sum(part.strip(".,;:()").lower() in _FUNCTION_WORDS for part in parts) / len(parts)
    return letters >= 0.88 and binding >= function_words and not _STRAY.search(text)
