"""Running recipes: stage after stage, each resumed where it was stopped, and cached by content when finished."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..errors import InvalidValueError, whole
from ..modules import Decoder
from ..modules.card import card_of
from .devices import take_device
from .prepare import fingerprint
from .stage import StageRun, check_reports, versions
from .teacher import teachers_sha256

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .recipe import Evaluator, Recipe

logger = logging.getLogger(__name__)

LOG = ["stage", "step", "loss", "learning_rate", "gradient_norm", "tokens", "seconds"]


@dataclass(frozen=True)
class Trained:
    """A trained model and its history.

    Attributes:
        model: The model that was given, trained in place, adapters merged, in evaluation mode.
        history: One row per step: stage, step (from 1), loss, learning_rate, gradient_norm (before clipping), tokens
            (read so far in the stage) and seconds (of training so far in the stage, over all its sessions).
        curve: One row per measurement of an :class:`Evaluator`: stage, step (from 0), tokens, seconds, and the numbers
            and texts by name; empty without one.
        manifest: By stage its content key, data fingerprint, seconds, device, and versions.
    """

    model: SentenceTransformer
    history: pd.DataFrame
    curve: pd.DataFrame
    manifest: dict[str, Any]


def train(
    model: SentenceTransformer,
    recipe: Recipe,
    *,
    seed: int = 0,
    data: Mapping[str, str] | None = None,
    evaluator: Evaluator | None = None,
    save_every: int | None = None,
    progress: bool | None = None,
    report_to: Sequence[str] = (),
    logs: Path | None = None,
    teacher: SentenceTransformer | None = None,
) -> Trained:
    """Train a model, in place, by a recipe.

    A stage that was trained before (same model, recipe so far, data, teacher, seed, library) is not trained again: its
    weights come from the cache. A stopped training continues from its last checkpoint when it is called again. It ends
    with the same weights as an unbroken one up to rounding, and bit by bit where the CPU's libraries add in a fixed
    order.

    Args:
        model: A chain that begins with a Decoder.
        recipe: The stages.
        seed: Of the order of the data, of masks, of dropout and of fresh adapters.
        data: Sources or files by the name of a stage, in place of the recipe's own.
        evaluator: A measurement while the last stage trains.
        save_every: Steps between checkpoints; None for a tenth of a stage, and at least five.
        progress: Whether to show a bar with the loss; None for in a terminal and in a notebook.
        report_to: Names from :data:`~.stage.REPORTS`: experiment trackers that get the loss of every step.
        logs: Folder for TensorBoard's files; None for the cache.
        teacher: The model whose states an objective learns from, such as
            :class:`~workbook.objectives.StateDistillation`; stages without such an objective don't read it.

    Raises:
        InvalidValueError: A model that does not begin with a Decoder, or training data, options or a batch that can't
            be used; the message names row, field or option. Or a launcher that divides models, or a stage that no
            device holds.
        UnknownNameError: An objective, option, stage, source or tracker that does not exist.
        TrainingError: A loss that is not a number; the last good checkpoint is kept.
        OutputError: The cache can't be written.
    """
    return Training(
        model, recipe, seed=seed, data=data, evaluator=evaluator, save_every=save_every, progress=progress,
        report_to=report_to, logs=logs, teacher=teacher,
    ).run()  # fmt: skip


class Training:
    """A training that can begin: every stage was checked and has read its data.

    Args:
        model, recipe, seed, data, evaluator, save_every, progress, report_to, logs, teacher: See :func:`train`.

    Raises:
        InvalidValueError, UnknownNameError: As :func:`train`.

    Attributes:
        processes: The processes that train together.
        stages: The stages, in order.
        surroundings: What else decides the result: the model as built, versions, teachers; plain data.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        recipe: Recipe,
        *,
        seed: int = 0,
        data: Mapping[str, str] | None = None,
        evaluator: Evaluator | None = None,
        save_every: int | None = None,
        progress: bool | None = None,
        report_to: Sequence[str] = (),
        logs: Path | None = None,
        teacher: SentenceTransformer | None = None,
    ):
        if not isinstance(next(iter(model), None), Decoder):
            first = type(next(iter(model), None)).__name__
            raise InvalidValueError("model", "a chain that begins with a Decoder", first, "workbook.build makes one.")
        seed = whole("seed", seed, 0, 2**32 - 1)
        check_reports(report_to)
        own = dict(data or {})
        for name in own:
            recipe.only(name)
        self.processes = take_device(cpu=model.device.type == "cpu")
        logger.info("training is on %s", self.processes.device)
        self.model, self.recipe, self.seed = model, recipe, seed
        self.stages = []
        key = start = fingerprint(model)
        for stage in recipe.stages:
            if stage.name in own:
                stage = stage.model_copy(update={"data": own[stage.name]})
            evaluated = evaluator if stage.name == recipe.stages[-1].name else None
            given = (evaluated, save_every, progress, report_to, logs, teacher)
            self.stages.append(StageRun(model, stage, key, seed, *given))
            key = self.stages[-1].key
        self.surroundings = {"model": start, "versions": versions(), "teachers": teachers_sha256(recipe.stages)}

    def run(self) -> Trained:
        """Train stage after stage, or take them from the cache."""
        history, curve = [], []
        manifest = {"seed": self.seed, "recipe": self.recipe.fingerprint(), "stages": {}}
        for one in self.stages:
            made = one.result()
            log = pd.DataFrame(made.pop("log")).rename(columns={"grad_norm": "gradient_norm"})
            log.insert(0, "stage", one.stage.name)
            history.append(log[log["loss"].notna()][LOG])
            measured = [column for column in log if column.startswith("measured/")]
            if measured:
                rows = log[log[measured[0]].notna()][["stage", "step", "tokens", "seconds", *measured]]
                curve.append(rows.rename(columns=lambda name: name.removeprefix("measured/")))
            manifest["stages"][one.stage.name] = made
        card_of(self.model).add_training(manifest)
        empty = pd.DataFrame(columns=LOG)
        return Trained(
            self.model.eval(),
            pd.concat(history, ignore_index=True) if history else empty,
            pd.concat(curve, ignore_index=True) if curve else empty.iloc[:, [0, 1, 5, 6]],
            manifest,
        )
