"""Running recipes: stage after stage, each resumed where it was stopped, and kept by content when it is done."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import platform
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import filelock
import pandas as pd
import peft
import torch
from accelerate import PartialState
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.training_args import BatchSamplers, MultiDatasetBatchSamplers
from transformers import PrinterCallback

from .. import __version__, backbones
from ..errors import InvalidValueError, UnknownNameError
from ..files import CHECKSUMS, atomic_folder, cache_path, verify_checksums, write_checksums
from ..modules import Decoder
from ..objectives import OBJECTIVES, set_attention_dropout
from . import data as training_data
from .progress import Progress
from .recipe import Recipe, Stage
from .trainer import WEIGHTS, Every, StageTrainer, last_checkpoint, load_weights, save_weights, trainable

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn
    from transformers import PreTrainedTokenizerBase

LOG = ["stage", "step", "loss", "learning_rate", "gradient_norm", "tokens", "seconds"]


@dataclass(frozen=True)
class Watch:
    """What is measured while a stage trains, for a curve of convergence.

    Attributes:
        name: Names the measure; a stage that was trained under another name is trained again.
        every: Steps between two measurements; the first is before the first step, the last after the last.
        measure: From the model to numbers by name.
    """

    name: str
    every: int
    measure: Callable[[SentenceTransformer], Mapping[str, float]]


@dataclass(frozen=True)
class Trained:
    """A trained model and how it came about.

    Attributes:
        model: The model that was given, trained in place, adapters merged, in evaluation mode.
        history: One row a step: stage, step (from 1), loss, learning_rate, gradient_norm (before it was cut), tokens
            (read so far in the stage) and seconds (of training so far in the stage, over all its sessions).
        curve: One row a measurement of a :class:`Watch`: stage, step (from 0), tokens, seconds, and the numbers by
            name; empty without one.
        manifest: What went in: by stage its content key, data fingerprint, seconds, device, and versions.
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
    watch: Watch | None = None,
    save_every: int | None = None,
    progress: bool | None = None,
) -> Trained:
    """Train a model, in place, by a recipe.

    A stage that was trained before (same model, recipe up to here, data, seed, library) is not trained again: its
    weights come from the cache. A training that was stopped, by whatever, goes on from its last checkpoint when it is
    called again, and ends with the weights of one that was not (bit by bit on one CPU thread; with more, additions may
    come in another order).

    Args:
        model: A chain that begins with a Decoder.
        recipe: What to do.
        seed: Of the order of the data, of masks, of dropout and of fresh adapters.
        data: Sources or files by the name of a stage, in place of the recipe's own.
        watch: What to measure while the last stage trains.
        save_every: Steps between checkpoints; a tenth of a stage if not given.
        progress: A bar and the loss while it trains; None shows them in a terminal and in a notebook.

    Raises:
        InvalidValueError: A model that does not begin with a Decoder, or training data, options or a batch that can't
            be used; the message names row, field or option.
        UnknownNameError: An objective, option, stage or source that does not exist.
        TrainingError: A loss that is not a number; the last good checkpoint is kept.
        OutputError: The cache can't be written.
    """
    if not isinstance(next(iter(model), None), Decoder):
        first = type(next(iter(model), None)).__name__
        raise InvalidValueError("model", "a chain that begins with a Decoder", first, "workbook.build makes one.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InvalidValueError("seed", "a whole number from 0 to 4294967295", seed)
    own = dict(data or {})
    for name in own:
        recipe.only(name)
    key = _digest([_model_sha256(model), model[0].attention, [module.get_config_dict() for module in model]])
    history, curve, manifest = [], [], {"seed": seed, "recipe": recipe.fingerprint(), "stages": {}}
    for stage in recipe.stages:
        if stage.name in own:
            stage = stage.model_copy(update={"data": own[stage.name]})
        watched = watch if stage.name == recipe.stages[-1].name else None
        made = _Run(model, stage, key, seed, watched, save_every, progress).result()
        key = made["key"]
        log = pd.DataFrame(made.pop("log")).rename(columns={"grad_norm": "gradient_norm"})
        log.insert(0, "stage", stage.name)
        history.append(log[log["loss"].notna()][LOG])
        measured = [column for column in log if column.startswith("measured/")]
        if measured:
            rows = log[log[measured[0]].notna()][["stage", "step", "tokens", "seconds", *measured]]
            curve.append(rows.rename(columns=lambda name: name.removeprefix("measured/")))
        manifest["stages"][stage.name] = made
    empty = pd.DataFrame(columns=LOG)
    return Trained(
        model.eval(),
        pd.concat(history, ignore_index=True) if history else empty,
        pd.concat(curve, ignore_index=True) if curve else empty.iloc[:, [0, 1, 5, 6]],
        manifest,
    )


def load_data(stage: Stage, tokenizer: PreTrainedTokenizerBase) -> training_data.TrainingData:
    """What a stage reads; see :func:`workbook.training.data.load`."""
    return training_data.load(
        stage.data, stage.objective, tokenizer=tokenizer, max_length=stage.max_length, limit=stage.limit
    )


def is_main_process() -> bool:
    """Whether this is the one process, of those that train together, that writes results."""
    return PartialState().is_main_process


class _Run:
    """One stage of one training."""

    def __init__(
        self,
        model: SentenceTransformer,
        stage: Stage,
        start: str,
        seed: int,
        watch: Watch | None,
        save_every: int | None,
        progress: bool | None,
    ):
        self.model, self.stage, self.seed, self.watch, self.progress = model, stage, seed, watch, progress
        self.save_every = save_every or max(1, stage.steps // 10)
        self.objective = _objective(stage)
        decoder = model[0]
        self.data = load_data(stage, decoder.tokenizer)
        self.content = {
            "start": start,
            "stage": stage.model_dump(mode="json", exclude={"data"}),
            "data": self.data.fingerprint,
            "seed": seed,
            "watch": [watch.name, watch.every] if watch else None,
            "versions": _versions(),
        }
        self.dtype = decoder.decoder.dtype
        self.key = _digest(self.content)
        self.kept = cache_path("stages", self.key[:24])
        self.work = cache_path("training", self.key[:24])

    def result(self) -> dict[str, Any]:
        """Put the trained weights into the model, from the cache or by training; the record of how they came about."""
        lock = filelock.FileLock(self.work.with_suffix(".lock"))
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            # peft's and transformers' own calls of what transformers renamed.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
            if is_main_process():
                self.work.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock)  # where another process trains the same stage, wait, and take its result
            stack.enter_context(self._prepared())
            loss = self.objective(self.model)
            record = self._kept(loss)
            if record is None:
                record = self._train(loss)
        return record

    def _kept(self, loss: nn.Module) -> dict[str, Any] | None:
        """The record of a stage trained before, its weights put into the model; None if there is none."""
        if not (self.kept / CHECKSUMS).is_file():
            return None
        verify_checksums(self.kept, f"Delete {self.kept} to train the stage again.")
        load_weights(trainable(self.model, loss), self.kept)
        return json.loads((self.kept / "record.json").read_text(encoding="utf-8"))

    def _train(self, loss: nn.Module) -> dict[str, Any]:
        trainer = self._trainer(loss)
        trainer.train(last_checkpoint(self.work))
        record = {
            "key": self.key,
            **self.content,
            "source": self.stage.data,
            "device": backbones.capability(self.model.device.type)["why"],
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
            "tokens": trainer.state.log_history[-1]["tokens"],
            "seconds": round(trainer.state.log_history[-1]["seconds"], 1),
            "log": [entry for entry in trainer.state.log_history if "train_runtime" not in entry],
        }
        if trainer.is_world_process_zero():
            with atomic_folder(self.kept) as folder:
                save_weights(trainer.trainable(), folder)
                (folder / "record.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
                write_checksums(folder, (WEIGHTS, "record.json"))
            shutil.rmtree(self.work, ignore_errors=True)
        return record

    def _trainer(self, loss: nn.Module) -> StageTrainer:
        stage, decoder = self.stage, self.model[0]
        devices = PartialState().num_processes
        share = stage.batch_size / stage.accumulation / devices
        if share != int(share):
            raise InvalidValueError(
                "batch_size", f"a multiple of {stage.accumulation} micro-batches on {devices} devices", stage.batch_size
            )
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(self.work),
            max_steps=stage.steps,
            per_device_train_batch_size=int(share),
            gradient_accumulation_steps=stage.accumulation,
            learning_rate=stage.learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=stage.warmup_steps,
            weight_decay=stage.weight_decay,
            max_grad_norm=stage.max_grad_norm,
            seed=self.seed,
            data_seed=self.seed,
            # Rows of chunks are lists, in which the sampler can't look for duplicates; their texts differ anyway.
            batch_sampler=BatchSamplers.BATCH_SAMPLER if stage.objective == "mntp" else BatchSamplers.NO_DUPLICATES,
            multi_dataset_batch_sampler=MultiDatasetBatchSamplers.PROPORTIONAL,
            dataloader_drop_last=True,
            dataloader_pin_memory=self.model.device.type == "cuda",
            prompts=self.data.prompts,
            save_strategy="steps",
            save_steps=self.save_every,
            save_total_limit=2,
            logging_steps=1,
            logging_nan_inf_filter=False,
            disable_tqdm=True,
            report_to=[],
            use_cpu=self.model.device.type == "cpu",
        )
        trainer = StageTrainer(
            dtype=self.dtype,
            decay_steps=stage.decay_steps or stage.steps,
            model=self.model,
            args=arguments,
            train_dataset=self.data.datasets,
            loss=loss,
            data_collator=SentenceTransformerDataCollator(decoder.preprocess, prompts=self.data.prompts),
        )
        trainer.remove_callback(PrinterCallback)
        if self.watch:
            trainer.add_callback(Every(trainer, self.watch.every, self.watch.measure))
        trainer.add_callback(Progress(stage.name, self.progress))
        return trainer

    @contextlib.contextmanager
    def _prepared(self) -> Iterator[None]:
        """The model ready to train, and back: adapters merged, dtype, dropout, attention and limits as they were.

        Where the block fails, adapters are dropped and the decoder is as it was before the stage; one that was
        trained whole is not.
        """
        stage, module = self.stage, self.model[0]
        decoder = module.decoder
        dtype, kernel, length = decoder.dtype, decoder.config._attn_implementation, module.max_length
        self.model.requires_grad_(True)
        module.max_length = stage.max_length
        if decoder.device.type == "cpu":
            decoder.set_attn_implementation("eager")  # faster than sdpa where there is a gradient
        if stage.adapter is None:
            decoder.float()  # in half precision small updates round to nothing
        else:
            module.decoder = _adapted(decoder, stage, self.seed)
        if stage.gradient_checkpointing:
            decoder.gradient_checkpointing_enable({"use_reentrant": False})
        merged = False
        try:
            yield
            merged = True
        finally:
            if stage.adapter is not None:
                wrapped = module.decoder
                module.decoder = wrapped.merge_and_unload() if merged else wrapped.unload()
            if stage.gradient_checkpointing:
                decoder.gradient_checkpointing_disable()
            set_attention_dropout(decoder, 0.0)
            decoder.to(dtype).set_attn_implementation(kernel)
            self.model.requires_grad_(True).eval()
            module.max_length = length
            module.attention = module.attention  # setting measures that it is still what it says


def _adapted(decoder: nn.Module, stage: Stage, seed: int) -> peft.PeftModel:
    adapter = stage.adapter
    config = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=list(adapter.targets),
    )
    try:
        with torch.random.fork_rng(devices=[decoder.device] if decoder.device.type == "cuda" else []):
            torch.manual_seed(seed)
            return peft.get_peft_model(decoder, config)
    except ValueError as error:
        raise InvalidValueError(
            f"stage {stage.name}, adapter.targets", "names of linear layers of the decoder", adapter.targets, str(error)
        ) from error


def _objective(stage: Stage) -> Callable[[SentenceTransformer], nn.Module]:
    """What makes the objective of a stage for a model, its name and options checked."""
    if stage.objective not in OBJECTIVES:
        raise UnknownNameError("objective", stage.objective, OBJECTIVES)
    kind = OBJECTIVES[stage.objective]
    # SimCSE passes on what it does not know itself, so the options are those of all its bases.
    family = [base for base in kind.__mro__ if base.__module__ == kind.__module__]
    known = {name for base in family for name in inspect.signature(base.__init__).parameters}
    known -= {"self", "model", "head", "generator", "options"}
    for option in stage.options:
        if option not in known:
            raise UnknownNameError(f"option of {stage.objective}", option, sorted(known))

    def make(model: SentenceTransformer) -> nn.Module:
        options = dict(stage.options)
        decoder = model[0].decoder
        if stage.objective == "mntp" and not decoder.config.tie_word_embeddings:
            options["head"] = backbones.load_head(decoder.config.name_or_path)
        return kind(model, **options)

    return make


def _model_sha256(model: SentenceTransformer) -> str:
    """Hex sha256 over the names and values of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy() if tensor.numel() else b"")
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    names = ("torch", "transformers", "sentence-transformers", "peft")
    return {"workbook": __version__} | {name: metadata.version(name).partition("+")[0] for name in names}


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
