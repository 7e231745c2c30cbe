"""The experiments of notebook 04: pooling by mask, words in vectors, numbers of clusters, lexicon against dense."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..methods import lens
from .grid import SUITE_DOCS, Experiment, Variant
from .suite import smaller, suite_docs

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
    **others: bool,
) -> Variant:
    """LENS, trained, with another pooling, mask, number of clusters or head.

    Args:
        variant: Name of the variant.
        pooling: ``max``, ``sum`` or ``last``.
        mask: ``causal`` or ``bidirectional``.
        clusters: Number of clusters, or ``vocabulary`` for none.
        **others: Options of the lexicon, such as ``centred``.
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
        One row per order and query: ``order`` (``heaviest``, by weight, or ``telling``, by weight above its mean over
        the queries); ``sentence`` (the query's index); ``words`` (``top``); ``correct`` (number of clusters that hold a
        token of the query); and ``named`` (the first word of each cluster, with a star after those that do; empty after
        ``shown`` queries).

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
        for query, best in enumerate(np.argsort(-ranked, axis=1, kind="stable")[:, :top].tolist()):
            named = " ".join(words[c] + "*" * (c in own[query]) for c in best) if query < shown else ""
            rows.append((order, query, top, sum(c in own[query] for c in best), named))
    return pd.DataFrame(rows, columns=["order", "sentence", "words", "correct", "named"])


POOLING = Experiment(
    name="04_pooling",
    description="Attention by pooling of LENS: suite docs",
    variants=(
        Variant(UNTRAINED, "lens"),
        *(lexicon(name(pooling, mask), pooling, mask) for mask in MASKS for pooling in POOLINGS),
    ),
    sizes=smaller,
    measure=suite_docs,
    inputs=SUITE_DOCS,
    rerun_variants=(name("max", "bidirectional"),),
)
KEYWORDS = Experiment(
    name="04_keywords",
    description="The heaviest clusters of queries, before and after training: how many hold a token of the query",
    variants=(Variant(UNTRAINED, "lens"), lexicon("trained")),
    measure=keywords,
    inputs=("docs", "instructions/docs.csv"),
)
BY_SIZE = Experiment(
    name="04_clusters",
    description="LENS by the number of clusters of its head: suite docs",
    variants=(
        *(lexicon(str(clusters), clusters=clusters) for clusters in CLUSTERS),
        lexicon("4000, not centred", centred=False),
    ),
    sizes=smaller,
    measure=suite_docs,
    inputs=SUITE_DOCS,
    rerun_variants=("4000",),
)
_DENSE = Variant("dense", "mean", _STAGE, {"attention": "bidirectional", "template": "lens"}, recipe=lens.recipe)
_MAX, _SUM = lexicon("lexicon"), lexicon("lexicon, sum", "sum")
HYBRID = Experiment(
    name="04_hybrid",
    description="Lexicon and dense vectors, trained alike, alone and put beside each other: suite docs",
    variants=(
        _MAX,
        _SUM,
        _DENSE,
        Variant("lexicon + dense", _MAX.method, _STAGE, _MAX.options, hybrid_with=_DENSE),
        # The control: two models know more than one, whatever their vectors are.
        Variant("lexicon + lexicon", _MAX.method, _STAGE, _MAX.options, hybrid_with=_SUM),
    ),
    sizes=smaller,
    measure=suite_docs,
    inputs=SUITE_DOCS,
    rerun_variants=("lexicon",),
)
EXPERIMENTS = (POOLING, KEYWORDS, BY_SIZE, HYBRID)
