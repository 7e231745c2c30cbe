"""The second sink, an experiment of notebook 05: is it the length of the contextual token that costs quality?

With torch's initialisation MiniLM's token is much shorter than a word, and behind BOS it becomes an attention sink in
part of the documents. A random encoder's states are longer, and so is its token, which makes of it no control of
MiniLM's knowledge. Here each encoder has each length. If the cost follows the length, and not the encoder, the length
is its cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from .. import backbones, probes
from ..corpora.authored import instruction_of
from ..corpora.docs import load_docs
from ..evaluation.effects import Quantity, effect
from ..evaluation.outcomes import Outcomes
from ..evaluation.run import cut_to
from ..modules import ContextualDecoder
from ..modules.context_length import context_length, word_length
from ..scale import get_scale
from ..training.recipe import Recipe, Stage
from .causal2vec import evaluate_variant, parts_learned, without_context
from .compare import judged, quantities
from .grid import SUITES, Experiment, Variant
from .suite import row, smaller, suites

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale
    from ..training import Trained

ENCODERS = {"MiniLM": True, "random encoder": False}
"""The encoders, and whether their weights are pretrained."""

LENGTHS = {"torch's length": "torch", "a word's length": "word"}
"""The lengths at which the contextual token begins."""

_SCORES = {"half of C, docs": ("docs", "context"), "whole, docs": ("docs", "whole"), "whole, other": ("other", "whole")}

LAST, LAST_EOS, WHOLE_EOS = "last token", "last token, closed by EOS", "MiniLM, a word's length, closed by EOS"
SIXTH = "random encoder, a sixth of a word"
"""A random encoder at 0.165 of a word over the fixed paragraphs, where MiniLM's token begins with torch's
initialisation: a random encoder's own is 0.85 there. In queries it is half as long as MiniLM's. Written down before it
ran: if a short token costs quality as a second sink, whatever its encoder, this one begins as a sink as often as
MiniLM's, and scores below the random encoder at a word's length.
"""
ENCODER = "encoder alone"

SIZES = {
    "quick": {"steps": 4, "batch_size": 4, "max_length": 48, "learning_rate": 1e-3, "warmup_steps": 1},
    "cpu": {"steps": 20, "batch_size": 32, "max_length": 48, "learning_rate": 1e-3, "warmup_steps": 2},
    # 260,000 tokens: pairs have 78 on average.
    "night": {"steps": 104, "batch_size": 32, "max_length": 48, "learning_rate": 1e-3, "warmup_steps": 10},
    "gpu": {"steps": 200, "batch_size": 128, "max_length": 256, "learning_rate": 3e-4, "warmup_steps": 20},
    "paper": {
        "data": "e5",
        "steps": 1000,
        "batch_size": 512,
        "accumulation": 8,
        "max_length": 512,
        "learning_rate": 1e-4,
        "warmup_steps": 300,
        "gradient_checkpointing": True,
    },
}
"""One stage for all variants, at the rate of the other methods in notebook 07, half of Causal2Vec's own."""

_BATCH = {"quick": 4}  # pairs whose gradient is measured; 16 at larger scales


def name(encoder: str, length: str) -> str:
    """Name of a variant of the factorial.

    Args:
        encoder: One of :data:`ENCODERS`.
        length: One of :data:`LENGTHS`.
    """
    return f"{encoder}, {length}"


def recipe(scale: str, backbone: str) -> Recipe:
    """The stage that all variants train by: InfoNCE over in-batch negatives.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.
    """
    at = get_scale(scale).name
    options = {"temperature": 0.05} | ({"mini_batch_size": 16} if at == "paper" else {})
    return Recipe(stages=(Stage(name="contextual", objective="contrastive", options=options, **SIZES[at]),))


def arm(called: str, method: str = "causal2vec", suffix: str = "answer", **options: Any) -> Variant:
    """A variant that trains by :func:`recipe`.

    Args:
        called: Its name in tables.
        method: ``causal2vec`` or ``last-token``.
        suffix: Suffix of texts.
        **options: Other fields of the chain.
    """
    return Variant(called, method, ("contextual",), {"suffix": suffix} | options, recipe=recipe)


def _factorial() -> list[Variant]:
    return [
        arm(name(encoder, length), encoder_options={"pretrained": ENCODERS[encoder], "length": LENGTHS[length]})
        for encoder in ENCODERS
        for length in LENGTHS
    ]


def inside(built: SentenceTransformer, made: Trained, sizes: Scale) -> pd.DataFrame:
    """What was written down before the runs: sinks, lengths, and the two paths of the gradient, before and after.

    Args:
        built: The variant with its new weights as they were, on the trained decoder.
        made: What training made of it.
        sizes: Sizes of evaluation.

    Returns:
        Of a model that reads contextual tokens, for ``when`` in ``before`` and ``after`` training, rows of the metrics

        - ``sink``: share (per cent) of ``queries`` and of ``documents`` in which the token is one; see
          :data:`workbook.probes.SINK`; with outcomes by text,
        - ``entered``: length of the token as the decoder reads it, by the mean length of a word embedding, of the same
          texts, with outcomes; ``fixed texts`` is its length over the 64 paragraphs that set it,
        - ``gradient``: share (per cent) of ``context`` and of ``eos`` in the gradient of the adapters.

        Of other models no rows.
    """
    if not isinstance(made.model[0], ContextualDecoder):
        return pd.DataFrame(columns=["metric", "task"])
    trained = built[0].decoder
    pairs = load_docs().split("dev").head(sizes.probe_texts)
    asked = instruction_of("DocsRetrieval")
    frames = []
    untrained = backbones.load_decoder(trained.config.name_or_path, dtype=trained.dtype, device=str(trained.device))
    try:
        built[0].decoder = untrained
        for when, model in (("before", built), ("after", made.model)):
            with cut_to(model, sizes.max_length):
                frames += [found.assign(when=when) for found in _measured(model, pairs, asked, sizes)]
    finally:
        built[0].decoder = trained
    return pd.concat(frames, ignore_index=True)


def factorial(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the four variants of the factorial, with the seeds that all four have.

    Args:
        rows: Of :data:`LENGTH`, as from ``Run.experiment``: columns variant and seed, among others.
    """
    four = {name(encoder, length) for encoder in ENCODERS for length in LENGTHS}
    rows = rows[rows["variant"].isin(four)]
    return rows[rows.groupby("seed")["variant"].transform("nunique") == len(four)]


def effects(rows: pd.DataFrame) -> pd.DataFrame:
    """The main effects of the factorial on scores, and its interaction, paired by item and by seed.

    Args:
        rows: Of :data:`LENGTH`, as from ``Run.experiment``.

    Returns:
        Rows for `workbook.figures.forest`: ``label`` (the effect), ``panel`` (part of the vector, suite), ``effect`` in
        points, ``low`` and ``high`` (95 %; NaN where all four variants have only one seed in common), ``threshold``.
    """
    (minilm, random), (torchs, words) = ENCODERS, LENGTHS
    gains = {encoder: {name(encoder, words): 1.0, name(encoder, torchs): -1.0} for encoder in ENCODERS}
    forms = {
        f"{words} - {torchs}": {variant: sign / 2 for gain in gains.values() for variant, sign in gain.items()},
        f"{random} - {minilm}": {
            name(e, length): (0.5 if e == random else -0.5) for e in ENCODERS for length in LENGTHS
        },
        f"{minilm}'s gain by length, minus the other's": gains[minilm]
        | {variant: -sign for variant, sign in gains[random].items()},
    }
    rows, found = factorial(rows[rows["metric"] == "score"]), []
    for panel, (suite, part) in _SCORES.items():
        known = quantities(rows[rows["part"] == part], {one: one for one in rows["variant"].unique()}, suite)
        for label, weights in forms.items():
            one = effect(weights, known)
            place = {"label": label, "panel": panel, "threshold": 0.0}
            found.append({**place, "effect": one.value, "low": one.low, "high": one.high})
    return pd.DataFrame(found)


def claimed(rows: pd.DataFrame) -> dict[str, Quantity]:
    """What the claims on MiniLM's token compare, with EOS as prompt suffix, as in the paper, and a token that begins as
    long as a word, since the paper names no length.

    Args:
        rows: Of :data:`LENGTH`, as from ``Run.experiment``.

    Returns:
        Quantities by the names in the rules: ``last_token`` and ``causal2vec``, these with ``_retrieval``, ``_sts`` and
        ``_recency`` behind them, ``eos_norm`` and ``contextual_norm``. If the contextual half did not learn they are
        not tested, see :func:`~.causal2vec.parts_learned`.
    """
    rows = judged(rows)
    learning, found = parts_learned(rows), {}
    whole = {metric: of_metric for metric, of_metric in rows[rows["part"] == "whole"].groupby("metric")}
    tasks = {"": ("score", None), "_retrieval": ("score", "DocsRetrieval"), "_sts": ("score", "ParaphraseLadder")}
    for ending, (metric, task) in (tasks | {"_recency": ("recency", None)}).items():
        names = {f"last_token{ending}": LAST_EOS, f"causal2vec{ending}": WHOLE_EOS}
        found |= quantities(whole.get(metric, rows.head(0)), names, task, learning)
    norms = rows[rows["metric"] == "norm"]
    for side, part in (("eos", "eos"), ("contextual", "context")):
        found |= quantities(norms[norms["part"] == part], {f"{side}_norm": WHOLE_EOS}, learning=learning)
    return found


def _measured(model: SentenceTransformer, pairs: pd.DataFrame, asked: str, sizes: Scale) -> list[pd.DataFrame]:
    decoder = model[0].decoder
    word = word_length(decoder) * float(getattr(decoder.get_input_embeddings(), "embed_scale", 1.0))
    frames = [pd.DataFrame([{"metric": "entered", "task": "fixed texts", "score": context_length(model[0])}])]
    for task, column, instruction in (("queries", "query", asked), ("documents", "document", None)):
        norms = probes.contextual_norms(model, pairs[column].tolist(), instruction)
        read = norms[norms["layer"] == 0]
        sinks = Outcomes.of_values(read["sink"].astype(float).tolist(), pairs["id"], factor=100)
        lengths = Outcomes.of_values((read["context"] / word).tolist(), pairs["id"])
        frames += [row(task, sinks, metric="sink"), row(task, lengths, metric="entered")]
    few = pairs.head(_BATCH.get(sizes.name, 16))
    texts = few["query"].tolist(), few["document"].tolist()
    stage = recipe(sizes.name, "").stages[0].model_copy(update={"max_length": sizes.max_length})
    paths = probes.path_gradients(model, *texts, stage, asked).iloc[:2]
    shares = {"metric": "gradient", "task": paths["part"], "score": 100 * paths["share"]}
    return [*frames, pd.DataFrame(shares)]


def fewer(scale: str) -> Scale:
    """Sizes of evaluation: at night less than its own, for a hundred models; without the real English.

    Args:
        scale: Name of the scale of training.
    """
    if scale != "night":
        return smaller(scale)
    few = {"queries": 150, "documents": 300, "texts": 96, "pairs": 126, "max_length": 64, "probe_texts": 48}
    return get_scale(scale).model_copy(update=few)


LENGTH = Experiment(
    name="05_length",
    description="MiniLM and a random encoder, each with a short contextual token and one as long as a word: both "
    "suites, loss, halves; sinks, lengths and paths of the gradient before and after training",
    variants=(
        *_factorial(),
        arm(LAST, "last-token", template=without_context()),
        arm(LAST_EOS, "last-token", suffix="eos", template=without_context()),
        arm(WHOLE_EOS, suffix="eos", encoder_options={"length": "word"}),
        arm(SIXTH, encoder_options={"pretrained": False, "length": 0.165}),
    ),
    sizes=fewer,
    measure=evaluate_variant,
    inside=inside,
    inputs=(*SUITES, "texts/graded.csv"),
    rerun_variants=(name("MiniLM", "a word's length"),),
)


def mlp_first(scale: str, backbone: str) -> Recipe:
    """The stage of :func:`recipe` with its first quarter of steps for the contextual token's layers alone.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
    """
    [whole] = recipe(scale, backbone).stages
    first = whole.steps // 4
    few = {"name": "mlp", "steps": first, "warmup_steps": min(1, first - 1), "adapter": None, "context_alone": True}
    rest = {"steps": whole.steps - first}
    return Recipe(stages=(whole.model_copy(update=few), whole.model_copy(update=rest)))


def separate_rates(scale: str, backbone: str) -> Recipe:
    """The stage of :func:`recipe` with ten times the adapters' rate for the contextual token's layers.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
    """
    return recipe(scale, backbone).changed({"contextual.context_rate": 10.0})


_WORD = {"suffix": "answer", "encoder_options": {"length": "word"}}
STAGES = Experiment(
    name="05_stages",
    description="How Causal2Vec is trained, with as many steps in all: one stage as in the paper, the MLP before the "
    "rest, the MLP at ten times the adapters' rate, and the last token: both suites, loss, halves; sinks, gradient",
    variants=(
        Variant("one stage", "causal2vec", ("contextual",), _WORD, recipe=recipe),
        Variant("MLP first", "causal2vec", ("mlp", "contextual"), _WORD, recipe=mlp_first),
        Variant("separate rates", "causal2vec", ("contextual",), _WORD, recipe=separate_rates),
        arm(LAST, "last-token", template=without_context()),
    ),
    sizes=fewer,
    measure=evaluate_variant,
    inside=inside,
    inputs=(*SUITES, "texts/graded.csv"),
)


def encoder_alone(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Both suites by the encoder of the contextual token as it was published, without decoder and instructions.

    Args:
        model: An embedder that reads contextual tokens.
        sizes: Sizes of evaluation.

    Returns:
        As from :func:`~.suite.suites`.

    Source: Causal2Vec, section 4.5.5, the rows of table 6 without a decoder.
    """
    name, device = model[0].encoder.config.name_or_path, str(model.device)
    return suites(backbones.load_encoder(name, device=device), sizes, instructed=False)


ALONE = Experiment(
    name="05_alone",
    description="The encoder of the contextual token as it was published, without a decoder: both suites",
    variants=(Variant(ENCODER, "causal2vec"),),
    sizes=fewer,
    measure=encoder_alone,
    inputs=SUITES,
)
EXPERIMENTS = (LENGTH, ALONE, STAGES)
