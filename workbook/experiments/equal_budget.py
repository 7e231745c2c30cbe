"""The experiments of notebook 07: every method on one budget, and combinations of parts of several methods.

A budget is a number of tokens that the decoder reads in training, including the stages of its own that a method puts
before the supervised one. All methods read the same pairs in the same order, with the same batches and adapters, and
all but one have the same learning rate; a method that reads more tokens per pair gets fewer steps. Two kinds of
combinations are not on the exact budget. A stage of another method at the start comes on top, as long as in that
method's own recipe. And steps are computed with a method's own suffix, so that last-token pooling with the suffix
``keywords`` reads 8% less. Half of the budget shows what slower methods reach in the time of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .. import backbones, methods
from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..evaluation.outcomes import Outcomes
from ..evaluation.run import cut_to, prefixes_kept
from ..methods import causal2vec, icl
from ..scale import get_scale
from ..training.recipe import Recipe, Stage
from .causal2vec import without_context
from .grid import SUITES, Experiment, Variant
from .suite import embedded_once, row, smaller, suites_and_loss

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase

    from ..scale import Scale

TOKENS = {"quick": 1_500, "cpu": 32_000, "night": 256_000, "gpu": 2_560_000, "paper": 250_000_000}
"""The budget by scale, in tokens that the decoder reads, without padding. At ``gpu`` it is ten times that of a night:
``docs`` has 12,465 pairs, which mean pooling then reads less than three times.
"""

SIZES = {
    "quick": {"batch_size": 8, "max_length": 48, "learning_rate": 1e-3, "warmup_steps": 1},
    "cpu": {"batch_size": 32, "max_length": 48, "learning_rate": 1e-3, "warmup_steps": 1},
    "night": {"batch_size": 32, "max_length": 48, "learning_rate": 1e-3, "warmup_steps": 8},
    "gpu": {"batch_size": 128, "max_length": 256, "learning_rate": 3e-4, "warmup_steps": 30},
    "paper": {"data": "e5", "batch_size": 512, "max_length": 512, "learning_rate": 1e-4, "warmup_steps": 300},
}
"""The supervised stage of all methods. At ``cpu`` and ``night`` Causal2Vec has the learning rate of its own notebook,
twice that of the others, since its MLP begins as noise; which rate suits it was not searched.
"""

_TEMPERATURE = {"lens": 0.02}  # its paper's; 0.05 is Causal2Vec's and Anchor's, and the others leave it open

_GRADCACHE = {"paper": {"mini_batch_size": 16}}
_STAGE = ("contrastive",)
_ANSWER = {"suffix": "answer"}
_OPTIONS: dict[str, Mapping[str, Any]] = {
    "last-token": _ANSWER,
    "causal2vec": _ANSWER,
    "anchor": {"suffix": "keywords"},
    "icl": {**_ANSWER, "examples": icl.examples()},
}
"""Suffixes for vectors of a last token: those with which the methods learnt in their own notebooks."""


@lru_cache
def _sample(backbone: str) -> tuple[PreTrainedTokenizerBase, pd.DataFrame]:
    """A backbone's tokenizer, and the training pairs that tokens are counted on."""
    return backbones.load_tokenizer(backbone), load_docs().split("train").head(256)


def tokens_a_pair(method: str, backbone: str, max_length: int) -> float:
    """Mean number of tokens that the decoder reads of a query and its document, over 256 training pairs of docs.

    Args:
        method: A name from ``workbook.METHODS``.
        backbone: Name of the backbone, for its tokenizer.
        max_length: Longest input in tokens.
    """
    return sum(lengths.mean() for lengths, _ in _sides(method, backbone, max_length))


def tokens_written(method: str, backbone: str, max_length: int, behind_bos: bool) -> float:
    """Tokens that the decoder reads to write both sides of a pair from vectors: the mean over the same 256 pairs.

    Of each side the vector, in front of it BOS or not, and the words but the last; neither instruction nor suffix.

    Args:
        method: A name from ``workbook.METHODS``.
        backbone: Name of the backbone, for its tokenizer.
        max_length: Longest input in tokens.
        behind_bos: Whether BOS stands in front of the vector.
    """
    return sum((lengths - around).mean() + behind_bos for lengths, around in _sides(method, backbone, max_length))


@lru_cache
def _sides(method: str, backbone: str, max_length: int) -> tuple[tuple[np.ndarray, int], ...]:
    """Of queries and of documents, the tokens of each input, and how many of them stand around its text."""
    template = methods.get(method).chain.with_options(**_OPTIONS.get(method, {})).layout()
    tokenizer, pairs = _sample(backbone)
    found = []
    for texts, instruction in ((pairs["query"], instruction_of("DocsRetrieval")), (pairs["document"], None)):
        rows = template.encode(tokenizer, ["a", *texts], instruction, max_length, contextual_tokens=1)
        shortest, *lengths = [len(row.input_ids) for row in rows]
        found.append((np.array(lengths), shortest - 1))
    return tuple(found)


def _supervised(method: str, share: float, scale: str, backbone: str) -> Recipe:
    """The last of a method's stages, with this experiment's sizes and a share of the budget."""
    name = get_scale(scale).name
    sizes = dict(SIZES[name])
    if method == "causal2vec" and name in ("cpu", "night"):
        sizes["learning_rate"] = causal2vec.SIZES["cpu"]["learning_rate"]
    pair = tokens_a_pair(method, backbone, sizes["max_length"])
    steps = max(1, round(share * TOKENS[name] / (sizes["batch_size"] * pair)))
    sizes["warmup_steps"] = min(sizes["warmup_steps"], steps)
    sizes["gradient_checkpointing"] = method == "icl"  # with examples in front a batch would take some 20 GB
    options = {"temperature": _TEMPERATURE.get(method, 0.05)} | _GRADCACHE.get(name, {})
    stage = Stage(name="contrastive", objective="contrastive", options=options, steps=steps, **sizes)
    return Recipe(stages=(stage,))


def _halved(method: str, before: str, share: float, scale: str, backbone: str) -> Recipe:
    """Half of a share of the budget for the stage that a method puts before the supervised one."""
    name = get_scale(scale).name
    (first,) = methods.recipe(method, name, backbone).only(before).stages
    # MNTP reads chunks of full length; reconstruction reads every pair to embed it, and again to write it.
    row = first.max_length
    if before != "mntp":
        behind_bos = methods.options(method, name, backbone).get("vector_behind_bos", False)
        row = tokens_a_pair(method, backbone, row) + tokens_written(method, backbone, row, behind_bos)
    steps = max(1, round(share * TOKENS[name] / 2 / (first.batch_size * row)))
    shorter = {"steps": steps, "warmup_steps": round(first.warmup_steps * steps / first.steps), "decay_steps": None}
    return Recipe(stages=(first.model_copy(update=shorter), *_supervised(method, share / 2, scale, backbone).stages))


def _trained(name: str, method: str, share: float = 1.0, start_from: Variant | None = None, **options: Any) -> Variant:
    own = {**_OPTIONS.get(method, {}), **options}
    return Variant(name, method, _STAGE, own, recipe=partial(_supervised, method, share), start_from=start_from)


def _with_first(name: str, method: str, before: str, share: float = 1.0, start_from: Variant | None = None) -> Variant:
    recipe = partial(_halved, method, before, share)
    return Variant(name, method, (before, *_STAGE), _OPTIONS.get(method, {}), recipe=recipe, start_from=start_from)


def evaluate_variant(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Both offline suites, the loss on held-out pairs, and the mean reciprocal rank of each query's document.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.

    Returns:
        Tidy rows: ``metric``, ``task``, ``type``, ``score``, ``low``, ``high``, ``items`` and ``outcomes``. Rows of the
        metrics ``score`` and ``loss`` are those of :func:`~.suite.suites_and_loss`. The row ``rank`` is the mean
        reciprocal rank, in points, of each query's document among the scale's documents, one outcome per query; equal
        scores count against it.
    """
    pairs = load_docs().split("test").head(sizes.documents)
    with cut_to(model, sizes.max_length), embedded_once(model), prefixes_kept(model):
        rows = [suites_and_loss(model, sizes)]
        asked, queries = instruction_of("DocsRetrieval"), pairs["query"].head(sizes.queries)
        queries = model.encode_query(queries.tolist(), prompt=asked, show_progress_bar=False)
        documents = model.encode_document(pairs["document"].tolist(), show_progress_bar=False)
    cosines = model.similarity(queries, documents).numpy()
    ranks = (cosines >= cosines.diagonal()[:, None]).sum(axis=1)
    rows.append(row("queries", Outcomes.of_values(1 / ranks, pairs["id"].head(len(ranks)), factor=100), metric="rank"))
    columns = ["metric", "task", "type", "score", "low", "high", "items", "outcomes"]
    return pd.concat(rows, ignore_index=True)[columns]


UNTRAINED = ", untrained"
"""Suffix of the name of a method that is not trained."""

COMPARED = (
    *("mean", "weighted-mean", "last-token", "echo"),
    *("llm2vec", "nv-embed", "lens", "causal2vec", "anchor", "icl"),
)
"""The methods that are compared, in the order of the tables."""

_FIRST = {"llm2vec": "mntp", "anchor": "reconstruction"}
"""The stage that a method puts before the supervised one, and that its budget pays for too."""

METHODS = Experiment(
    name="07_methods",
    description="Every method, untrained and after one budget of tokens: the offline suites, loss, ranks",
    variants=(
        *(Variant(name + UNTRAINED, name, (), _OPTIONS.get(name, {})) for name in COMPARED),
        *(_trained(name, name) for name in COMPARED if name not in _FIRST),
        *(_with_first(name, name, before) for name, before in _FIRST.items()),
    ),
    sizes=smaller,
    measure=evaluate_variant,
    inputs=SUITES,
    rerun_variants=("mean",),
    version=2,
)

HALF = Experiment(
    name="07_half",
    description="The methods that cost more time a token, after half of the budget: the offline suites, loss, ranks",
    variants=(
        _trained("nv-embed", "nv-embed", share=0.5),
        _with_first("anchor", "anchor", "reconstruction", share=0.5),
    ),
    sizes=smaller,
    measure=evaluate_variant,
    inputs=SUITES,
    version=2,
)
"""In the time of mean pooling these methods get through between half of the budget and all of it."""

# What a contextual token is compared with: Causal2Vec's prompt, suffix and rate, and no encoder.
_NO_CONTEXT = {"encoder": None, "encoder_options": {}, "template": without_context()}
_MNTP = Variant("MNTP", "llm2vec", ("mntp",))
_RECONSTRUCTION = Variant("reconstruction", "anchor", ("reconstruction",), _OPTIONS["anchor"])

PARTS = Experiment(
    name="07_parts",
    description="Attention, pooling and what was trained before, put together freely: the offline suites, loss, ranks",
    variants=(
        _trained("bidirectional, mean", "mean", attention="bidirectional"),
        _trained("bidirectional, last token", "last-token", attention="bidirectional"),
        _trained("causal, latent attention", "nv-embed", attention="causal"),
        _trained("causal, lexicon", "lens", attention="causal"),
        _trained("MNTP, then mean", "mean", start_from=_MNTP, attention="bidirectional"),
        _trained("MNTP, then last token", "last-token", start_from=_MNTP),
        _with_first("MNTP, then Anchor", "anchor", "reconstruction", start_from=_MNTP),
        _trained("reconstruction, then lexicon", "lens", start_from=_RECONSTRUCTION),
        _trained("contextual token, latent attention", "causal2vec", pooling="latent_attention"),
        _trained("no contextual token, latent attention", "causal2vec", pooling="latent_attention", **_NO_CONTEXT),
        _trained("no contextual token, last token", "causal2vec", pooling="last_token", **_NO_CONTEXT),
        _trained("last token, closed by keywords", "last-token", suffix="keywords"),
    ),
    sizes=smaller,
    measure=evaluate_variant,
    inputs=SUITES,
    version=2,
)
EXPERIMENTS = (METHODS, HALF, PARTS)
