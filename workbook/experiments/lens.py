"""The experiments of notebook 04: attention by pooling, the number of clusters, and lexicon against dense vectors."""

from __future__ import annotations

from ..methods import lens
from .grid import SUITE_DOCS, Experiment, Variant
from .suite import smaller, suite_docs

POOLINGS, MASKS = ("max", "sum", "last"), ("bidirectional", "causal")
CLUSTERS = (1000, 4000, 16000, "vocabulary")
"""Numbers of clusters; ``vocabulary`` is the head as it is."""

UNTRAINED = "untrained"
"""Name of the variant of 04_pooling that is LENS before training: the maximum, without the causal mask."""

_STAGE = ("distilled",)


def name(pooling: str, mask: str) -> str:
    """Name of the variant of 04_pooling: one of :data:`POOLINGS` and one of :data:`MASKS`."""
    return f"{pooling}, {mask}"


def lexicon(
    variant: str,
    pooling: str = "max",
    mask: str = "bidirectional",
    clusters: int | str = 4000,
    **others: bool,
) -> Variant:
    """LENS, trained, with another pooling, mask, number of clusters or head."""
    options = {"pooling": pooling, "clusters": clusters} | others
    return Variant(variant, "lens", _STAGE, {"attention": mask, "pooling_options": options})


POOLING = Experiment(
    name="04_pooling",
    what="Attention by pooling of LENS: suite docs",
    variants=(
        Variant(UNTRAINED, "lens"),
        *(lexicon(name(pooling, mask), pooling, mask) for mask in MASKS for pooling in POOLINGS),
    ),
    sizes=smaller,
    measure=suite_docs,
    reads=SUITE_DOCS,
    live=(name("max", "bidirectional"), name("last", "causal")),
)
SIZES = Experiment(
    name="04_clusters",
    what="LENS by the number of clusters of its head: suite docs",
    variants=(
        *(lexicon(str(clusters), clusters=clusters) for clusters in CLUSTERS),
        lexicon("4000, not centred", centred=False),
    ),
    sizes=smaller,
    measure=suite_docs,
    reads=SUITE_DOCS,
    live=("1000", "4000"),
)
_DENSE = Variant("dense", "mean", _STAGE, {"attention": "bidirectional", "template": "lens"}, other=lens.recipe)
_MAX = lexicon("lexicon")
HYBRID = Experiment(
    name="04_hybrid",
    what="Lexicon and dense vectors, trained alike, alone and put beside each other: suite docs",
    variants=(
        _MAX,
        _DENSE,
        Variant("lexicon + dense", _MAX.method, _STAGE, _MAX.options, beside=_DENSE),
        # The control: two models know more than one, whatever their vectors are made of.
        Variant("lexicon + lexicon", _MAX.method, _STAGE, _MAX.options, beside=lexicon("sum", "sum")),
    ),
    sizes=smaller,
    measure=suite_docs,
    reads=SUITE_DOCS,
    live=("lexicon", "dense", "lexicon + dense"),
)
EXPERIMENTS = (POOLING, SIZES, HYBRID)
