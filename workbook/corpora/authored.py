"""The tables under ``data/``: the project's own texts, and what it quotes from the papers.

``data/README.md`` is the datasheet: how each file was made, what it measures, and what it is not.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from ..errors import UnknownNameError
from .tables import read

PAPERS = ("anchor", "causal2vec", "lens", "llm2vec", "nv_embed")
"""The papers whose task instructions are kept, in one file each."""

INSTRUCTION_SETS = (*PAPERS, "docs", "english")
"""The papers' instructions, and the workbook's own for its offline tasks and for real English."""

LABELS = ("negative", "positive")
SPLITS = ("train", "test")
SIDES = ("query", "document", "both")

MININGS = {"95": "docs.csv", "90": "docs-90.csv", "99": "docs-99.csv", "naive": "docs-naive.csv"}
"""Ways to mine hard negatives, with the file of each: at margins of 95, 90 and 99 % of the positive's score; and
naively, the nearest documents whatever they score.
"""


def future_tokens() -> pd.DataFrame:
    """Triples that share a prefix and differ in what follows it.

    A sentence is ``prefix + " " + continuation``. The positive continuation means what the query's does, in other
    words; the negative means something else. A model that pools the prefix alone can tell them apart only if the
    prefix's states have seen the later tokens.

    Returns:
        200 rows, strings: ``id``, ``prefix``, ``query``, ``positive``, ``negative``.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.

    Source:
        The construction is that of LLM2Vec, section 4.1 and appendix F; the sentences are the project's own.
    """
    return read("probes", "future_tokens.csv", columns=["id", "prefix", "query", "positive", "negative"])


def reviews() -> pd.DataFrame:
    """Short reviews with a polarity, balanced by label, domain and split.

    Returns:
        512 rows, strings: ``id``, ``text``, ``label`` (positive or negative), ``domain`` (32 of them) and ``split``
        (train or test).

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    return read(
        "texts",
        "reviews.csv",
        columns=["id", "text", "label", "domain", "split"],
        choices={"label": LABELS, "split": SPLITS},
    )


def paraphrase_ladder() -> pd.DataFrame:
    """Sentence pairs graded by shared meaning: 42 sentences, each in a pair of every one of six grades.

    Returns:
        252 rows: ``id``, ``source`` (which of the 42 sentences), ``sentence1`` (that sentence), ``sentence2``
        (strings) and ``score`` (float64, 0.0 to 5.0; 5 is the same meaning, 0 another subject).

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    return _pairs("paraphrase_ladder.csv", [grade / 2 for grade in range(11)])


def graded() -> pd.DataFrame:
    """Sentence pairs to train on, graded by shared meaning: 64 sentences, each in a pair of every one of five grades.

    Returns:
        320 rows, in the columns of :func:`paraphrase_ladder`, whose sentences and subjects they do not share; ``score``
        is 1.0 to 5.0: 5 is the same meaning, 1 the same field.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    return _pairs("graded.csv", range(1, 6))


def _pairs(name: str, grades: Iterable[float]) -> pd.DataFrame:
    columns, scores = ["id", "source", "sentence1", "sentence2", "score"], [f"{grade:.1f}" for grade in grades]
    return read("texts", name, columns=columns, choices={"score": scores}).astype({"score": float})


def topics() -> pd.DataFrame:
    """Sentences about twelve topics, some of them close to one another.

    Returns:
        288 rows, 24 per topic, strings: ``id``, ``topic``, ``text``.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    return read("texts", "topics.csv", columns=["id", "topic", "text"])


def hard_negatives(mining: str = "95") -> pd.DataFrame:
    """Hard negatives of queries of the docs corpus, as ids of its documents.

    They were mined once (``workbook.data.curation.mine``: MiniLM as the teacher, all documents of the train split as
    the corpus) and kept, since the last digits of a teacher's scores, and with them the ranking, differ between
    processors.

    Args:
        mining: One of ``MININGS``.

    Returns:
        9,000 rows at a margin of 95 %, 1,685 otherwise, the first of the same queries; strings: ``id`` (a pair of the
        train split) and ``negative_1``, the hardest, to ``negative_7``.

    Raises:
        UnknownNameError: No such mining; the message lists all.
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    if mining not in MININGS:
        raise UnknownNameError("mining", mining, MININGS)
    return read("mined", MININGS[mining], columns=["id", *(f"negative_{number}" for number in range(1, 8))])


def instructions(paper: str) -> pd.DataFrame:
    """The task instructions of a paper, word for word as its tables print them, or the workbook's own.

    Args:
        paper: One of ``PAPERS``, with an underscore or a hyphen; or ``docs`` or ``english``, for the tasks of
            that suite.

    Returns:
        One row per task, instruction and use, strings: ``task`` (mteb's name for it, or the name of a training set),
        ``side`` (the texts that get the instruction: query, document or both), ``instruction``, and ``source``, which
        begins with the table and ``training`` or ``evaluation`` and may end with a doubt. A training set may have
        several instructions.

    Raises:
        UnknownNameError: No such set of instructions; the message lists all.
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    name = paper.replace("-", "_") if isinstance(paper, str) else paper
    if name not in INSTRUCTION_SETS:
        raise UnknownNameError("paper", paper, INSTRUCTION_SETS)
    return read(
        "instructions", f"{name}.csv", columns=["task", "side", "instruction", "source"], choices={"side": SIDES}
    )


def instruction_of(task: str) -> str:
    """The instruction of a task of suite docs, the same in evaluation and training.

    Args:
        task: mteb's name for it, such as ``DocsRetrieval``.

    Raises:
        UnknownNameError: No such task; the message lists all.
        MissingDataError, DamagedFileError: As :func:`instructions`.
    """
    known = instructions("docs").set_index("task")["instruction"]
    if task not in known:
        raise UnknownNameError("task", task, known.index)
    return known[task]


def examples() -> pd.DataFrame:
    """Examples of the tasks of suite docs for a prompt; none of them is a text that the suite evaluates.

    Returns:
        15 rows, strings: ``task`` (for all tasks with its instruction), ``query``, and ``response``: a text that
        answers the query or means the same, or the name of its class. Their topics and packages are not evaluated.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    return read("instructions", "examples.csv", columns=["task", "query", "response"])
