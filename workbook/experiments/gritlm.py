"""A draft: what the language model's own loss costs an embedder, and what it preserves. No notebook reads it yet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import torch
from sentence_transformers.util import batch_to_device

from .. import attention
from ..corpora.docs import load_docs
from ..evaluation.outcomes import Outcomes
from ..evaluation.run import cut_to
from ..methods import gritlm
from ..objectives import GritLM
from .grid import SUITES, Experiment, Variant
from .suite import row, smaller, suites

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale

WRITTEN = 32
"""Number of documents whose generative loss is measured."""


@torch.no_grad()
def evaluate_variant(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Both offline suites, and the loss of writing held-out documents.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.

    Returns:
        Tidy rows: ``metric``, ``task``, ``type``, ``score``, ``low``, ``high``, ``items`` and ``outcomes``. The metric
        ``score`` has the points of both offline suites, ``generative`` the mean over documents of their causal loss per
        token in nats.
    """
    documents = load_docs().split("test")["document"].head(WRITTEN).tolist()
    with cut_to(model, sizes.max_length):
        scores = suites(model, sizes)
        objective = GritLM(model).to(model.device)
        with attention.switched(model[0].decoder, "causal"):  # whatever its kernel: flash attention takes no mask
            read = (batch_to_device(model.preprocess([one]), model.device) for one in documents)
            losses = [objective.generative_loss(features).item() for features in read]
    rows = row("documents", Outcomes.of_values(losses, documents), metric="generative")
    columns = ["metric", "task", "type", "score", "low", "high", "items", "outcomes"]
    return pd.concat([scores, rows], ignore_index=True)[columns]


GRITLM = Experiment(
    name="gritlm",
    description="Contrastive training alone, and with the language model's own loss: both suites, generative loss",
    variants=(
        Variant("contrastive alone", "gritlm", ("joint",), recipe=partial(gritlm.recipe, generative_weight=0.0)),
        Variant("joint", "gritlm", ("joint",)),
    ),
    sizes=smaller,
    measure=evaluate_variant,
    inputs=SUITES,
    version=2,
)
EXPERIMENTS = (GRITLM,)
