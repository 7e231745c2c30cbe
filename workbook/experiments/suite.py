"""The measurements that the grids share: both offline suites and a held-out loss, at a part of a scale's own sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from transformers.modeling_outputs import BaseModelOutput

from .. import evaluation
from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..evaluation.effects import Quantity, effect
from ..evaluation.local import is_at_hand
from ..evaluation.outcomes import Outcomes, as_text, from_text
from ..evaluation.run import cut_to
from ..evaluation.suites import SUITES
from ..scale import Scale, get_scale

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel

_ALONG = " outcomes"
FEW_ENGLISH = ("STSBenchmark-dev", "XQuADParagraphs", "Emotions")
"""One task of suite english for similarity, one for retrieval and one for classes: a fifth of the suite's tokens, for
grids of many models.
"""

# Those of cpu are of its records, beside which notebooks measure an encoder and chance; they go when night's take over.
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


def suites(
    model: SentenceTransformer,
    sizes: Scale,
    others: tuple[str, ...] = (),
    english: tuple[str, ...] = SUITES["english"].tasks,
    *,
    instructed: bool = True,
) -> pd.DataFrame:
    """Both offline suites, in-domain and out-of-domain, other offline tasks, and the real English that is at hand.

    From scale ``night`` on, every task of ``english`` is measured whose files are on this machine. No verdict needs
    them, so a record that lacks them is no older than one that has them.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.
        others: Names of other offline tasks.
        english: Names of tasks of suite ``english``.
        instructed: Whether queries have their task's instruction; False for an encoder that was not trained to read
            one.

    Returns:
        One row per task: metric (``score``), task, type, score, low, high (points), items, outcomes.
    """
    parts = {"docs": [*evaluation.OFFLINE_SUITES, *others]}
    if sizes.queries >= get_scale("night").queries and (at_hand := [task for task in english if is_at_hand(task)]):
        parts["english"] = at_hand
    frames = []
    for instructions, tasks in parts.items():
        options = {"scale": sizes, "max_length": sizes.max_length, "progress": False}
        found = evaluation.evaluate(model, tasks, instructions=instructions if instructed else None, **options)
        frames.append(found.assign(metric="score", outcomes=[found.attrs["outcomes"][task] for task in found["task"]]))
    scores = pd.concat(frames, ignore_index=True)
    return scores[["metric", "task", "type", "score", "low", "high", "items", "outcomes"]]


def row(task: str, outcomes: Outcomes, **others: Any) -> pd.DataFrame:
    """One row of a measure: its number, the 95 % interval over its items, and the outcomes.

    Args:
        task: What was measured, or on what.
        outcomes: Its outcomes.
        **others: Further columns.
    """
    found = effect({"it": 1.0}, {"it": Quantity.of(outcomes)})
    numbers = {"score": found.value, "low": found.low, "high": found.high, "items": found.items}
    return pd.DataFrame([{**others, "task": task, **numbers, "outcomes": outcomes}])


def kept_along(measured: Mapping[str, Outcomes]) -> dict[str, float | str]:
    """Outcomes by name for a measurement while a stage trains: the numbers, and the outcomes as text.

    :func:`curve` makes rows of them again.
    """
    numbers = {name: one.score for name, one in measured.items()}
    return numbers | {f"{name}{_ALONG}": as_text(one) for name, one in measured.items()}


def curve(rows: pd.DataFrame) -> pd.DataFrame:
    """The measurements of a training as rows: step, tokens, metric (``curve``), task, score and outcomes.

    Args:
        rows: The curve of `workbook.training.Trained`, measured by :func:`kept_along`.
    """
    names = [name.removesuffix(_ALONG) for name in rows if name.endswith(_ALONG)]
    parts = [
        rows[["step", "tokens"]].assign(
            metric="curve", task=name, score=rows[name], outcomes=[from_text(text) for text in rows[name + _ALONG]]
        )
        for name in names
    ]
    return pd.concat(parts, ignore_index=True)


def held_out_loss(model: SentenceTransformer, batches: int = 2, size: int = 32, temperature: float = 0.05) -> Outcomes:
    """InfoNCE (nats) of each pair over in-batch negatives, on held-out pairs of docs; chance is log(size).

    Args:
        model: An embedder.
        batches: Number of batches.
        size: Pairs per batch.
        temperature: Divisor of the cosines.

    Returns:
        The loss of each pair, their mean as the score.

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
        F.cross_entropy(one @ other.T / temperature, labels, reduction="none")
        for one, other in zip(queries.split(size), documents.split(size), strict=True)
    ]
    return Outcomes.of_values(torch.cat(losses).tolist(), pairs["id"])


def loss_row(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """One row of the metric ``loss``: :func:`held_out_loss` of texts as long as those of the evaluation.

    Args:
        model: An embedder.
        sizes: Sizes of evaluation.
    """
    with cut_to(model, sizes.max_length):
        return row("held-out pairs", held_out_loss(model), metric="loss")


def suites_and_loss(
    model: SentenceTransformer,
    sizes: Scale,
    others: tuple[str, ...] = (),
    english: tuple[str, ...] = SUITES["english"].tasks,
) -> pd.DataFrame:
    """:func:`suites`, and the loss on held-out pairs.

    Args:
        model, sizes, others, english: As for :func:`suites`.

    Returns:
        One row per task: metric (``score`` in points, or ``loss`` in nats), task, type, score, low, high, items,
        outcomes.
    """
    scores = suites(model, sizes, others, english)
    return pd.concat([scores, loss_row(model, sizes)], ignore_index=True)


@contextmanager
def embedded_once(model: SentenceTransformer) -> Iterator[None]:
    """Keep the vector of every text inside the block, by side and prompt, so that a second measure of it costs nothing.

    Args:
        model: An embedder, asked for NumPy vectors.
    """
    encode, kept = model.encode, {}

    def remembered(inputs: list[str], **options: Any) -> Any:
        if options.get("convert_to_tensor") or options.get("normalize_embeddings"):
            return encode(inputs, **options)
        vectors = kept.setdefault(tuple(options.get(name) for name in ("task", "prompt", "prompt_name")), {})
        if new := [text for text in dict.fromkeys(inputs) if text not in vectors]:
            vectors.update(zip(new, encode(new, **options), strict=True))
        return np.stack([vectors[text] for text in inputs])

    model.encode = remembered
    try:
        yield
    finally:
        del model.encode


@contextmanager
def read_once(decoder: PreTrainedModel) -> Iterator[None]:
    """Keep the states of every batch inside the block, so that another pooling of the same texts costs no new pass.

    A pass that writes keys and values, or reads those of a kept beginning, is made again: its inputs do not say all.
    """
    read, kept = decoder.forward, {}

    def remembered(**inputs: Any) -> BaseModelOutput:
        if inputs.get("past_key_values") is not None:
            return read(**inputs)
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
