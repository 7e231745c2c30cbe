"""The dictionary laboratory of notebook 03: a frozen decoder, and poolings that differ in one thing.

All poolings read the same states, those of one decoder, which a contrastive stage with mean pooling trained before. It
is the same decoder for every seed, so that seeds differ in new weights and in the order of the data alone. Each pooling
begins as the mean of those states and trains on pairs that the decoder has seen too. Heads are 64 wide, where the
paper's are as wide as the states: their width costs parameters, and no time.

A second laboratory has the decoder as it was released, which has trained on none of the pairs, and four times the
steps where they are hundreds: there the pooling has everything to learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .. import probes
from ..corpora.authored import instruction_of, reviews
from ..corpora.docs import load_docs
from ..evaluation import OFFLINE_SUITES
from ..evaluation.outcomes import Outcomes
from ..evaluation.run import cut_to
from ..methods.stages import contrastive
from ..modules import LatentAttention
from ..scale import get_scale
from ..training.recipe import Recipe, Stage
from ..training.states import read_once
from .compare import differences, judged, learned, quantities
from .grid import SUITES, Experiment, Variant
from .suite import held_out_loss, row, smaller, suites

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..evaluation.effects import Quantity
    from ..scale import Scale
    from ..training import Trained

LATENTS = (1, 4, 16, 64, 512)
"""Sizes of the dictionary; the paper's is the last."""

SIZES = {
    "quick": {"steps": 20, "batch_size": 8, "limit": 64, "max_length": 40, "learning_rate": 1e-3, "warmup_steps": 2},
    "cpu": {"steps": 300, "batch_size": 32, "limit": 2000, "max_length": 40, "learning_rate": 1e-3, "warmup_steps": 30},
    # Some 8,000 texts, whose states take 0.3 GB. A step takes a core with AMX 0.2 seconds, one of 512 latents 0.3.
    "night": {
        "steps": 600,
        "batch_size": 32,
        "limit": 4000,
        "max_length": 40,
        "learning_rate": 1e-3,
        "warmup_steps": 60,
    },
    "gpu": {
        "steps": 3600,
        "batch_size": 128,
        "limit": 12_000,
        "max_length": 128,
        "learning_rate": 1e-3,
        "warmup_steps": 400,
    },
    "paper": {
        "data": "e5",
        "steps": 20_000,
        "batch_size": 128,
        "limit": 20_000,
        "negatives": 0,
        "max_length": 128,
        "learning_rate": 1e-3,
        "warmup_steps": 500,
    },
}
"""The pooling's stage by scale. The paper has no such stage; its rates, of 2e-5 and less, are for a decoder that trains
as well.
"""

_WITHOUT = "dictionary without MLP, 64"  # the name of a variant in both laboratories
_PAIRS = {"quick": 1, "cpu": 4}  # batches of 32 held-out pairs; eight at larger scales
_SILENCED = 8
_HEADS = {"heads": 8, "head_dimension": 64}


def decoder_recipe(scale: str, backbone: str) -> Recipe:
    """The stage that trains the decoder, with mean pooling, before it is frozen.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.

    Raises:
        UnknownNameError: No such scale.
    """
    return Recipe(stages=(contrastive(scale, temperature=0.05),))


def pooling_recipe(scale: str, backbone: str, times: int = 1) -> Recipe:
    """The stage that trains a pooling on the frozen decoder.

    Args:
        scale: Name of the scale.
        backbone: Name of the backbone.
        times: Factor on the steps of :data:`SIZES`, and on those that warm up, where they are not thousands anyway.

    Raises:
        UnknownNameError: No such scale.
    """
    options = {"name": "pooling", "objective": "contrastive", "options": {"temperature": 0.05}}
    sizes: dict[str, Any] = dict(SIZES[get_scale(scale).name])
    if sizes["steps"] < 1000:
        sizes |= {name: times * sizes[name] for name in ("steps", "warmup_steps")}
    return Recipe(stages=(Stage(**options, adapter=None, frozen=True, **sizes),))


DECODER = Variant("decoder", "nv-embed", ("contrastive",), {"pooling": "mean"}, recipe=decoder_recipe)
"""The decoder that all variants share."""


def _variant(name: str, pooling: str, **options: Any) -> Variant:
    return Variant(
        name,
        "nv-embed",
        () if pooling == "mean" else ("pooling",),
        {"pooling": pooling, "pooling_options": options},
        recipe=pooling_recipe,
        start_from=DECODER,
        start_seed=0,
    )


def _latents(name: str, latents: int, **options: Any) -> Variant:
    return _variant(name, "latent_attention", latents=latents, **_HEADS, **options)


def trained(latents: int) -> str:
    """Name of the variant with a dictionary that trains."""
    return f"trained dictionary, {latents}"


def random(latents: int) -> str:
    """Name of the variant with a dictionary that stays as it was drawn."""
    return f"random dictionary, {latents}"


def evaluate_variant(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """Both offline suites, and the loss on held-out pairs.

    Args:
        model: An embedder; it is left as it is.
        sizes: Sizes of evaluation.

    Returns:
        One row per task: metric (``score`` in points, or ``loss`` in nats), task, type, score, low, high, items,
        outcomes.
    """
    with cut_to(model, sizes.max_length), read_once(model[0]):
        losses = held_out_loss(model, batches=_PAIRS.get(sizes.name, 8))
        return pd.concat([suites(model, sizes), row("held-out pairs", losses, metric="loss")], ignore_index=True)


def inside(built: SentenceTransformer, made: Trained, sizes: Scale) -> pd.DataFrame:
    """Instruments: parameters, movement, spread of the look-up, dead latents, and what silencing costs.

    Args:
        built: The model before its pooling was trained.
        made: What training made of it.
        sizes: Sizes of evaluation.

    Returns:
        Rows of the metrics ``parameters`` (``all`` and ``trained``, of the pooling); and with a dictionary of

        - ``movement``: ``relative`` (of the norm), ``largest`` (change of one number) and ``bound`` (Adam's),
        - ``perplexity``: ``before`` and ``after``, by ``head``,
        - ``dead``: ``before`` and ``after``, the share of latents (per cent, over all heads),
        - ``silenced``: loss on held-out pairs (nats) without ``all`` latents, without a ``head``, or without one of the
          eight that add most (``latent``); with outcomes by item.
    """
    pooling = made.model[1]
    counts = {
        "all": sum(p.numel() for p in pooling.parameters()),
        "trained": sum(p.numel() for p in pooling.parameters() if p.requires_grad) if len(made.history) else 0,
    }
    rows: list[dict[str, Any]] = [{"metric": "parameters", "task": name, "score": n} for name, n in counts.items()]
    if not (isinstance(pooling, LatentAttention) and pooling.latents):
        return pd.DataFrame(rows)
    relative, largest = probes.movement(built[1], pooling)
    bound = probes.adam_bound(made.history["learning_rate"].iloc[1:])
    for name, value in (("relative", relative), ("largest", largest), ("bound", bound)):
        rows.append({"metric": "movement", "task": name, "score": value})
    texts = load_docs().split("test")["document"].head(sizes.probe_texts).tolist()
    with cut_to(made.model, sizes.max_length), read_once(made.model[0]):
        for when, model in (("before", built), ("after", made.model)):
            spread = probes.perplexity(model, texts)
            rows += [
                {"metric": "perplexity", "task": when, "head": h, "score": value} for h, value in enumerate(spread)
            ]
            share = 100 * probes.dead(probes.latent_attention(model, texts)).mean()
            rows.append({"metric": "dead", "task": when, "score": float(share)})
        frames = [pd.DataFrame(rows), *_silenced(made.model, texts, sizes)]
    return pd.concat(frames, ignore_index=True)


def _silenced(model: SentenceTransformer, texts: list[str], sizes: Scale) -> list[pd.DataFrame]:
    module, added = model[1], probes.influence(model, texts)
    everything = [[(head, latent) for latent in range(module.latents)] for head in range(module.heads)]
    most = np.argsort(-added, axis=None, kind="stable")[:_SILENCED]
    sets = [({"task": "all"}, list(chain.from_iterable(everything)))]
    sets += [({"task": "head", "head": head}, places) for head, places in enumerate(everything)]
    for head, latent in zip(*(axis.tolist() for axis in np.unravel_index(most, added.shape)), strict=True):
        sets.append(({"task": "latent", "head": head, "latent": latent}, [(head, latent)]))
    frames = []
    for about, places in sets:
        with module.silenced(places):
            losses = held_out_loss(model, batches=_PAIRS.get(sizes.name, 8))
        frames.append(row(outcomes=losses, metric="silenced", **about))
    return frames


def _sizes(scale: str) -> Scale:
    """Sizes of evaluation: at night less than its own, for a hundred models; without the real English."""
    if scale != "night":
        return smaller(scale)
    return get_scale(scale).model_copy(update={"queries": 400, "documents": 800, "texts": 240, "max_length": 64})


DICTIONARY = Experiment(
    name="03_dictionary",
    description="Poolings on the states of one frozen decoder: dictionaries that train and that don't, MLP alone",
    variants=(
        _variant("mean", "mean"),
        _latents("mean + MLP", 0),
        _latents(trained(64), 64),
        _latents(random(64), 64, train_dictionary=False),
        _latents(_WITHOUT, 64, mlp="none"),
        _latents(trained(512), 512),
        _latents(random(512), 512, train_dictionary=False),
        _variant("self-attention", "self_attention", **_HEADS),
        _latents("mean + linear", 0, mlp="linear"),
        _latents("mean + wider MLP", 0, mlp_ratio=6),
        *(_latents(trained(latents), latents) for latents in (1, 4, 16)),
        *(_latents(random(latents), latents, train_dictionary=False) for latents in (1, 4, 16)),
    ),
    sizes=_sizes,
    measure=evaluate_variant,
    inside=inside,
    inputs=SUITES,
    rerun_variants=("mean", "mean + MLP", trained(64), random(64)),
)


_LONGER = partial(pooling_recipe, times=4)
RELEASED = replace(
    DICTIONARY,
    name="03_released",
    description="Poolings on the states of the decoder as released, with four times the steps where they are hundreds",
    variants=tuple(
        replace(one, recipe=_LONGER, start_from=None, start_seed=None)
        for one in (
            *map(DICTIONARY.variant, ("mean", "mean + linear", _WITHOUT)),
            _latents(f"random {_WITHOUT}", 64, mlp="none", train_dictionary=False),
            *map(DICTIONARY.variant, ("mean + MLP", trained(64), random(64))),
        )
    ),
    rerun_variants=("mean", "mean + linear"),
)
"""Decoder and steps differ from :data:`DICTIONARY`, so that only differences within one of them compare poolings."""

_DRAWN = (1, 64, 512)  # of LATENTS: figures have no room for the others
# Differences by their labels, and what is silenced.
_AGAINST = {
    **{f"trained - random, {latents}": (trained(latents), random(latents)) for latents in _DRAWN},
    "trained - random, 64, without MLP": (_WITHOUT, f"random {_WITHOUT}"),
    "dictionary without MLP, 64 - linear": (_WITHOUT, "mean + linear"),
    **{f"trained, {latents} - MLP": (trained(latents), "mean + MLP") for latents in (64, 512)},
    "trained, 512 - linear": (trained(512), "mean + linear"),
    "self-attention - MLP": ("self-attention", "mean + MLP"),
}
_ALONE = (trained(64), random(64), _WITHOUT, f"random {_WITHOUT}", trained(512))


def gains(rows: pd.DataFrame) -> pd.DataFrame:
    """What every pooling adds to the mean of the same states, paired by item and by seed.

    Args:
        rows: Of :data:`DICTIONARY` or :data:`RELEASED`, as from ``Run.experiment``. Dictionaries of 4 and 16 latents
            are left out.

    Returns:
        Rows for `workbook.figures.forest`: ``label`` (the pooling ``- mean``), ``panel`` (the suite), ``effect`` in
        points, ``low`` and ``high`` (95 %, not corrected), ``detectable``, ``threshold``.
    """
    dropped = {"mean", *(kind(latents) for kind in (trained, random) for latents in {*LATENTS} - {*_DRAWN})}
    arms = [arm for arm in rows["variant"].unique() if arm not in dropped]
    suites = {suite: suite for suite in OFFLINE_SUITES}
    return _drawn(rows[rows["metric"] == "score"], {f"{arm} - mean": (arm, "mean") for arm in arms}, suites)


def apart(rows: pd.DataFrame) -> pd.DataFrame:
    """What is the dictionary's: poolings that differ in one part, and each without what its dictionary adds.

    That is silenced as a whole, and of 64 latents also the one alone that adds most (`workbook.probes.influence`).

    Args:
        rows: As for :func:`gains`.

    Returns:
        Likewise; ``panel`` is ``docs`` (points) or ``loss`` (nats, on held-out pairs, less is better).
    """
    silenced, pairs = rows[rows["metric"] == "silenced"], dict(_AGAINST)
    first = silenced[silenced["task"] == "latent"].groupby(["source", "variant", "seed"], sort=False).head(1)
    parts = {"silenced": silenced[silenced["task"] == "all"], "strongest silenced": first}
    whole = [rows[rows["metric"].isin(["score", "loss"])]]
    for what, part in parts.items():
        whole.append(part.assign(task="held-out pairs", variant=part["variant"] + f", {what}"))
        arms = [one for one in _ALONE if what == "silenced" or "64" in one]
        pairs |= {f"{one.replace(' dictionary,', ',')}, {what}": (f"{one}, {what}", one) for one in arms}
    return _drawn(pd.concat(whole), pairs, {"docs": "docs", "held-out pairs": "loss"})


def claimed(rows: pd.DataFrame) -> dict[str, Quantity]:
    """What the claim on dictionary learning compares: dictionaries of 512 latents, as in the paper.

    Args:
        rows: Of :data:`DICTIONARY`, as from ``Run.experiment``.

    Returns:
        Quantities by the names in the rule; of a variant that did not learn they are not tested.
    """
    names = {"trained_dictionary": trained(512), "random_dictionary": random(512)}
    return quantities(rows[rows["metric"] == "score"], names, learning=learned(rows[rows["metric"] == "loss"]))


def instruments(rows: pd.DataFrame) -> pd.DataFrame:
    """What :func:`inside` says of every pooling, and its loss on held-out pairs, as means over seeds.

    Args:
        rows: As for :func:`gains`.

    Returns:
        One row per variant, with columns of metric and task; NaN for what a pooling does not have.
    """
    told = judged(rows).query("metric in ['loss', 'movement', 'perplexity', 'dead']")
    table = told.pivot_table(index="variant", columns=["metric", "task"], values="score", sort=False)
    return table.sort_index(axis=1)


def _drawn(rows: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], panels: Mapping[str, str]) -> pd.DataFrame:
    names = {"pair": "label", "task": "panel", "points": "effect"}
    return differences(rows, pairs, panels).rename(columns=names).assign(threshold=0.0)


def praised(model: SentenceTransformer, sizes: Scale) -> pd.DataFrame:
    """How much more positive reviews attend to one latent than negative ones do, chosen on other reviews.

    Of all heads and latents it is the one that positive reviews of split ``train`` attend to more with the largest t;
    it is measured on those of split ``test``. No pooling here is trained on reviews.

    Args:
        model: An embedder with latent attention; it is left as it is.
        sizes: Sizes of evaluation.

    Returns:
        Rows of the metrics ``attention`` (task ``chosen latent``: the difference x 1000; its outcomes are one a review,
        whose mean it is), ``latents`` (task ``p below 0.05``: how many differ on split ``train``, in either direction,
        corrected for all) and ``loss`` (nats, on held-out pairs); score, low, high, items, outcomes.

    Source: NV-Embed, appendix D and figure 2, which marks a latent by eye; the test is this project's.
    """
    texts, instruction = reviews(), instruction_of("ReviewClassification")
    known, praise = (texts["split"] == "train").to_numpy(), (texts["label"] == "positive").to_numpy()
    with cut_to(model, sizes.max_length):
        attention = probes.latent_attention(model, texts["text"].tolist(), instruction)
        losses = held_out_loss(model, batches=_PAIRS.get(sizes.name, 8))
    found = probes.discriminating_latents(attention[known], praise[known], True)
    head, latent = found.query("difference > 0")[["head", "latent"]].iloc[0]
    read, held = 1000 * attention[~known, head, latent], praise[~known]
    share = np.where(held, 1 / held.mean(), -1 / (~held).mean())  # the mean of the products is the difference
    chosen = Outcomes.of_values(share * (read - read.mean()), texts["text"][~known])
    passed = pd.DataFrame([{"metric": "latents", "task": "p below 0.05", "score": float((found["p"] < 0.05).sum())}])
    return pd.concat([
        row("chosen latent", chosen, metric="attention"), passed, row("held-out pairs", losses, metric="loss")
    ], ignore_index=True)  # fmt: skip


LATENTS_READ = Experiment(
    name="03_latents",
    description="A latent that positive reviews attend to more, chosen on others: trained and random dictionaries",
    variants=(_latents(trained(512), 512), _latents(random(512), 512, train_dictionary=False)),
    sizes=_sizes,
    measure=praised,
    inputs=("docs", "instructions/docs.csv", "texts/reviews.csv"),
)
EXPERIMENTS = (DICTIONARY, LATENTS_READ, RELEASED)
