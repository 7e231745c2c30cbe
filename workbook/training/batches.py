"""Batches of a stage: how many rows of each data set they hold, what is contrasted in them, and their order.

One batch size for all data sets is what sentence-transformers and accelerate serve. A stage that tells tasks apart has
two, and its batches are divided over the devices here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from accelerate.data_loader import prepare_data_loader
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.base.sampler import DefaultBatchSampler, ProportionalBatchSampler
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler

from ..corpora.scored import RETRIEVAL
from ..errors import InvalidValueError

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import BatchSampler

    from ..data.rows import TrainingData
    from .recipe import Stage


@dataclass(frozen=True)
class Batches:
    """What the batches of a stage hold.

    Attributes:
        rows: Rows of a micro-batch of each data set, over all devices.
        others: Of data sets of other tasks than retrieval, whether the rows of a batch are negatives of one another.
        mixed: Whether tasks are told apart.
    """

    rows: dict[str, int]
    others: dict[str, bool] = field(default_factory=dict)
    mixed: bool = False


def batches_of(stage: Stage, data: TrainingData) -> Batches:
    """The batches of a stage; a warning names data sets that are too small for one and never read.

    Args:
        stage: The stage.
        data: Its data.

    Raises:
        InvalidValueError: A batch that can't be divided into micro-batches or over the devices, or that no data set
            fills.
    """
    devices, sizes = PartialState().num_processes, {"batch_size": stage.batch_size}
    if stage.others:
        sizes["others.batch_size"] = stage.others.batch_size
    for name, size in sizes.items():
        if size % stage.accumulation or size // stage.accumulation % devices:
            expected = f"a multiple of {stage.accumulation} micro-batches on {devices} devices"
            raise InvalidValueError(name, expected, size)
    other = [name for name, task in data.tasks.items() if stage.others and task != RETRIEVAL]
    rows = {
        name: sizes["others.batch_size" if name in other else "batch_size"] // stage.accumulation
        for name in data.datasets
    }
    held = {name: len(dataset) for name, dataset in data.datasets.items()}
    if sum(size // rows[name] for name, size in held.items()) < stage.accumulation:
        found = ", ".join(f"{name}: {size}" for name, size in held.items())
        asked = "others.batch_size" if len(other) == len(held) else "batch_size"
        raise InvalidValueError(
            asked,
            f"no more rows than a data set has ({found})",
            sizes[asked],
            "Lower the batch size, or give more data.",
        )
    if small := [name for name, size in held.items() if size < rows[name]]:
        most = max(rows[name] for name in small)
        warnings.warn(
            f"Stage {stage.name}: {', '.join(small)} hold fewer rows than a batch of {most} and are never read.",
            stacklevel=4,
        )
    alike = stage.others.in_batch if stage.others else False
    return Batches(rows, dict.fromkeys(other, alike), mixed=stage.others is not None)


class MixedBatchSampler(ProportionalBatchSampler):
    """This process's parts of the batches of several data sets, each of which has its own batch size.

    A batch comes from one data set, and data sets take turns at random, each as often as it has batches. Order and rows
    follow from seed and epoch alone, on any number of processes.

    accelerate would divide batches of one size only, and silently leave out all others.

    Args:
        dataset: The data sets.
        batch_samplers: Their samplers, as the trainer makes them: no batch holds a text twice.
        generator: Draws the order.
        seed: Of the order.
        rows: Rows of a batch of each data set, over all processes; a multiple of their number.
        apart: Whether a text may not be twice in a batch of the data set, since its rows are negatives of one another.
        process: Number of this process, from 0.
        processes: Number of processes.
    """

    def __init__(
        self,
        dataset: ConcatDataset,
        batch_samplers: Sequence[BatchSampler],
        generator: torch.Generator | None = None,
        seed: int = 0,
        *,
        rows: Sequence[int],
        apart: Sequence[bool],
        process: int = 0,
        processes: int = 1,
    ):
        samplers = []
        for own, given, size, distinct in zip(dataset.datasets, batch_samplers, rows, apart, strict=True):
            if distinct:
                given.batch_size = size
                samplers.append(given)
            else:
                drawn = RandomSampler(own, generator=generator)
                samplers.append(DefaultBatchSampler(drawn, size, drop_last=True, generator=generator, seed=seed))
        super().__init__(dataset, samplers, generator, seed)
        self.process, self.processes = process, processes

    def __iter__(self) -> Iterator[list[int]]:
        """Places of the rows in the data sets, one after the other."""
        for batch in super().__iter__():
            part = len(batch) // self.processes
            yield batch[part * self.process : part * (self.process + 1)]


class BatchTrainer(SentenceTransformerTrainer):
    """The trainer of sentence-transformers, for batches of several sizes; otherwise as it is.

    Before each batch it tells the objective whether the rows are negatives of one another.

    Args:
        batches: What the batches hold.
        **options: Options of SentenceTransformerTrainer.
    """

    def __init__(self, *, batches: Batches, **options: Any):
        self.batches = batches
        super().__init__(**options)

    def get_multi_dataset_batch_sampler(
        self, dataset: ConcatDataset, batch_samplers: list[BatchSampler], *args: Any, **kwargs: Any
    ) -> BatchSampler:
        """The sampler of all data sets; see ``SentenceTransformerTrainer.get_multi_dataset_batch_sampler``."""
        if not self.batches.mixed:
            return super().get_multi_dataset_batch_sampler(dataset, batch_samplers, *args, **kwargs)
        return MixedBatchSampler(
            dataset,
            batch_samplers,
            *args,
            **kwargs,
            rows=[self.batches.rows[name] for name in self.train_dataset],
            apart=[self.in_batch(name) for name in self.train_dataset],
            process=self.accelerator.process_index,
            processes=self.accelerator.num_processes,
        )

    def _build_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        loader = super()._build_dataloader(*args, **kwargs)
        # Each pass over the data draws a seed for the processes that tokenize. Were it drawn from torch's own numbers,
        # masks and dropout would depend on how many such processes there are, and so on the device.
        loader.generator = torch.Generator().manual_seed(self.args.seed)
        return loader

    def get_train_dataloader(self) -> DataLoader:
        """The batches of this process, on its device; see ``Trainer.get_train_dataloader``."""
        if not self.batches.mixed:
            return super().get_train_dataloader()
        loader = prepare_data_loader(
            self._build_dataloader(self.train_dataset, self.args.train_batch_size, dataset_kind="train"),
            self.accelerator.device,
            num_processes=1,  # the sampler has divided them
            process_index=0,
            put_on_device=self.accelerator.device_placement,
            non_blocking=self.accelerator.non_blocking,
        )
        loader._is_accelerate_prepared = True
        self._train_dataloader = self.accelerator.prepare_data_loader(loader)
        return self._train_dataloader

    def in_batch(self, name: str) -> bool:
        """Whether the rows of a batch are negatives of one another.

        Args:
            name: Of the data set.
        """
        return self.batches.others.get(name, self.loss.options.in_batch)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss of one micro-batch, with the negatives of its task; see ``Trainer.compute_loss``."""
        if self.batches.mixed:
            self.loss.in_batch = self.in_batch(inputs["dataset_name"])
        return super().compute_loss(model, inputs, *args, **kwargs)
