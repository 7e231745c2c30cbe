"""Suites by name: the offline one, real English from local files, the papers' selections from MTEB, any mteb task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidValueError, UnknownNameError
from ..scale import SCALES, Scale, get_scale
from .local import LOCAL, is_local, read


@dataclass(frozen=True)
class Suite:
    """A set of tasks.

    Attributes:
        what: Its description and where it was published.
        tasks: Names of its tasks: of mteb, of the offline tasks that are built here, or of local files.
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
    "english": Suite(
        "Real English from local files, of every type and several domains",
        tuple(name for name, local in LOCAL.items() if not local.is_of_mteb),
        "english",
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
"""Suites by name. ``english`` needs local files (:data:`.local.LOCAL`), the papers' need the Hub or its cache."""

OFFLINE_SUITES = ("docs", "other")
"""The suites that need no data: in-domain and out-of-domain, reported side by side and never averaged."""

OFFLINE = (*SUITES["docs"].tasks, *SUITES["other"].tasks, "PackageClustering")
"""Tasks that are built here: those of both suites, and one outside, since methods train on its packages as labels."""

ONE_CORPUS = frozenset({*SUITES["docs"].tasks, "PackageClustering"})
"""Tasks over the docs corpus, which share texts; no others do."""

CONFIDENTIAL = "air-bench"
"""A benchmark of the papers that can't be a suite: no one outside has its right answers (NV-Embed, appendix B)."""

MTEB_LENGTH = 512
"""Tokens of a text at most, as in all five papers, for tasks that are not sized by a scale."""


def tasks(suite: str | Iterable[str], scale: Scale | str = "quick") -> list[Any]:
    """The mteb tasks of a suite, fresh ones at each call.

    Args:
        suite: A name from :data:`SUITES` or :data:`OFFLINE`, of a task of local files, of any mteb task, or several
            names. Tasks of the English MTEB are as in that benchmark (English parts, dev split of MSMARCO).
        scale: Sizes of the offline tasks and those of local files; tasks of mteb always run whole.

    Returns:
        mteb tasks. The offline and local ones have their data; those of mteb load theirs when they run.

    Raises:
        UnknownNameError: Neither a suite nor an mteb task.
        InvalidValueError: No task at all, or :data:`CONFIDENTIAL`.
        MissingDataError: A package is not installed of which the docs corpus is made, for its tasks; or a local file
            is absent.
        DamagedFileError: A local file is not in its form.
    """
    scale = scale if isinstance(scale, Scale) else get_scale(scale)
    names = task_names(suite)
    known = _english() if any(name not in OFFLINE and not is_local(name) for name in names) else {}
    offline = {}
    if set(names) & set(OFFLINE):
        from .offline import offline_tasks

        offline = offline_tasks(names, scale)
    return [offline[name] if name in offline else _task(name, known, scale) for name in names]


def task_names(suite: str | Iterable[str]) -> tuple[str, ...]:
    """Names of the tasks of suites, each once; a name that is not a suite's counts as a task's.

    Raises:
        InvalidValueError: No name at all, or :data:`CONFIDENTIAL`.
    """
    names = (suite,) if isinstance(suite, str) and suite else tuple(suite) if isinstance(suite, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidValueError("suite", f"one of {', '.join(SUITES)}, an mteb task, or a list of them", suite)
    if CONFIDENTIAL in names:
        hint = (
            'AIR-Bench keeps its right answers to itself; its published scores: papers.published("nv-embed-air-bench").'
        )
        raise InvalidValueError("suite", "tasks that can be scored here", CONFIDENTIAL, hint)
    return tuple(dict.fromkeys(task for name in names for task in (SUITES[name].tasks if name in SUITES else (name,))))


def _english() -> dict[str, Any]:
    """Tasks of the English MTEB by name."""
    import mteb

    return {task.metadata.name: task for task in mteb.get_benchmark("MTEB(eng, v1)").tasks}


def _task(name: str, known: dict[str, Any], scale: Scale) -> Any:
    import mteb

    if is_local(name):
        from . import frames

        local = LOCAL[name]
        sizes = SCALES["paper"] if local.is_of_mteb else scale
        return frames.task(name, local.kind, local.what, read(name), sizes)
    if name in known:
        return known[name]
    try:
        return mteb.get_task(name)
    except (KeyError, TypeError, AttributeError) as error:
        hint = "Any task of mteb works too" + (f" ({error.args[0]})" if isinstance(error, KeyError) else "") + "."
        raise UnknownNameError("suite or task", name, [*SUITES, *OFFLINE, *LOCAL], hint) from None
