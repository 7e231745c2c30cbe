"""An experiment of notebook 05: what the contextual token's state and the last token's find, layer by layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .. import probes
from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..evaluation.outcomes import Outcomes
from ..evaluation.run import cut_to
from .equal_budget import METHODS
from .grid import Experiment, Variant
from .ladder import LADDER, WHOLE
from .suite import row, smaller

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale

SHORT, LONG, TRAINED = "torch's length", "a word's length", "a word's length, trained"
LEARNED = "with EOS, trained"
"""The method of `05_ladder`, whose contextual half learned to find pairs; that of :data:`TRAINED`, as notebook 07
trains it, did not.
"""
_APART = 3  # layers between those that are kept


def by_layer(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Retrieval by the state of one token at each third layer, also where the contextual token is a sink and where not.

    Args:
        model: A model that reads contextual tokens.
        sizes: Sizes of evaluation; each of ``queries`` queries of docs, test, has its own document among as many.

    Returns:
        One row per token, layer and group of queries, of the metric ``mrr``: ``task``, ``token`` (``context`` or
        ``last``), ``layer`` (0 is what the decoder reads, the last is the output of the final norm), ``documents``
        (``all``, ``sinks``, ``others``, by the query's own document), score (mean reciprocal rank x 100), low, high,
        items. And one row of the metric ``sink``: the share (per cent) of documents in which the token is a sink, see
        :data:`workbook.probes.SINK`. A group of fewer than two queries has no rows.
    """
    pairs = load_docs().split("test").head(sizes.queries)
    documents = pairs["document"].tolist()
    with cut_to(model, sizes.max_length):
        ranks = probes.layer_ranks(model, pairs["query"].tolist(), documents, instruction_of("DocsRetrieval"))
        norms = probes.contextual_norms(model, documents)
    sink = norms[norms["layer"] == 0]["sink"].to_numpy()
    frames = [row("documents", Outcomes.of_values(sink.astype(float), pairs["id"], factor=100), metric="sink")]
    kept = ranks[(ranks["layer"] % _APART == 0) | (ranks["layer"] == ranks["layer"].max())]
    for group, chosen in {"all": np.full(len(sink), True), "sinks": sink, "others": ~sink}.items():
        if chosen.sum() < 2:
            continue
        for (token, layer), part in kept.groupby(["token", "layer"], sort=False):
            found = part.sort_values("query")["reciprocal_rank"].to_numpy()[chosen]
            outcomes = Outcomes.of_values(found, pairs["id"][chosen], factor=100)
            setting = {"token": token, "layer": layer, "documents": group}
            frames.append(row(f"{token}, layer {layer}, {group}", outcomes, metric="mrr", **setting))
    return pd.concat(frames, ignore_index=True)


_trained = METHODS.variant("causal2vec")

LAYERS = Experiment(
    name="05_layers",
    description="Retrieval by the states of the contextual token and of the last, layer by layer, and by second sinks",
    variants=(
        Variant(SHORT, "causal2vec", (), {**_trained.options, "encoder_options": {"length": "torch"}}),
        Variant(LONG, "causal2vec", (), _trained.options),
        replace(_trained, name=TRAINED),
        replace(LADDER.variant(WHOLE), name=LEARNED),
    ),
    sizes=smaller,
    measure=by_layer,
    inputs=("docs", "instructions/docs.csv"),
)
EXPERIMENTS = (LAYERS,)
