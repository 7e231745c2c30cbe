"""The experiments of notebook 04: pooling by mask, words in vectors, numbers of clusters, lexicon against dense."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from .. import probes
from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..errors import UnknownNameError
from ..evaluation.outcomes import Outcomes
from ..methods import lens
from .grid import SUITES, Experiment, Variant
from .suite import loss_row, row, smaller, suites_and_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sentence_transformers import SentenceTransformer

    from ..scale import Scale
    from ..training.recipe import Recipe

POOLINGS, MASKS = ("max", "sum", "last"), ("bidirectional", "causal")
CLUSTERS = (1000, 4000, 16000, "vocabulary")
"""Numbers of clusters; ``vocabulary`` is the head as it is."""

UNTRAINED = "untrained"
"""Name of the variant of 04_pooling that is LENS before training: max pooling, without the causal mask."""

PROMPTED = "prompted last"
"""The last token behind a prompt suffix that asks for keywords, as PromptReps does. To a chat model EOS is the end of a
message, after which it has nothing to say.
"""

ONE_WORD = "last, one word"
"""The last token behind the prompt of PromptReps, as LENS quotes it: the text means, in one word. PromptReps trains
nothing; nearest to it is the variant named :data:`UNTRAINED` of this, which has LENS' clusters and zero all the same,
and an instruction in front.
"""

CONTENT = "content"
"""Own content words and expansion together."""

_STAGE = ("distilled",)
_OWN, _, _EXPANSION, _ = probes.KEYWORD_KINDS
_CONTENT, _MARKS = (_OWN, _EXPANSION), {_OWN: "*", _EXPANSION: "+"}


def name(pooling: str, mask: str) -> str:
    """Name of the variant of 04_pooling: a pooling or a prompted last token, and one of :data:`MASKS`.

    Args:
        pooling: One of :data:`POOLINGS`, or :data:`PROMPTED` or :data:`ONE_WORD`.
        mask: One of :data:`MASKS`.
    """
    return f"{pooling}, {mask}"


def lexicon(
    variant: str,
    pooling: str = "max",
    mask: str = "bidirectional",
    clusters: int | str = 4000,
    suffix: str = "eos",
    recipe: Callable[[str, str], Recipe] | None = None,
    **others: Any,
) -> Variant:
    """LENS, trained, with another pooling, mask, number of clusters or head.

    Args:
        variant: Name of the variant.
        pooling: ``max``, ``sum`` or ``last``.
        mask: ``causal`` or ``bidirectional``.
        clusters: Number of clusters, or ``vocabulary`` for none.
        suffix: See `workbook.methods.Chain`.
        recipe: In place of LENS' own.
        **others: Options of the lexicon, such as ``zero``.
    """
    pooled = {"pooling": pooling, "clusters": clusters} | others
    options = {"attention": mask, "suffix": suffix, "pooling_options": pooled}
    return Variant(variant, "lens", _STAGE, options, recipe=recipe)


def keywords(model: SentenceTransformer, sizes: Scale, top: int = 5, shown: int = 3) -> pd.DataFrame:
    """What a query's heaviest clusters are: its own content words, content words beyond it, or neither.

    Args:
        model: LENS.
        sizes: Sizes of evaluation; ``queries`` queries of docs, dev, are read with their instruction.
        top: Number of clusters per query.
        shown: Number of queries whose clusters are named.

    Returns:
        Rows of the metric ``kind``, one for each of `workbook.probes.KEYWORD_KINDS`, and ``content``, own content words
        and expansion together: score (share of the clusters, in per cent), low, high, items (queries), outcomes. One
        row of the metric ``loss`` (nats), on held-out pairs: did the model learn? And one row of the metric ``named``
        for each of the first ``shown`` queries: ``text`` (the name of each cluster, with a star behind own content
        words and a plus behind expansion) and ``items`` (the query's index).

    Source: LENS, table 3; the rule of kinds is this project's, see `workbook.probes.keyword_kinds`.
    """
    queries = load_docs().split("dev")["query"].head(sizes.queries).tolist()
    found = probes.keyword_kinds(model, queries, instruction_of("DocsRetrieval"), top)
    kinds = {kind: (kind,) for kind in probes.KEYWORD_KINDS} | {CONTENT: _CONTENT}
    rows = []
    for name, members in kinds.items():
        held = found["kind"].isin(members).groupby(found["text"]).sum().reindex(range(len(queries)), fill_value=0)
        rows.append(row(name, Outcomes.of_values(held, queries, [top] * len(held), factor=100), metric="kind"))
    rows.append(loss_row(model, sizes))
    marks = found["kind"].map(_MARKS).fillna("")
    named = (found["name"].str.partition(", ")[0] + marks).groupby(found["text"]).agg(" ".join)
    texts = {"metric": "named", "task": "heaviest", "items": range(shown), "text": named.reindex(range(shown))}
    return pd.concat([*rows, pd.DataFrame(texts)], ignore_index=True)


def _one_word(variant: str, mask: str, stages: tuple[str, ...] = _STAGE) -> Variant:
    options = {"attention": mask, "template": "promptreps", "pooling_options": {"pooling": "last"}}
    return Variant(variant, "lens", stages, options)


POOLING = Experiment(
    name="04_pooling",
    description="Attention by pooling of LENS: the offline suites",
    variants=(
        Variant(UNTRAINED, "lens"),
        *(lexicon(name(pooling, mask), pooling, mask) for mask in MASKS for pooling in POOLINGS),
        *(lexicon(name(PROMPTED, mask), "last", mask, suffix="keywords") for mask in MASKS),
        *(_one_word(f"{UNTRAINED}, {name(ONE_WORD, mask)}", mask, ()) for mask in MASKS),
        *(_one_word(name(ONE_WORD, mask), mask) for mask in MASKS),
    ),
    sizes=smaller,
    measure=suites_and_loss,
    inputs=SUITES,
    rerun_variants=(name("max", "bidirectional"),),
    version=2,
)
KEYWORDS = Experiment(
    name="04_keywords",
    description="The heaviest clusters of queries, before and after training: content words, their own or others",
    variants=(
        Variant(UNTRAINED, "lens"),
        lexicon("trained"),
        # Without the mask a state sees the token that it is to predict, and can copy it.
        Variant(f"{UNTRAINED}, causal", "lens", (), {"attention": "causal"}),
        lexicon("trained, causal", mask="causal"),
    ),
    measure=keywords,
    inputs=("docs", "instructions/docs.csv"),
    version=4,
)


def _trained_by(variant: str, **changed: Any) -> Variant:
    return lexicon(variant, recipe=partial(lens.varied, **changed))


BY_SIZE = Experiment(
    name="04_clusters",
    description="LENS by its head: number of clusters, their meaning, relu's zero; by its teacher and negatives",
    variants=(
        *(lexicon(str(clusters), clusters=clusters) for clusters in CLUSTERS),
        lexicon("4000, not centred", zero="paper"),
        lexicon("4000, shuffled", shuffled=True),
        lexicon("4000, a quarter active", zero="share 0.25"),
        lexicon("4000, shuffled, a quarter active", shuffled=True, zero="share 0.25"),
        _trained_by("4000, without teacher", teacher=False),
        lexicon("4000, plain k-means", spherical=False),
        *(lexicon(str(clusters), clusters=clusters) for clusters in (576, 2000, 8000)),
        _trained_by("4000, random negatives", mined="docs-mined-random"),
        _trained_by("4000, random negatives, without teacher", mined="docs-mined-random", teacher=False),
        *(_trained_by(f"4000, {count} negatives", negatives=count) for count in (3, 7)),
        _trained_by("4000, BM25's negatives", mined="docs-mined-bm25"),
        _trained_by("4000, BM25's negatives, without teacher", mined="docs-mined-bm25", teacher=False),
    ),
    sizes=smaller,
    measure=suites_and_loss,
    inputs=SUITES,
    rerun_variants=("4000",),
    version=2,
)


def _dense(variant: str, method: str) -> Variant:
    return Variant(variant, method, _STAGE, {"attention": "bidirectional", "template": "lens"}, recipe=lens.recipe)


def beside(variant: str, first: Variant, other: Variant) -> Variant:
    """The hybrid of two variants.

    Args:
        variant: Its name.
        first: One of them.
        other: The other.
    """
    return replace(first, name=variant, hybrid_with=other)


DENSE, WEIGHTED = _dense("dense", "mean"), _dense("dense, weighted mean", "weighted-mean")
MAX, SUM = lexicon("lexicon"), lexicon("lexicon, sum", "sum")
HYBRID = Experiment(
    name="04_hybrid",
    description="Lexicon and dense vectors, trained alike, alone and put beside each other: the offline suites",
    variants=(
        MAX,
        SUM,
        DENSE,
        beside("lexicon + dense", MAX, DENSE),
        # The controls: two models know more than one, whatever their vectors are.
        beside("lexicon + lexicon", MAX, SUM),
        WEIGHTED,
        beside("dense + dense", DENSE, WEIGHTED),
    ),
    sizes=smaller,
    measure=suites_and_loss,
    inputs=SUITES,
    rerun_variants=("lexicon",),
    version=2,
)
EXPERIMENTS = (POOLING, KEYWORDS, BY_SIZE, HYBRID)


def published_gaps(tables: Mapping[str, pd.DataFrame], at_hand: Mapping[str, str]) -> pd.DataFrame:
    """LENS' lexicon against its dense counterpart, BGE-en-ICL, and both together, as published.

    Args:
        tables: The published tables ``mteb``, ``datasets``, ``air-bench`` and ``hybrid`` of LENS by these names.
        at_hand: Data sets of table 9 that get a row of their own, by the name of a task that is like it.

    Returns:
        For `workbook.figures.forest`: ``label`` (with the name of that task), ``paper_low`` and ``paper_high``, the
        lesser and the larger difference of LENS-4000 and LENS-8000, by type of task, data set and benchmark; then the
        hybrid's over each part in retrieval, of LENS-8000 alone. ``threshold`` is 0.

    Raises:
        UnknownNameError: A data set that table 9 does not have, or not legibly.

    Source: LENS, tables 1, 2, 6 and 9.
    """
    by_set = tables["datasets"].pivot(index="task", columns="model", values="score")
    for name in at_hand.values():
        if name not in by_set.index:
            raise UnknownNameError("data set of table 9", name, by_set.index)
    air = tables["air-bench"].query("domain == 'average'").set_index("model")["score"]
    by_kind = tables["mteb"].pivot(index="task_type", columns="model", values="score")
    dense = {**by_kind.T, **{task: by_set.loc[name] for task, name in at_hand.items()}, "AIR-Bench": air}
    both = tables["hybrid"].query("task == 'average'").set_index("model")["score"]
    rows = {
        f"lexicon - dense: {kind}": sorted(one[f"LENS-{k}"] - one["BGE-en-ICL"] for k in (4000, 8000))
        for kind, one in dense.items()
    }
    parts = {"lexicon": "LENS-8000", "dense": "BGE-en-ICL"}
    rows |= {f"both - {part}: Retrieval": [both["LENS + BGE"] - both[model]] * 2 for part, model in parts.items()}
    frame = pd.DataFrame(rows, index=["paper_low", "paper_high"]).T.rename_axis("label").reset_index()
    return frame.assign(threshold=0.0)
