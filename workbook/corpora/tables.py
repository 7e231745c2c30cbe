"""What the published tables hold, column by column, and how a CSV under ``data/`` is read: strictly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from ..errors import DamagedFileError
from ..files import data_path

CAUSAL2VEC_VARIANTS = {
    "components": ("last-token", "contextual", "causal2vec"),
    "freezing": ("trained", "frozen"),
    "position": ("before", "after"),
    "tokens": ("1", "2", "4", "8"),
    "representation": ("contextual+eos", "encoder+eos", "eos"),
}
"""What Causal2Vec's ablations of one thing vary."""

ANCHOR_VARIANTS = {
    "mteb": ("baseline", "anchor"),
    "objectives": ("baseline", "only-d2q", "only-q2d", "anchor"),
    "alpha": ("0.2", "0.5", "0.8"),
    "steps": ("baseline", "anchor"),
    "early": ("baseline", "only-d2q", "only-q2d", "anchor"),
    "stages": ("untrained", "reconstruction", "baseline", "anchor"),
    "llama2vec": ("llama2vec", "anchor"),
}
"""How Anchor's tables train a model; the baseline is its second stage alone."""

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
    "nv_embed_air_bench": ("model", "part", "domain", "tasks", "metric", "score", "source"),
    "nv_embed_compression": ("model", "sparsity", "criterion", "retraining", "precision", "tasks", "score", "source"),
    "lens_mteb": ("model", "dimensions", "data", *_BY_TYPE),
    "lens_datasets": ("model", *_BY_TASK),
    "lens_air_bench": ("model", "dimensions", "domain", "tasks", "metric", "score", "source"),
    "lens_attention_pooling": ("model", "attention", "pooling", *_BY_TYPE),
    "lens_hybrid": ("model", "task", "score", "source"),
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
"""What a score of MTEB is, by the type of its task: all five papers report the main scores."""
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
    "stage": int,
    "first": int,
    "second": int,
    "step": int,
    "dimensions": int,
    "tasks": int,
    "score": float,
    "hours": float,
    "tokens": float,
    "milliseconds": float,
}

_MEND = "Restore the file from the project's repository."


def read_published(name: str) -> pd.DataFrame:
    """One of ``PUBLISHED``, its numbers as numbers.

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
        raise DamagedFileError(f"{path}: expected numbers as {' and '.join(numbers)}, got {error}. {_MEND}") from error


def read(*parts: str, columns: Iterable[str], choices: Mapping[str, Iterable[str]] | None = None) -> pd.DataFrame:
    """A CSV under ``data/`` as strings, refused unless it has these columns, no blank, no id twice, known choices.

    Args:
        *parts: Folder and file below ``data/``.
        columns: The columns that the file must have, in their order.
        choices: By column, the values there may be.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not as asked for; the message says what is wrong.
    """
    columns = list(columns)
    path = data_path(*parts)
    try:
        # No value means "missing" here: a text that reads "None" or "NA" is a text.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except ValueError as error:
        raise DamagedFileError(f"{path}: expected a CSV table in UTF-8, got {error}. {_MEND}") from error
    if list(frame.columns) != columns:
        raise DamagedFileError(f"{path}: expected the columns {columns}, got {list(frame.columns)}. {_MEND}")
    blank = frame.apply(lambda column: column.str.strip() == "").any(axis=1)
    if frame.empty or blank.any():
        got = f"line {blank.idxmax() + 2} with an empty one" if blank.any() else "no rows"
        raise DamagedFileError(f"{path}: expected a value in every field, got {got}. {_MEND}")
    for column, allowed in (choices or {}).items():
        strange = frame.loc[~frame[column].isin(allowed), column]
        if len(strange):
            known = ", ".join(allowed)
            raise DamagedFileError(f"{path}: expected {column} to be one of {known}, got {strange.iloc[0]!r}. {_MEND}")
    if "id" in frame and frame["id"].duplicated().any():
        twice = frame.loc[frame["id"].duplicated(), "id"].iloc[0]
        raise DamagedFileError(f"{path}: expected each id once, got {twice!r} again. {_MEND}")
    return frame
