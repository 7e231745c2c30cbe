"""Data curation: queries with a positive and hard negatives, from pairs, classes and graded pairs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from datasets import Dataset

from ..errors import InvalidValueError, UnknownNameError, whole

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DOCUMENTS = ("examples", "labels")
"""Representations of a class as a document: another of its examples, or its label."""

_WINDOW = 1000  # nearest documents that are candidates
_SHOWN = 3  # names that a warning gives


def mine(
    pairs: pd.DataFrame,
    teacher: SentenceTransformer,
    *,
    negatives: int = 1,
    margin: float | None = 0.95,
    corpus: Iterable[str] = (),
    instruction: str | None = None,
    batch_size: int = 32,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Pairs with hard negatives: documents that a teacher ranks high, without likely positives (positive-aware mining).

    A document that the teacher scores above ``margin`` times the positive's score is left out, since it may well answer
    the query too. So are the query's own text and all its positives, whatever they score. For a query with several
    positives the lowest of their scores counts; below a negative score the margin is a share of its absolute value.
    Only the thousand nearest documents are candidates.

    Args:
        pairs: Columns query and positive (strings); a query may have several rows.
        teacher: Any sentence-transformers model: ``workbook.backbones.load_encoder()`` offline, e5-mistral in the
            paper.
        negatives: Hard negatives per row.
        margin: Share of the positive's score, more than 0 and at most 1; None for naive mining, which takes the nearest
            documents whatever they score.
        corpus: Documents to mine besides all positives.
        instruction: Instruction of the queries, as the teacher's prompt.
        batch_size: Texts that the teacher reads at once.
        progress: Whether to show a bar; None for in a terminal.

    Returns:
        Columns query, positive, negative_1, ..., the hardest first. Rows of queries with fewer candidates below the
        margin are left out, with a warning that counts and names them.

    Raises:
        InvalidValueError: An impossible margin or number, no pairs, or no query with enough negatives.

    Source: NV-Embed, section 4.1.1: a margin of 95 %, after Moreira et al. (2024).
    """
    from sentence_transformers.util import mine_hard_negatives

    if margin is not None and (isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 < margin <= 1):
        raise InvalidValueError("margin", "a share of the positive's score, more than 0 and at most 1, or None", margin)
    negatives = whole("negatives", negatives)
    if not len(pairs):
        raise InvalidValueError("pairs", "at least one query with a positive", "none")
    documents = list(dict.fromkeys([*corpus, *pairs["positive"]]))
    wanted = Dataset.from_dict({name: list(pairs[name]) for name in ("query", "positive")})
    rest = "Give a larger corpus, other documents or a higher margin, or ask for fewer negatives."
    if len(documents) <= negatives:
        raise InvalidValueError("corpus", f"more than {negatives} documents", len(documents), rest)
    with _bars(sys.stderr.isatty() if progress is None else progress, teacher):
        mined = mine_hard_negatives(
            wanted,
            teacher,
            corpus=documents,
            relative_margin=None if margin is None else 1 - margin,
            num_negatives=negatives,
            range_max=min(len(documents), max(_WINDOW, 20 * negatives)),
            query_prompt=instruction,
            output_format="n-tuple",
            batch_size=batch_size,
            verbose=False,
        ).to_pandas()
    without = list(dict.fromkeys(query for query in pairs["query"] if query not in set(mined["query"])))
    if mined.empty:
        raise InvalidValueError("pairs", f"a query with {negatives} candidates below the margin", "none", rest)
    if without:
        _warn(f"{len(without)} queries have fewer than {negatives} candidates below the margin", without)
    return mined


@contextmanager
def _bars(shown: bool, teacher: SentenceTransformer) -> Iterator[None]:
    """Hide the bars of mining unless they are wanted: the library has no option for it."""
    from sentence_transformers.util import hard_negatives

    encode = teacher.encode

    def quietly(*args: Any, **options: Any) -> Any:
        return encode(*args, **options | {"show_progress_bar": False})

    with ExitStack() as stack:
        if not shown:
            stack.enter_context(patch.object(teacher, "encode", quietly))
            stack.enter_context(patch.object(hard_negatives, "trange", partial(hard_negatives.trange, disable=True)))
        yield


def from_classes(
    texts: Sequence[str],
    labels: Sequence[str],
    *,
    documents: str = "examples",
    negatives: int = 1,
    seed: int = 0,
) -> pd.DataFrame:
    """Classes or clusters as contrastive examples.

    Every text is a query. With ``examples``, its positive is another text of its class, and the negatives are texts of
    other classes, all drawn at random, so that a negative may come twice. With ``labels``, they are the labels
    themselves; with k classes there are at most k - 1 negatives.

    Args:
        texts: Strings.
        labels: The class of each; values that are not strings are converted.
        documents: One of :data:`DOCUMENTS`.
        negatives: Hard negatives per row.
        seed: Of the random draws.

    Returns:
        Columns query, positive, negative_1, ..., in the order of the texts. With ``examples``, a text that is the only
        one of its class has no positive and is left out, with a warning; it still serves as a negative.

    Raises:
        UnknownNameError: Neither examples nor labels.
        InvalidValueError: Fewer than two classes, other numbers of texts and labels, or no class with two texts.

    Source: NV-Embed, sections 4.2 and 5.2.4, tables 4 and 5: label-based for two classes, example-based for more.
    """
    if documents not in DOCUMENTS:
        raise UnknownNameError("documents", documents, DOCUMENTS)
    negatives = whole("negatives", negatives)
    if len(texts) != len(labels):
        raise InvalidValueError("labels", f"one for each of {len(texts)} texts", len(labels))
    texts, labels = np.asarray(texts, dtype=object), np.asarray([*map(str, labels)], dtype=object)
    classes, own = np.unique(labels, return_inverse=True)
    sizes = np.array([len({*texts[own == one]}) for one in range(len(classes))])  # texts that differ
    if len(classes) < 2:
        raise InvalidValueError("labels", "at least two classes, to have negatives", ", ".join(classes) or "none")
    said, _ = pd.factorize(texts)  # numbers compare faster than texts
    draw = np.random.default_rng(seed)
    if documents == "labels":
        others = np.array([draw.permutation(np.delete(np.arange(len(classes)), one))[:negatives] for one in own])
        return _frame(texts, classes[own], classes[others])
    if sizes.max() < 2:
        raise InvalidValueError("labels", "a class with two texts, to have a positive", "classes of one text each")
    if single := list(classes[sizes == 1]):
        _warn(f"{len(single)} classes have a single text and give no query", single)
    places, rows = np.arange(len(texts)), np.flatnonzero(sizes[own] > 1)
    positives = [draw.choice(places[(own == own[row]) & (said != said[row])]) for row in rows]
    outside = []
    for row in rows:  # one after another: all candidates of all rows would be the square of the texts
        candidates = places[(own != own[row]) & (said != said[row])]
        if not len(candidates):
            raise InvalidValueError(
                "texts", "a different text in another class, to have negatives", "the same everywhere"
            )
        outside.append(draw.choice(candidates, negatives))
    return _frame(texts[rows], texts[positives], texts[np.array(outside)])


def from_graded(pairs: pd.DataFrame, threshold: float = 4.0, *, negatives: int = 0, seed: int = 0) -> pd.DataFrame:
    """Pairs of similar meaning, both ways: each text of a pair graded ``threshold`` or more is once the query.

    Negatives are first the texts graded lower with either text of the pair, the highest grade first, and then texts
    that are in no pair with either, drawn at random. The paper mines them with a teacher instead: leave them out here,
    and :func:`mine` finds them among the positives, and among texts of lower grades if they are given as its corpus.

    Args:
        pairs: Columns sentence1, sentence2 (strings) and score.
        threshold: Lowest score, on the grades' own scale of 0 to 5.
        negatives: Hard negatives per row, or 0 for none.
        seed: Of the random draws.

    Returns:
        Columns query, positive, negative_1, ..., in the order of the pairs, without pairs of equal texts. The negatives
        of a row differ from one another.

    Raises:
        InvalidValueError: No pair is graded that high, an impossible number, or too few texts to have that many
            negatives.

    Source: NV-Embed, section 4.2.
    """
    negatives = whole("negatives", negatives, 0)
    alike = pairs[(pairs["score"] >= threshold) & (pairs["sentence1"] != pairs["sentence2"])]
    if alike.empty:
        raise InvalidValueError("pairs", f"pairs of different texts graded {threshold:g} or more", "none")
    one, other = alike["sentence1"].to_numpy(), alike["sentence2"].to_numpy()
    both = np.stack([np.stack([one, other]), np.stack([other, one])], axis=-1)  # (text, pair, direction)
    queries, positives = both[0].ravel(), both[1].ravel()
    below = [*_graded_below(pairs, zip(queries, positives, strict=True), threshold, negatives, seed)]
    return _frame(queries, positives, np.array(below, dtype=object))


def _graded_below(
    pairs: pd.DataFrame, rows: Iterable[tuple[str, str]], threshold: float, negatives: int, seed: int
) -> Iterator[list[str]]:
    """The negatives of each query and positive."""
    partners: dict[str, list[tuple[float, str]]] = {}
    for one, other, score in pairs[["sentence1", "sentence2", "score"]].itertuples(index=False):
        partners.setdefault(one, []).append((score, other))
        partners.setdefault(other, []).append((score, one))
    texts = np.array([*partners], dtype=object)
    place = {text: number for number, text in enumerate(texts)}
    draw = np.random.default_rng(seed)
    for query, positive in rows:
        known = sorted([*partners[query], *partners[positive]], key=lambda partner: -partner[0])
        alike = {query, positive, *(text for score, text in known if score >= threshold)}
        own = list(dict.fromkeys(text for _, text in known if text not in alike))[:negatives]
        others = np.delete(np.arange(len(texts)), [place[text] for text in {*alike, *(text for _, text in known)}])
        if len(own) + len(others) < negatives:
            raise InvalidValueError("pairs", f"{negatives} texts besides those alike", len(own) + len(others))
        yield [*own, *texts[draw.choice(others, negatives - len(own), replace=False)]]


def _frame(queries: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> pd.DataFrame:
    columns = {f"negative_{number}": column for number, column in enumerate(negatives.T, start=1)}
    return pd.DataFrame({"query": queries, "positive": positives, **columns})


def _warn(what: str, names: list[str]) -> None:
    named = ", ".join(repr(name[:40]) for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    warnings.warn(f"{what}: left out ({named}).", stacklevel=3)
