"""Readers of the tables under ``data/``: the project's own texts, and what it quotes from the papers.

``data/README.md`` is the datasheet: how each file was made, what it measures, and what it is not.
"""

from __future__ import annotations

import pandas as pd

from ..errors import DamagedFileError, UnknownNameError
from ..files import data_path

PAPERS = ("anchor", "causal2vec", "lens", "llm2vec", "nv_embed")
"""The papers whose task instructions are kept, one file each."""

INSTRUCTION_SETS = (*PAPERS, "docs")
"""The papers' instructions, and the workbook's own for its offline tasks."""

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

_SCORES = ("model", "attention", "training", "pooling", "benchmark", "task_type", "tasks", "score", "source")
PUBLISHED = {
    "echo_untrained": _SCORES,
    "llm2vec_mteb": _SCORES,
    "llm2vec_words": ("model", "attention", "training", "task", "score", "source"),
    "llm2vec_hours": ("model", "method", "hours", "source"),
    "nv_embed_pooling": ("model", "stage", "pooling", "attention", "task_type", "tasks", "score", "source"),
    "nv_embed_training": ("recipe", "part", "task_type", "tasks", "score", "source"),
    "nv_embed_labels": ("task", "documents", "score", "source"),
    "lens_mteb": ("model", "dimensions", "data", "task_type", "tasks", "score", "source"),
    "lens_air_bench": ("model", "dimensions", "domain", "tasks", "score", "source"),
    "lens_attention_pooling": ("model", "attention", "pooling", "task_type", "tasks", "score", "source"),
    "lens_hybrid": ("model", "task", "score", "source"),
    "causal2vec_mteb": ("model", "method", "task_type", "tasks", "score", "source"),
    "causal2vec_encoders": ("model", "encoder", "task_type", "tasks", "score", "source"),
    "causal2vec_efficiency": ("method", "task", "tokens", "milliseconds", "source"),
} | {
    f"causal2vec_{part}": ("model", "variant", "task_type", "tasks", "score", "source") for part in CAUSAL2VEC_VARIANTS
}
PUBLISHED |= {
    **dict.fromkeys(
        ("anchor_mteb", "anchor_objectives"), ("model", "variant", "task_type", "tasks", "score", "source")
    ),
    "anchor_alpha": ("variant", "tasks", "score", "source"),
    "anchor_steps": ("model", "variant", "first", "second", "tasks", "score", "source"),
    "anchor_early": ("model", "variant", "step", "tasks", "score", "source"),
    "anchor_stages": ("model", "variant", "tasks", "score", "source"),
    "anchor_llama2vec": ("variant", "first", "score", "source"),
    "anchor_hours": ("size", "stage", "hours", "source"),
}
"""The published tables that are kept, one file each, and their columns."""

LABELS = ("negative", "positive")
SPLITS = ("train", "test")
SIDES = ("query", "document", "both")
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
STAGES = ("1", "2")
DOCUMENTS = ("labels", "examples")
DATA = ("non-public", "public")
ENCODERS = ("none", "BERT-base", "E5-small-v2", "E5-base-v2")
DOMAINS = ("wiki", "web", "news", "healthcare", "law", "finance", "arxiv", "msmarco", "average")
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
    "encoder": ENCODERS,
}
_CHOICES_OF_ONE = {
    "llm2vec_words": {"task": WORD_TASKS},
    "llm2vec_hours": {"method": METHODS},
    "lens_attention_pooling": {"pooling": LEXICON_POOLING},
} | {
    f"{paper}_{part}": {"variant": variants}
    for paper, parts in (("causal2vec", CAUSAL2VEC_VARIANTS), ("anchor", ANCHOR_VARIANTS))
    for part, variants in parts.items()
}
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


def future_tokens() -> pd.DataFrame:
    """Triples that share a prefix and differ in what follows it.

    A sentence is ``prefix + " " + continuation``. The positive continuation means what the query's does, in other
    words; the negative means something else. A model that pools the prefix alone tells them apart only if the
    prefix's states have seen the tokens that come later.

    Returns:
        35 rows, strings: ``id``, ``prefix``, ``query``, ``positive``, ``negative``.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.

    Source:
        The construction is that of LLM2Vec, section 4.1 and appendix F; the sentences are the project's own.
    """
    return _read("probes", "future_tokens.csv", columns=["id", "prefix", "query", "positive", "negative"])


def reviews() -> pd.DataFrame:
    """Short reviews with a polarity, balanced by label, domain and split.

    Returns:
        256 rows, strings: ``id``, ``text``, ``label`` (positive or negative), ``domain`` (16 of them) and ``split``
        (train or test).

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    return _read(
        "texts",
        "reviews.csv",
        columns=["id", "text", "label", "domain", "split"],
        choices={"label": LABELS, "split": SPLITS},
    )


def paraphrase_ladder() -> pd.DataFrame:
    """Sentence pairs graded by how much of their meaning they share: 42 sentences, each met in six grades.

    Returns:
        252 rows: ``id``, ``source`` (which of the 42 sentences), ``sentence1`` (that sentence), ``sentence2``
        (strings) and ``score`` (float64, 0.0 to 5.0; 5 is the same meaning, 0 another subject).

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    columns = ["id", "source", "sentence1", "sentence2", "score"]
    grades = {f"{grade / 2:.1f}" for grade in range(11)}
    frame = _read("texts", "paraphrase_ladder.csv", columns=columns, choices={"score": sorted(grades)})
    return frame.astype({"score": float})


def topics() -> pd.DataFrame:
    """Sentences about twelve topics, some of them close to one another.

    Returns:
        288 rows, 24 a topic, strings: ``id``, ``topic``, ``text``.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    return _read("texts", "topics.csv", columns=["id", "topic", "text"])


def hard_negatives() -> pd.DataFrame:
    """Hard negatives of queries of the docs corpus, as ids of its documents.

    They were mined once (``workbook.training.curation.mine``: MiniLM as the teacher, a margin of 95 %, all documents of
    the train split as the corpus) and kept, since the last digits of a teacher's scores differ between processors, and
    with them whom they rank first.

    Returns:
        1,685 rows, strings: ``id`` (a pair of the train split) and ``negative_1``, the hardest, to ``negative_7``.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    return _read("mined", "docs.csv", columns=["id", *(f"negative_{number}" for number in range(1, 8))])


def instructions(paper: str) -> pd.DataFrame:
    """The task instructions of a paper, word for word as its tables print them, or the workbook's own.

    Args:
        paper: One of ``PAPERS``, a hyphen may stand for the underscore; or ``docs``, for the tasks of the suite docs.

    Returns:
        One row for each task, instruction and use, strings: ``task`` (mteb's name for it, or the name of a training
        set), ``side`` (which texts the instruction is put before: query, document or both), ``instruction``, and
        ``source``, which begins with the table and ``training`` or ``evaluation`` and may go on with a doubt. A
        training set may have several instructions.

    Raises:
        UnknownNameError: No such set of instructions; the message lists those there are.
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    name = paper.replace("-", "_") if isinstance(paper, str) else paper
    if name not in INSTRUCTION_SETS:
        raise UnknownNameError("paper", paper, INSTRUCTION_SETS)
    return _read(
        "instructions", f"{name}.csv", columns=["task", "side", "instruction", "source"], choices={"side": SIDES}
    )


def examples() -> pd.DataFrame:
    """Examples of the tasks of suite docs, to put into a prompt; none of them is a text that the suite evaluates.

    Returns:
        15 rows, strings: ``task`` (for all tasks with its instruction), ``query``, and ``response``: a text that
        answers the query or means the same, or the name of its class. Topics and packages are others than evaluated.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    return _read("instructions", "examples.csv", columns=["task", "query", "response"])


def published(table: str) -> pd.DataFrame:
    """What a paper prints for its models, one number a row.

    Args:
        table: One of ``PUBLISHED``; a hyphen may stand for the underscore.

    Returns:
        ``llm2vec_mteb``, and ``echo_untrained`` likewise: ``model``, ``attention`` (causal or bidirectional),
        ``training`` (none, or the stages in their order, such as mntp+simcse), ``pooling`` (mean, weighted-mean,
        last-token, or second-copy for Echo), ``benchmark``, ``task_type`` (a type of MTEB, or average) and
        ``source``, strings; ``tasks`` (int64), the number of tasks behind the score; ``score`` (float64), in points
        as printed. An average is the paper's own, over tasks and not over types.

        ``llm2vec_words``: ``model``, ``attention``, ``training``, ``task`` (chunk, ner or pos of CoNLL-2003),
        ``score`` and ``source``.

        ``llm2vec_hours``: ``model``, ``method`` (llm2vec or echo), ``hours`` (float64, of evaluating on MTEB) and
        ``source``.

        ``nv_embed_pooling``: ``model`` (NV-Embed-v1 or -v2), ``stage`` (int64, the training stage that was the last:
        1 or 2), ``pooling`` (last-token, mean, latent-attention or self-attention), ``attention``, ``task_type``,
        ``tasks``, ``score`` and ``source``. An average is as printed; most do not follow from the types.

        ``nv_embed_training``: ``recipe``, ``part`` (what its part of the table varies: stages, documents or data;
        v1 stands alone), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``nv_embed_labels``: ``task`` (mteb's name, or average), ``documents`` (what positives and negatives are:
        labels of the classes, or examples), ``score`` and ``source``.

        ``lens_mteb``: ``model``, ``dimensions`` (int64), ``data`` (public, or non-public where not all of what the
        model was trained on is), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``lens_air_bench``: ``model``, ``dimensions``, ``domain`` (of AIR-Bench, or average), ``tasks``, ``score``
        (nDCG@10) and ``source``.

        ``lens_attention_pooling``: ``model``, ``attention``, ``pooling`` (last, sum or max), ``task_type``, ``tasks``,
        ``score`` and ``source``.

        ``lens_hybrid``: ``model`` (LENS + BGE is the concatenation), ``task`` (mteb's name, or average), ``score``
        (nDCG@10) and ``source``.

        ``causal2vec_mteb``: ``model`` (the language model; other for what was built on another), ``method``,
        ``task_type``, ``tasks``, ``score`` and ``source``.

        ``causal2vec_components``, ``_freezing``, ``_position``, ``_tokens`` and ``_representation``: ``model``,
        ``variant`` (one of ``CAUSAL2VEC_VARIANTS``), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``causal2vec_encoders``: ``model`` (none where the encoder embeds alone), ``encoder`` (none where there is only
        the language model), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``causal2vec_efficiency``: ``method``, ``task`` (mteb's name), ``tokens`` and ``milliseconds`` (float64, the
        mean of a text) and ``source``.

        ``anchor_mteb`` and ``anchor_objectives``: ``model``, ``variant`` (one of ``ANCHOR_VARIANTS``), ``task_type``,
        ``tasks``, ``score`` and ``source``. ``anchor_stages`` likewise, averages alone; ``anchor_alpha`` too, of a
        model that is not named; ``anchor_steps`` with the steps of the ``first`` and ``second`` stage (int64);
        ``anchor_early`` with the ``step`` (int64) of the second.

        ``anchor_llama2vec``: ``variant``, steps of its ``first`` stage, ``score`` (nDCG@10 on BEIR) and ``source``.

        ``anchor_hours``: ``size`` (of the model), ``stage`` (int64, 1 or 2), ``hours`` (of training) and ``source``.

    Raises:
        UnknownNameError: No such table; the message lists those there are.
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.

    Source:
        LLM2Vec: tables 1, 2 and 5; 1 and appendix E.1 for Echo; 4; 6. NV-Embed: tables 2 and 3; 4; 5. LENS:
        tables 1; 2; 5; 6. Causal2Vec: tables 1; 2, 11, 12, 5 and 10; 6; section 4.4. Anchor: tables 1; 3; 10;
        4; 5; 9; 12; 7.
    """
    name = table.replace("-", "_") if isinstance(table, str) else table
    if name not in PUBLISHED:
        raise UnknownNameError("published table", table, PUBLISHED)
    columns = PUBLISHED[name]
    numbers = {column: kind for column, kind in _NUMBERS.items() if column in columns}
    choices = {column: known for column, known in _CHOICES.items() if column in columns}
    choices |= _CHOICES_OF_ONE.get(name, {})
    frame = _read("published", f"{name}.csv", columns=list(columns), choices=choices)
    try:
        return frame.astype(numbers)
    except ValueError as error:
        path = data_path("published", f"{name}.csv")
        raise DamagedFileError(f"{path}: expected numbers as {' and '.join(numbers)}, got {error}. {_MEND}") from error


def _read(*parts: str, columns: list[str], choices: dict[str, tuple | list] | None = None) -> pd.DataFrame:
    """A CSV under ``data/`` as strings, refused unless it has these columns, no blank, no id twice, known choices."""
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
