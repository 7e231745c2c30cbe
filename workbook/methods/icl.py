"""bge-en-icl: a few examples of the task in the prompt of a causal model, whose last token is the vector."""

from __future__ import annotations

from .chain import Chain

CHAIN = Chain(pooling="last_token", template="icl")
"""Zero-shot, unless examples are given: ``build("icl", examples=...)``.

It is trained differently from the published model. Here the stage that methods share trains it, with all given examples
in every prompt, beyond the stage's length. There each query has up to five examples, drawn from its batch, as many as
fit, and a reranker may be the teacher.

Source: Li et al. 2024, "Making text embedders few-shot learners", and its released code.
"""


def examples(count: int | None = None) -> dict[str, list[tuple[str, str]]]:
    """The workbook's own examples for its offline tasks, by instruction, as ``build`` takes them.

    Args:
        count: Number of examples per instruction, the first ones; None for all three.

    Raises:
        MissingDataError, DamagedFileError: The data file is absent or not as described.

    Examples:
        >>> {len(pairs) for pairs in examples(2).values()}
        {2}
    """
    from ..corpora import authored  # pandas takes its time, and listing the methods should not

    return {
        authored.instruction_of(task): list(zip(rows["query"], rows["response"], strict=True))[:count]
        for task, rows in authored.examples().groupby("task", sort=False)
    }
