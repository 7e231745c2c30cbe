"""One stage of a training: resumed where it was stopped, and cached by content when finished."""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import shutil
import warnings
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast, broadcast_object_list, gather_object, patch_environment
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.training_args import BatchSamplers, MultiDatasetBatchSamplers
from transformers import PrinterCallback
from transformers.integrations import TensorBoardCallback

from .. import __version__, backbones
from ..checksums import CHECKSUMS, is_whole, verify_checksums, write_checksums
from ..data import rows as training_data
from ..errors import InvalidValueError, UnknownNameError, WorkbookError
from ..files import atomic_folder, cache_path, locked
from ..objectives import get as get_objective
from ..resolved import digest
from .batches import batches_of
from .devices import check_disk, check_memory, shared, told_of_memory
from .prepare import check, fingerprint, prepared, save_adapters
from .progress import Progress
from .recipe import HALF, STORED
from .teacher import TaughtCollator, Teacher, is_reranker, teachers_sha256
from .trainer import (
    WEIGHTS,
    EvaluationCallback,
    StageTrainer,
    checkpoints,
    last_checkpoint,
    load_weights,
    save_weights,
    trainable,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

    from .recipe import Evaluator, Stage

logger = logging.getLogger(__name__)

_WORKERS = {"cuda": 2}
"""Processes that tokenize beside the training, by kind of device. On a CPU they would take its cores."""

REPORTS = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",)}
"""Experiment trackers by name, with the packages one of which each needs. None is installed with the project."""


class StageRun:
    """One stage of a training, checked: what would make it fail is refused here, before anything trains.

    Args:
        model, seed, evaluator, save_every, progress, report_to, logs, teacher: See :func:`~.run.train`.
        stage: The stage.
        start: Content key of the weights that it starts from.

    Raises:
        InvalidValueError, UnknownNameError: As :func:`~.run.train`.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        stage: Stage,
        start: str,
        seed: int,
        evaluator: Evaluator | None,
        save_every: int | None,
        progress: bool | None,
        report_to: Sequence[str] = (),
        logs: Path | None = None,
        teacher: SentenceTransformer | None = None,
    ):
        self.model, self.stage, self.seed, self.evaluator, self.progress = model, stage, seed, evaluator, progress
        self.report_to, self.logs = list(report_to), logs
        self.teacher = teacher if get_objective(stage.objective).states else None
        self.save_every = save_every or max(min(5, stage.steps), stage.steps // 10)
        with _named(stage):
            described = stage.resolved()
            if stage.teacher not in (None, STORED):
                is_reranker(stage.teacher)  # refuses what is not a teacher; a cached stage needs no more of it
            self.data = training_data.load(**stage.reading(), tokenizer=model[0].tokenizer)
            self.batches = batches_of(stage, self.data)
            check(model, stage, self.data, self.batches, self.teacher)
        self.content = {
            "start": start,
            "stage": described,
            "data": self.data.fingerprint,
            **stage.counts(),
            "seed": seed,
            "evaluator": [evaluator.name, evaluator.every] if evaluator else None,
            "versions": versions(),
        }
        if teachers := teachers_sha256([stage]):
            self.content["teachers"] = teachers
        if self.teacher is not None:
            self.content["teacher"] = fingerprint(self.teacher)
        self.dtype = model[0].decoder.dtype
        if self.dtype is not torch.float32:
            self.content["half"] = HALF
        self.key = digest(self.content)
        self.kept, self.work = _folders(self.key)
        if not is_whole(self.kept):
            with _named(stage):
                check_memory(model, stage)
            check_disk(model, stage, self.work)

    def result(self) -> dict[str, Any]:
        """Put the trained weights into the model, from the cache or by training, and return the record of the stage.

        Raises:
            TrainingError, OutputError: As :func:`~.run.train`.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            # peft's and transformers' own calls of what transformers renamed.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
            processes = PartialState()
            if processes.is_main_process and not is_whole(self.kept):  # a cache that is only read takes no lock
                # Where another training does the same stage, wait, and take its result.
                stack.enter_context(locked(f"stage-{self.work.name}"))
            processes.wait_for_everyone()  # all look into the cache when nobody writes there any more
            stack.enter_context(prepared(self.model, self.stage, self.seed))
            own = {} if self.teacher is None else {"teacher": self.teacher}
            loss = get_objective(self.stage.objective)(self.model, **own, **self.stage.options)
            record = self._kept(loss)
            said = "not in the cache, is trained" if record is None else "from the cache"
            logger.info("stage %s: %s", self.stage.name, said)
            if record is None:
                record = self._train(loss)
        self.model[0].measure_attention()
        return record

    def _kept(self, loss: nn.Module) -> dict[str, Any] | None:
        """The record of a cached stage, after loading its weights into the model; None if it is not cached.

        The main process looks into its cache; the others, which may be on other machines, take over what it finds.
        """
        record: list[dict[str, Any] | None] = [None]
        parameters = trainable(self.model, loss)
        if PartialState().is_main_process and is_whole(self.kept):
            verify_checksums(self.kept, f"Delete {self.kept} to train the stage again.")
            load_weights(parameters, self.kept)
            record = [json.loads((self.kept / "record.json").read_text(encoding="utf-8"))]
        broadcast_object_list(record)
        if record[0] is not None:
            broadcast([parameter.data for parameter in parameters.values()])
        return record[0]

    def _train(self, loss: nn.Module) -> dict[str, Any]:
        trainer = self.trainer(loss)
        # The threads of a tokenizer do not come along into the processes that tokenize.
        alone = {"TOKENIZERS_PARALLELISM": "false"} if trainer.args.dataloader_num_workers else {}
        with told_of_memory(self.stage, self.model.device), patch_environment(**alone):
            checkpoint = self._checkpoint()
            logger.info("stage %s: begins at %s", self.stage.name, checkpoint.name if checkpoint else "its first step")
            trainer.train(checkpoint)
        record = {
            "key": self.key,
            **self.content,
            "source": self.stage.data,
            "device": backbones.capability(str(self.model.device))["why"],
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
            "tokens": trainer.state.log_history[-1]["tokens"],
            "seconds": round(trainer.state.log_history[-1]["seconds"], 1),
            "log": [entry for entry in trainer.state.log_history if "train_runtime" not in entry],
        }
        if trainer.args.should_save:
            with atomic_folder(self.kept) as folder:
                save_weights(trainer.trainable(), folder)
                save_adapters(self.model, folder / "adapters")
                (folder / "record.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
                write_checksums(folder, (WEIGHTS, "record.json"))
            for checkpoint in checkpoints(self.work):
                shutil.rmtree(checkpoint, ignore_errors=True)
            with contextlib.suppress(OSError):  # what else lies there is not ours
                self.work.rmdir()
        return record

    def _checkpoint(self) -> Path | None:
        """The newest checkpoint that every process has, or None; of several machines each may have its own."""
        with PartialState().main_process_first():  # the others find only what is whole
            last_checkpoint(self.work)
        there = [one for one in checkpoints(self.work) if (one / CHECKSUMS).is_file()]
        everywhere = set.intersection(*gather_object([{one.name for one in there}]))
        return next((one for one in there if one.name in everywhere), None)

    def trainer(self, loss: nn.Module) -> StageTrainer:
        """The trainer of the stage, for a model within :func:`~.prepare.prepared`.

        Args:
            loss: The objective.
        """
        stage = self.stage
        workers = _WORKERS.get(self.model.device.type, 0)
        # Before the trainer, which sets the seed: loading may draw random numbers.
        teacher = Teacher(stage.teacher, self.model.device) if stage.teacher not in (None, STORED) else None
        taught = {*self.data.datasets} - {*self.batches.others} if teacher else {}
        own_rate = {r"(^|\.)0\.context\.": stage.context_rate * stage.learning_rate} if stage.context_rate != 1 else {}
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(self.work),
            max_steps=stage.steps,
            per_device_train_batch_size=stage.batch_size // stage.accumulation,
            # Batches are drawn whole and split over the devices, so that they are the same on any number of them.
            accelerator_config={"split_batches": True},
            gradient_accumulation_steps=stage.accumulation,
            learning_rate=stage.learning_rate,
            learning_rate_mapping=own_rate,
            lr_scheduler_type="linear",
            warmup_steps=stage.warmup_steps,
            weight_decay=stage.weight_decay,
            max_grad_norm=stage.max_grad_norm,
            seed=self.seed,
            data_seed=self.seed,
            # Rows of chunks are lists, in which the sampler can't look for duplicates; their texts differ anyway. Where
            # tasks are blended, labels repeat as documents, and no batch could hold two rows of a class.
            batch_sampler=BatchSamplers.BATCH_SAMPLER
            if get_objective(stage.objective).reads == "chunks" or stage.blend
            else BatchSamplers.NO_DUPLICATES,
            multi_dataset_batch_sampler=MultiDatasetBatchSamplers.PROPORTIONAL,
            dataloader_drop_last=True,
            dataloader_pin_memory=self.model.device.type == "cuda",
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
            prompts=self.data.prompts,
            save_strategy="steps",
            save_steps=self.save_every,
            save_on_each_node=not shared(self.work.parent),
            logging_steps=1,
            logging_nan_inf_filter=False,
            disable_tqdm=True,
            report_to=self.report_to,
            run_name=stage.name,
            use_cpu=self.model.device.type == "cpu",
        )
        # Without a launcher one device trains: transformers would spread the batch over all that it sees.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        # The trainer has its own autocast. That of ``accelerate config`` would wrap the model for good.
        arguments.mixed_precision = "no"
        trainer = StageTrainer(
            batches=self.batches,
            dtype=self.dtype,
            decay_steps=stage.decay_steps or stage.steps,
            model=self.model,
            args=arguments,
            train_dataset=self.data.datasets,
            loss=loss,
            data_collator=TaughtCollator(self.model[0].preprocess, prompts=self.data.prompts, taught=frozenset(taught)),
            teacher=teacher,
        )
        trainer.remove_callback(PrinterCallback)
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback) and self.logs:
                callback.logging_dir = str(self.logs / stage.name)  # the steps of each stage begin at 1
        if self.evaluator:
            trainer.add_callback(EvaluationCallback(trainer, self.evaluator.every, self.evaluator.measure))
        trainer.add_callback(Progress(stage.name, self.progress))
        return trainer


def check_reports(names: Sequence[str]) -> None:
    """Refuse experiment trackers that do not exist, or are not installed.

    Args:
        names: Keys of :data:`REPORTS`.

    Raises:
        UnknownNameError, InvalidValueError: The message names the tracker.
    """
    for name in names:
        if name not in REPORTS:
            raise UnknownNameError("experiment tracker", name, REPORTS)
        if not any(find_spec(package) for package in REPORTS[name]):
            raise InvalidValueError("report_to", "an installed package", name, f"Way out: pip install {name}.")


def begun(key: str) -> bool:
    """True if the cache holds the stage of a key, or a checkpoint of it."""
    kept, work = _folders(key)
    return is_whole(kept) or any((one / CHECKSUMS).is_file() for one in checkpoints(work))


def _folders(key: str) -> tuple[Path, Path]:
    """The folders in which a stage is kept when finished, and in which it is trained."""
    return cache_path("stages", key[:24]), cache_path("training", key[:24])


@contextlib.contextmanager
def _named(stage: Stage) -> Iterator[None]:
    """Put the name of the stage in front of an error's message."""
    try:
        yield
    except WorkbookError as error:
        error.args = (f"Stage {stage.name}: {error}",)
        raise


def versions() -> dict[str, str]:
    """Versions of the training libraries by name; with others a stage is trained again."""
    names = ("torch", "transformers", "sentence-transformers", "peft")
    return {"workbook": __version__} | {name: metadata.version(name).partition("+")[0] for name in names}
