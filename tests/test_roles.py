"""The roles corpus: what a name is, which lines are taken, and that the same pins give the same bytes."""

import pytest

from workbook.corpora import docs, roles
from workbook.corpora import packages as sources
from workbook.corpora.roles import NO_ROLE, ROLES, snippets_of
from workbook.errors import DamagedFileError, UnknownNameError

SOURCE = b"""\
import numpy as np
import os.path
from pathlib import Path

LIMIT = limit = 3

class Reader(Base):
    size = LIMIT + len(LIMIT)

    def read(self, path, *rest, limit=limit):
        total = np.zeros(limit, dtype=Path)
        for item in rest: total = item + path
        pairs = [size + item for size in self.size]
        name = "a string" + path + total + item
        return copy(total.shape, os.path.join(path))

def copy(values, key):
    inner = lambda key: key(values, LIMIT)
    later = made_below(values,
        key)
"""


def tagged(source):
    return {
        snippet.line: [pair for pair in zip(snippet.words, snippet.tags, strict=True) if pair[1] != NO_ROLE]
        for snippet in snippets_of(source)
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (8, "size/attribute LIMIT/global len/builtin LIMIT/global"),
        (10, "read/method path/parameter rest/parameter limit/parameter limit/global"),
        (11, "total/local np/module zeros/method limit/parameter dtype/keyword Path/imported"),
        (13, "pairs/local size/local item/local size/local size/attribute"),
        (15, "copy/function total/local shape/attribute os/module path/attribute join/method path/parameter"),
        (17, "copy/function values/parameter key/parameter"),
        (18, "inner/local key/parameter key/parameter values/parameter LIMIT/global"),
    ],
)
def test_roles_follow_the_syntax_tree(line, expected):
    assert tagged(SOURCE)[line] == [tuple(item.split("/")) for item in expected.split()]


def test_imports_strings_broken_lines_and_lines_with_few_names_stay_out():
    assert sorted(tagged(SOURCE)) == [8, 10, 11, 12, 13, 15, 17, 18]


@pytest.mark.parametrize(
    "source",
    [b"def broken(a, b, c", b"\xff\xfe a = b + c + d", b"a = 1\0", b""],
    ids=["syntax", "utf8", "null", "empty"],
)
def test_a_source_that_cannot_be_parsed_has_no_snippets(source):
    assert list(snippets_of(source)) == []


@pytest.fixture(scope="module")
def corpus():
    """The roles corpus of the pinned packages, from the cache or built."""
    return roles.load_roles()


def test_the_corpus_is_the_one_on_record(corpus):
    assert corpus.fingerprint == roles.FINGERPRINT
    assert {name: len(corpus.split(name)) for name in roles.SIZES} == roles.SIZES
    for split in roles.SIZES:
        frame = corpus.split(split)
        assert (frame.words.str.len() == frame.tags.str.len()).all()
        assert set(frame.tags.explode()) == {NO_ROLE, *ROLES}


def test_no_file_and_no_snippet_is_on_two_sides(corpus):
    train, test = corpus.split("train"), corpus.split("test")
    files = [set(zip(frame.package, frame.module, strict=True)) for frame in (train, test)]
    assert not files[0] & files[1]
    assert corpus.snippets.words.map(tuple).is_unique


def test_no_single_role_is_most_of_the_names(corpus):
    shares = corpus.split("test").tags.explode().loc[lambda tags: tags != NO_ROLE].value_counts(normalize=True)
    assert shares.max() < 0.3


def test_a_corpus_can_be_carried_and_another_is_refused(corpus, tmp_path, monkeypatch):
    content = sources.table_path("roles", roles._RULES).read_bytes()
    (tmp_path / "roles.jsonl").write_bytes(content)
    monkeypatch.setattr(sources, "_cached", lambda *_: pytest.fail("looked into the cache"))
    monkeypatch.setenv("WORKBOOK_DATA", str(tmp_path))
    assert roles.load_roles().snippets.equals(corpus.snippets)
    with pytest.raises(DamagedFileError, match="expected the corpus docs, got 'roles'"):
        docs.load_docs(tmp_path / "roles.jsonl")
    (tmp_path / "roles.jsonl").write_bytes(content.replace(b"local", b"focal", 1))
    with pytest.raises(DamagedFileError, match=r"roles\.jsonl: expected content with sha256"):
        roles.load_roles()


def test_an_unknown_split_is_named(corpus):
    with pytest.raises(UnknownNameError, match="train, test"):
        corpus.split("dev")
