"""The measurements of the grids of notebooks 03 and later: suite docs, at a part of each scale's own sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
import torch.nn.functional as F
from transformers.modeling_outputs import BaseModelOutput

from .. import evaluation
from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..evaluation.suites import SUITES
from ..scale import Scale, get_scale

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel

_SMALLER = {
    "quick": {"queries": 8, "documents": 16, "texts": 24, "pairs": 48, "max_length": 48},
    "cpu": {"queries": 50, "documents": 100, "texts": 40, "pairs": 84, "max_length": 48},
}


def smaller(scale: str) -> Scale:
    """Sizes of evaluation: a part of the scale's own if a grid of many models would take a day on a CPU.

    Raises:
        UnknownNameError: No such scale.
    """
    return get_scale(scale).model_copy(update=_SMALLER.get(scale, {}))


def suite_docs(model: SentenceTransformer, sizes: Scale, others: tuple[str, ...] = ()) -> pd.DataFrame:
    """Suite docs, its average, and other offline tasks, which are not in the average.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.
        others: Names of other offline tasks.

    Returns:
        One row per task: task, type, score, low, high (points), items.
    """
    own = SUITES["docs"].tasks
    scores = evaluation.evaluate(model, [*own, *others], scale=sizes, instructions="docs", progress=False)
    scores = pd.concat([scores, evaluation.average(scores[scores["task"].isin(own)])])
    return scores[["task", "type", "score", "low", "high", "items"]].reset_index(drop=True)


def held_out_loss(model: SentenceTransformer, batches: int = 2, size: int = 32, temperature: float = 0.05) -> float:
    """Mean InfoNCE (nats) over in-batch negatives, on held-out pairs of docs; chance is log(size).

    Args:
        model: An embedder.
        batches: Number of batches.
        size: Pairs per batch.
        temperature: Divisor of the cosines.

    Raises:
        MissingDataError: A package that the docs corpus is made of is not installed.
    """
    pairs = load_docs().split("test").head(batches * size)
    asked = instruction_of("DocsRetrieval")
    options = {"normalize_embeddings": True, "convert_to_tensor": True, "show_progress_bar": False}
    queries = model.encode(pairs["query"].tolist(), prompt=asked, **options).float()
    documents = model.encode(pairs["document"].tolist(), **options).float()
    labels = torch.arange(size, device=queries.device)
    losses = [
        F.cross_entropy(one @ other.T / temperature, labels)
        for one, other in zip(queries.split(size), documents.split(size), strict=True)
    ]
    return float(torch.stack(losses).mean())


@contextmanager
def read_once(decoder: PreTrainedModel) -> Iterator[None]:
    """Keep the states of every batch inside the block, so that another pooling of the same texts costs no new pass."""
    read, kept = decoder.forward, {}

    def remembered(**inputs: Any) -> BaseModelOutput:
        key = hashlib.sha256()
        for name in sorted(inputs):
            value = inputs[name]
            tensor = isinstance(value, torch.Tensor)
            key.update(f"{name} {tuple(value.shape) if tensor else value}".encode())
            if tensor:
                key.update(value.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
        if key.digest() not in kept:
            kept[key.digest()] = read(**inputs).last_hidden_state
        return BaseModelOutput(last_hidden_state=kept[key.digest()])

    decoder.forward = remembered
    try:
        yield
    finally:
        decoder.forward = read
