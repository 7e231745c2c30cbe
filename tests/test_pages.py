"""The README and the guide: what stands behind ``>>>`` runs and prints what they show; what they count is counted."""

import doctest
import re
import shlex

import badges
import pandas as pd
import pytest
import typer
from published_tools import write_nv_embed

from workbook import cli
from workbook.files import ROOT

NUMBER = r"-?\d+(?:\.\d+)?"
WORDS = 1200


class Near(doctest.OutputChecker):
    """Compares words and whole numbers exactly, and decimals to a fifth or six points: those of a training depend on
    the machine.
    """

    def check_output(self, want, got, optionflags):
        ours, theirs = (re.sub(NUMBER, "#", text).split() for text in (want, got))
        pairs = zip(re.findall(NUMBER, want), re.findall(NUMBER, got), strict=False)
        return ours == theirs and all(a == b or ("." in a and near(float(a), float(b))) for a, b in pairs)


def near(ours, theirs):
    return abs(ours - theirs) <= max(6, abs(ours) / 5)


@pytest.mark.journey
@pytest.mark.parametrize("page", ["README.md", "book/guide.md"])
def test_snippets_print_what_stands_there(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_nv_embed(tmp_path / "NV-Embed-v2", seed=0)  # tiny, under the name of what a reader downloads
    text = (ROOT / page).read_text(encoding="utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    assert sum(bool(example.want) for example in test.examples) >= 2
    said = []
    doctest.DocTestRunner(Near(), verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


def test_every_python_block_is_run():
    for page in ("README.md", "book/guide.md"):
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        assert blocks
        assert [block for block in blocks if not block.startswith(">>> ")] == []


def test_every_command_of_a_page_is_one():
    """Of blocks without a language, with options and arguments; and what sentences name."""
    commands = typer.main.get_command(cli.app).commands
    targets = re.findall(r"^(\w+)\b[^=\n]*:(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    seen = []
    for page in ("README.md", "book/guide.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        blocks = re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        whole = [line for block in blocks for line in block.splitlines()]
        for line in whole + re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
            if not re.match(r"(workbook|make) [a-z]", line):
                continue
            tool, name, *rest = shlex.split(line, comments=True)
            seen.append(tool)
            assert name in (targets if tool == "make" else commands), line
            if tool == "workbook" and line in whole:
                commands[name].make_context(name, rest)
    assert min(seen.count("workbook"), seen.count("make")) > 5


def test_the_verdicts_are_those_of_the_ledger():
    """In the sentence that counts them, and those of the gallery's figure, whose caption says where they come from."""
    judged = pd.read_csv(ROOT / "figures" / "07_claims.csv").drop_duplicates("claim")
    counted = judged["verdict"].value_counts()
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    said = re.search(
        r"Of the (\d+), (\d+) are supported, (\d+) contradicted, (\d+) inconclusive and (\d+) not tested", text
    )
    verdicts = ("supported", "contradicted", "inconclusive", "not tested")
    assert [int(number) for number in said.groups()] == [counted.sum(), *(counted.get(one, 0) for one in verdicts)]
    sources = [judged["scale"].eq(scale).sum() for scale in ("quick", "cpu", "night")]
    said = re.search(r"(\d+) measured at `quick`, (\d+) recorded at `cpu`, (\d+) at `night`", text)
    assert [int(number) for number in said.groups()] == sources


def test_the_badges_are_todays_and_say_in_words_what_they_show():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, svg in badges.drawn().items():
        kept = (badges.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        ours, theirs = (re.sub(r"anybadge_\d+", "", one).strip() for one in (kept, svg))  # ids are counted
        assert ours == theirs, f"python tests/badges.py writes {name}.svg"
        [said] = re.findall(rf"!\[([^\]]+)\]\(figures/badges/{name}\.svg\)", text)
        assert re.sub(r"\W+", " ", said).lower() == re.sub(r"\W+", " ", " ".join(badges.stated()[name])).lower()


def test_the_readme_fits_a_screen_or_two():
    assert len(re.findall(r"[^\W\d_][\w'’-]*", (ROOT / "README.md").read_text(encoding="utf-8"))) <= WORDS
