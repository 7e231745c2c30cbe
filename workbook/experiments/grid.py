"""What an experiment is: variants of a method, each trained and measured under several seeds."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from .. import backbones, methods
from ..corpora.docs import Docs, load_docs
from ..corpora.roles import Roles, load_roles
from ..errors import UnknownNameError
from ..files import data_path, sha256
from ..scale import Scale, get_scale
from ..training import data as training_data
from ..training.recipe import Recipe
from ..training.teacher import teachers_sha256

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..training import Trained, Watch


SUITE_DOCS = (
    *("docs", "instructions/docs.csv"),
    *("texts/paraphrase_ladder.csv", "texts/reviews.csv", "texts/topics.csv"),
)
"""What suite docs reads, for :attr:`Experiment.reads`."""

_CORPORA = {"docs": load_docs, "roles": load_roles}


@dataclass(frozen=True)
class Variant:
    """One row of an ablation: a chain, and the stages it goes through.

    Attributes:
        name: As tables call it, such as ``Bi + MNTP``.
        method: A name from ``workbook.METHODS``.
        stages: Stages of the method's recipe, in its order; none for a model that is not trained.
        options: Of ``workbook.build``, such as another attention.
        other: From the names of a scale and of a backbone to a recipe in place of the method's own.
        beside: Another variant, trained under the same seed: what is measured is the hybrid of both.
        after: Another variant, trained under the same seed before this one, which begins with its decoder.
    """

    name: str
    method: str
    stages: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    other: Callable[[str, str], Recipe] | None = None
    beside: Variant | None = None
    after: Variant | None = None

    def recipe(self, scale: str, backbone: str) -> Recipe:
        """Its stages at a scale."""
        made = self.other(scale, backbone) if self.other else methods.recipe(self.method, scale, backbone)
        return made.only(*self.stages)

    def train(
        self, seed: int, scale: str, backbone: str, watch: Watch | None = None, progress: bool | None = None
    ) -> Trained:
        """Build it, on the decoder of the variant that goes before if one does, and train it."""
        from .. import training

        start: Any = backbone
        if self.after:
            start = self.after.train(seed, scale, backbone, progress=progress).model
            start[0].attention = self.options.get("attention", methods.get(self.method).chain.attention)
        model = methods.build(self.method, start, seed=seed, **self.options)
        return training.train(model, self.recipe(scale, backbone), seed=seed, watch=watch, progress=progress)


@dataclass(frozen=True)
class Experiment:
    """A grid of variants and seeds, and what is measured in each cell.

    Attributes:
        name: Begins with the number of its notebook, such as ``02_stages``.
        what: One line.
        variants: The rows; those that are not trained are measured once, whatever the seeds.
        sizes: The sizes of evaluation, by scale of the training.
        measure: From the trained model and the sizes to tidy rows. None for a curve alone.
        watch: From the sizes to what is measured while the last stage trains. None for the end alone.
        reads: What ``measure`` and ``watch`` measure on: the corpora ``docs`` and ``roles`` by name, files below
            ``data/`` by their paths there. When one of them changes, records are stale.
        losses: Whether the losses of training are rows as well.
        live: The variants that are computed beside the record when a notebook reruns the experiment, such as the one
            that the notebook trains in any case.
        version: Raised when ``measure`` or ``watch`` changes, so that no older record is taken for the new one. A
            changed ``watch`` needs another name too, since trained stages are kept with their curves.
    """

    name: str
    what: str
    variants: tuple[Variant, ...]
    sizes: Callable[[str], Scale] = get_scale
    measure: Callable[[SentenceTransformer, Scale], pd.DataFrame] | None = None
    watch: Callable[[Scale], Watch] | None = None
    reads: tuple[str, ...] = ()
    losses: bool = False
    live: tuple[str, ...] = ()
    version: int = 1

    def variant(self, name: str) -> Variant:
        """The variant of that name.

        Raises:
            UnknownNameError: None has it.
        """
        found = {variant.name: variant for variant in self.variants}
        if name not in found:
            raise UnknownNameError(f"variant of {self.name}", name, found)
        return found[name]

    def cells(self, seeds: range | list[int], names: tuple[str, ...] = ()) -> list[tuple[Variant, int]]:
        """Variants and seeds in the order they are computed: all variants of the first seed first."""
        chosen = [self.variant(name) for name in names] or list(self.variants)
        seeds = list(seeds)
        return [(variant, seed) for seed in seeds for variant in chosen if variant.stages or seed == seeds[0]]

    def run(self, variant: Variant, seed: int, scale: str, backbone: str, progress: bool | None = None) -> pd.DataFrame:
        """Train and measure one cell.

        Returns:
            Tidy rows: what ``measure`` gives; behind it, with ``step``, the curve of ``watch``, and with ``losses``
            those of every stage (``task``), as ``training`` in ``what``.
        """
        sizes = self.sizes(scale)
        watch = self.watch(sizes) if self.watch else None
        trained = [one.train(seed, scale, backbone, watch, progress) for one in (variant, variant.beside) if one]
        model = methods.hybrid(*(one.model for one in trained)) if variant.beside else trained[0].model
        parts = [self.measure(model, sizes)] if self.measure else []
        if self.losses:
            history = trained[0].history.rename(columns={"stage": "task", "loss": "score"})
            parts.append(history[["task", "step", "score"]].assign(what="training"))
        return pd.concat([*parts, *([trained[0].curve] if self.watch else [])], ignore_index=True)

    def data(self, variant: Variant, scale: str, backbone: str) -> dict[str, dict[str, str]]:
        """Hex sha256 of all data behind a cell: ``trained_on`` by stage, ``measured_on`` by the names in ``reads``.

        Raises:
            MissingDataError: A file is absent, or a package that a corpus is made of is not installed.
        """
        stages = variant.recipe(scale, backbone).stages
        return {
            "trained_on": {
                s.name: _data(
                    *(s.data, s.objective, s.max_length, s.limit, s.negatives, s.blend),
                    *(backbone, _file_sha256(s.data)),
                )
                for s in stages
            },
            "measured_on": {
                name: _corpus(_CORPORA[name]) if name in _CORPORA else sha256(data_path(name)) for name in self.reads
            },
        }

    def fingerprint(self, variant: Variant, seed: int, scale: str, backbone: str) -> str:
        """Hex sha256 of what a cell's numbers depend on, versions and machine aside.

        That is the chain, the stages, the data that they read and that is measured on, backbone and teachers, the sizes
        of evaluation, the seed, and ``version``. What is at its default does not count, so that no record goes stale
        when methods learn a new option.
        """
        recipe, sizes = variant.recipe(scale, backbone), self.sizes(scale)
        watch = self.watch(sizes) if self.watch else None
        content = {
            "version": self.version,
            "chain": methods.get(variant.method).chain.changed(),
            "options": sorted(variant.options.items()),
            "recipe": recipe.model_dump(mode="json", exclude_defaults=True),
            "data": self.data(variant, scale, backbone),
            "backbone": backbones.content_sha256(backbone),
            "sizes": sizes.model_dump(mode="json", exclude={"name"}),
            "watch": [watch.name, watch.every] if watch else None,
            "seed": seed if variant.stages else None,
        }
        if teachers := teachers_sha256(recipe.stages):
            content["teachers"] = teachers
        if variant.beside:
            content["beside"] = self.fingerprint(variant.beside, seed, scale, backbone)
        if variant.after:
            content["after"] = self.fingerprint(variant.after, seed, scale, backbone)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _file_sha256(source: str) -> str | None:
    """Hex sha256 of a user's file; None for a source by name, which stays as it is while this process lives."""
    path = Path(source).expanduser()
    return sha256(path) if os.path.isfile(path) else None


@lru_cache
def _corpus(load: Callable[[], Docs | Roles]) -> str:
    """Fingerprint of a corpus, read once: its packages stay as they are while this process lives."""
    return load().fingerprint


@lru_cache
def _data(
    source: str,
    objective: str,
    max_length: int,
    limit: int | None,
    negatives: int | None,
    blend: bool,
    backbone: str,
    file: str | None,
) -> str:
    """Fingerprint of a stage's training data, read once for every content of its file."""
    return training_data.load(
        source,
        objective,
        tokenizer=backbones.load_tokenizer(backbone),
        max_length=max_length,
        limit=limit,
        negatives=negatives,
        blend=blend,
    ).fingerprint
