"""Experiments as data: variants of a method, each trained and measured with several seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from .. import backbones, methods
from ..checksums import sha256
from ..corpora.docs import Docs, load_docs
from ..corpora.roles import Roles, load_roles
from ..data import rows as training_data
from ..errors import UnknownNameError
from ..evaluation.offline import CANDIDATES
from ..files import data_path
from ..resolved import digest, resolved
from ..scale import Scale, get_scale
from ..training.recipe import Recipe
from ..training.teacher import teachers_sha256
from .suite import curve

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..methods.chain import Chain
    from ..training import Evaluator, Trained


SUITES = (
    *("docs", "instructions/docs.csv"),
    *("texts/paraphrase_ladder.csv", "texts/reviews.csv", "texts/topics.csv"),
)
"""The data that the offline suites read, for :attr:`Experiment.inputs`."""

_CORPORA = {"docs": load_docs, "roles": load_roles}


@dataclass(frozen=True)
class Variant:
    """One row of an ablation: a chain, and the stages that train it.

    Attributes:
        name: Its name in tables, such as ``Bi + MNTP``.
        method: A name from ``workbook.METHODS``.
        stages: Stages of the method's recipe, in its order; none for a model that is not trained.
        options: Options of ``workbook.build``, such as another attention.
        recipe: Function of the names of a scale and a backbone, which returns a recipe in place of the method's own.
        hybrid_with: Another variant, trained with the same seed; the hybrid of both is measured.
        start_from: Another variant, trained with the same seed before this one, which starts from its decoder.
        start_seed: The seed of ``start_from`` in place of the same one, so that all seeds start from one decoder.
        compressed: What is done to the model before its own stages: functions of `workbook.compress` by name, with
            their options, such as ``{"prune": {"how": "wanda", "sparsity": "2:4"}}``. Where a stage learns from a
            teacher's states, the teacher is the first model of ``start_from``, before any compression.
    """

    name: str
    method: str
    stages: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Callable[[str, str], Recipe] | None = None
    hybrid_with: Variant | None = None
    start_from: Variant | None = None
    start_seed: int | None = None
    compressed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def seeded(self) -> bool:
        """True if a seed changes it: something trains, it or what it starts from."""
        return bool(self.stages) or (self.start_seed is None and self.start_from is not None and self.start_from.seeded)

    def trained_by(self, scale: str, backbone: str) -> Recipe:
        """Its recipe at a scale.

        Args:
            scale: Name of the scale.
            backbone: Name of the backbone.

        Raises:
            UnknownNameError: No such scale, or a stage that the recipe does not have.
        """
        made = (self.recipe or methods.get(self.method).recipe)(scale, backbone)
        return methods.fitted(made.only(*self.stages), scale, backbone)

    def chain(self, scale: str, backbone: str) -> Chain:
        """Its chain at a scale: the method's own with the variant's options.

        Args:
            scale: Name of the scale.
            backbone: Name of the backbone.

        Raises:
            UnknownNameError: No such scale, or an option that does not exist.
        """
        options = methods.options(self.method, scale, backbone)
        for name, value in self.options.items():
            both = isinstance(value, Mapping) and isinstance(options.get(name), Mapping)
            options[name] = {**options[name], **value} if both else value
        return methods.get(self.method).chain.with_options(**options)

    def train(
        self, seed: int, scale: str, backbone: str, evaluator: Evaluator | None = None, progress: bool | None = None
    ) -> Trained:
        """Build it, on the decoder of ``start_from`` if there is one, compress it, and train it.

        Args:
            seed: Of data order, masks, dropout and new weights.
            scale: Name of the scale.
            backbone: Name of the backbone.
            evaluator: A measurement while the last stage trains.
            progress: See :func:`workbook.training.train`.
        """
        from .. import objectives, training

        start: Any = backbone
        if self.start_from:
            start = self.start_from.train(self.starts_at(seed), scale, backbone, progress=progress).model
            start[0].attention = self.chain(scale, backbone).attention
        model = self.chain(scale, backbone).build(start, seed)
        for name, options in self.compressed.items():
            from .. import compress

            model = getattr(compress, name)(model, **options)
        recipe, teacher = self.trained_by(scale, backbone), None
        if self.start_from and any(objectives.get(stage.objective).states for stage in recipe.stages):
            teacher = self._whole().train(seed, scale, backbone, progress=progress).model
        return training.train(model, recipe, seed=seed, teacher=teacher, evaluator=evaluator, progress=progress)

    def _whole(self) -> Variant:
        """The variant that the chain of ``start_from`` begins with."""
        return self.start_from._whole() if self.start_from else self

    def starts_at(self, seed: int) -> int:
        """The seed of ``start_from`` where this one has a seed."""
        return seed if self.start_seed is None else self.start_seed


@dataclass(frozen=True)
class Experiment:
    """A grid of variants and seeds with its measurement; one variant with one seed is a cell.

    Attributes:
        name: Begins with the number of its notebook, such as ``02_stages``; a draft has any other name.
        description: One line.
        variants: The rows; those that no seed changes are measured once.
        sizes: Function of the training's scale that returns the sizes of evaluation.
        measure: Function of the trained model and the sizes that returns tidy rows. None for a curve alone.
        evaluator: Function of the sizes that returns the measurement while the last stage trains. None for no curve.
        inputs: The data that ``measure`` and ``evaluator`` read: the corpora ``docs`` and ``roles`` by name, files
            below ``data/`` by their paths there. When one of them changes, records are stale.
        inside: Function of the model as it was built, what training made of it, and the sizes that returns tidy rows
            of what is new inside. None for none.
        losses: Whether the losses of training are rows as well.
        rerun_variants: The variants that are also computed live when a notebook reruns the experiment, such as the one
            that the notebook trains anyway.
        version: Raised when ``measure``, ``inside`` or ``evaluator`` changes, so that older records become stale. A
            changed ``evaluator`` needs another name too, since trained stages are kept with their curves.
    """

    name: str
    description: str
    variants: tuple[Variant, ...]
    sizes: Callable[[str], Scale] = get_scale
    measure: Callable[[SentenceTransformer, Scale], pd.DataFrame] | None = None
    evaluator: Callable[[Scale], Evaluator] | None = None
    inputs: tuple[str, ...] = ()
    inside: Callable[[SentenceTransformer, Trained, Scale], pd.DataFrame] | None = None
    losses: bool = False
    rerun_variants: tuple[str, ...] = ()
    version: int = 1

    def variant(self, name: str) -> Variant:
        """The variant of that name.

        Raises:
            UnknownNameError: No such variant.
        """
        found = {variant.name: variant for variant in self.variants}
        if name not in found:
            raise UnknownNameError(f"variant of {self.name}", name, found)
        return found[name]

    def measures_like(self, other: Experiment) -> bool:
        """True if both make their rows by the same functions, so that cells of one fingerprint have the same rows.

        Args:
            other: Another experiment.
        """
        mine, its = ((one.measure, one.inside, one.evaluator) for one in (self, other))
        return mine == its

    def cells(self, seeds: range | list[int], names: tuple[str, ...] = ()) -> list[tuple[Variant, int]]:
        """Variants and seeds in the order in which they are computed: all variants of the first seed first.

        Args:
            seeds: Seeds, in their order.
            names: Names of variants; empty for all.

        Raises:
            UnknownNameError: No such variant.
        """
        chosen = [self.variant(name) for name in names] or list(self.variants)
        seeds = list(seeds)
        return [(variant, seed) for seed in seeds for variant in chosen if variant.seeded or seed == seeds[0]]

    def run(self, variant: Variant, seed: int, scale: str, backbone: str, progress: bool | None = None) -> pd.DataFrame:
        """Train and measure one cell.

        Args:
            variant: One of the experiment's.
            seed: Of its training.
            scale: Name of the scale.
            backbone: Name of the backbone.
            progress: See :func:`workbook.training.train`.

        Returns:
            Tidy rows: those of ``measure`` and of ``inside``; then, with ``losses``, those of every stage (``task``),
            with ``step`` and the ``metric`` ``training``; then the curve of ``evaluator``, with ``step`` and the
            ``metric`` ``curve``.
        """
        sizes = self.sizes(scale)
        evaluator = self.evaluator(sizes) if self.evaluator else None
        both = [one for one in (variant, variant.hybrid_with) if one]
        trained = [one.train(seed, scale, backbone, evaluator, progress) for one in both]
        model = trained[0].model
        if variant.hybrid_with:
            model = methods.hybrid(model, trained[1].model)
        parts = [self.measure(model, sizes)] if self.measure else []
        if self.inside:
            built = variant.chain(scale, backbone).build(model, seed)  # with the same new weights, on its decoder
            parts.append(self.inside(built, trained[0], sizes))
        if self.losses:
            history = trained[0].history.rename(columns={"stage": "task", "loss": "score"})
            parts.append(history[["task", "step", "score"]].assign(metric="training"))
        return pd.concat([*parts, *([curve(trained[0].curve)] if self.evaluator else [])], ignore_index=True)

    def data(self, variant: Variant, scale: str, backbone: str) -> dict[str, dict[str, str]]:
        """Hex sha256 of all data of a cell: ``trained_on`` by stage, ``measured_on`` by the names in ``inputs``.

        Args:
            variant: One of the experiment's.
            scale: Name of the scale.
            backbone: Name of the backbone.

        Raises:
            MissingDataError: A file is absent, or a package that a corpus is made of is not installed.
        """
        stages = variant.trained_by(scale, backbone).stages
        return {
            "trained_on": {
                stage.name: _data(backbone, _file_sha256(stage.data), **stage.reading()) for stage in stages
            },
            "measured_on": self.measured_on(),
        }

    def measured_on(self) -> dict[str, str]:
        """Hex sha256 of the data that ``measure`` and ``evaluator`` read, by the names in ``inputs``.

        Raises:
            MissingDataError: As :meth:`data`.
        """
        return {name: _corpus(_CORPORA[name]) if name in _CORPORA else sha256(data_path(name)) for name in self.inputs}

    def fingerprint(self, variant: Variant, seed: int, scale: str, backbone: str) -> str:
        """Hex sha256 of everything that a cell's numbers depend on, versions and machine aside.

        That is the chain with its template, the stages with the options of their objectives, and with all defaults; by
        their content the data of training and of measurement, backbone, encoder and teachers; the sizes of evaluation,
        the seed, and ``version``.
        See :data:`workbook.resolved.ADDED_LATER` for options that came later.

        Args:
            variant: One of the experiment's.
            seed: Of its training; does not matter if nothing is trained.
            scale: Name of the scale.
            backbone: Name of the backbone.

        Raises:
            MissingDataError: As :meth:`data`.
        """
        recipe, sizes = variant.trained_by(scale, backbone), self.sizes(scale)
        evaluator, chain = self.evaluator(sizes) if self.evaluator else None, variant.chain(scale, backbone)
        content = {
            "version": self.version,
            "chain": chain.resolved(),
            "encoder": backbones.content_sha256(chain.encoder) if chain.encoder else None,
            "recipe": recipe.fingerprint(),
            "data": self.data(variant, scale, backbone),
            "backbone": backbones.content_sha256(backbone),
            "sizes": resolved(sizes) | {"name": None, "candidates": CANDIDATES},
            "evaluator": [evaluator.name, evaluator.every] if evaluator else None,
            "losses": self.losses,
            "seed": seed if variant.seeded else None,
        }
        if teachers := teachers_sha256(recipe.stages):
            content["teachers"] = teachers
        if variant.hybrid_with:
            other = self.fingerprint(variant.hybrid_with, seed, scale, backbone)
            content["hybrid_with"] = [other, 1.0]  # the weight of its cosine
        if variant.compressed:
            content["compressed"] = resolved(variant.compressed)
        if variant.start_from:
            at = variant.starts_at(seed)
            content["start_from"] = self.fingerprint(variant.start_from, at, scale, backbone)
        return digest(content)


def _file_sha256(source: str) -> str | None:
    """Hex sha256 of a user's file; None for a source by name, which does not change while this process lives."""
    path = Path(source).expanduser()
    return sha256(path) if os.path.isfile(path) else None


@lru_cache
def _corpus(load: Callable[[], Docs | Roles]) -> str:
    """Fingerprint of a corpus, read once: its packages do not change while this process lives."""
    return load().fingerprint


@lru_cache
def _data(backbone: str, file: str | None, **reading: Any) -> str:
    """Fingerprint of a stage's training data, computed once for every content of its file."""
    return training_data.load(**reading, tokenizer=_tokenizer(backbone)).fingerprint


_tokenizer = lru_cache(backbones.load_tokenizer)
