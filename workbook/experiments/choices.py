"""The choices that the paper ablates in tables 3 to 5, experiments of notebook 05: place, number and encoder of the
contextual token, and in-context examples.

Texts end in EOS, as in the paper: with that suffix the half of the contextual token learned in `05_length`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from ..evaluation import OFFLINE_SUITES
from ..evaluation.effects import Quantity, effect
from ..methods import icl
from ..training.recipe import Recipe
from .causal2vec import evaluate_variant, parts_learned, without_context
from .compare import differences, judged, quantities
from .grid import SUITES, Experiment, Variant
from .sinks import WHOLE_EOS, arm, fewer, inside, recipe

BEFORE, TRAINED = "before the instruction", "trained encoder"
AGAIN = "nothing: trained again"
"""The method as it is, trained once more on another machine (at night a CPU, the others on a GPU): what noise and a
machine make where no choice differs. On the machine of `05_length`'s arm the cache would give that model, and no noise.
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
EXPERIMENTS = (CHOICES, EXAMPLES)

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
        not learn), ``panel`` (part of the vector, suite), ``effect`` in points over the seeds that both have, ``low``
        and ``high`` (95 %, not corrected), ``detectable``, ``threshold``; ``paper_low`` and ``paper_high``, the least
        and the largest difference of averages over the paper's models, of wholes.

    Source: Causal2Vec, tables 3 to 5.
    """
    scores, learning, found = rows[rows["metric"] == "score"], parts_learned(rows), []
    for panel, (suite, part) in _PANELS.items():
        pairs = {one.name: (one.name, WHOLE_EOS) for one in CHOICES.variants}
        found.append(differences(scores[scores["part"] == part], pairs, {suite: panel}).assign(part=part))
    table = pd.concat(found, ignore_index=True).assign(threshold=0.0)
    gaps = gaps.loc[[*_PRINTED]]
    bounds = pd.DataFrame({"paper_low": gaps.min(axis=1), "paper_high": gaps.max(axis=1)})
    bounds.index = pd.MultiIndex.from_product([_PRINTED.values(), ["whole"]], names=["pair", "part"])
    table = table.join(bounds, on=["pair", "part"]).rename(columns={"points": "effect", "task": "panel"})
    return table.assign(label=[one + "*" * bool(learning[one]) for one in table["pair"]])


def printed(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """What the paper's ablations print against the method as it is.

    Args:
        tables: The published tables by the names in :data:`STANDARD`: columns model, variant, task_type and score.

    Returns:
        Index: the table, its row. Columns: models. Cells: difference of averages over tasks, in points; NaN for a model
        that the table does not have.

    Source: Causal2Vec, tables 2 to 5 and 10.
    """
    gaps = {}
    for table, default in STANDARD.items():
        rows = tables[table].query("task_type == 'average'")
        scores = rows.pivot(index="variant", columns="model", values="score")
        gaps[table] = scores.sub(scores.loc[default]).drop(default)
    return pd.concat(gaps, names=["table", "variant"])


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


def by_examples(rows: pd.DataFrame) -> pd.DataFrame:
    """What three examples in front of a query add, with a contextual token and without, and what the token adds.

    Args:
        rows: Of :data:`EXAMPLES`, as from ``Run.experiment``.

    Returns:
        Columns ``pair``, ``task`` (a suite), ``points``, ``low`` and ``high`` (95 %, not corrected), of whole vectors;
        paired by item and by seed.
    """
    scores, found = rows[(rows["metric"] == "score") & (rows["part"] == "whole")], []
    arms = {
        suite: quantities(scores, {one.name: one.name for one in EXAMPLES.variants}, suite) for suite in OFFLINE_SUITES
    }
    for pair, weights in _EXAMPLES.items():
        for suite, measured in arms.items():
            gap = effect(weights, measured)
            found.append((pair, suite, gap.value, gap.low, gap.high))
    return pd.DataFrame(found, columns=["pair", "task", "points", "low", "high"])


def claimed(rows: pd.DataFrame) -> dict[str, Quantity]:
    """What the claims on place, number and encoder compare, as averages.

    Args:
        rows: From :func:`with_standard`.

    Returns:
        Quantities by the names in the rules; of a model whose contextual half did not learn, they are not tested.

    Source: Causal2Vec, tables 3 to 5.
    """
    names = {"before": BEFORE, "trained_encoder": TRAINED, "eight": "8 tokens"}
    names |= dict.fromkeys(("after", "frozen_encoder", "one"), WHOLE_EOS)
    scores = rows[(rows["metric"] == "score") & (rows["part"] == "whole")]
    return quantities(scores, names, learning=parts_learned(rows))
