"""The tables under ``data/``: the project's own texts, and what it quotes from the papers.

``data/README.md`` is the datasheet: how each file was made, what it measures, and what it is not.
"""

from __future__ import annotations

import pandas as pd

from ..errors import UnknownNameError
from .tables import PUBLISHED, read, read_published

PAPERS = ("anchor", "causal2vec", "lens", "llm2vec", "nv_embed")
"""The papers whose task instructions are kept, one file each."""

INSTRUCTION_SETS = (*PAPERS, "docs")
"""The papers' instructions, and the workbook's own for its offline tasks."""

LABELS = ("negative", "positive")
SPLITS = ("train", "test")
SIDES = ("query", "document", "both")


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
    return read("probes", "future_tokens.csv", columns=["id", "prefix", "query", "positive", "negative"])


def reviews() -> pd.DataFrame:
    """Short reviews with a polarity, balanced by label, domain and split.

    Returns:
        256 rows, strings: ``id``, ``text``, ``label`` (positive or negative), ``domain`` (16 of them) and ``split``
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
    frame = read("texts", "paraphrase_ladder.csv", columns=columns, choices={"score": sorted(grades)})
    return frame.astype({"score": float})


def topics() -> pd.DataFrame:
    """Sentences about twelve topics, some of them close to one another.

    Returns:
        288 rows, 24 a topic, strings: ``id``, ``topic``, ``text``.

    Raises:
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.
    """
    return read("texts", "topics.csv", columns=["id", "topic", "text"])


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
    return read("mined", "docs.csv", columns=["id", *(f"negative_{number}" for number in range(1, 8))])


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
    return read(
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
    return read("instructions", "examples.csv", columns=["task", "query", "response"])


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

        ``llm2vec_datasets``, ``nv_embed_datasets``, ``lens_datasets``, ``causal2vec_datasets``, ``anchor_datasets``: as
        the table of the same paper that ends in ``_mteb``, but a row for each dataset: ``task`` (mteb's name, or
        average) in place of ``tasks``. Of LENS, 49 of the 56.

        ``llm2vec_others``, ``anchor_others`` and ``nv_embed_mteb``: ``model`` (as printed), ``task_type``, ``tasks``,
        ``score`` and ``source``: what the paper sets beside its own models; in the last one these are there too.

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

        ``nv_embed_air_bench``: ``model``, ``part`` (of AIR-Bench: QA or Long-Doc), ``domain``, ``tasks``, ``metric``,
        ``score`` and ``source``.

        ``nv_embed_compression``: ``model``, ``sparsity`` and the ``criterion`` that it was pruned by (none for smaller
        models beside it), ``retraining`` (none, on labels, or on labels with distillation), ``precision``, ``tasks``,
        ``score`` and ``source``.

        ``lens_mteb``: ``model``, ``dimensions`` (int64), ``data`` (public, or non-public where not all of what the
        model was trained on is), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``lens_air_bench``: ``model``, ``dimensions``, ``domain`` (of AIR-Bench, or average), ``tasks``,
        ``metric``, ``score`` and ``source``.

        ``lens_attention_pooling``: ``model``, ``attention``, ``pooling`` (last, sum or max), ``task_type``, ``tasks``,
        ``score`` and ``source``.

        ``lens_hybrid``: ``model`` (LENS + BGE is the concatenation), ``task`` (mteb's name, or average), ``score``
        (nDCG@10) and ``source``.

        ``causal2vec_mteb``: ``model`` (the language model; other for what was built on another), ``method``,
        ``task_type``, ``tasks``, ``score`` and ``source``.

        ``causal2vec_components``, ``_freezing``, ``_position``, ``_tokens`` and ``_representation``: ``model``,
        ``variant`` (one of ``tables.CAUSAL2VEC_VARIANTS``), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``causal2vec_encoders``: ``model`` (none where the encoder embeds alone), ``encoder`` (none where there is only
        the language model), ``task_type``, ``tasks``, ``score`` and ``source``.

        ``causal2vec_efficiency``: ``method``, ``task`` (mteb's name), ``tokens`` and ``milliseconds`` (float64, the
        mean of a text) and ``source``.

        ``anchor_mteb`` and ``anchor_objectives``: ``model``, ``variant`` (one of ``tables.ANCHOR_VARIANTS``),
        ``task_type``, ``tasks``, ``score`` and ``source``. ``anchor_stages`` likewise, averages alone;
        ``anchor_alpha`` too, of a model that is not named; ``anchor_steps`` with the steps of the ``first`` and
        ``second`` stage (int64); ``anchor_early`` with the ``step`` (int64) of the second.

        ``anchor_llama2vec``: ``variant``, steps of its ``first`` stage, ``score`` (nDCG@10 on BEIR) and ``source``.

        ``anchor_hours``: ``size`` (of the model), ``stage`` (int64, 1 or 2), ``hours`` (of training) and ``source``.

    Raises:
        UnknownNameError: No such table; the message lists those there are.
        MissingDataError: The file is absent; the message names its path.
        DamagedFileError: The file is not the one described here; the message says what is wrong.

    Source:
        LLM2Vec: tables 1, 2, 4, 5, 6, 9, 11, 12 and appendix E.1. NV-Embed: tables 1 to 10 and 14. LENS: tables 1, 2,
        5, 6 and 9. Causal2Vec: tables 1, 2, 5, 6, 10, 11, 12, 14 and section 4.4. Anchor: tables 1 to 5, 7, 9, 10, 12,
        14 and 15. Every row names its own.
    """
    name = table.replace("-", "_") if isinstance(table, str) else table
    if name not in PUBLISHED:
        raise UnknownNameError("published table", table, PUBLISHED)
    return read_published(name)
