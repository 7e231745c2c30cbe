"""What a training will take: each stage on a batch of its longest rows, before anything long."""

from __future__ import annotations

import contextlib
import copy
import resource
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from datasets import Dataset
from transformers.trainer_utils import SaveStrategy

from ..data.rows import TrainingData
from ..objectives import get as get_objective
from .devices import told_of_memory
from .prepare import prepared
from .run import Training

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .batches import Batches
    from .recipe import Recipe
    from .stage import StageRun

_STEPS = 2  # the first loads kernels and makes the optimizer's state, the second is timed
_CHARACTERS = 8  # of a token, at most: what is beyond that is cut, and makes no row longer


def rehearse(
    model: SentenceTransformer, recipe: Recipe, *, seed: int = 0, data: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Train each stage on one batch of its longest rows, and say what the whole stage will take; nothing is kept.

    Two steps are made on it, the second of which is timed. The stages are not trained one upon the other, which changes
    neither memory nor time, and the model is of no use afterwards. Most rows are shorter: the days are an upper bound.

    Args:
        model: A chain that begins with a Decoder; it is spoilt.
        recipe: The stages.
        seed, data: See :func:`~.run.train`.

    Returns:
        One row per stage: stage, rows and tokens (of the batch, over all devices), peak_gb (of the first device; on a
        CPU of the process so far, in 1e9 bytes), tokens_per_second, steps, and days (of all steps, at this pace).

    Raises:
        TrainingError: The batch is more than the device's memory; the message names the stage.
        InvalidValueError, UnknownNameError: As :func:`~.run.train`.
    """
    return pd.DataFrame([_measured(one) for one in Training(model, recipe, seed=seed, data=data).stages])


def _measured(run: StageRun) -> dict[str, Any]:
    stage, short = run.stage, copy.copy(run)
    short.stage = stage.model_copy(update={"steps": _STEPS, "warmup_steps": 0, "decay_steps": None})
    short.data = longest(run.data, run.batches, stage.max_length, stage.accumulation)
    short.evaluator, short.progress = None, False
    device = run.model.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # peft's and transformers' own calls of what transformers renamed.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(prepared(run.model, stage, run.seed))
        short.work = Path(folder)
        trainer = short.trainer(get_objective(stage.objective)(run.model, **stage.options))
        trainer.args.save_strategy = SaveStrategy.NO
        with told_of_memory(stage, device):
            trainer.train(None)
    before, after = [entry for entry in trainer.state.log_history if "loss" in entry]
    tokens, seconds = after["tokens"] - before["tokens"], after["seconds"] - before["seconds"]
    return {
        "stage": stage.name,
        "rows": sum(len(dataset) for dataset in short.data.datasets.values()),
        "tokens": int(tokens),
        "peak_gb": _peak(device) / 1e9,
        "tokens_per_second": tokens / seconds,
        "steps": stage.steps,
        "days": stage.steps * seconds / 86400,
    }


def longest(data: TrainingData, batches: Batches, max_length: int, accumulation: int = 1) -> TrainingData:
    """The longest rows of the data set that has the longest, no text twice where a batch holds none twice.

    Args:
        data: The data of a stage.
        batches: What a micro-batch holds: so many rows are taken for an update, fewer if a data set has no more.
        max_length: Longest text in tokens; the rest of a longer one is cut, and does not count.
        accumulation: Micro-batches of an update.
    """
    found, filled = {}, {}
    for name, dataset in data.datasets.items():
        texts, rows = dataset.select_columns(data.texts(name)), batches.rows[name] * accumulation
        distinct = batches.others.get(name, True)
        found[name] = _longest(texts, rows, _CHARACTERS * max_length, distinct)
        filled[name] = len(found[name][0]) / rows
    name = max(found, key=lambda name: (filled[name], found[name][1]))
    chosen, _ = found[name]
    return replace(data, datasets={name: data.datasets[name].select(chosen)})


def _longest(dataset: Dataset, rows: int, most: int, distinct: bool) -> tuple[list[int], int]:
    """Places of the longest rows of a data set, and their length together, in characters or, of chunks, in tokens."""
    rows_of = zip(*(dataset[column] for column in dataset.column_names), strict=True)
    texts = [[value["text"] if isinstance(value, dict) else value for value in row] for row in rows_of]
    lengths = [sum(min(len(text), most) for text in row) for row in texts]
    chosen: list[int] = []
    seen: set[Any] = set()
    for place in sorted(range(len(dataset)), key=lambda place: -lengths[place]):
        own = {tuple(text) if isinstance(text, list) else text for text in texts[place]}
        if not (distinct and own & seen):
            chosen.append(place)
            seen |= own
        if len(chosen) == rows:
            break
    return chosen, sum(lengths[place] for place in chosen)


def _peak(device: torch.device) -> int:
    """The most memory that was taken, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
