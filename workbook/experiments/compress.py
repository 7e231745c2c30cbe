"""The experiments of notebook 09: an embedder pruned, retrained and quantized, beside one of half the layers.

Causal mean pooling, trained on pairs, is pruned by three criteria, and at random, in three patterns, retrained with
labels or with its own states before pruning too, and its weights are rounded to eight bits. The paper's text puts the
rounding before the retraining; its table 8 begins with the scores that table 7 ends with, and so do we.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from .. import compress
from ..compress import CONTROL, CRITERIA
from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..evaluation.effects import Quantity, effect
from ..evaluation.outcomes import Outcomes
from ..evaluation.run import cut_to
from ..evaluation.suites import OFFLINE_SUITES
from ..methods import retraining
from ..probes.dial import searched
from ..scale import Scale, get_scale
from .compare import differences, judged, learned, quantities
from .grid import SUITES, Experiment, Variant
from .suite import row, smaller, suites_and_loss

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PATTERNS = {"2:4": "2:4", "4:8": "4:8", "unstructured": 0.5}
"""Patterns of half the weights, with their names in the library."""

FORMS = {"INT8": "int8", "E4M3": "e4m3", "E5M2": "e5m2"}
"""Forms of eight bits in the published tables, with their names in the library."""

PRUNED_ALONE = {
    "nine tenths, magnitude": {"how": "magnitude", "sparsity": 0.9},
    "2:4, Wanda": {"how": "wanda", "sparsity": "2:4"},
}
"""How one block is pruned alone, as options of `workbook.compress.alone`: far more than the paper does, and as it does.
"""

BLOCK = "whole block"
WHOLE, HALF, UNTRAINED = "uncompressed", "half the layers", "untrained"
LABELS, STATES, SCALED = "labels", "labels and states", "labels and scaled states"
_RECIPES = {LABELS: retraining.recipe, STATES: retraining.with_states, SCALED: retraining.with_scaled_states}


def name(model: str, pattern: str = "", retrained: str = "", form: str = "") -> str:
    """Name of a variant.

    Args:
        model: :data:`WHOLE`, :data:`HALF`, a criterion, or its control.
        pattern: A key of :data:`PATTERNS`, for a criterion.
        retrained: ``labels``, ``labels and states``, or ``labels and scaled states``.
        form: A key of :data:`FORMS`.
    """
    return ", ".join(filter(None, [f"{model} {pattern}".strip(), retrained, form]))


def _retrained(start: Variant, by: str) -> Variant:
    return Variant(f"{start.name}, {by}", "mean", ("retraining",), recipe=_RECIPES[by], start_from=start)


def _quantized(start: Variant) -> list[Variant]:
    return [
        Variant(f"{start.name}, {form}", "mean", start_from=start, compressed={"quantize": {"how": "gptq", "form": it}})
        for form, it in FORMS.items()
    ]


def _cut(how: str, pattern: str) -> Variant:
    done = {"prune": {"how": how, "sparsity": PATTERNS[pattern]}}
    return Variant(name(how, pattern), "mean", start_from=_whole, compressed=done)


_whole = Variant(WHOLE, "mean", ("contrastive",))
_pruned = {(how, pattern): _cut(how, pattern) for how in CRITERIA for pattern in PATTERNS}
_labels = {key: _retrained(one, LABELS) for key, one in _pruned.items()}
_states = {pattern: _retrained(_pruned["sparsegpt", pattern], STATES) for pattern in PATTERNS}
_scaled = {pattern: _retrained(_pruned["sparsegpt", pattern], SCALED) for pattern in PATTERNS}
# As many weights that are not zero as half of each layer's; trained like the model that is pruned, and as long.
_half = Variant(HALF, "mean", ("contrastive",), start_from=Variant("", "mean"), compressed={"smaller": {"layers": 0.5}})
_half_longer = _retrained(_half, LABELS)


def _sizes(scale: str) -> Scale:
    """Sizes of evaluation: the scale's own from ``cpu`` on, since a claim asks for half a point."""
    return smaller(scale) if scale == "quick" else get_scale(scale)


GRID = Experiment(
    name="09_compress",
    description="Pruned by three criteria in three patterns, retrained, quantized; half the layers: suites and loss",
    variants=(
        _whole,
        *_pruned.values(),
        _retrained(_whole, LABELS),
        *_labels.values(),
        *_states.values(),
        _half,
        _half_longer,
        *(one for pattern in PATTERNS for one in _quantized(_states[pattern])),
        *_quantized(_half_longer),
        *_quantized(_whole),
        *_scaled.values(),
        Variant(UNTRAINED, "mean"),
        *(_cut(CONTROL, pattern) for pattern in PATTERNS),
    ),
    sizes=_sizes,
    measure=suites_and_loss,
    inputs=SUITES,
    rerun_variants=(WHOLE, name("sparsegpt", "2:4")),
)


def _fewer(scale: str) -> Scale:
    """Sizes for a grid that reads the texts once for each block."""
    sizes = _sizes(scale)
    few = {"queries": min(sizes.queries, 128), "probe_texts": min(sizes.probe_texts, 16)}
    return sizes.model_copy(update=few)


def by_block(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Retrieval with one block at a time pruned, and how far vectors turn if it is one layer.

    Args:
        model: An embedder that begins with a Decoder; it is left as it is.
        sizes: Sizes of evaluation; each of ``queries`` queries of docs, test, has its own document among as many. They
            are the first, so 128 are of two packages. Calibration texts, too, are cut to ``max_length``.

    Returns:
        Rows of the metric ``mrr``: of the whole model, and by ``pruning`` (of :data:`PRUNED_ALONE`) and ``block``, the
        mean reciprocal rank x 100; and of the metric ``turned``: 100 (1 - cosine) of documents with and without, by
        ``block`` and ``layer`` (:data:`BLOCK` for all of one), for the first pruning. Columns ``task``, ``score``,
        ``low``, ``high``, ``items`` and ``outcomes``.
    """
    pairs, asked = load_docs().split("test").head(sizes.queries), instruction_of("DocsRetrieval")
    few = pairs.head(sizes.probe_texts)
    options = {"normalize_embeddings": True, "show_progress_bar": False}

    def ranked(work: SentenceTransformer) -> Outcomes:
        queries = work.encode(pairs["query"].tolist(), prompt=asked, **options)
        documents = work.encode(pairs["document"].tolist(), **options)
        return Outcomes.of_values(searched(queries @ documents.T)["reciprocal_rank"], pairs["id"])

    def turned(work: SentenceTransformer) -> Outcomes:
        cosines = (work.encode(few["document"].tolist(), **options) * was).sum(axis=1)
        return Outcomes.of_values(1 - cosines, few["id"], factor=100)

    with cut_to(model, sizes.max_length):
        was = model.encode(few["document"].tolist(), **options)
        rows = [row(WHOLE, ranked(model), metric="mrr")]
        for pruning, how in PRUNED_ALONE.items():
            for block, _, found in compress.alone(model, ranked, **how):
                rows.append(row(f"{pruning}, block {block}", found, metric="mrr", pruning=pruning, block=block))
        pruning, how = next(iter(PRUNED_ALONE.items()))
        for layers in (False, True):
            for block, layer, found in compress.alone(model, turned, **how, layers=layers):
                setting = {"pruning": pruning, "block": block, "layer": layer.rpartition(".")[2] or BLOCK}
                rows.append(row(f"{pruning}, block {block}, {layer or BLOCK}", found, metric="turned", **setting))
    return pd.concat(rows, ignore_index=True)


BLOCKS = Experiment(
    name="09_blocks",
    description="One block pruned at a time, all others whole: retrieval; and vectors, by kind of layer",
    variants=(_whole, Variant(UNTRAINED, "mean")),
    sizes=_fewer,
    measure=by_block,
    inputs=("docs", "instructions/docs.csv"),
)
EXPERIMENTS = (GRID, BLOCKS)


def lost_by_block(rows: pd.DataFrame) -> pd.DataFrame:
    """What retrieval loses if one block is pruned alone, paired by query and by seed.

    Args:
        rows: Of :data:`BLOCKS`, as from ``Run.experiment``.

    Returns:
        Columns ``variant``, ``pruning``, ``block``, ``points`` of mean reciprocal rank x 100, ``low`` and ``high``
        (95 %, not corrected).
    """
    found = []
    for variant, part in judged(rows).query("metric == 'mrr'").groupby("variant", sort=False):
        places = part.dropna(subset="block").drop_duplicates("task").set_index("task")[["pruning", "block"]]
        pairs = {task: (task, WHOLE) for task in places.index}
        gaps = differences(part.assign(variant=part["task"], task="rank"), pairs, {"rank": "rank"})
        found.append(gaps.join(places, on="pair").assign(variant=variant))
    table = pd.concat(found, ignore_index=True).astype({"block": int})
    return table[["variant", "pruning", "block", "points", "low", "high"]]


def judged_quantities(rows: pd.DataFrame) -> dict[str, Quantity]:
    """What the claims of appendix A are about, by the names in their rules.

    Nothing is tested if the uncompressed model did not learn. A pruned model that lost what it had learnt is a result
    and is tested; half of the layers is a model in its own right, and counts if it learned by its own loss.

    Args:
        rows: As from ``Run.experiment``.
    """
    learning = learned(rows[rows["metric"] == "loss"])
    said = {one: learning.get(one if one.startswith(HALF) else WHOLE, "") for one in rows["variant"].unique()}
    scores, patterns = rows[rows["metric"] == "score"], [*PATTERNS]

    def mean(variants: Mapping[str, str]) -> dict[str, Quantity]:
        return quantities(scores, variants, learning=said)

    def over(variants: Mapping[str, str]) -> Quantity | None:
        found = mean(variants)
        return Quantity.mean(found) if len(found) == len(variants) else None

    short = {"2:4": "24", "4:8": "48", "unstructured": "unstructured"}
    made: dict[str, Quantity | None] = {}
    for how in CRITERIA:
        made[how] = over({pattern: name(how, pattern) for pattern in patterns})
        made[f"{how}_retrained"] = over({pattern: name(how, pattern, LABELS) for pattern in patterns})
    for pattern, ending in short.items():
        made[f"pruned_{ending}"] = over({how: name(how, pattern) for how in CRITERIA})
        made[f"retrained_{ending}"] = over({how: name(how, pattern, LABELS) for how in CRITERIA})
    for form in ("", *FORMS):
        ending = f"_{form.lower()}" if form else ""
        made[f"compressed{ending}"] = over({p: name("sparsegpt", p, STATES, form) for p in patterns})
        made[f"smaller{ending}"] = over(dict.fromkeys(patterns, name(HALF, retrained=LABELS, form=form)))  # by pattern
    single = {f"{what}_{short[p]}": name("sparsegpt", p, by)
              for p in patterns for what, by in (("labels", LABELS), ("states", STATES))}  # fmt: skip
    return {key: one for key, one in made.items() if one is not None} | mean(single)


def gains_beyond(scores: pd.DataFrame) -> pd.DataFrame:
    """What labels give back to each pruned model beyond what the same training gives the whole one, suite by suite.

    Args:
        scores: Rows of the metric ``score``, as from ``Run.experiment``.

    Returns:
        Columns ``criterion``, ``pattern``, ``suite``, ``points``, ``low``, ``high`` and ``detectable``.
    """
    rows = []
    for how in CRITERIA:
        for pattern in PATTERNS:
            four = {"after": name(how, pattern, LABELS), "before": name(how, pattern)}
            four |= {"whole after": name(WHOLE, retrained=LABELS), "whole": WHOLE}
            for suite in OFFLINE_SUITES:
                found = quantities(scores, four, suite)
                if len(found) == len(four):
                    gap = effect({"after": 1.0, "before": -1.0, "whole after": -1.0, "whole": 1.0}, found)
                    rows.append((how, pattern, suite, gap.value, gap.low, gap.high, gap.detectable))
    return pd.DataFrame(rows, columns=["criterion", "pattern", "suite", "points", "low", "high", "detectable"])
