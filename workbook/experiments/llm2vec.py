"""The experiments of notebook 02: the effect of each step of LLM2Vec on vectors, on words and on hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from .. import evaluation, methods, probes
from ..corpora.authored import future_tokens, reviews
from ..corpora.roles import load_roles
from ..scale import Scale, get_scale
from .grid import SUITE_DOCS, Experiment, Variant
from .suite import read_once

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

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
    """Suite docs under each pooling of one decoder.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.

    Returns:
        One row per pooling and task, and the task ``average``: pooling, task, type, score, low, high (points), items.

    Source: LLM2Vec, table 5. Here every model is trained with mean pooling; the paper does not say how its rows are.
    """
    frames = []
    with read_once(model[0].decoder):
        for pooling in POOLINGS:
            pooled = methods.build(pooling, model, attention=model[0].attention)
            scores = evaluation.evaluate(pooled, "docs", scale=sizes, progress=False)
            frame = pd.concat([scores, evaluation.average(scores)], ignore_index=True)
            frame.insert(0, "pooling", pooling)
            frames.append(frame[["pooling", "task", "type", "score", "low", "high", "items"]])
    return pd.concat(frames, ignore_index=True)


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
        One row per sentence of the test split: sentence, words (that were scored), correct.

    Source: LLM2Vec, section 3.1; ``shifted`` for models trained with MNTP, appendix D.1.3.
    """
    train, test = role_splits(sizes)
    scored = probes.word_probe(model, train, test, shifted=shifted)
    return scored.groupby("sentence")["correct"].agg(words="size", correct="sum").reset_index()


def shifted_words(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """:func:`words` read from the states one to the left.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.
    """
    return words(model, sizes, shifted=True)


def inside(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """The prefix test, and the similarity of causal and bidirectional states.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.

    Returns:
        Rows of probe ``prefix`` (place: number of the triple; value: 1 correct, 0 wrong, 0.5 tie) and of probe
        ``layer`` (place: layer; value: mean cosine over tokens; control: cosine with the next token's state).

    Source: LLM2Vec, sections 4.1 and 4.2.
    """
    prefix = probes.prefix_test(model, future_tokens())
    prefix = pd.DataFrame({"probe": "prefix", "place": range(len(prefix)), "value": prefix["correct"]})
    texts = reviews()["text"].head(sizes.probe_texts).tolist()
    layers = probes.layer_cosine(model, texts).groupby("layer")[["cosine", "control"]].mean().reset_index()
    layers = layers.rename(columns={"layer": "place", "cosine": "value"}).assign(probe="layer")
    return pd.concat([prefix, layers[["probe", "place", "value", "control"]]], ignore_index=True)


def retrieval_and_sts(sizes: Scale) -> Evaluator:
    """Two tasks of suite docs while a stage trains: retrieval and STS."""
    from ..training import Evaluator

    few = sizes.model_copy(update={"queries": sizes.queries // 2, "documents": sizes.documents // 2, "pairs": 100})

    def measure(model: SentenceTransformer) -> dict[str, float]:
        tasks = ["DocsRetrieval", "ParaphraseLadder"]
        scores = evaluation.evaluate(model, tasks, scale=few, instructions="docs", progress=False)
        return dict(zip(("retrieval", "sts"), scores["score"], strict=True))

    return Evaluator("retrieval-and-sts-1", _EVERY[sizes.name], measure)


STAGES = Experiment(
    name="02_stages",
    description="Pooling by stage: suite docs for every step of LLM2Vec under three poolings",
    variants=(UNI, BI, MNTP, UNI_SIMCSE, BI_SIMCSE, FULL),
    sizes=smaller,
    measure=by_pooling,
    inputs=SUITE_DOCS,
    rerun_variants=("Bi + MNTP + SimCSE",),
)
WORDS = Experiment(
    name="02_words",
    description="Word-level probe: roles of names, each word read from its own tokens' states",
    variants=(UNI, BI, BI_SIMCSE),
    sizes=smaller,
    measure=words,
    inputs=("roles",),
)
SHIFTED = Experiment(
    name="02_words_shifted",
    description="Word-level probe: roles of names, each word read from the states one token to the left",
    variants=(MNTP, FULL),
    sizes=smaller,
    measure=shifted_words,
    inputs=("roles",),
    rerun_variants=("Bi + MNTP",),
)
INSIDE = Experiment(
    name="02_inside",
    description="Prefix test and layer cosines before and after each step",
    variants=(UNI, BI, MNTP, FULL),
    sizes=smaller,
    measure=inside,
    inputs=("probes/future_tokens.csv", "texts/reviews.csv"),
    rerun_variants=("Bi + MNTP",),
)
EFFICIENCY = Experiment(
    name="02_efficiency",
    description="Supervised training from four starts, measured as it goes",
    variants=(
        Variant("Uni, weighted mean", "weighted-mean", ("contrastive",)),
        Variant("Bi", "mean", ("contrastive",), {"attention": "bidirectional"}),
        Variant("Bi + MNTP", "llm2vec", ("mntp", "contrastive")),
        Variant("Bi + MNTP + SimCSE", "llm2vec", ("mntp", "simcse", "contrastive")),
    ),
    sizes=smaller,
    evaluator=retrieval_and_sts,
    inputs=SUITE_DOCS,
)
EXPERIMENTS = (STAGES, WORDS, SHIFTED, INSIDE, EFFICIENCY)
