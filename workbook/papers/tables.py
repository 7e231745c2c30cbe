"""The papers' printed numbers as tidy tables: their columns, and a strict reader."""

from __future__ import annotations

import pandas as pd

from ..corpora.tables import MEND, read
from ..errors import DamagedFileError, UnknownNameError
from ..files import data_path

CAUSAL2VEC_VARIANTS = {
    "components": ("last-token", "contextual", "causal2vec"),
    "freezing": ("trained", "frozen"),
    "position": ("before", "after"),
    "tokens": ("1", "2", "4", "8"),
    "representation": ("contextual+eos", "encoder+eos", "eos"),
}
"""Variants in Causal2Vec's ablations."""

ANCHOR_VARIANTS = {
    "mteb": ("baseline", "anchor"),
    "objectives": ("baseline", "only-d2q", "only-q2d", "anchor"),
    "alpha": ("0.2", "0.5", "0.8"),
    "steps": ("baseline", "anchor"),
    "early": ("baseline", "only-d2q", "only-q2d", "anchor"),
    "stages": ("untrained", "reconstruction", "baseline", "anchor"),
    "llama2vec": ("llama2vec", "anchor"),
}
"""Training variants in Anchor's tables; the baseline is its second stage alone."""

_BY_TYPE = ("task_type", "tasks", "score", "source")
_BY_TASK = ("task_type", "task", "score", "source")
PUBLISHED = {
    "echo_untrained": ("model", "attention", "training", "pooling", "benchmark", *_BY_TYPE),
    "llm2vec_mteb": ("model", "attention", "training", "pooling", "benchmark", *_BY_TYPE),
    "llm2vec_datasets": ("model", "attention", "training", "pooling", *_BY_TASK),
    "llm2vec_others": ("model", *_BY_TYPE),
    "llm2vec_words": ("model", "attention", "training", "task", "score", "source"),
    "llm2vec_hours": ("model", "method", "hours", "source"),
    "nv_embed_mteb": ("model", *_BY_TYPE),
    "nv_embed_datasets": ("model", *_BY_TASK),
    "nv_embed_pooling": ("model", "stage", "pooling", "attention", *_BY_TYPE),
    "nv_embed_training": ("recipe", "part", *_BY_TYPE),
    "nv_embed_labels": ("task", "documents", "score", "source"),
    "nv_embed_samples": ("task", "task_type", "samples", "classes", "source"),
    "nv_embed_air_bench": ("model", "part", "domain", "tasks", "metric", "score", "source"),
    "nv_embed_compression": ("model", "sparsity", "criterion", "retraining", "precision", "tasks", "score", "source"),
    "lens_mteb": ("model", "dimensions", "data", *_BY_TYPE),
    "lens_datasets": ("model", *_BY_TASK),
    "lens_air_bench": ("model", "dimensions", "domain", "tasks", "metric", "score", "source"),
    "lens_attention_pooling": ("model", "attention", "pooling", *_BY_TYPE),
    "lens_hybrid": ("model", "task", "score", "source"),
    "lens_clusters": ("cluster", "token", "source"),
    "lens_keywords": ("query", "rank", "words", "source"),
    "causal2vec_mteb": ("model", "method", *_BY_TYPE),
    "causal2vec_datasets": ("model", "method", *_BY_TASK),
    "causal2vec_encoders": ("model", "encoder", *_BY_TYPE),
    "causal2vec_efficiency": ("method", "task", "tokens", "milliseconds", "source"),
} | {f"causal2vec_{part}": ("model", "variant", *_BY_TYPE) for part in CAUSAL2VEC_VARIANTS}
PUBLISHED |= {
    **dict.fromkeys(("anchor_mteb", "anchor_objectives"), ("model", "variant", *_BY_TYPE)),
    "anchor_datasets": ("model", "variant", *_BY_TASK),
    "anchor_others": ("model", *_BY_TYPE),
    "anchor_alpha": ("variant", "tasks", "score", "source"),
    "anchor_steps": ("model", "variant", "first", "second", "tasks", "score", "source"),
    "anchor_early": ("model", "variant", "step", "tasks", "score", "source"),
    "anchor_stages": ("model", "variant", "tasks", "score", "source"),
    "anchor_llama2vec": ("variant", "first", "score", "source"),
    "anchor_hours": ("size", "stage", "hours", "source"),
}
"""The published tables that are kept, one file each, and their columns."""

ATTENTION = ("causal", "bidirectional")
TRAINING = ("none", "mntp", "simcse", "mntp+simcse", "supervised", "mntp+supervised", "mntp+simcse+supervised")
POOLING = ("mean", "weighted-mean", "last-token", "second-copy", "latent-attention", "self-attention")
LEXICON_POOLING = ("last", "sum", "max")
WORD_TASKS = ("chunk", "ner", "pos")
METHODS = ("llm2vec", "echo")
TASK_TYPES = (
    "Retrieval",
    "Reranking",
    "Clustering",
    "PairClassification",
    "Classification",
    "STS",
    "Summarization",
    "average",
)
METRICS = {
    "Retrieval": "nDCG@10",
    "Reranking": "MAP",
    "Clustering": "V-measure",
    "PairClassification": "AP",
    "Classification": "accuracy",
    "STS": "Spearman",
    "Summarization": "Spearman",
    "average": "mean of main scores",
}
"""Metric of an MTEB score by the type of its task: all five papers report the main scores."""
STAGES = ("1", "2")
DOCUMENTS = ("labels", "examples")
DATA = ("non-public", "public")
ENCODERS = ("none", "BERT-base", "E5-small-v2", "E5-base-v2")
DOMAINS = ("wiki", "web", "news", "healthcare", "law", "finance", "arxiv", "msmarco", "book", "average")
AIR_BENCH = ("QA", "Long-Doc")
SPARSITY = ("none", "2:4", "4:8", "unstructured")
CRITERIA = ("none", "magnitude", "wanda", "sparsegpt")
RETRAINING = ("none", "labels", "labels+distillation")
PRECISION = ("16bit", "INT8", "E4M3", "E5M2")
RECIPES = {
    "stages": ("single-stage-in-batch", "single-stage", "two-stage", "reversed"),
    "documents": DOCUMENTS,
    "data": ("no-mining", "mining", "mining+data", "mining+data+synthetic"),
    "v1": ("v1",),
}
_CHOICES = {
    "attention": ATTENTION,
    "training": TRAINING,
    "pooling": POOLING,
    "task_type": TASK_TYPES,
    "stage": STAGES,
    "part": tuple(RECIPES),
    "recipe": tuple(recipe for recipes in RECIPES.values() for recipe in recipes),
    "documents": DOCUMENTS,
    "data": DATA,
    "domain": DOMAINS,
    "metric": ("nDCG@10", "Recall@10"),
    "encoder": ENCODERS,
    "sparsity": SPARSITY,
    "criterion": CRITERIA,
    "retraining": RETRAINING,
    "precision": PRECISION,
}
_CHOICES_OF_ONE = {
    "llm2vec_words": {"task": WORD_TASKS},
    "llm2vec_hours": {"method": METHODS},
    "nv_embed_air_bench": {"part": AIR_BENCH},
    "lens_attention_pooling": {"pooling": LEXICON_POOLING},
} | {
    f"{paper}_{part}": {"variant": variants}
    for paper, parts in (("causal2vec", CAUSAL2VEC_VARIANTS), ("anchor", ANCHOR_VARIANTS))
    for part, variants in parts.items()
}
_CHOICES_OF_ONE["anchor_datasets"] = _CHOICES_OF_ONE["anchor_mteb"]
_NUMBERS = {
    "cluster": int,
    "rank": int,
    "stage": int,
    "first": int,
    "second": int,
    "step": int,
    "dimensions": int,
    "tasks": int,
    "score": float,
    "hours": float,
    "samples": int,
    "classes": int,
    "tokens": float,
    "milliseconds": float,
}


def read_published(name: str) -> pd.DataFrame:
    """One of ``PUBLISHED``, with its numbers as numbers.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    columns = PUBLISHED[name]
    numbers = {column: kind for column, kind in _NUMBERS.items() if column in columns}
    choices = {column: known for column, known in _CHOICES.items() if column in columns}
    frame = read("published", f"{name}.csv", columns=columns, choices=choices | _CHOICES_OF_ONE.get(name, {}))
    try:
        return frame.astype(numbers)
    except ValueError as error:
        path = data_path("published", f"{name}.csv")
        raise DamagedFileError(f"{path}: expected numbers as {' and '.join(numbers)}, got {error}. {MEND}") from error


def published(table: str) -> pd.DataFrame:
    """The printed numbers of a paper's table, one per row.

    Args:
        table: One of ``PUBLISHED``, with underscores or hyphens.

    Returns:
        ``llm2vec_mteb``, and ``echo_untrained`` likewise: ``model``, ``attention`` (causal or bidirectional),
        ``training`` (none, or the stages in their order, such as mntp+simcse), ``pooling`` (mean, weighted-mean,
        last-token, or second-copy for Echo), ``benchmark``, ``task_type`` (a type of MTEB, or average) and
        ``source``, strings; ``tasks`` (int64), the number of tasks behind the score; ``score`` (float64), in points
        as printed. An average is the paper's own, over tasks and not over types.

        ``llm2vec_datasets``, ``nv_embed_datasets``, ``lens_datasets``, ``causal2vec_datasets``, ``anchor_datasets``: as
        the table of the same paper that ends in ``_mteb``, but one row per dataset: ``task`` (mteb's name, or average)
        in place of ``tasks``. LENS has 49 of the 56.

        ``llm2vec_others``, ``anchor_others`` and ``nv_embed_mteb``: ``model`` (as printed), ``task_type``, ``tasks``,
        ``score`` and ``source``, for models that the paper compares with; the last one has its own models too.

        ``llm2vec_words``: ``model``, ``attention``, ``training``, ``task`` (chunk, ner or pos of CoNLL-2003),
        ``score`` and ``source``.

        ``llm2vec_hours``: ``model``, ``method`` (llm2vec or echo), ``hours`` (float64, of evaluation on MTEB) and
        ``source``.

        ``nv_embed_pooling``: ``model`` (NV-Embed-v1 or -v2), ``stage`` (int64, the last training stage: 1 or 2),
        ``pooling`` (last-token, mean, latent-attention or self-attention), ``attention``, ``task_type``, ``tasks``,
        ``score`` and ``source``. An average is as printed; most do not follow from the types.

        ``nv_embed_training``: ``recipe``, ``part`` (what its part of the table varies: stages, documents or data; v1
        has its own), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``nv_embed_labels``: ``task`` (mteb's name, or average), ``documents`` (what represents a class in positives and
        negatives: labels or examples), ``score`` and ``source``.

        ``nv_embed_samples``: ``task`` (of training, as in ``corpora.authored.instructions("nv_embed")``),
        ``task_type``, ``samples`` (int64, as printed, in thousands and rounded), ``classes`` (int64, which the paper
        does not print: mteb's count; 0 where there are none or it is not known) and ``source``.

        ``nv_embed_air_bench``: ``model``, ``part`` (of AIR-Bench: QA or Long-Doc), ``domain``, ``tasks``, ``metric``,
        ``score`` and ``source``.

        ``nv_embed_compression``: ``model``, ``sparsity`` and the ``criterion`` of pruning (none for smaller models that
        it is compared with), ``retraining`` (none, on labels, or on labels with distillation), ``precision``,
        ``tasks``, ``score`` and ``source``.

        ``lens_mteb``: ``model``, ``dimensions`` (int64), ``data`` (public, or non-public if a part of the training data
        is), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``lens_air_bench``: ``model``, ``dimensions``, ``domain`` (of AIR-Bench, or average), ``tasks``,
        ``metric``, ``score`` and ``source``.

        ``lens_attention_pooling``: ``model``, ``attention``, ``pooling`` (last, sum or max), ``task_type``, ``tasks``,
        ``score`` and ``source``.

        ``lens_hybrid``: ``model`` (LENS + BGE is the concatenation), ``task`` (mteb's name, or average), ``score``
        (nDCG@10) and ``source``.

        ``lens_clusters``: ``cluster`` (int64, from 1 in the order of print), ``token`` (as printed) and ``source``.

        ``lens_keywords``: ``query``, ``rank`` (int64, from 1: the heaviest cluster first), ``words`` (two tokens of the
        cluster, as printed) and ``source``.

        ``causal2vec_mteb``: ``model`` (the language model, or other), ``method``, ``task_type``, ``tasks``, ``score``
        and ``source``.

        ``causal2vec_components``, ``_freezing``, ``_position``, ``_tokens`` and ``_representation``: ``model``,
        ``variant`` (one of ``CAUSAL2VEC_VARIANTS``), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``causal2vec_encoders``: ``model`` (none for the encoder alone), ``encoder`` (none for the language model
        alone), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``causal2vec_efficiency``: ``method``, ``task`` (mteb's name), ``tokens`` and ``milliseconds`` (float64, mean
        per text) and ``source``.

        ``anchor_mteb`` and ``anchor_objectives``: ``model``, ``variant`` (one of ``ANCHOR_VARIANTS``),
        ``task_type``, ``tasks``, ``score`` and ``source``. ``anchor_stages`` likewise, with averages alone;
        ``anchor_alpha`` too, for a model that is not named; ``anchor_steps`` with the steps of the ``first`` and
        ``second`` stage (int64); ``anchor_early`` with the ``step`` (int64) of the second stage.

        ``anchor_llama2vec``: ``variant``, steps of its ``first`` stage, ``score`` (nDCG@10 on BEIR) and ``source``.

        ``anchor_hours``: ``size`` (of the model), ``stage`` (int64, 1 or 2), ``hours`` (of training) and ``source``.

    Raises:
        UnknownNameError: No such table; the message lists all.
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.

    Source:
        LLM2Vec: tables 1, 2, 4, 5, 6, 9, 11, 12 and appendix E.1. NV-Embed: tables 1 to 10, 12 and 14. LENS: tables 1,
        2, 4 to 7 and 9. Causal2Vec: tables 1, 2, 5, 6, 10, 11, 12, 14 and section 4.4. Anchor: tables 1 to 5, 7, 9, 10,
        12, 14 and 15. Every row names its own.
    """
    name = table.replace("-", "_") if isinstance(table, str) else table
    if name not in PUBLISHED:
        raise UnknownNameError("published table", table, PUBLISHED)
    return read_published(name)
