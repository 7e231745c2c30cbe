"""Results that are kept: mteb's in its own cache, and beside each the outcomes of its items, which intervals need."""

from __future__ import annotations

import json
from dataclasses import fields
from importlib import metadata
from typing import TYPE_CHECKING, Any

import mteb
import numpy as np
import torch
from datasets import Dataset
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.models import ModelMeta

from ..files import atomic_file, cache_path, writing
from ..resolved import digest
from .outcomes import Outcomes

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from sentence_transformers import SentenceTransformer

_PLAIN = [one.name for one in fields(Outcomes) if one.init]


class Kept:
    """The results of a model, by what they depend on: its content, the settings, and the task's data.

    They lie in the folder ``mteb`` of the cache, which ``mteb.ResultCache`` reads, under the model's hash as its name
    and that of the rest as its revision.

    Args:
        model: Content hash of the model.
        dtype: What it computes in.
        instructions: Its instructions: columns task, side, instruction.
        max_length: Longest text in tokens.
    """

    def __init__(self, model: str, dtype: torch.dtype, instructions: pd.DataFrame | None, max_length: int):
        self.cache = mteb.ResultCache(cache_path("mteb"))
        self.model, self.dtype, self.max_length, self.instructions = model, dtype, max_length, instructions

    def meta(self, task: Any) -> ModelMeta:
        """The name under which mteb keeps the result of a task.

        Args:
            task: An mteb task; of one whose data are there, they count.
        """
        said = self.instructions
        content = {
            "dtype": str(self.dtype),
            "max_length": self.max_length,
            "instructions": [] if said is None else said[said["task"] == task.metadata.name].to_dict("records"),
            "data": _content(task.dataset) if task.data_loaded else None,
            "versions": {name: metadata.version(name) for name in ("mteb", "sentence-transformers", "transformers")},
        }
        name = f"workbook/{self.model[:24]}"
        return ModelMeta.create_empty({"name": name, "revision": digest(content)[:24]})

    def path(self, task: Any, meta: ModelMeta) -> Path:
        """The file of a task's outcomes, beside that of mteb's result.

        Args:
            task: An mteb task.
            meta: Its name there.
        """
        # mteb takes every .json there for a result.
        return self.cache.get_task_result_path(task.metadata.name, meta).with_suffix(".outcomes")

    def export(self, task: Any, kept: ModelMeta, meta: ModelMeta, folder: Path) -> None:
        """Write a task's result as mteb writes it, into ``results`` in a folder that ``mteb.ResultCache`` reads.

        Args:
            task: An mteb task; of several in one, the result of each is written.
            kept: The name under which the result is kept.
            meta: The model, under the name that the files have.
            folder: The folder.

        Raises:
            OutputError: The folder can't be written.
        """
        with writing(folder):
            for name in dict.fromkeys([task.metadata.name, *(one.metadata.name for one in _parts(task))]):
                if result := self.cache.load_task_result(name, kept):
                    mteb.ResultCache(folder).save_to_cache(result, meta)

    @staticmethod
    def load(path: Path) -> tuple[Outcomes, float] | None:
        """The outcomes of a task, and the seconds that it took; None if they are not there or can't be read.

        Args:
            path: Their file.
        """
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            arrays = {name: np.array(plain[name]) for name in ("values", "gold", "groups") if plain[name] is not None}
            return Outcomes(**{name: plain[name] for name in _PLAIN} | arrays), plain["seconds"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @staticmethod
    def save(path: Path, outcomes: Outcomes, seconds: float) -> None:
        """Keep the outcomes of a task.

        Args:
            path: Their file.
            outcomes: The outcomes.
            seconds: What the task took.

        Raises:
            OutputError: The file can't be written.
        """
        plain = {name: getattr(outcomes, name) for name in _PLAIN}
        plain |= {name: value.tolist() for name, value in plain.items() if isinstance(value, np.ndarray)}
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(plain | {"seconds": seconds}), encoding="utf-8")


def meta_of(model: SentenceTransformer, name: str, key: str) -> ModelMeta:
    """A model as mteb describes it.

    Args:
        model: The model.
        name: Its name; without an owner, ``workbook`` stands for one.
        key: Hash of its content, which stands for the revision.
    """
    meta = ModelMeta.from_sentence_transformer_model(model, fill_missing=None)
    return meta.model_copy(update={"name": name if "/" in name else f"workbook/{name}", "revision": key[:24]})


def _parts(task: Any) -> list[Any]:
    return task.metadata.tasks if isinstance(task, AbsTaskAggregate) else []


def _content(data: Any) -> Any:
    """The data of a task, which mteb nests by subset, split and part, as plain data."""
    if isinstance(data, Dataset):
        return data.to_dict()
    return {str(name): _content(part) for name, part in data.items()} if isinstance(data, dict) else data
