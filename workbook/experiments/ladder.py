"""What is in the input and in the vector, as Causal2Vec trains: an experiment of notebook 05, on tables 2 and 10.

Texts end in EOS, as in the paper. All arms train by the stage of :func:`.sinks.recipe`, at whose rate the half of the
contextual token learns, and are measured on the way: from the end alone nobody can tell what needs more steps from what
does not help. At night they trained on one machine, but for Bi-EOS at one length and seeds 1 and 2 of Bi-EOS.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from .. import evaluation
from ..evaluation.run import cut_to
from ..modules.contextual import REPRESENTATIONS
from ..scale import get_scale
from . import compare
from .causal2vec import evaluate_variant, halves, without_context
from .compare import KINDS, differences, judged
from .grid import SUITES, Experiment, Variant
from .sinks import ALONE, ENCODER, LAST, arm
from .suite import held_out_loss, kept_along, read_once, smaller

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..evaluation.outcomes import Outcomes
    from ..scale import Scale
    from ..training import Evaluator

CONTEXTUAL, WHOLE = "contextual, last token", "causal2vec"
"""The rows of table 2 beside :data:`.sinks.LAST`: the contextual token in the input, and both states in the vector."""

ONE_LENGTH = "Bi-EOS, halves at one length"
"""Bi-EOS with both halves scaled to length 1 after training: as printed, the encoder's is a sixth as long as the other.
"""

TRAINED_SO = "Bi-EOS, trained at one length"
"""Bi-EOS whose loss sees both halves at length 1. Written down before it ran: if all that the printed form lacks is the
weight of MiniLM's half, it is above the last token on `other`, and level with what is scaled after training.
"""

COMPARED = {
    "C in the input - last token": (CONTEXTUAL, LAST),
    "both states - C in the input": (WHOLE, CONTEXTUAL),
    "both states - last token": (WHOLE, LAST),
    "Bi-EOS - C in the input": ("Bi-EOS", CONTEXTUAL),
    "Bi-EOS at one length - last token": (TRAINED_SO, LAST),
    "Bi-EOS at one length - scaled after": (TRAINED_SO, ONE_LENGTH),
    "Bi-EOS at one length - encoder alone": (TRAINED_SO, ENCODER),
}
"""Variants that are compared, by the name of their difference. The encoder alone, a control of what an arm gains, was
chosen when a record was known.
"""

AGAINST_LAST = {"C in the input": CONTEXTUAL, "both states": WHOLE, "Bi-EOS": "Bi-EOS"}
"""The variants whose course is drawn, each against the last token, by what they have."""

_PRINTED = {LAST: "last-token", CONTEXTUAL: "contextual", WHOLE: "causal2vec", "Bi-EOS": "encoder+eos"}

_EVERY = {"quick": 2, "cpu": 5, "night": 13, "gpu": 25, "paper": 125}
"""Steps between two measurements; at night some 29,000 tokens."""


def _sizes(scale: str) -> Scale:
    if scale != "night":
        return smaller(scale)
    few = {"queries": 500, "documents": 1000, "texts": 256, "max_length": 64, "probe_texts": 64}
    return get_scale(scale).model_copy(update=few)


def along(sizes: Scale) -> Evaluator:
    """Retrieval, and the loss on held-out pairs, of the whole vector and of the half of C alone, while a stage trains.

    In Bi-EOS the half of C is the encoder's output behind the MLP.

    Args:
        sizes: Sizes of evaluation; of its queries at most 150 are asked, over as many documents.
    """
    from ..training import Evaluator

    count = min(sizes.queries, 150)
    few = sizes.model_copy(update={"queries": count, "documents": count})

    def measure(model: SentenceTransformer) -> dict[str, float | str]:
        parts = REPRESENTATIONS.get(getattr(model[1], "representation", ""), ())
        found: dict[str, Outcomes] = {}
        with read_once(model[0].decoder), cut_to(model, few.max_length):
            vectors = {"whole": model}
            if len(parts) > 1:
                vectors["half of C"] = halves(model)[parts[0]]
            for part, one in vectors.items():
                scores = evaluation.evaluate(one, ["DocsRetrieval"], scale=few, instructions="docs", progress=False)
                found[f"retrieval, {part}"] = scores.attrs["outcomes"]["DocsRetrieval"]
                found[f"loss, {part}"] = held_out_loss(one)
        return kept_along(found)

    return Evaluator("retrieval-loss-halves", _EVERY[sizes.name], measure)


def _eos(called: str, representation: str, **pooling: bool) -> Variant:
    options = {"pooling_options": {"representation": representation} | pooling, "encoder_options": {"length": "word"}}
    return arm(called, suffix="eos", **options)


LADDER = Experiment(
    name="05_ladder",
    description="Last token, contextual token in the input, both states, and the encoder's output beside the last "
    "state, with EOS as suffix: both suites, loss, halves; retrieval and loss while they train",
    variants=(
        _eos(WHOLE, "concat"),
        arm(LAST, "last-token", suffix="eos", template=without_context()),
        _eos(CONTEXTUAL, "eos"),
        _eos("Bi-EOS", "bi-eos"),
        _eos(TRAINED_SO, "bi-eos", equal_lengths=True),
    ),
    sizes=_sizes,
    measure=partial(evaluate_variant, by_half=True),
    evaluator=along,
    inputs=(*SUITES, "texts/graded.csv"),
    rerun_variants=(WHOLE,),
)
BESIDE = replace(ALONE, name="05_beside", sizes=_sizes)
"""The encoder alone on the ladder's own queries and texts."""
EXPERIMENTS = (LADDER, BESIDE)


def wholes(rows: pd.DataFrame) -> pd.DataFrame:
    """Scores of whole vectors, with :data:`ONE_LENGTH` as a variant of its own.

    Args:
        rows: Of :data:`LADDER`, and of :data:`BESIDE` if it is to be compared, as from ``Run.experiment``.

    Returns:
        The rows of the metric ``score`` and the part ``whole``, and those of Bi-EOS' part ``equal lengths``.
    """
    scores = judged(rows).query("metric == 'score'").fillna({"part": "whole"})
    equal = scores.query("variant == 'Bi-EOS' and part == 'equal lengths'").assign(variant=ONE_LENGTH)
    return pd.concat([scores.query("part == 'whole'"), equal], ignore_index=True)


def course(rows: pd.DataFrame) -> pd.DataFrame:
    """Retrieval of each variant against the last token at each measurement of a training, paired by query and by seed.

    Args:
        rows: Of :data:`LADDER`, as from ``Run.experiment``.

    Returns:
        Columns ``variant`` (a name of :data:`AGAINST_LAST`), ``step``, ``tokens`` (trained so far, in thousands, the
        mean over variants), ``points``, ``low``, ``high`` (95 %, not corrected).

    Source: the ladder is this project's; the rows are those of Causal2Vec's tables 2 and 10.
    """
    curves, found = judged(rows).query("metric == 'curve' and task == 'retrieval, whole'"), []
    pairs = {name: (variant, LAST) for name, variant in AGAINST_LAST.items()}
    for step, part in curves.groupby("step"):
        gaps = differences(part.assign(task="retrieval"), pairs, {"retrieval": "retrieval"})
        found.append(gaps.assign(step=step, tokens=part["tokens"].mean() / 1000))
    table = pd.concat(found, ignore_index=True).rename(columns={"pair": "variant"})
    return table[["variant", "step", "tokens", "points", "low", "high"]]


def printed(rows: pd.DataFrame, kind: str = "average") -> pd.DataFrame:
    """What the paper prints of the differences of :data:`COMPARED`, of 41 tasks of MTEB.

    Args:
        rows: Published tables 2 and 10, one behind the other: columns model, variant, task_type and score.
        kind: Kind of task; the average over all by default.

    Returns:
        Index: the paper's backbones. Columns: those differences that the paper has, in points.

    Source: Causal2Vec, tables 2 and 10. In the latter the token in the input alone is called ``eos``.
    """
    rows = rows.replace({"variant": {"eos": _PRINTED[CONTEXTUAL]}}).query("task_type == @kind")
    scores = rows.groupby(["variant", "model"])["score"].first().unstack()
    pairs = {label: pair for label, pair in COMPARED.items() if {*pair} <= {*_PRINTED}}
    names = {label: [_PRINTED[one] for one in pair] for label, pair in pairs.items()}
    return pd.DataFrame({label: scores.loc[first] - scores.loc[second] for label, (first, second) in names.items()})


def bounds(rows: pd.DataFrame) -> pd.DataFrame:
    """The least and the largest of the paper's averages over its backbones: ``paper_low`` and ``paper_high``.

    Args:
        rows: As for :func:`printed`.
    """
    gaps = printed(rows)
    return pd.DataFrame({"paper_low": gaps.min(), "paper_high": gaps.max()})


def by_kind(rows: pd.DataFrame, tables: pd.DataFrame) -> pd.DataFrame:
    """Tables 2 and 10 by kind of task, here and in the paper; see :func:`.compare.by_kind`.

    Args:
        rows: From :func:`wholes`.
        tables: As for :func:`printed`; S-LLaMA-1.3B is shown, the smaller of the paper's two.
    """
    theirs = {kind: printed(tables, kind).loc["S-LLaMA-1.3B"] for kind in KINDS}
    gaps = {label: {first: 1.0, second: -1.0} for label, (first, second) in COMPARED.items()}
    return compare.by_kind(rows, gaps, theirs)
