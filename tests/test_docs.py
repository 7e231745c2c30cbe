"""The docs corpus: what makes a pair, what stays out, and that the same pins give the same bytes."""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution

import pandas as pd
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from workbook.corpora import docs as corpus
from workbook.corpora import packages as sources
from workbook.corpora.docstrings import pairs_of, split_docstring
from workbook.errors import DamagedFileError, MissingDataError, OutputError, UnknownNameError
from workbook.files import ROOT

TAIL = "It keeps the order of the lines and does not touch the file that they were read from."


# Rules


@pytest.mark.parametrize(
    ("text", "query", "document"),
    [
        (f"Sort the lines of a file.\n\n{TAIL}", "Sort the lines of a file", TAIL),
        (f"Sort the ``lines`` of a :class:`~io.File`.\n\n{TAIL}", "Sort the lines of a File", TAIL),
        (f"Sort the `lines <address>`_ of a :class:`File <io.File>`.\n\n{TAIL}", "Sort the lines of a File", TAIL),
        (f"Sort the lines of a file.\n\n{TAIL}\n\nArgs:\n    key: What to sort by, if it is not the line.", None, TAIL),
        (
            f"Sort the lines of a file.\n\nParameters\n----------\nkey : str\n    Of a line.\n\nNotes\n-----\n{TAIL}",
            None,
            TAIL,
        ),
        (f"Sort the lines of a file.\n\n{TAIL}\n\n>>> sort(path)\n[1, 2]", None, TAIL),
        (f"Sort the lines of a file.\n\n{TAIL}\n\n.. code-block:: python\n\n    sort(path)", None, TAIL),
        (f"Sort the lines of a file.\n\n{TAIL} It raises an error where the\n>>> sort(path)", None, TAIL),
        (f"Sort the lines of a file. {TAIL}\n\n.. versionadded:: 2", "Sort the lines of a file", TAIL),
        (f"Sort the lines of a file.\n\n- {TAIL}\n- It is stable", None, f"{TAIL} It is stable."),
    ],
    ids=["plain", "marks", "links", "google", "numpydoc", "doctest", "directive", "cut", "second sentence", "list"],
)
def test_a_docstring_becomes_a_pair(text, query, document):
    assert split_docstring(text) == (query or "Sort the lines of a file", document)


@pytest.mark.parametrize(
    "text",
    [
        "Sort the lines of a file.",
        f"Sort.\n\n{TAIL}",
        "Sort the lines of a file.\n\nToo short.",
        "Sort the lines of a file.\n\nArgs:\n    path: Where the file is, which may be a string or a path.",
        f"sort(path, key=None, reverse=False)\n\n{TAIL}",
        f"Sortiere die Zeilen einer größeren Datei.\n\n{TAIL}",
        "Sort the lines of a file.\n\nx1 = 3; y2 = 4; z3 = 5; q4 = 5; r5 = 6; s6 = 7; t7 = 8; u8 = 9; v9 = 10; w = 11.",
        "",
    ],
    ids=["no body", "one word", "short body", "only args", "signature", "not ascii", "code", "empty"],
)
def test_what_no_reader_would_call_a_pair_is_left_out(text):
    assert split_docstring(text) is None


def test_long_descriptions_end_with_a_whole_sentence():
    _, document = split_docstring("Sort the lines of a file.\n\n" + f"{TAIL} " * 40)
    assert document.endswith("read from.")
    assert len(document.split()) <= 240


def test_names_are_dotted_and_special_methods_and_broken_files_have_none():
    doc = f'"""Sort the lines of a file.\n\n    {TAIL}\n    """'
    source = f"class A:\n  def f(self):\n    {doc}\n  def __len__(self):\n    {doc}\n"
    assert [pair.name for pair in pairs_of(source.encode())] == ["A.f"]
    assert list(pairs_of(b"def f(:\n")) == []


# Building, from a small distribution


def docstring(summary, *sentences):
    return f'"""{summary}\n\n    {" ".join(sentences)}\n    """\n'


def sentences(seed, count=3):
    """Sentences that share no three words in a row between seeds."""
    return [
        f"The {seed}{i} of {seed} is not the {i}{seed} that it was for a {seed}ing {i}{i}{seed}." for i in range(count)
    ]


FILES = {
    "fake/a.py": f"def sort(path):\n    {docstring('Sort the lines of a file', *sentences('oak'))}",
    "fake/b.py": f"def copy(path):\n    {docstring('Copy the lines to a file', *sentences('elm'))}"
    f"def near(path):\n    {docstring('Sort all lines of a file', *sentences('oak'), 'Really.')}"
    f"def same(path):\n    {docstring('copy the lines to a file', *sentences('ash'))}",
    "fake/tests/test_c.py": f"def c(path):\n    {docstring('Test the lines of a file', *sentences('fir'))}",
    "fake/gen.py": f"# DO NOT EDIT\ndef g(path):\n    {docstring('Make the lines of a file', *sentences('yew'))}",
    "fake/extra.txt": "no source",
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path with one installed distribution, ``fake`` 1.0+cpu."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    info = tmp_path / "fake-1.0+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1.0+cpu\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in FILES))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_tests_generated_files_and_repetitions_stay_out(site):
    pairs = corpus.build(["fake"])
    assert list(zip(pairs["module"], pairs["name"], strict=True)) == [("fake.a", "sort"), ("fake.b", "copy")]
    assert list(pairs.columns) == ["id", "query", "document", "package", "module", "name", "split"]


@pytest.mark.journey
def test_neither_the_order_of_files_nor_the_hash_seed_changes_a_byte(site):
    expected = corpus.build(["fake"]).to_json()
    record = site / "fake-1.0+cpu.dist-info" / "RECORD"
    record.write_text("".join(f"{name},,\n" for name in reversed(FILES)))
    code = "from workbook.corpora.docs import build; print(build(['fake']).to_json())"
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    made = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert made.stdout.strip() == expected


def test_several_distributions_are_read_side_by_side_in_their_order():
    apart = [corpus.build([name]) for name in ("tqdm", "click")]
    together = corpus.build(["tqdm", "click"])
    assert all(len(pairs) > 5 for pairs in apart)
    assert together.equals(pd.concat(apart, ignore_index=True))


def test_local_suffixes_of_versions_do_not_count(site):
    assert sources.installed_versions(["fake"]) == {"fake": "1.0"}


def test_a_missing_package_is_named(site):
    with pytest.raises(MissingDataError, match=r"not installed: nowhere\. .*pip install -e"):
        sources.installed_versions(["fake", "nowhere"])


@pytest.mark.parametrize("others", [[], ["tqdm"]])
def test_a_distribution_without_a_file_list_is_named(site, others):
    (site / "fake-1.0+cpu.dist-info" / "RECORD").unlink()
    with pytest.raises(MissingDataError, match="fake is installed without a list"):
        corpus.build([*others, "fake"])


# The file


@pytest.fixture
def small(site, monkeypatch):
    """load_docs over the fake distribution alone, with a cache of its own."""
    monkeypatch.setattr(sources, "DISTRIBUTIONS", ("fake",))
    monkeypatch.setenv("WORKBOOK_CACHE", str(site / "cache"))
    monkeypatch.delenv("WORKBOOK_DATA", raising=False)


def test_another_package_set_is_said(small):
    with pytest.warns(UserWarning, match="not the one of the pinned packages") as warned:
        made = corpus.load_docs()
    assert len(made.pairs) == 2
    assert warned[0].filename == __file__


@pytest.mark.filterwarnings("ignore:This docs corpus")
def test_a_damaged_file_in_the_cache_is_built_anew(small, site):
    made = corpus.load_docs()
    path = corpus.docs_path()
    whole = path.read_bytes()
    for damaged in (whole[:-9], whole.replace(b"lines", b"limes"), b"", b"{}\n"):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=re.escape(str(path))):
            corpus.load_docs(path)
        assert corpus.load_docs().fingerprint == made.fingerprint
        assert path.read_bytes() == whole
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.filterwarnings("ignore:This docs corpus")
def test_what_two_ask_for_at_once_is_built_once(small, monkeypatch):
    built, build = [], corpus.build

    def slow(distributions):
        built.append(distributions)
        time.sleep(0.3)
        return build(distributions)

    monkeypatch.setattr(corpus, "build", slow)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: corpus.load_docs(), range(2))
    assert first.pairs.equals(second.pairs)
    assert len(built) == 1


@pytest.mark.filterwarnings("ignore:This docs corpus")
def test_a_corpus_can_be_carried(small, site, monkeypatch):
    made = corpus.load_docs()
    (site / "data").mkdir()
    (site / "data" / "docs.jsonl").write_bytes(corpus.docs_path().read_bytes())
    monkeypatch.setattr(sources, "_cached", lambda *_: pytest.fail("looked into the cache"))
    monkeypatch.setenv("WORKBOOK_DATA", str(site / "data"))
    assert corpus.load_docs().pairs.equals(made.pairs)


@pytest.mark.filterwarnings("ignore:This docs corpus")
def test_what_a_reader_changes_is_not_in_the_next_one(small):
    first = corpus.load_docs()
    whole = first.pairs.copy()
    first.pairs["query"] = "changed"
    assert corpus.load_docs().pairs.equals(whole)


def test_a_cache_that_cannot_be_written_is_said_before_the_work(small, site, monkeypatch):
    (site / "file").write_text("")
    monkeypatch.setenv("WORKBOOK_CACHE", str(site / "file"))
    monkeypatch.setattr(corpus, "build", lambda _: pytest.fail("worked in vain"))
    with pytest.raises(OutputError, match="Could not write"):
        corpus.load_docs()


def test_an_absent_file_says_where_to_get_it(tmp_path):
    with pytest.raises(MissingDataError, match=r"found nothing\. Copy it"):
        corpus.load_docs(tmp_path / "docs.jsonl")


# The corpus of the pinned packages


def test_every_distribution_is_pinned_and_comes_with_the_base_install():
    def name(requirement):
        return canonicalize_name(requirement.name)

    pins = {canonicalize_name(line.partition("==")[0]) for line in (ROOT / "constraints.txt").open() if "==" in line}
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    todo, seen = [Requirement(line) for line in base], set()
    while todo:
        requirement = todo.pop()
        for extra in ("", *requirement.extras):
            if (name(requirement), extra) in seen:
                continue
            seen.add((name(requirement), extra))
            for line in distribution(requirement.name).requires or ():
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    todo.append(needed)
    wanted = {canonicalize_name(package) for package in sources.DISTRIBUTIONS}
    assert wanted <= pins
    assert wanted <= {package for package, _ in seen}


def test_the_corpus_is_the_one_on_record(docs):
    assert docs.fingerprint == corpus.FINGERPRINT
    assert 15_000 <= len(docs.pairs) <= 17_000
    words = docs.pairs["query"].str.split().str.len().sum() + docs.pairs["document"].str.split().str.len().sum()
    assert 800_000 <= words <= 1_200_000
    assert docs.pairs["id"].is_unique
    shares = docs.pairs["split"].value_counts(normalize=True)
    assert shares["train"] == pytest.approx(0.80, abs=0.02)
    assert shares["test"] == pytest.approx(0.15, abs=0.02)


def test_pairs_read_as_text(docs):
    for column in ("query", "document"):
        texts = docs.pairs[column]
        assert texts.str.isascii().all()
        assert not texts.str.contains(r"\n|  |``|>>>").any()
    assert docs.pairs["document"].str.contains(r"[.!?][\")'\]]*$").mean() > 0.98


def triples(text):
    words = re.findall(r"\w+", text.lower())
    return set(zip(words, words[1:], words[2:], strict=False))


def test_no_text_of_the_test_split_is_nearly_in_another(docs):
    """By counting shared word triples one by one, for a sample, against everything."""
    sample = docs.split("test").iloc[::12]
    owned = [triples(row.query + " " + row.document) for row in sample.itertuples()]
    index = {}
    for number, own in enumerate(owned):
        for triple in own:
            index.setdefault(triple, []).append(number)
    worst = 0
    for row in docs.pairs[docs.pairs["split"] != "test"].itertuples():
        other = triples(row.query + " " + row.document)
        shared = Counter(number for triple in other for number in index.get(triple, ()))
        for number, count in shared.items():
            worst = max(worst, count / (len(owned[number]) + len(other) - count))
    assert 0 < worst < 0.5


def test_an_unknown_split_is_named(docs):
    with pytest.raises(UnknownNameError, match="train, dev, test"):
        docs.split("validation")


def test_the_file_says_what_it_is(docs):
    header = json.loads(corpus.docs_path().open().readline())
    assert header["corpus"] == "docs"
    assert header["versions"]["torch"] == "2.13.0"
