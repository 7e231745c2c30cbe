"""The experiments of notebook 06: what reconstruction teaches the last token, and what contrastive training does then.

Texts are closed by the line that asks for their keywords, but for a control that EOS closes as in the paper, and
vectors are read behind BOS: see :data:`workbook.methods.anchor.SIZES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from .. import evaluation, probes
from ..corpora.authored import instructions
from ..corpora.docs import load_docs
from ..evaluation.run import cut_to
from ..methods import anchor
from .grid import SUITE_DOCS, Experiment, Variant
from .suite import held_out_loss, smaller, suite_docs

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..scale import Scale
    from ..training import Watch
    from ..training.recipe import Recipe

UNTRAINED, BASELINE, LLAMA2VEC = "untrained", "contrastive alone", "LLaMA2Vec"
LONGER, AS_MANY_PAIRS = "contrastive, as many steps", "contrastive, as many pairs"
D2Q, BOTH, Q2D = "only D2Q", "Anchor", "only Q2D"
BY_EOS = "Anchor, closed by EOS"
ALPHAS = {D2Q: 0.0, BOTH: anchor.ALPHA, "alpha 0.5": 0.5, "alpha 0.8": 0.8, Q2D: 1.0}
"""Weight of the direction from query to document, by variant."""

WRITTEN = 6
"""Texts that every model writes again from their vectors."""

_EVERY = {"quick": 2, "cpu": 4, "gpu": 25, "paper": 25}
_OPTIONS = {"closing": "keywords"}


def _variant(name: str, stages: tuple[str, ...], recipe: Callable[[str, str], Recipe] | None = None) -> Variant:
    return Variant(name, "anchor", stages, _OPTIONS, other=recipe)


def _reconstructed(stages: tuple[str, ...], names: tuple[str, ...]) -> tuple[Variant, ...]:
    """Both directions of reconstruction at several weights, and LLaMA2Vec's."""
    ours = (_variant(name, stages, partial(anchor.recipe, alpha=ALPHAS[name])) for name in names)
    return (*ours, _variant(LLAMA2VEC, stages, anchor.with_llama2vec))


def _pairs(count: int) -> tuple[pd.DataFrame, str]:
    """Pairs of docs that no training sees, and the instruction of their queries."""
    asked = instructions("docs").set_index("task")["instruction"]["DocsRetrieval"]
    return load_docs().split("test").head(count), asked


def measured(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Suite docs; the loss of reconstruction with a text's own vector and with another's; and what vectors write.

    Returns:
        Tidy rows: ``what``, ``task``, ``score`` and, for ``score``, ``low``, ``high`` and ``items``. ``score`` are
        those of suite docs. ``own`` and ``shuffled`` are nats a token over 64 pairs, by direction (``task``).
        ``written`` has a query as ``task``, and as ``text`` what its vector alone writes.

    Source: Anchor, figure 3 and tables 3 to 5; the shuffled control and the texts are this project's.
    """
    scores = suite_docs(model, sizes).assign(what="score")
    pairs, asked = _pairs(64)
    with cut_to(model, sizes.max_length):
        losses = probes.anchor_losses(model, pairs, asked, write_bos=True)
        queries = pairs["query"].head(WRITTEN).tolist()
        written = probes.regenerated(model, queries, asked, tokens=16, write_bos=True)
    rows = [scores]
    for which in ("own", "shuffled"):
        spent = (losses[which] * losses["tokens"]).groupby(losses["direction"]).sum()
        mean = spent / losses.groupby("direction")["tokens"].sum()
        rows.append(mean.rename("score").rename_axis("task").reset_index().assign(what=which, items=len(pairs)))
    # One blank between words: what is written is shown, and a table keeps no others.
    texts = [" ".join(text.split()) for text in written]
    rows.append(pd.DataFrame({"what": "written", "task": queries, "text": texts}))
    return pd.concat(rows, ignore_index=True)[["what", "task", "score", "low", "high", "items", "text"]]


def early(sizes: Scale) -> Watch:
    """Retrieval over half the documents, and the loss on pairs that no training sees, while a stage trains.

    Source: Anchor, figures 2 and 4; the paper draws the loss of training.
    """
    from ..training import Watch

    few = sizes.model_copy(update={"documents": sizes.documents // 2})

    def measure(model: SentenceTransformer) -> dict[str, float]:
        found = evaluation.evaluate(model, ["DocsRetrieval"], scale=few, instructions="docs", progress=False)
        with cut_to(model, sizes.max_length):
            return {"retrieval": found["score"].item(), "loss": held_out_loss(model)}

    return Watch("retrieval-loss-1", _EVERY[sizes.name], measure)


STAGES = Experiment(
    name="06_stages",
    what="Untrained, after the first stage alone, and contrastive training alone as long as both stages",
    variants=(
        _variant(UNTRAINED, ()),
        *_reconstructed(("reconstruction",), (BOTH, D2Q, Q2D)),
        Variant(BY_EOS, "anchor", ("reconstruction",)),
        _variant(AS_MANY_PAIRS, ("contrastive",), partial(anchor.contrastive_alone, by="pairs")),
        _variant(LONGER, ("contrastive",), anchor.contrastive_alone),
    ),
    sizes=smaller,
    measure=measured,
    reads=SUITE_DOCS,
    live=(UNTRAINED, BOTH),
)
EARLY = Experiment(
    name="06_early",
    what="Contrastive training after every kind of first stage and after none, measured as it goes and at its end",
    variants=(
        _variant(BASELINE, ("contrastive",)),
        *_reconstructed(("reconstruction", "contrastive"), (BOTH, D2Q, Q2D, "alpha 0.5", "alpha 0.8")),
    ),
    sizes=smaller,
    measure=measured,
    watch=early,
    reads=SUITE_DOCS,
    live=(BOTH,),
)
EXPERIMENTS = (STAGES, EARLY)
