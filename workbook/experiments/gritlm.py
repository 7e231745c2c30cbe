"""A draft: what the language model's own loss costs an embedder, and what it preserves. No notebook reads it yet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import torch
from sentence_transformers.util import batch_to_device

from .. import attention
from ..corpora.docs import load_docs
from ..evaluation.run import cut_to
from ..methods import gritlm
from ..objectives import GritLM
from .grid import SUITE_DOCS, Experiment, Variant
from .suite import smaller, suite_docs

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale

WRITTEN = 32
"""Number of documents whose generative loss is measured."""


@torch.no_grad()
def evaluate_variant(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Suite docs, and the loss of writing held-out documents.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.

    Returns:
        Tidy rows: ``metric``, ``task``, ``type``, ``score``, ``low``, ``high`` and ``items``. The metric ``score`` has
        the points of suite docs, ``generative`` the mean causal loss per token in nats.
    """
    documents = load_docs().split("test")["document"].head(WRITTEN).tolist()
    with cut_to(model, sizes.max_length):
        scores = suite_docs(model, sizes).assign(metric="score")
        features = batch_to_device(model.preprocess(documents), model.device)
        objective = GritLM(model).to(model.device)
        with attention.switched(model[0].decoder, "causal"):  # whatever its kernel: flash attention takes no mask
            loss = objective.generative_loss(features).item()
    rows = pd.DataFrame({"metric": ["generative"], "task": ["docs"], "score": [loss], "items": [WRITTEN]})
    columns = ["metric", "task", "type", "score", "low", "high", "items"]
    return pd.concat([scores, rows], ignore_index=True)[columns]


GRITLM = Experiment(
    name="gritlm",
    description="Contrastive training alone, and with the language model's own loss: suite docs, generative loss",
    variants=(
        Variant("contrastive alone", "gritlm", ("joint",), recipe=partial(gritlm.recipe, generative_weight=0.0)),
        Variant("joint", "gritlm", ("joint",)),
    ),
    sizes=smaller,
    measure=evaluate_variant,
    inputs=SUITE_DOCS,
)
EXPERIMENTS = (GRITLM,)
