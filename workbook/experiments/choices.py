"""The choices that the paper ablates in tables 3 to 6, experiments of notebook 05: place, number and encoder of the
contextual token, and in-context examples.

Texts end in EOS, as in the paper: with that suffix the half of the contextual token learned in `05_length`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from ..evaluation import OFFLINE_SUITES
from ..evaluation.effects import Quantity
from ..methods import icl
from ..training.recipe import Recipe
from . import compare
from .causal2vec import evaluate_variant, parts_learned, unevenly_learned, without_context
from .compare import KINDS, contrasts, differences, judged, quantities
from .grid import SUITES, Experiment, Variant
from .sinks import WHOLE_EOS, arm, fewer, inside, recipe

BEFORE, TRAINED = "before the instruction", "trained encoder"
AGAIN = "nothing: trained again"
"""The method as it is, trained once more on another machine (at night a CPU, the others on a GPU): what noise and a
machine make where no choice differs. On the machine of `05_length`'s arm the cache would give that model, and no noise.
Choices are compared with the mean of both trainings, which was decided after a first count: against `05_length`'s alone
the place before the instruction gains 2.8 points on docs (0.8 to 4.7), but this arm, which changes nothing, gains 2.1.
Of it is also measured what `05_length` does not: whether the decoder listens, and spread and recency by half.
"""


def _eos(called: str, template: str = "causal2vec", **encoder: Any) -> Variant:
    """The arm of `05_length` with EOS as suffix, but for one thing."""
    return arm(called, suffix="eos", template=template, encoder_options={"length": "word"} | encoder)


TOKENS = (2, 4, 8)
"""Numbers of contextual tokens that are compared with one, as in table 5."""

CHOICES = Experiment(
    name="05_choices",
    description="Contextual tokens by place, number, length, encoder and in a chat's form, with EOS as suffix, against "
    "MiniLM's of 05_length: suites, loss, halves; whether the decoder listens; sinks, gradient",
    variants=(
        _eos(BEFORE, template="causal2vec-before"),
        _eos(TRAINED, trainable=True),
        *(_eos(f"{count} tokens", tokens=count) for count in TOKENS),
        _eos("random encoder", pretrained=False),
        _eos("torch's length", length="torch"),
        _eos("chat form", template="causal2vec-chat"),
        _eos(AGAIN),
    ),
    sizes=fewer,
    measure=partial(evaluate_variant, by_half=True),
    inside=inside,
    inputs=(*SUITES, "texts/graded.csv"),
)
LAYERS = (0, 2, 4, 6)
"""Numbers of MiniLM's layers that run before its states are read; it has six, and 0 is its embeddings alone."""


def _layers(count: int) -> str:
    return f"MiniLM, {count} layers"


ENCODERS = Experiment(
    name="05_encoders",
    description="Encoders of graded quality, MiniLM read at four of its layers, each with a contextual token as long "
    "as a word, EOS as suffix: suites, loss, halves; sinks, gradient",
    variants=tuple(_eos(_layers(count), **({} if count == LAYERS[-1] else {"layers": count})) for count in LAYERS),
    sizes=fewer,
    measure=partial(evaluate_variant, by_half=True),
    inside=inside,
    inputs=(*SUITES, "texts/graded.csv"),
)
"""Table 6's order. The last arm is the method as it is, trained where the others are."""


def checkpointed(scale: str, backbone: str) -> Recipe:
    """The stage of :func:`recipe` with less memory for more time: with examples a query has some 230 tokens.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
    """
    return recipe(scale, backbone).changed({"contextual.gradient_checkpointing": True})


def _with_examples(called: str, method: str, **options: Any) -> Variant:
    return Variant(called, method, ("contextual",), {"suffix": "eos"} | options, recipe=checkpointed)


_ICL = {"template": "causal2vec-icl", "encoder_options": {"length": "word"}}
_ICL_ALONE = {"template": without_context("causal2vec-icl")}
EXAMPLES = Experiment(
    name="05_examples",
    description="Three examples of the task in front of each query, in training and after it, with a contextual token "
    "and without, in one layout and with as many pairs: both suites, loss, halves",
    variants=(
        _with_examples("causal2vec, no examples", "causal2vec", **_ICL),
        _with_examples("causal2vec, examples", "causal2vec", **_ICL, examples=icl.examples()),
        _with_examples("last token, no examples", "last-token", **_ICL_ALONE),
        _with_examples("last token, examples", "last-token", **_ICL_ALONE, examples=icl.examples()),
    ),
    sizes=fewer,
    measure=partial(evaluate_variant, by_half=True),
    inputs=(*SUITES, "texts/graded.csv"),
)
"""Table 1's "w/ ICL", by the project's own examples: the same in every prompt, where bge-en-icl draws from the batch.

Beside them in the same layout no examples, and no token. A pair with examples costs three times the tokens of one
without: the arms have the same steps and pairs, not the same tokens.
"""
EXPERIMENTS = (CHOICES, ENCODERS, EXAMPLES)

_WITHOUT, _WITH, _LAST_WITHOUT, _LAST = (one.name for one in EXAMPLES.variants)
_EXAMPLES = {
    "examples, with C": {_WITH: 1, _WITHOUT: -1},
    "examples, without C": {_LAST: 1, _LAST_WITHOUT: -1},
    "examples: with C - without": {_WITH: 1, _WITHOUT: -1, _LAST: -1, _LAST_WITHOUT: 1},
    "C, with examples": {_WITH: 1, _LAST: -1},
    "C, without examples": {_WITHOUT: 1, _LAST_WITHOUT: -1},
    "C alone - examples alone": {_WITHOUT: 1, _LAST: -1},
}
"""Weights of the arms of :data:`EXAMPLES`; the last is table 1's comparison with bge-en-icl."""

_PRINTED_EXAMPLES = {
    _WITHOUT: "Causal2Vec",
    _WITH: "Causal2Vec (w/ ICL)",
    _LAST_WITHOUT: "bge-en-icl (zero-shot)",
    _LAST: "bge-en-icl (few-shot)",
}
"""Rows of table 1, all with Mistral-7B."""

STANDARD = {
    "components": "causal2vec",
    "freezing": "frozen",
    "position": "after",
    "tokens": "1",
    "representation": "contextual+eos",
}
"""The method as it is: its row in each published table."""

_PRINTED = {("position", "before"): BEFORE, ("freezing", "trained"): TRAINED} | {
    ("tokens", str(count)): f"{count} tokens" for count in TOKENS
}
"""Variants by the published table and its row."""

_REPLACED = {"swap": "another query's", "mean": "the mean", "zero": "zero", "oracle": "its document's"}
"""What `probes.listening` puts in the place of a query's token, in words."""

_BOTH = {WHOLE_EOS: -0.5, AGAIN: -0.5}
"""Weights of the two trainings of the method as it is."""

_PANELS = {"half of C, docs": ("docs", "context"), "whole, docs": ("docs", "whole"), "whole, other": ("other", "whole")}


def with_standard(length: pd.DataFrame, choices: pd.DataFrame) -> pd.DataFrame:
    """Rows of all choices, and of the model from which each differs in one thing.

    Args:
        length: Of :data:`.sinks.LENGTH`, as from ``Run.experiment``, which has that model.
        choices: Of :data:`CHOICES`.
    """
    length = judged(length)
    return pd.concat([length[length["variant"] == WHOLE_EOS], judged(choices)], ignore_index=True)


def effects(rows: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """What each choice changes, paired by item and by seed, beside what the paper prints.

    Args:
        rows: From :func:`with_standard`.
        gaps: What the paper prints, from :func:`printed`.

    Returns:
        Rows for `workbook.figures.forest`: ``label`` (the choice, with a star if the half of its contextual token did
        not learn), ``panel`` (part of the vector, suite), ``effect`` in points from the mean of both trainings of the
        method as it is, of :data:`AGAIN` from the first, over the seeds that all have, ``low`` and ``high`` (95 %, not
        corrected), ``detectable``, ``threshold``; ``paper_low`` and ``paper_high``, the least and the largest
        difference of averages over the paper's models, of wholes.

    Source: Causal2Vec, tables 3 to 5.
    """
    scores, learning, found = rows[rows["metric"] == "score"], parts_learned(rows), []
    names = [one.name for one in CHOICES.variants]
    weights = {name: {name: 1.0} | ({WHOLE_EOS: -1.0} if name == AGAIN else _BOTH) for name in names}
    for panel, (suite, part) in _PANELS.items():
        found.append(contrasts(scores[scores["part"] == part], weights, {suite: panel}).assign(part=part))
    table = pd.concat(found, ignore_index=True).assign(threshold=0.0)
    gaps = gaps.loc[[*_PRINTED]]
    bounds = pd.DataFrame({"paper_low": gaps.min(axis=1), "paper_high": gaps.max(axis=1)})
    bounds.index = pd.MultiIndex.from_product([_PRINTED.values(), ["whole"]], names=["pair", "part"])
    table = table.join(bounds, on=["pair", "part"]).rename(columns={"points": "effect", "task": "panel"})
    return table.assign(label=[one + "*" * bool(learning[one]) for one in table["pair"]])


def printed(tables: Mapping[str, pd.DataFrame], kind: str = "average") -> pd.DataFrame:
    """What the paper's ablations print against the method as it is.

    Args:
        tables: The published tables by the names in :data:`STANDARD`: columns model, variant, task_type and score.
        kind: Kind of task; the average over all by default.

    Returns:
        Index: the table, its row. Columns: models. Cells: difference, in points; NaN for a model that the table does
        not have.

    Source: Causal2Vec, tables 2 to 5 and 10.
    """
    gaps = {}
    for table, default in STANDARD.items():
        rows = tables[table].query("task_type == @kind")
        scores = rows.pivot(index="variant", columns="model", values="score")
        gaps[table] = scores.sub(scores.loc[default]).drop(default)
    return pd.concat(gaps, names=["table", "variant"])


def by_kind(rows: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Tables 3 to 5 by kind of task, here and in the paper; see :func:`.compare.by_kind`.

    Args:
        rows: From :func:`with_standard`.
        tables: As for :func:`printed`; S-LLaMA-1.3B is shown, which all have, and the smallest.
    """
    theirs = {kind: printed(tables, kind)["S-LLaMA-1.3B"].loc[[*_PRINTED]] for kind in KINDS}
    theirs = {kind: gaps.set_axis(_PRINTED.values()) for kind, gaps in theirs.items()}
    whole = rows[(rows["metric"] == "score") & (rows["part"] == "whole")]
    return compare.by_kind(whole, {choice: {choice: 1.0} | _BOTH for choice in _PRINTED.values()}, theirs)


def listening(rows: pd.DataFrame) -> pd.DataFrame:
    """How the rank of the right document changes where queries read another token than their own, after training.

    Args:
        rows: From :func:`with_standard`; of the model in it nothing was measured with other tokens.

    Returns:
        Columns ``variant``, ``token`` (what stands in for the query's own), ``points`` of mean reciprocal rank x 100 by
        the last token's state, ``low`` and ``high`` (95 %, paired by query and seed).
    """
    heard, found = rows[rows["metric"] == "heard"], []
    pairs = {name: (replacement, "own") for replacement, name in _REPLACED.items()}
    for variant, part in heard.groupby("variant", sort=False):
        gaps = differences(part.assign(variant=part["task"], task="rank"), pairs, {"rank": "rank"})
        found.append(gaps.assign(variant=variant).rename(columns={"pair": "token"}))
    return pd.concat(found, ignore_index=True)[["variant", "token", "points", "low", "high"]]


def by_examples(rows: pd.DataFrame, averages: pd.Series) -> pd.DataFrame:
    """What three examples in front of a query add, with a contextual token and without, and what the token adds.

    Args:
        rows: Of :data:`EXAMPLES`, as from ``Run.experiment``.
        averages: What table 1 prints with Mistral-7B, by method: averages over 56 tasks of MTEB.

    Returns:
        Columns ``pair``, ``task`` (a suite), ``points``, ``low`` and ``high`` (95 %, not corrected), of whole vectors;
        paired by item and by seed; and ``paper``, its difference of averages.

    Source: Causal2Vec, table 1.
    """
    scores = rows[(rows["metric"] == "score") & (rows["part"] == "whole")]
    found = contrasts(scores, _EXAMPLES, {suite: suite for suite in OFFLINE_SUITES}).drop(columns="detectable")
    paper = {
        pair: sum(weight * averages[_PRINTED_EXAMPLES[one]] for one, weight in weights.items())
        for pair, weights in _EXAMPLES.items()
    }
    return found.assign(paper=found["pair"].map(paper))


def doses(rows: pd.DataFrame) -> pd.DataFrame:
    """What MiniLM's layers add to its embeddings alone, paired by item and by seed.

    Args:
        rows: Of :data:`ENCODERS`, as from ``Run.experiment``.

    Returns:
        Rows for `workbook.figures.forest`: ``label`` (the number of layers; suite or STS), ``panel`` (part of the
        vector), ``effect`` in points, ``low`` and ``high`` (95 %, not corrected), ``detectable``, ``threshold``.

    Source: Causal2Vec, table 6; reading fewer layers is this project's.
    """
    rows, found = judged(rows), []
    against = {f"{count} layers": (_layers(count), _layers(LAYERS[0])) for count in LAYERS[1:]}
    tasks = {suite: suite for suite in OFFLINE_SUITES} | {"ParaphraseLadder": "STS"}
    for part, panel in (("context", "half of C"), ("whole", "whole")):
        scores = rows[(rows["metric"] == "score") & (rows["part"] == part)]
        found.append(differences(scores, against, tasks).assign(panel=panel))
    table = pd.concat(found, ignore_index=True).rename(columns={"points": "effect"}).assign(threshold=0.0)
    return table.assign(label=table["pair"] + ", " + table["task"]).drop(columns=["pair", "task"])


def claimed(rows: pd.DataFrame, encoders: pd.DataFrame, shown: pd.DataFrame) -> dict[str, Quantity]:
    """What the claims on place, number, encoder and examples compare, as averages.

    Args:
        rows: From :func:`with_standard`.
        encoders: Of :data:`ENCODERS`, as from ``Run.experiment``.
        shown: Of :data:`EXAMPLES`, likewise.

    Returns:
        Quantities by the names in the rules, of what was measured; of a model whose contextual half did not learn, they
        are not tested. The method as it is is the mean of both its trainings, and each choice is paired with both.

    Source: Causal2Vec, tables 1 and 3 to 6.
    """
    choice = {"before": BEFORE, "trained_encoder": TRAINED, "eight": "8 tokens"}
    found, method = _whole(rows, choice), _whole(rows, {"first": WHOLE_EOS, "second": AGAIN})
    if len(method) == 2:
        found = {name: Quantity.mean({"first": one, "second": one}) for name, one in found.items()}
        found |= dict.fromkeys(("after", "frozen_encoder", "one"), Quantity.mean(method))
    graded = {"weak_encoder": _layers(LAYERS[0]), "better_encoder": _layers(LAYERS[-1])}
    examples = {"no_examples": _WITHOUT, "with_examples": _WITH, "last_token_examples": _LAST}
    return found | _whole(encoders, graded) | _whole(shown, examples)


def _whole(rows: pd.DataFrame, variants: Mapping[str, str]) -> dict[str, Quantity]:
    rows = judged(rows)
    scores = rows[(rows["metric"] == "score") & (rows["part"] == "whole")]
    made, uneven = quantities(scores, variants, learning=parts_learned(rows)), unevenly_learned(rows)
    said = {name: " ".join(filter(None, [one.caveat, uneven.get(variants[name])])) for name, one in made.items()}
    return {name: replace(one, caveat=said[name]) for name, one in made.items()}
