"""The experiments of notebook 01: what a decoder's states are worth without training, and a trained encoder beside."""

from __future__ import annotations

from . import llm2vec
from .equal_budget import evaluate_variant
from .grid import SUITES, Experiment, Variant
from .sinks import encoder_alone
from .suite import smaller

_BOTH = {"attention": "bidirectional"}

UNTRAINED = Experiment(
    name="01_untrained",
    description="Three poolings under both masks, and Echo, without training: the offline suites, loss, ranks",
    variants=(
        Variant("causal mean", "mean"),
        Variant("causal weighted mean", "weighted-mean"),
        Variant("causal last token", "last-token"),
        Variant("bidirectional mean", "mean", options=_BOTH),
        Variant("bidirectional weighted mean", "weighted-mean", options=_BOTH),
        Variant("bidirectional last token", "last-token", options=_BOTH),
        Variant("echo", "echo"),
    ),
    sizes=smaller,
    measure=evaluate_variant,
    inputs=SUITES,
    rerun_variants=("causal mean", "bidirectional mean"),
    version=2,
)
"""Source: LLM2Vec, figure 3 and table 5 without training, table 1 for Echo. Measured as ``07_methods``, whose untrained
models with the same chains are these.
"""

YARDSTICK = Experiment(
    name="01_encoder",
    description="A small encoder that was trained to embed, on the same texts: the offline suites",
    variants=(Variant("MiniLM (trained)", "causal2vec"),),
    sizes=smaller,
    measure=encoder_alone,
    inputs=SUITES,
)
PREFIX = Experiment(
    name="01_prefix",
    description="Prefix test and layer cosines without training, by the mask and by Echo",
    variants=(
        Variant("causal mean", "llm2vec", options=llm2vec.CAUSAL),
        Variant("bidirectional mean", "llm2vec"),
        Variant("echo", "echo"),
    ),
    sizes=llm2vec.smaller,
    measure=llm2vec.inside,
    inputs=llm2vec.INSIDE.inputs,
    version=llm2vec.INSIDE.version,
)
"""Measured as ``02_inside``, whose untrained models are the first two."""
EXPERIMENTS = (UNTRAINED, YARDSTICK, PREFIX)
