"""The experiments of notebook 02: the effect of each step of LLM2Vec on vectors, on words and on hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd
import torch
from sentence_transformers.util import batch_to_device

from .. import evaluation, methods, probes
from ..corpora.authored import future_tokens
from ..corpora.docs import load_docs
from ..corpora.roles import load_roles
from ..evaluation.outcomes import Outcomes
from ..objectives import get as get_objective
from ..scale import Scale, get_scale
from .compare import judged, quantity, tested
from .grid import SUITES, Experiment, Variant
from .suite import kept_along, read_once, row, suites_and_loss

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..evaluation.effects import Quantity
    from ..training import Evaluator

CAUSAL = {"attention": "causal"}
UNI, BI = Variant("Uni", "llm2vec", options=CAUSAL), Variant("Bi", "llm2vec")
MNTP = Variant("Bi + MNTP", "llm2vec", ("mntp",))
UNI_SIMCSE, BI_SIMCSE = (
    Variant("Uni + SimCSE", "llm2vec", ("simcse",), CAUSAL),
    Variant("Bi + SimCSE", "llm2vec", ("simcse",)),
)
FULL = Variant("Bi + MNTP + SimCSE", "llm2vec", ("mntp", "simcse"))

PUBLISHED = {
    ("causal", "none"): UNI.name,
    ("bidirectional", "none"): BI.name,
    ("bidirectional", "mntp"): MNTP.name,
    ("causal", "simcse"): UNI_SIMCSE.name,
    ("bidirectional", "simcse"): BI_SIMCSE.name,
    ("bidirectional", "mntp+simcse"): FULL.name,
}
"""Names of variants by attention and training in the published tables, in the order of table 5."""

POOLINGS = ("mean", "weighted-mean", "last-token")
_EVERY = {"quick": 2, "cpu": 10, "night": 27, "gpu": 25, "paper": 25}  # steps; at night some 32,000 tokens


def above_uni(published: pd.DataFrame, ours: pd.DataFrame) -> pd.DataFrame:
    """Gain of each step over the causal model, in points, for the paper's models and for ours.

    Args:
        published: Columns model, attention, training and score, of one pooling; scores of several tasks are averaged.
        ours: Columns variant and score, one row per variant.

    Returns:
        One row per variant, one column per model that has a causal row; ours is the last, ``here``.
    """
    names = [PUBLISHED.get(key) for key in zip(published["attention"], published["training"], strict=True)]
    table = published.assign(variant=names).pivot_table(index="variant", columns="model", values="score")
    table = table.reindex(PUBLISHED.values()).rename_axis(columns=None)
    table["here"] = ours.set_index("variant")["score"]
    return (table - table.loc[UNI.name]).dropna(axis="columns", how="all").dropna(how="all")


def smaller(scale: str) -> Scale:
    """Sizes of evaluation for tables of many models: two thirds of the texts, at half their length.

    Raises:
        UnknownNameError: No such scale.
    """
    sizes = get_scale(scale)
    return sizes.model_copy(update={"texts": sizes.texts * 2 // 3, "max_length": sizes.max_length // 2})


def by_pooling(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Both offline suites and a held-out loss under each pooling of one decoder, and its loss of hidden tokens.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.

    Returns:
        The rows of :func:`~.suite.suites_and_loss` for each ``pooling``, and one of the metric ``hidden``, see
        :func:`hidden_tokens`.

    Source: LLM2Vec, table 5. Here every model is trained with mean pooling; the paper does not say how its rows are.
    """
    with read_once(model[0].decoder):
        pooled = {name: methods.build(name, model, attention=model[0].attention) for name in POOLINGS}
        frames = [suites_and_loss(one, sizes).assign(pooling=name) for name, one in pooled.items()]
    frames.append(row("hidden tokens", hidden_tokens(model, sizes), metric="hidden"))
    return pd.concat(frames, ignore_index=True)


def hidden_tokens(model: SentenceTransformer, sizes: Scale) -> Outcomes:
    """Loss (nats a token) of guessing the tokens that MNTP hides, by held-out text; every model has the same hidden.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.
    """
    objective = get_objective("mntp")(model, generator=torch.Generator().manual_seed(0))
    texts = paragraphs(sizes)
    with torch.no_grad():
        read = (batch_to_device(model.preprocess([text]), model.device) for text in texts)
        return Outcomes.of_values([objective([features]).item() for features in read], texts)


def pooled(
    rows: pd.DataFrame, wanted: Mapping[str, tuple[str, str]], learning: Mapping[str, str] | None = None
) -> dict[str, Quantity]:
    """Quantities of variants under a pooling, from rows of ``02_stages``, without those that were not measured.

    Args:
        rows: As from ``Run.experiment``.
        wanted: Variant and pooling by the name of the quantity. ``best`` is on each suite the pooling with the highest
            mean there; chosen on the items that it is judged by, it is a baseline that flatters itself.
        learning: See :func:`~.compare.quantities`.
    """
    rows, found = judged(rows), {}
    for name, (variant, pooling) in wanted.items():
        parts = []
        for suite in evaluation.OFFLINE_SUITES:
            part = rows[(rows["variant"] == variant) & rows["task"].isin(evaluation.SUITES[suite].tasks)]
            means = part.groupby("pooling")["score"].mean()
            parts.append(part[part["pooling"] == (means.idxmax() if pooling == "best" and len(means) else pooling)])
        if all(map(len, parts)):
            found[name] = tested(quantity(pd.concat(parts)), variant, learning)
    return found


def role_splits(sizes: Scale) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The snippets of the roles corpus that train the word-level probe, and those that test it."""
    roles = load_roles()
    return roles.split("train")[: 4 * sizes.texts], roles.split("test")[: 2 * sizes.texts]


def words(model: SentenceTransformer, sizes: Scale, *, shifted: bool = False) -> pd.DataFrame:
    """Roles of names in source code, by a linear classifier on frozen states.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.
        shifted: Read a word from the states one to its left.

    Returns:
        One row: task (``words``), score (accuracy in points), low, high, items (sentences of the test split), outcomes.

    Source: LLM2Vec, section 3.1; ``shifted`` for models trained with MNTP, appendix D.1.3.
    """
    train, test = role_splits(sizes)
    scored = probes.word_probe(model, train, test, shifted=shifted).groupby("sentence")["correct"]
    right, read = scored.sum(), scored.size()  # the words of a sentence are not independent: it is the item
    return row("words", Outcomes.of_values(right, test["words"].iloc[right.index], read, factor=100))


def shifted_words(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """:func:`words` read from the states one to the left.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.
    """
    return words(model, sizes, shifted=True)


def paragraphs(sizes: Scale) -> list[str]:
    """Documents of 25 to 35 words, held out: the texts of which layers are compared in notebooks 01 and 02."""
    documents = load_docs().split("dev")["document"]
    return documents[documents.str.split().str.len().between(25, 35)].head(sizes.probe_texts).tolist()


def inside(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """The prefix test, and the similarity of causal and bidirectional states.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.

    Returns:
        A row of the task ``prefix`` (score: triples right, in per cent, ties as half), one of the task ``margin``
        (their mean margin, a difference of cosines), and of the task ``layer`` one per ``layer`` (score: mean cosine
        over tokens; control: cosine with the next token's state).

    Source: LLM2Vec, sections 4.1 and 4.2.
    """
    prefix = probes.prefix_test(model, future_tokens())
    prefix = [
        row("prefix", Outcomes.of_values(prefix["correct"], prefix["id"], factor=100)),
        row("margin", Outcomes.of_values(prefix["margin"], prefix["id"])),
    ]
    layers = probes.layer_means(probes.layer_cosine(model, paragraphs(sizes)))
    layers = layers.groupby("layer", as_index=False)[["cosine", "control"]].mean()
    layers = layers.rename(columns={"cosine": "score"}).assign(task="layer")
    return pd.concat([*prefix, layers], ignore_index=True)


def retrieval_and_sts(sizes: Scale) -> Evaluator:
    """Retrieval, in-domain, and STS, out-of-domain, while a stage trains."""
    from ..training import Evaluator

    few = sizes.model_copy(update={"queries": sizes.queries // 2, "documents": sizes.documents // 2, "pairs": 100})

    def measure(model: SentenceTransformer) -> dict[str, float | str]:
        tasks = ["DocsRetrieval", "ParaphraseLadder"]
        scores = evaluation.evaluate(model, tasks, scale=few, instructions="docs", progress=False)
        outcomes = scores.attrs["outcomes"]
        return kept_along({name: outcomes[task] for name, task in zip(("retrieval", "sts"), tasks, strict=True)})

    return Evaluator("retrieval-and-sts-2", _EVERY[sizes.name], measure)


STAGES = Experiment(
    name="02_stages",
    description="Pooling by stage: the offline suites for every step of LLM2Vec under three poolings",
    variants=(UNI, BI, MNTP, UNI_SIMCSE, BI_SIMCSE, FULL),
    sizes=smaller,
    measure=by_pooling,
    inputs=SUITES,
    rerun_variants=("Bi + MNTP + SimCSE",),
    version=3,
)
WORDS = Experiment(
    name="02_words",
    description="Word-level probe: roles of names, each word read from its own tokens' states",
    variants=(UNI, BI, BI_SIMCSE),
    sizes=smaller,
    measure=words,
    inputs=("roles",),
    version=2,
)
SHIFTED = Experiment(
    name="02_words_shifted",
    description="Word-level probe: roles of names, each word read from the states one token to the left",
    variants=(MNTP, FULL),
    sizes=smaller,
    measure=shifted_words,
    inputs=("roles",),
    rerun_variants=("Bi + MNTP",),
    version=2,
)
INSIDE = Experiment(
    name="02_inside",
    description="Prefix test and layer cosines before and after each step",
    variants=(UNI, BI, MNTP, FULL),
    sizes=smaller,
    measure=inside,
    inputs=("docs", "probes/future_tokens.csv"),
    rerun_variants=("Bi + MNTP",),
    version=2,
)
EFFICIENCY = Experiment(
    name="02_efficiency",
    description="Supervised training from four starts, measured as it goes and at its end",
    variants=(
        Variant("Uni, weighted mean", "weighted-mean", ("contrastive",)),
        Variant("Bi", "mean", ("contrastive",), {"attention": "bidirectional"}),
        Variant("Bi + MNTP", "llm2vec", ("mntp", "contrastive")),
        Variant("Bi + MNTP + SimCSE", "llm2vec", ("mntp", "simcse", "contrastive")),
    ),
    sizes=smaller,
    measure=suites_and_loss,
    evaluator=retrieval_and_sts,
    inputs=SUITES,
    version=3,
)
EXPERIMENTS = (STAGES, WORDS, SHIFTED, INSIDE, EFFICIENCY)
