"""The experiments of notebook 08: the price of every method's vectors, and what fewer bits and numbers lose."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from .. import compress, methods, probes
from ..backbones import capability
from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..evaluation.effects import Quantity, effect
from ..evaluation.outcomes import Outcomes
from .causal2vec import last_token
from .compare import judged, quantity
from .equal_budget import METHODS
from .grid import Experiment, Variant
from .suite import row, smaller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sentence_transformers import SentenceTransformer

    from ..scale import Scale

SAME_PROMPT, UNMASKED, SAME_CLOSE = "last token, same prompt", "last token, no mask", "last token, closed alike"
"""What Causal2Vec is compared with, under both masks; and what Anchor is."""

KEPT = ", kept"
"""Suffix of the name of a model that computes what stands in front of its texts once."""

TURNS = 4
"""Times that a model reads a batch, after one to warm up. The fastest counts: what else a machine does only adds."""

_OF_ONE_RUN = "Timed in one run on one machine: another may differ by more than the interval says."
_BATCH = 8
_LONGEST = 100  # words of a document, so that none is cut, not even where it stands twice
_ROOM = 512  # tokens

_OTHERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    SAME_PROMPT: ("last-token", last_token("", "answer").options),
    UNMASKED: ("last-token", {**last_token("", "answer").options, "attention": "bidirectional"}),
    SAME_CLOSE: ("last-token", {"template": "eos", "suffix": "keywords"}),
}


_IN_TURN = (
    *("mean", "weighted-mean", f"weighted-mean{KEPT}", f"mean{KEPT}", "last-token", f"last-token{KEPT}"),
    *("nv-embed", "lens", "llm2vec", "echo", f"echo{KEPT}", UNMASKED, SAME_PROMPT, "causal2vec", "icl"),
    *(f"icl{KEPT}", f"causal2vec{KEPT}", SAME_CLOSE, "anchor", f"anchor{KEPT}"),
)
"""The models in the order in which they take turns. A machine's speed drifts within seconds, so that those which are
compared stand beside each other.
"""


def models(backbone: str) -> dict[str, SentenceTransformer]:
    """All methods of notebook 07 untrained, the causal ones with a kept prefix too, and controls of two papers.

    Args:
        backbone: Name of a backbone; models with the same attention share one decoder.
    """
    decoders: dict[str, SentenceTransformer] = {}
    made = {}
    for name in _IN_TURN:
        plain = name.removesuffix(KEPT)
        method, options = _OTHERS.get(plain) or (plain, METHODS.variant(plain).options)
        attention = options.get("attention", methods.get(method).chain.attention)
        if attention not in decoders:
            decoders[attention] = methods.build("mean", backbone, attention=attention)
        own = {**options, "max_length": _ROOM, "prefix_cache": name.endswith(KEPT)}
        made[name] = methods.build(method, decoders[attention], **own)
    return made


def in_turn(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Tokens and time of queries and documents by :func:`models`, batch by batch in turn.

    Queries have their instruction, documents none and up to 100 words: nothing is cut. Time is
    `workbook.probes.cost.clock`'s, the least of :data:`TURNS` turns after one to warm up.

    Args:
        model: A model whose decoder's backbone all are built on.
        sizes: Sizes of evaluation; queries and documents of docs, half of ``probe_texts`` each, in batches of 8.

    Returns:
        Two rows per model and side, of the metrics ``tokens`` (that its decoder is given for a text; a kept prefix is
        not) and ``milliseconds`` (a text), one outcome a batch: ``task`` (model and side), ``model``, ``side``
        (``queries`` or ``documents``), score, low, high and items.
    """
    pairs = load_docs().split("test")
    short = pairs[pairs["document"].str.split().str.len() <= _LONGEST].head(sizes.probe_texts // 2)
    built = models(model[0].decoder.config.name_or_path)
    frames = []
    for side, column, asked in (("queries", "query", instruction_of("DocsRetrieval")), ("documents", "document", None)):
        frames += [one.assign(side=side) for one in _timed(built, short[column].tolist(), asked)]
    spent = pd.concat(frames, ignore_index=True)
    return pd.concat(
        [
            row(
                f"{name}: {side}", Outcomes.of_values(part[metric], part["batch"]), metric=metric, model=name, side=side
            )
            for (name, side), part in spent.groupby(["model", "side"], sort=False)
            for metric in ("tokens", "milliseconds")
        ],
        ignore_index=True,
    )


def _timed(
    built: Mapping[str, SentenceTransformer], texts: Sequence[str], instruction: str | None
) -> list[pd.DataFrame]:
    """Of each batch: model, tokens and milliseconds a text."""
    frames = []
    for at in range(0, len(texts), _BATCH):
        batch = texts[at : at + _BATCH]
        spent = probes.encoding_cost(built, batch, TURNS, instruction)
        found = spent.groupby("model", sort=False)[["tokens", "seconds"]].min().reset_index()
        for name in found["model"]:
            if name.endswith(KEPT):
                kept = sum(one.prefix for one in built[name][0].encode_texts(batch, instruction))
                found.loc[found["model"] == name, "tokens"] -= kept
        found["tokens"] /= len(batch)
        found["milliseconds"] = 1000 * found["seconds"] / len(batch)
        frames.append(found.assign(batch=at // _BATCH)[["batch", "model", "tokens", "milliseconds"]])
    return frames


def prices(rows: pd.DataFrame, metric: str, side: str | None = None) -> pd.DataFrame:
    """What a text costs by each model, batch by batch.

    Args:
        rows: Rows of :func:`in_turn`, as from ``Run.experiment``.
        metric: ``tokens`` or ``milliseconds``.
        side: ``queries`` or ``documents``; None for the batches of both.

    Returns:
        A row per side and batch, a column per model.
    """
    rows = judged(rows)
    rows = rows[(rows["metric"] == metric) & ((rows["side"] == side) | (side is None))]
    found = {
        (one.model, one.side, batch): value
        for one in rows.itertuples()
        for batch, value in enumerate(one.outcomes.values)
    }
    return pd.Series(found).unstack(0)[[*rows["model"].unique()]]


def ratio(prices: pd.DataFrame, model: str, to: str) -> Quantity:
    """How many times another's price a model's is, batch by batch.

    Args:
        prices: As from :func:`prices`.
        model: A column.
        to: Another.
    """
    return Quantity.of_values((prices[model] / prices[to]).to_numpy(), caveat=_OF_ONE_RUN)


def ratios(prices: pd.DataFrame, pairs: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Several of :func:`ratio`, with their 95 % intervals over batches.

    Args:
        prices: As from :func:`prices`.
        pairs: The model, and the one that it is compared with, by a label.

    Returns:
        Columns ``label``, ``score``, ``low`` and ``high``.
    """
    found = {label: effect({"it": 1.0}, {"it": ratio(prices, *pair)}) for label, pair in pairs.items()}
    rows = [(label, one.value, one.low, one.high) for label, one in found.items()]
    return pd.DataFrame(rows, columns=["label", "score", "low", "high"])


def forms(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Retrieval by a trained model whose weights, states and stored vectors have fewer bits or numbers.

    Args:
        model: A trained model; it is left as it is.
        sizes: Sizes of evaluation; ``queries`` and ``documents`` of docs, test.

    Returns:
        One row per form of the weights (and, of whole weights, per form and width of the stored vectors), of the metric
        ``mrr``: task, score (mean reciprocal rank x 100), low, high, items and outcomes of queries; ``weights`` (their
        form), ``form`` and ``width`` of the vectors, ``bytes`` per document. And one of the metric ``milliseconds`` per
        form of the weights (of a document, one outcome a batch), with ``megabytes`` of the model in memory and
        ``cosine``, the mean over texts with the vector of whole weights.
    """
    pairs = load_docs().split("test").head(sizes.documents)
    asked, documents = pairs["query"].head(sizes.queries).tolist(), pairs["document"].tolist()
    whole = deepcopy(model).float()
    whole.max_seq_length = sizes.max_length
    made = {"float32": whole}
    if capability()["dtype"] is torch.bfloat16:
        made["bfloat16"] = deepcopy(whole)
        made["bfloat16"][0].decoder.to(torch.bfloat16)
    made |= {"INT8, stored": compress.quantize(whole), "INT8, dynamic": compress.quantize(whole, dynamic=True)}
    frames, dim, vectors, about = [], whole.get_embedding_dimension(), {}, {}
    for weights, one in made.items():
        sides = (asked, instruction_of("DocsRetrieval")), (documents, None)
        vectors[weights] = [_unit(one, texts, instruction) for texts, instruction in sides]
        same = zip(vectors[weights], vectors["float32"], strict=True)
        alike = np.concatenate([(mine * its).sum(axis=1) for mine, its in same]).mean()
        about[weights] = {"megabytes": _megabytes(one), "cosine": float(alike)}
        widths = [w for w in (32, 64, 128, 256, 512) if w < dim and weights == "float32"] + [dim]
        found = probes.index_forms(*vectors[weights], widths)
        for (form, width), part in found.groupby(["form", "width"], sort=False):
            outcomes = Outcomes.of_values(part["reciprocal_rank"], pairs["id"].head(len(asked)))
            setting = {"weights": weights, "form": form, "width": width, "bytes": part["bytes"].iloc[0]}
            frames.append(row(f"{weights}, index {form} of {width}", outcomes, metric="mrr", **setting))
    for weights, part in pd.concat(_timed(made, documents[: sizes.probe_texts], None)).groupby("model", sort=False):
        outcomes = Outcomes.of_values(part["milliseconds"], part["batch"])
        frames.append(row(weights, outcomes, metric="milliseconds", weights=weights, **about[weights]))
    return pd.concat(frames, ignore_index=True)


def gaps(rows: pd.DataFrame, weights: str = "float32", form: str = "float32", width: int | None = None) -> pd.DataFrame:
    """Paired differences of every form from one of them, over queries and seeds.

    Args:
        rows: Rows of :func:`forms`, as from ``Run.experiment``.
        weights: Form of the weights that all are compared with.
        form: Of its vectors.
        width: Numbers of its vectors; None for all.

    Returns:
        One row per form of weights, and form and width of vectors: these, ``bytes``, ``points``, ``low``, ``high`` and
        ``detectable``.

    Raises:
        MissingDataError: The one to compare with was not measured.
    """
    rows = judged(rows)
    rows = rows[rows["metric"] == "mrr"].assign(task="mrr")
    named = dict(iter(rows.groupby(["weights", "form", "width"], sort=False)))
    base = quantity(named.get((weights, form, width or rows["width"].max()), rows.head(0)))
    found = []
    for key, part in named.items():
        gap = effect({"it": 1.0, "base": -1.0}, {"it": quantity(part), "base": base})
        found.append((*key, part["bytes"].iloc[0], gap.value, gap.low, gap.high, gap.detectable))
    return pd.DataFrame(found, columns=["weights", "form", "width", "bytes", "points", "low", "high", "detectable"])


def _unit(model: SentenceTransformer, texts: list[str], instruction: str | None) -> np.ndarray:
    return model.encode(texts, prompt=instruction, normalize_embeddings=True, show_progress_bar=False)


def _megabytes(model: SentenceTransformer) -> float:
    return sum(one.nbytes for one in model.state_dict().values()) / 1e6


def _own_documents(scale: str) -> Scale:
    """Sizes of evaluation at which every document is some query's own: four passes over all texts take half an hour."""
    sizes = smaller(scale)
    return sizes.model_copy(update={"documents": sizes.queries})


ENCODING = Experiment(
    name="08_encoding",
    description="Tokens and time of a text by every method, untrained, in turn on the same batches",
    variants=(Variant("every method", "mean"),),
    measure=in_turn,
    inputs=("docs", "instructions/docs.csv"),
)
"""Sources: LLM2Vec, table 6; Causal2Vec, figure 2; Anchor, section 3.1. One process times all, so that ratios are of
one machine at one time.
"""

FORMS = Experiment(
    name="08_forms",
    description="A trained Anchor by form of weights and states, and by form and width of the index",
    variants=(METHODS.variant("anchor"),),
    sizes=_own_documents,
    measure=forms,
    inputs=("docs", "instructions/docs.csv"),
)
EXPERIMENTS = (ENCODING, FORMS)
