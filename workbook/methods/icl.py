"""bge-en-icl: a few examples of the task in the prompt of a causal model, whose last token is the vector."""

from __future__ import annotations

from .chain import Chain

CHAIN = Chain(pooling="last_token", template="icl")
"""Without examples in the prompt, zero-shot, unless they are given: ``build("icl", examples=...)``.

Other than published: here the stage that methods share trains it, with all examples that were given, in every prompt
and beyond the stage's length; there each query has none to five, drawn from its batch, as many as fit, and a reranker
may be the teacher.

Source: Li et al. 2024, "Making text embedders few-shot learners", and its released code.
"""


def examples(count: int | None = None) -> dict[str, list[tuple[str, str]]]:
    """The workbook's own examples for its offline tasks, by instruction, as ``build`` takes them.

    Args:
        count: How many of each instruction, the first ones; None for all, which are three.

    Raises:
        MissingDataError, DamagedFileError: The data file is absent or not as described.

    Example:
        >>> {len(pairs) for pairs in examples(2).values()}
        {2}
    """
    from ..corpora import authored  # pandas takes its time, and listing the methods should not

    return {
        authored.instruction_of(task): list(zip(rows["query"], rows["response"], strict=True))[:count]
        for task, rows in authored.examples().groupby("task", sort=False)
    }
