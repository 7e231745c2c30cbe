"""Suites by name: the offline one, the papers' selections from MTEB, and any mteb task."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import DamagedFileError, InvalidValueError, UnknownNameError
from ..scale import Scale, get_scale


@dataclass(frozen=True)
class Suite:
    """A set of tasks.

    Attributes:
        what: Its description and where it was published.
        tasks: Names of its tasks: of mteb, or of the offline tasks that are built here.
        instructions: The instructions of its paper; a name from ``workbook.corpora.authored``.
    """

    what: str
    tasks: tuple[str, ...]
    instructions: str


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SUITES: dict[str, Suite] = {
    "docs": Suite(
        "Offline, in-domain: summaries and descriptions of docstrings, what methods here are trained on",
        _names("DocsRetrieval DocsReranking DocsPairs"),
        "docs",
    ),
    "other": Suite(
        "Offline, out-of-domain: topics, reviews and paraphrases that the project wrote, like nothing trained on",
        _names("TopicClustering ReviewClassification ParaphraseLadder"),
        "docs",
    ),
    "llm2vec-15": Suite(
        "LLM2Vec, table 3; Anchor, table 8",
        _names(
            "SciFact ArguAna NFCorpus StackOverflowDupQuestions SciDocsRR BiorxivClusteringS2S MedrxivClusteringS2S "
            "TwentyNewsgroupsClustering SprintDuplicateQuestions Banking77Classification EmotionClassification "
            "MassiveIntentClassification STS17 SICK-R STSBenchmark"
        ),
        "llm2vec",
    ),
    "mini-41": Suite(
        "Causal2Vec, table 9 (MTEB-MINI)",
        _names(
            "ArguAna SciFact NFCorpus FiQA2018 SCIDOCS TRECCOVID Touche2020 AskUbuntuDupQuestions SciDocsRR "
            "StackOverflowDupQuestions BiorxivClusteringS2S BiorxivClusteringP2P MedrxivClusteringS2S "
            "MedrxivClusteringP2P TwentyNewsgroupsClustering StackExchangeClusteringP2P SprintDuplicateQuestions "
            "TwitterSemEval2015 TwitterURLCorpus AmazonCounterfactualClassification AmazonReviewsClassification "
            "Banking77Classification EmotionClassification MassiveIntentClassification "
            "MassiveScenarioClassification MTOPDomainClassification MTOPIntentClassification "
            "ToxicConversationsClassification TweetSentimentExtractionClassification ImdbClassification BIOSSES "
            "SICK-R STS12 STS13 STS14 STS15 STS16 STS17 STS22 STSBenchmark SummEval"
        ),
        "causal2vec",
    ),
    "lens-7": Suite(
        "LENS, appendix A.4: one task a category",
        _names(
            "EmotionClassification TwentyNewsgroupsClustering SprintDuplicateQuestions AskUbuntuDupQuestions SciFact "
            "STS15 SummEval"
        ),
        "lens",
    ),
    "mteb-56": Suite(
        "MTEB, English, first version: what all five papers report",
        _names(
            "AmazonCounterfactualClassification AmazonPolarityClassification AmazonReviewsClassification "
            "Banking77Classification EmotionClassification ImdbClassification MTOPDomainClassification "
            "MTOPIntentClassification MassiveIntentClassification MassiveScenarioClassification "
            "ToxicConversationsClassification TweetSentimentExtractionClassification ArxivClusteringP2P "
            "ArxivClusteringS2S BiorxivClusteringP2P BiorxivClusteringS2S MedrxivClusteringP2P MedrxivClusteringS2S "
            "RedditClustering RedditClusteringP2P StackExchangeClustering StackExchangeClusteringP2P "
            "TwentyNewsgroupsClustering SprintDuplicateQuestions TwitterSemEval2015 TwitterURLCorpus "
            "AskUbuntuDupQuestions MindSmallReranking SciDocsRR StackOverflowDupQuestions ArguAna ClimateFEVER "
            "CQADupstackRetrieval DBPedia FEVER FiQA2018 HotpotQA MSMARCO NFCorpus NQ QuoraRetrieval SCIDOCS SciFact "
            "Touche2020 TRECCOVID BIOSSES SICK-R STS12 STS13 STS14 STS15 STS16 STS17 STS22 STSBenchmark SummEval"
        ),
        "llm2vec",
    ),
}
"""Suites by name. Those of the papers need the Hugging Face Hub, its cache, or local files (:data:`LOCAL_STS`)."""

OFFLINE_SUITES = ("docs", "other")
"""The suites that need no data: in-domain and out-of-domain, reported side by side and never averaged."""

OFFLINE = (*SUITES["docs"].tasks, *SUITES["other"].tasks, "PackageClustering")
"""Tasks that are built here: those of both suites, and one outside, since methods train on its packages as labels."""

LOCAL_STS = {
    "STSBenchmark": ("stsb/stsb-en-test.csv", "stsbenchmark/sts-test.csv"),
    "STSBenchmark-dev": ("stsb/stsb-en-dev.csv", "stsbenchmark/sts-dev.csv"),
}
"""STS tasks that are read from the folder named by ``WORKBOOK_DATA``, if one of these published files is in it."""


def tasks(suite: str | Iterable[str], scale: Scale | str = "quick") -> list[Any]:
    """The mteb tasks of a suite, fresh ones at each call.

    Args:
        suite: A name from :data:`SUITES` or :data:`OFFLINE`, of any mteb task, or several names. Tasks of the
            English MTEB are as in that benchmark (English parts, dev split of MSMARCO).
        scale: Sizes of the offline tasks; tasks of mteb always run whole.

    Returns:
        mteb tasks. The offline ones have their data; those of mteb load theirs when they run.

    Raises:
        UnknownNameError: Neither a suite nor an mteb task.
        InvalidValueError: No task at all.
        MissingDataError: A package that the docs corpus is made of is not installed.
    """
    scale = scale if isinstance(scale, Scale) else get_scale(scale)
    names = task_names(suite)
    known = _english() if any(name not in OFFLINE and sts_file(name) is None for name in names) else {}
    if not set(names) & set(OFFLINE):
        return [_task(name, known) for name in names]
    from .offline import docs_tasks

    offline = {task.metadata.name: task for task in docs_tasks(scale)}
    return [offline[name] if name in offline else _task(name, known) for name in names]


def task_names(suite: str | Iterable[str]) -> tuple[str, ...]:
    """Names of the tasks of suites, each once; a name that is not a suite's counts as a task's.

    Raises:
        InvalidValueError: No name at all.
    """
    names = (suite,) if isinstance(suite, str) and suite else tuple(suite) if isinstance(suite, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidValueError("suite", f"one of {', '.join(SUITES)}, an mteb task, or a list of them", suite)
    return tuple(dict.fromkeys(task for name in names for task in (SUITES[name].tasks if name in SUITES else (name,))))


def sts_file(name: str) -> Path | None:
    """The file of an STS task below ``WORKBOOK_DATA``, if it is there."""
    folder = os.environ.get("WORKBOOK_DATA")
    files = (Path(folder, file) for file in LOCAL_STS.get(name, ())) if folder else ()
    return next((file for file in files if file.is_file()), None)


def read_sts(path: Path) -> pd.DataFrame:
    """An STS Benchmark file in either published form: columns sentence1, sentence2 (strings), score (0 to 5).

    The forms: CSV without a header (sentence1, sentence2, score), and tab-separated without quoting (genre, file,
    year, id, score, sentence1, sentence2, and for some rows sources).

    Raises:
        DamagedFileError: A file in neither form, or a score outside 0 to 5.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines and lines[0].count("\t") >= 6:
            rows = [line.split("\t") for line in lines]
            frame = pd.DataFrame([(row[5], row[6], row[4]) for row in rows])
        else:
            frame = pd.read_csv(path, header=None, dtype=str, keep_default_na=False)
        frame.columns = ["sentence1", "sentence2", "score"]
        frame["score"] = frame["score"].astype(float)
    except (ValueError, IndexError) as error:
        raise DamagedFileError(f"{path}: expected an STS Benchmark file, got {error}. Download it again.") from error
    if not frame["score"].between(0, 5).all():
        raise DamagedFileError(f"{path}: expected scores from 0 to 5, got others. Download it again.")
    return frame


def _english() -> dict[str, Any]:
    """Tasks of the English MTEB by name."""
    import mteb

    return {task.metadata.name: task for task in mteb.get_benchmark("MTEB(eng, v1)").tasks}


def _task(name: str, known: dict[str, Any]) -> Any:
    import mteb

    path = sts_file(name)
    if path is not None:
        return _local_sts(name, path)
    if name in known:
        return known[name]
    try:
        return mteb.get_task(name)
    except (KeyError, TypeError, AttributeError) as error:
        hint = "Any task of mteb works too" + (f" ({error.args[0]})" if isinstance(error, KeyError) else "") + "."
        raise UnknownNameError("suite or task", name, [*SUITES, *OFFLINE, *LOCAL_STS], hint) from None


def _local_sts(name: str, path: Path) -> Any:
    from datasets import Dataset
    from mteb.abstasks import AbsTaskSTS

    from .offline import OfflineTask, metadata

    described = metadata(name, "STS", "cosine_spearman", f"Read from {path.name}.")
    task = type("LocalSTS", (OfflineTask, AbsTaskSTS), {"metadata": described})
    return task({"test": Dataset.from_pandas(read_sts(path), preserve_index=False)})
