"""What the experiments of notebook 05 measure of a model: the suites, and the two halves of a concatenated vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .. import probes
from ..corpora.authored import instruction_of, paraphrase_ladder, reviews, topics
from ..corpora.docs import load_docs
from ..evaluation.outcomes import Outcomes
from ..evaluation.run import cut_to
from ..methods import causal2vec
from ..modules import ContextualDecoder, ContextualPooling
from ..modules.contextual import REPRESENTATIONS
from ..templates import TEMPLATES
from .compare import judged, learned
from .grid import Variant
from .suite import read_once, row, suites_and_loss

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale


def without_context(name: str = "causal2vec") -> dict[str, Any]:
    """A template of Causal2Vec without the contextual token, as plain data.

    Args:
        name: Its name in `workbook.templates.TEMPLATES`.
    """
    template = TEMPLATES[name].model_dump(mode="json")
    for form in ("instructed", "plain"):
        template[form] = [piece for piece in template[form] if piece[0] != "{context}"]
    return template


def last_token(name: str, suffix: str = "answer") -> Variant:
    """The last token alone: the same tokens without the contextual one, trained in the same way.

    Args:
        name: Its name in tables.
        suffix: Suffix of texts: ``eos``, ``answer`` or ``keywords``.
    """
    options = {"suffix": suffix, "template": without_context()}
    return Variant(name, "last-token", ("contextual",), options, recipe=causal2vec.recipe)


def halves(model: SentenceTransformer) -> dict[str, SentenceTransformer]:
    """The two halves of a concatenated vector, each alone, and both scaled to one length, on the same decoder."""
    width, whole = model[0].get_embedding_dimension(), model[1].representation
    poolings = {part: ContextualPooling(width, representation=part) for part in REPRESENTATIONS[whole]}
    poolings["equal lengths"] = ContextualPooling(width, representation=whole, equal_lengths=True)
    return {part: type(model)(modules=[model[0], one], device=str(model.device)) for part, one in poolings.items()}


def parts_learned(rows: pd.DataFrame) -> dict[str, str]:
    """Whether each variant learned, and the half of its vector that comes of the contextual token learned too.

    A whole can learn by the state of EOS alone: a claim about the contextual token would then judge a half at chance.

    Args:
        rows: As from ``Run.experiment``: columns source, variant, seed, metric, part and score.

    Returns:
        As :func:`~.compare.learned`; a half of which scores are there and no loss is said not to have been measured.
    """
    rows = judged(rows)
    whole, halves = rows[rows["part"] == "whole"], rows[rows["part"].isin(["context", "encoder"])]
    unmeasured = dict.fromkeys(halves["variant"], "Whether its contextual half learned was not measured.")
    of_half = learned(halves[halves["metric"] == "loss"], of="held-out pairs by its contextual half")
    of_whole = learned(whole[whole["metric"] == "loss"])
    return {variant: why or (unmeasured | of_half).get(variant, "") for variant, why in of_whole.items()}


def unevenly_learned(rows: pd.DataFrame) -> dict[str, str]:
    """A sentence on each variant whose contextual half learned on average, but not in every training.

    Args:
        rows: As for :func:`parts_learned`.
    """
    rows = judged(rows)
    losses = rows[(rows["metric"] == "loss") & rows["part"].isin(["context", "encoder"])]
    found = {}
    for variant, of_one in losses.groupby("variant"):
        missed = sum(bool(learned(training)[variant]) for _, training in of_one.groupby("seed"))
        if missed and not learned(of_one)[variant]:
            trainings = of_one["seed"].nunique()
            found[variant] = f"In {missed} of {trainings} trainings the contextual half of {variant} did not learn."
    return found


def texts_by_kind(sizes: Scale) -> dict[str, tuple[list[str], str | None]]:
    """Texts of each kind in suite docs and their instruction, as many as a probe of the scale reads."""
    pairs = load_docs().split("test").head(sizes.probe_texts)
    few = {"n": sizes.probe_texts, "random_state": 0}
    return {
        "retrieval, queries": (pairs["query"].tolist(), instruction_of("DocsRetrieval")),
        "retrieval, documents": (pairs["document"].tolist(), None),
        "clustering": (topics().sample(**few)["text"].tolist(), instruction_of("TopicClustering")),
        "classification": (reviews().sample(**few)["text"].tolist(), instruction_of("ReviewClassification")),
        "STS": (paraphrase_ladder().sample(**few)["sentence1"].tolist(), instruction_of("ParaphraseLadder")),
    }


def evaluate_variant(model: SentenceTransformer, sizes: Scale, *, by_half: bool = False) -> pd.DataFrame:
    """Both offline suites, the loss on held-out pairs, and recency; for a concatenated vector, the halves too.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.
        by_half: Whether recency, and the share in the variance between texts, are measured of each half of a
            concatenated vector too, and whether the last token's state listens to the contextual token. Those recorded
            without it stay so.

    Returns:
        Tidy rows: ``metric`` (``score``, ``loss``, ``recency``, ``norm``, ``spread``, ``moved`` or ``heard``), ``part``
        (``whole``, or a half), ``task`` (or the kind of texts, or the token that replaces a query's own), ``score``,
        ``low``, ``high``, ``items`` and ``outcomes``. The loss is in nats. Recency is the share of the end, in per
        cent, in the movement of the vector when the end or the beginning of a document is exchanged. A norm is the
        length of a half, a spread its share in the variance between texts, in per cent. With another token, ``moved``
        is 100 (1 - cosine) of the last token's state and its own, ``heard`` the mean reciprocal rank x 100. Texts are
        cut to ``max_length``, except for recency, which needs their ends.

    Source: Causal2Vec, table 2, section 3.2 and appendix C.1; recency and the halves alone are this project's.
    """
    with read_once(model[0].decoder), cut_to(model, sizes.max_length):
        vectors = {"whole": model}
        parts = REPRESENTATIONS.get(getattr(model[1], "representation", ""), ())
        if len(parts) > 1:
            vectors |= halves(model)
        rows = [suites_and_loss(one, sizes).assign(part=part) for part, one in vectors.items()]
        if len(parts) > 1:
            for kind, (texts, instruction) in texts_by_kind(sizes).items():
                made = model.encode(texts, prompt=instruction, show_progress_bar=False)
                lengths = np.linalg.norm(made.reshape(len(texts), 2, -1), axis=2)
                for n, part in enumerate(parts):
                    rows.append(row(kind, Outcomes.of_values(lengths[:, n], texts), metric="norm", part=part))
                if by_half:
                    shares = probes.vector_spread(model, made).pivot(index="text", columns="part", values="spread")
                    for part in parts:
                        spread = Outcomes.of_values(100 * shares[part], texts)
                        rows.append(row(kind, spread, metric="spread", part=part))
        if by_half and isinstance(model[0], ContextualDecoder):
            rows += _heard(model, sizes)
    documents = load_docs().split("test")["document"]
    long = documents[documents.str.split().str.len().between(25, 60)].head(sizes.probe_texts).tolist()
    read = ("whole", *(part for part in parts if by_half and part in vectors))
    with read_once(model[0].decoder):
        for part in read:
            moved = probes.recency(vectors[part], long).pivot(index="text", columns="window", values="movement")
            share = 100 * moved[4] / (moved[0] + moved[4])
            rows.append(row("documents", Outcomes.of_values(share, long), metric="recency", part=part))
    columns = ["metric", "part", "task", "score", "low", "high", "items", "outcomes"]
    return pd.concat(rows, ignore_index=True)[columns]


def _heard(model: SentenceTransformer, sizes: Scale) -> list[pd.DataFrame]:
    pairs = load_docs().split("test").head(sizes.probe_texts)
    asked, texts = instruction_of("DocsRetrieval"), (pairs["query"].tolist(), pairs["document"].tolist())
    found, frames = probes.listening(model, *texts, asked, sides=["queries"]), []
    last = found[found["part"] == found["part"].iloc[-1]]  # of a concatenated vector the half of the last token
    for (token, part), rows in last.groupby(["replacement", "part"], sort=False):
        for metric, column in (("moved", "moved"), ("heard", "reciprocal_rank")):
            outcomes = Outcomes.of_values(rows[column].tolist(), pairs["id"], factor=100)
            frames.append(row(token, outcomes, metric=metric, part=part))
    return frames
