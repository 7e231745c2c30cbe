"""The experiments of notebook 04: pooling by mask, words in vectors, numbers of clusters, lexicon against dense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..evaluation.outcomes import Outcomes
from ..methods import lens
from .grid import SUITES, Experiment, Variant
from .suite import row, smaller, suites_and_loss

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale

POOLINGS, MASKS = ("max", "sum", "last"), ("bidirectional", "causal")
CLUSTERS = (1000, 4000, 16000, "vocabulary")
"""Numbers of clusters; ``vocabulary`` is the head as it is."""

UNTRAINED = "untrained"
"""Name of the variant of 04_pooling that is LENS before training: max pooling, without the causal mask."""

_STAGE = ("distilled",)


def name(pooling: str, mask: str) -> str:
    """Name of the variant of 04_pooling: one of :data:`POOLINGS` and one of :data:`MASKS`.

    Args:
        pooling: One of :data:`POOLINGS`.
        mask: One of :data:`MASKS`.
    """
    return f"{pooling}, {mask}"


def lexicon(
    variant: str,
    pooling: str = "max",
    mask: str = "bidirectional",
    clusters: int | str = 4000,
    **others: Any,
) -> Variant:
    """LENS, trained, with another pooling, mask, number of clusters or head.

    Args:
        variant: Name of the variant.
        pooling: ``max``, ``sum`` or ``last``.
        mask: ``causal`` or ``bidirectional``.
        clusters: Number of clusters, or ``vocabulary`` for none.
        **others: Options of the lexicon, such as ``zero``.
    """
    options = {"pooling": pooling, "clusters": clusters} | others
    return Variant(variant, "lens", _STAGE, {"attention": mask, "pooling_options": options})


def keywords(model: SentenceTransformer, sizes: Scale, top: int = 5, shown: int = 3) -> pd.DataFrame:
    """Number of a query's top clusters that hold one of its own tokens, by two orders of weight.

    Args:
        model: LENS.
        sizes: Sizes of evaluation; ``queries`` queries of docs, dev, are read with their instruction.
        top: Number of clusters per query.
        shown: Number of queries whose clusters are named.

    Returns:
        For each order (``task``: ``heaviest``, by weight, or ``telling``, by weight above its mean over the queries)
        one row of the metric ``own``: score (share of the clusters that hold a token of the query, in per cent), low,
        high, items (queries), outcomes. And one row of the metric ``named`` for each of the first ``shown`` queries:
        ``text`` (the first word of each cluster, with a star after those that do) and ``items`` (the query's index).

    Source: LENS, table 3; counts and the second order are this project's.
    """
    tokenizer, lexicon = model[0].tokenizer, model[1]
    queries = load_docs().split("dev")["query"].head(sizes.queries).tolist()
    asked = instruction_of("DocsRetrieval")
    weights = model.encode(queries, prompt=asked, show_progress_bar=False)
    words = [(held[0].strip() or repr(held[0])) if held else "-" for held in lexicon.words(tokenizer)]
    own = [{*lexicon.clusters[ids].tolist()} for ids in tokenizer(queries, add_special_tokens=False)["input_ids"]]
    rows = []
    for order, ranked in (("heaviest", weights), ("telling", weights - weights.mean(axis=0))):
        best = np.argsort(-ranked, axis=1, kind="stable")[:, :top].tolist()
        held = [sum(c in one for c in clusters) for clusters, one in zip(best, own, strict=True)]
        rows.append(row(order, Outcomes.of_values(held, queries, [top] * len(held), factor=100), metric="own"))
        for query, clusters in enumerate(best[:shown]):
            named = " ".join(words[c] + "*" * (c in own[query]) for c in clusters)
            rows.append(pd.DataFrame([{"metric": "named", "task": order, "items": query, "text": named}]))
    return pd.concat(rows, ignore_index=True)


POOLING = Experiment(
    name="04_pooling",
    description="Attention by pooling of LENS: the offline suites",
    variants=(
        Variant(UNTRAINED, "lens"),
        *(lexicon(name(pooling, mask), pooling, mask) for mask in MASKS for pooling in POOLINGS),
    ),
    sizes=smaller,
    measure=suites_and_loss,
    inputs=SUITES,
    rerun_variants=(name("max", "bidirectional"),),
    version=2,
)
KEYWORDS = Experiment(
    name="04_keywords",
    description="The heaviest clusters of queries, before and after training: how many hold a token of the query",
    variants=(Variant(UNTRAINED, "lens"), lexicon("trained")),
    measure=keywords,
    inputs=("docs", "instructions/docs.csv"),
    version=2,
)
BY_SIZE = Experiment(
    name="04_clusters",
    description="LENS by the number of clusters of its head: the offline suites",
    variants=(
        *(lexicon(str(clusters), clusters=clusters) for clusters in CLUSTERS),
        lexicon("4000, not centred", zero="paper"),
    ),
    sizes=smaller,
    measure=suites_and_loss,
    inputs=SUITES,
    rerun_variants=("4000",),
    version=2,
)
_DENSE = Variant("dense", "mean", _STAGE, {"attention": "bidirectional", "template": "lens"}, recipe=lens.recipe)
_MAX, _SUM = lexicon("lexicon"), lexicon("lexicon, sum", "sum")
HYBRID = Experiment(
    name="04_hybrid",
    description="Lexicon and dense vectors, trained alike, alone and put beside each other: the offline suites",
    variants=(
        _MAX,
        _SUM,
        _DENSE,
        Variant("lexicon + dense", _MAX.method, _STAGE, _MAX.options, hybrid_with=_DENSE),
        # The control: two models know more than one, whatever their vectors are.
        Variant("lexicon + lexicon", _MAX.method, _STAGE, _MAX.options, hybrid_with=_SUM),
    ),
    sizes=smaller,
    measure=suites_and_loss,
    inputs=SUITES,
    rerun_variants=("lexicon",),
    version=2,
)
EXPERIMENTS = (POOLING, KEYWORDS, BY_SIZE, HYBRID)
