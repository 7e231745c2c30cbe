"""The experiments of notebook 06: what the last token learns by reconstruction, and contrastive training after it.

Texts have the suffix ``keywords``, except in the variants with EOS as in the paper, and vectors are read after BOS: see
:data:`workbook.methods.anchor.SIZES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from .. import evaluation, probes
from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..evaluation.outcomes import Outcomes
from ..evaluation.run import cut_to
from ..methods import anchor
from .grid import SUITES, Experiment, Variant
from .suite import held_out_loss, kept_along, row, smaller, suites_and_loss

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale
    from ..training import Evaluator
    from ..training.recipe import Recipe

UNTRAINED, BASELINE, LLAMA2VEC = "untrained", "contrastive alone", "LLaMA2Vec"
LONGER, AS_MANY_PAIRS = "contrastive, as many steps", "contrastive, as many pairs"
D2Q, BOTH, Q2D = "only D2Q", "Anchor", "only Q2D"
UNTRAINED_EOS, BASELINE_EOS, BOTH_EOS = (f"{name}, closed by EOS" for name in (UNTRAINED, BASELINE, BOTH))
ALPHAS = {D2Q: 0.0, BOTH: anchor.ALPHA, "alpha 0.5": 0.5, "alpha 0.8": 0.8, Q2D: 1.0}
"""Weight of the direction from query to document, by variant."""

AFTER = {name: f"then {name}" for name in (*ALPHAS, LLAMA2VEC, BOTH_EOS)}
"""Names of the models after both stages, by those after the first alone."""

STAGES_COMPARED = {
    "second alone - first alone": (BASELINE, BOTH),
    "both - second alone": (AFTER[BOTH], BASELINE),
    "second, as many steps - second alone": (LONGER, BASELINE),
    "both - second, as many steps": (AFTER[BOTH], LONGER),
    "both - second alone, with EOS": (AFTER[BOTH_EOS], BASELINE_EOS),
}
"""What the stages add: two variants by the name of their difference."""

_OTHERS = (D2Q, Q2D, "alpha 0.5", "alpha 0.8", LLAMA2VEC)
FIRSTS_COMPARED = {
    **{f"{name} - none": (AFTER[name], BASELINE) for name in (BOTH, *_OTHERS)},
    f"{Q2D} - {D2Q}": (AFTER[Q2D], AFTER[D2Q]),
    **{f"{name} - {BOTH}": (AFTER[name], AFTER[BOTH]) for name in _OTHERS},
}
"""What each kind of first stage is worth after both, likewise."""

WRITTEN = 6
"""Number of pairs of which every model writes each side from the vector of the other."""

FELL, SAVED = 0.5, 0.1
"""Thresholds for a first stage to count as trained, see :func:`learnt`: nats per token; set when seed 0 of an earlier
record, at ``cpu``, was known."""

_EVERY = {"quick": 2, "cpu": 4, "night": 34, "gpu": 25, "paper": 25}  # steps; at night some 32,000 tokens
_OPTIONS = {"suffix": "keywords"}


def _variant(name: str, stages: tuple[str, ...], recipe: Callable[[str, str], Recipe] | None = None) -> Variant:
    return Variant(name, "anchor", stages, _OPTIONS, recipe=recipe)


def _reconstructed(stages: tuple[str, ...], names: tuple[str, ...]) -> tuple[Variant, ...]:
    """Both directions of reconstruction at several weights, and LLaMA2Vec's."""
    ours = (_variant(name, stages, partial(anchor.recipe, alpha=ALPHAS[name])) for name in names)
    return (*ours, _variant(LLAMA2VEC, stages, anchor.with_llama2vec))


def held_out(count: int) -> tuple[pd.DataFrame, str]:
    """Held-out pairs of docs, those that are written first, and the instruction of their queries."""
    asked = instruction_of("DocsRetrieval")
    return load_docs().split("test").head(count), asked


def evaluate_variant(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Both offline suites, two held-out losses, and written texts.

    The losses are the contrastive one, and that of writing a text from the vector of its own pair and of another.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.

    Returns:
        Tidy rows: ``metric``, ``task``, ``score``, ``low``, ``high``, ``items``, ``text`` and ``outcomes``. Rows of the
        metrics ``score`` and ``loss`` are those of :func:`~.suite.suites_and_loss`. ``own``, ``shuffled`` and their
        difference, ``saved``, are nats per token over 64 pairs by direction (``task``). ``written`` has a direction
        as ``task``, the number of a pair as ``items``, and as ``text`` what is written for one side from the vector of
        the other alone.

    Source: Anchor, figure 3 and tables 3 to 5; the shuffled control and the texts are this project's.
    """
    pairs, asked = held_out(64)
    written = []
    with cut_to(model, sizes.max_length):
        losses = probes.anchor_losses(model, pairs, asked)
        for side, direction, instruction in (
            ("query", "query to document", asked),
            ("document", "document to query", None),
        ):
            read = pairs[side].head(WRITTEN).tolist()
            texts = probes.regenerated(model, read, instruction, tokens=16)
            # One blank between words: the texts are shown, and a table keeps no others.
            texts = [" ".join(text.split()) for text in texts]
            written.append(
                pd.DataFrame({"metric": "written", "task": direction, "items": range(WRITTEN), "text": texts})
            )
    rows = pd.concat([suites_and_loss(model, sizes), _saved(losses), *written], ignore_index=True)
    return rows[["metric", "task", "score", "low", "high", "items", "text", "outcomes"]]


def _saved(losses: pd.DataFrame) -> pd.DataFrame:
    """Losses of `probes.anchor_losses` as means over the tokens of a direction, and their difference."""
    rows = []
    for direction, part in losses.assign(saved=losses["shuffled"] - losses["own"]).groupby("direction", sort=False):
        tokens = part["tokens"]
        for what in ("own", "shuffled", "saved"):
            outcomes = Outcomes.of_values(part[what] * tokens, part["pair"], tokens)
            rows.append(row(direction, outcomes, metric=what))
    return pd.concat(rows, ignore_index=True)


def early(sizes: Scale) -> Evaluator:
    """Retrieval over half the documents, and the loss on held-out pairs, while a stage trains.

    While it trains, a stage cuts texts at its own ``max_length``, which at ``cpu`` and ``night`` is shorter than that
    of an evaluation: the end of a curve differs from the scores of :func:`evaluate_variant`.

    Source: Anchor, figures 2 and 4; the paper draws the loss of training.
    """
    from ..training import Evaluator

    few = sizes.model_copy(update={"documents": sizes.documents // 2})

    def measure(model: SentenceTransformer) -> dict[str, float | str]:
        found = evaluation.evaluate(model, ["DocsRetrieval"], scale=few, instructions="docs", progress=False)
        with cut_to(model, sizes.max_length):
            loss = held_out_loss(model)
        return kept_along({"retrieval": found.attrs["outcomes"]["DocsRetrieval"], "loss": loss})

    return Evaluator("retrieval-loss-2", _EVERY[sizes.name], measure)


def learnt(rows: pd.DataFrame) -> pd.DataFrame:
    """The first stages that learnt to reconstruct, seed by seed.

    With the weights of the directions in the objective, the loss has to be :data:`FELL` below that of the model before,
    and :data:`SAVED` below that with another pair's vector. Either alone is not enough: a loss may fall by language
    alone, and an untrained model also uses the vector in front of it.

    Args:
        rows: Rows of ``06_stages``, from one source.

    Returns:
        One row per first stage and seed, indexed by ``variant`` and ``seed``: ``fell`` and ``saved`` (nats per token),
        ``counts`` (True if it learnt).
    """
    losses = rows.pivot_table("score", ["metric", "variant", "seed"], "task")
    found = []
    for name, alpha in (ALPHAS | {BOTH_EOS: anchor.ALPHA}).items():
        weighted = alpha * losses["query to document"] + (1 - alpha) * losses["document to query"]
        if ("own", name) in weighted.index.droplevel("seed"):
            before = weighted["own", UNTRAINED_EOS if name == BOTH_EOS else UNTRAINED].mean()
            own = weighted["own", name]
            table = pd.DataFrame({"fell": before - own, "saved": weighted["saved", name]})
            found.append(table.assign(variant=name).set_index("variant", append=True).swaplevel())
    table = pd.concat(found) if found else pd.DataFrame(columns=["fell", "saved"])
    return table.assign(counts=(table["fell"] >= FELL) & (table["saved"] >= SAVED))


def both_stages(stages: pd.DataFrame, early: pd.DataFrame) -> pd.DataFrame:
    """The scores of both experiments, with the names that the comparisons have.

    Args:
        stages, early: Rows of ``06_stages`` and ``06_early``, as from ``Run.experiment``.
    """
    after = early.assign(variant=early["variant"].replace(AFTER))
    rows = pd.concat([stages, after])
    return rows[rows["metric"] == "score"]


PRINTED = ("mteb", "objectives", "alpha", "steps", "stages")
"""Tables of averages: `workbook.papers.published` has them by these names behind ``anchor_``."""


def printed(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The paper's differences for the comparisons of which it prints averages, in points.

    Args:
        tables: Those of :data:`PRINTED`, by name.

    Returns:
        By pair, a name in :data:`STAGES_COMPARED` or :data:`FIRSTS_COMPARED`: ``paper_low`` and ``paper_high``, the
        least and the largest over the models and tables that print both.

    Source: Anchor, tables 1, 3, 4, 5 and 10. All are of texts that EOS ends; they stand beside our arms of either
    suffix.
    """
    called = {"untrained": UNTRAINED, "reconstruction": BOTH, "baseline": BASELINE, "anchor": AFTER[BOTH]}
    called |= {"only-d2q": AFTER[D2Q], "only-q2d": AFTER[Q2D]}
    called |= {"0.2": AFTER[BOTH], "0.5": AFTER["alpha 0.5"], "0.8": AFTER["alpha 0.8"]}
    steps = tables["steps"]
    steps = steps.assign(variant=steps["variant"].mask(steps["second"] > steps["second"].min(), LONGER))
    averages = [tables[name].query("task_type == 'average'") for name in ("mteb", "objectives")]
    chosen = [*averages, tables["alpha"].assign(model=""), steps, tables["stages"]]
    scores = [
        table.replace({"variant": called}).pivot(index="variant", columns="model", values="score") for table in chosen
    ]
    found = {}
    for pair, names in (STAGES_COMPARED | FIRSTS_COMPARED).items():
        one, other = (name.removesuffix(", closed by EOS") for name in names)
        gaps = [gap for table in scores if {one, other} <= {*table.index} for gap in table.loc[one] - table.loc[other]]
        if gaps:
            found[pair] = (min(gaps), max(gaps))
    return pd.DataFrame.from_dict(found, orient="index", columns=["paper_low", "paper_high"]).rename_axis("pair")


STAGES = Experiment(
    name="06_stages",
    description="Untrained, after the first stage alone, and contrastive training alone as long as both stages",
    variants=(
        _variant(UNTRAINED, ()),
        *_reconstructed(("reconstruction",), (BOTH, D2Q, Q2D, "alpha 0.5", "alpha 0.8")),
        Variant(UNTRAINED_EOS, "anchor"),
        Variant(BOTH_EOS, "anchor", ("reconstruction",)),
        _variant(AS_MANY_PAIRS, ("contrastive",), partial(anchor.contrastive_alone, by="pairs")),
        _variant(LONGER, ("contrastive",), anchor.contrastive_alone),
    ),
    sizes=smaller,
    measure=evaluate_variant,
    inputs=SUITES,
    rerun_variants=(UNTRAINED, BOTH),
    losses=True,
    version=5,
)
EARLY = Experiment(
    name="06_early",
    description="Contrastive training after every kind of first stage and after none, measured along the way",
    variants=(
        _variant(BASELINE, ("contrastive",)),
        *_reconstructed(("reconstruction", "contrastive"), (BOTH, D2Q, Q2D, "alpha 0.5", "alpha 0.8")),
        Variant(BASELINE_EOS, "anchor", ("contrastive",)),
        Variant(BOTH_EOS, "anchor", ("reconstruction", "contrastive")),
    ),
    sizes=smaller,
    measure=evaluate_variant,
    evaluator=early,
    inputs=SUITES,
    rerun_variants=(BOTH,),
    version=5,
)
EXPERIMENTS = (STAGES, EARLY)
