"""The trainer of one stage: sentence-transformers' own, with checkpoints that hold only what trains."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerState
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_pt_utils import safe_globals

from ..checksums import CHECKSUMS, verify_checksums, write_checksums
from ..errors import DamagedFileError, InvalidValueError, TrainingError, WorkbookError
from ..files import writing
from .batches import BatchTrainer
from .teacher import TAUGHT

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

    from .teacher import Teacher

WEIGHTS = "trained.safetensors"
_OBJECTIVE = "objective."  # begins the names of parameters that are the objective's own
_KEPT = 2  # checkpoints, so that there is one where the newest is damaged


class StageTrainer(BatchTrainer):
    """Trains one stage, exactly resumable.

    What trains is kept in float32; if the decoder's own weights are in half precision, the forward pass runs under
    autocast. A checkpoint holds the parameters that train, the optimizer, the schedule, the random states and the log,
    with a checksum of each file, and counts only when all of them are there.

    Args:
        dtype: The decoder's dtype.
        decay_steps: Steps after which the learning rate's linear decay would reach 0.
        teacher: Who scores the rows of the batches that bring their texts, which are then their labels; None for
            nobody, or for labels that come with the rows.
        **options: Options of :class:`~.batches.BatchTrainer`.
    """

    def __init__(self, *, dtype: torch.dtype, decay_steps: int, teacher: Teacher | None = None, **options: Any):
        super().__init__(**options)
        # Or all devices would draw the same masks and the same dropout. The first keeps the draws of one device alone.
        if self.accelerator.process_index:
            torch.manual_seed(self.args.seed + self.accelerator.process_index)
        self._dtype, self._teacher = dtype, teacher
        self._decay_steps = decay_steps
        self.tokens = 0  # read by this process in this session
        self.before = {"tokens": 0, "seconds": 0.0}
        self.began = time.perf_counter()
        self.add_callback(_Guard(self))

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that train, of the model and of the objective, by name."""
        return trainable(self.model, self.loss)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Leave the model card as it is: a stage is not the whole model, and its examples would cost seconds."""

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The linear schedule, sized for ``decay_steps``, which may be more than are trained.

        The first step is the first part of the rise. transformers begins with a rate of 0: that batch would be read and
        nothing learnt from it.
        """
        warmup, end = int(self.args.warmup_steps), self._decay_steps

        def share(step: int) -> float:
            return (step + 1) / (warmup + 1) if step < warmup else max(0.0, (end - step) / max(1, end - warmup))

        if self.lr_scheduler is None:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, share)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> contextlib.AbstractContextManager:
        """Autocast to the decoder's dtype. accelerate's own would wrap the model and leave it wrapped."""
        if self._dtype is torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.args.device.type, self._dtype, cache_enabled=bool(cache_enabled))

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of one micro-batch, forward and backward; see ``Trainer.training_step``.

        Raises:
            TrainingError: The loss is not a finite number.
        """
        self.tokens += sum(int(value.sum()) for key, value in inputs.items() if key.endswith("_attention_mask"))
        loss = super().training_step(model, inputs, *args, **kwargs)
        if not torch.isfinite(loss):
            raise self.not_finite(f"a loss of {loss.item()}")
        return loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss of one micro-batch, with the teacher's scores if there is one; see ``Trainer.compute_loss``."""
        texts = inputs.pop(TAUGHT, None)
        if texts is not None:
            scores = self._teacher.scores([query for query, *_ in texts], [documents for _, *documents in texts])
            inputs["label"] = scores.to(self.args.device)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def not_finite(self, what: str) -> TrainingError:
        """The error that ends a training whose values are no longer finite.

        Args:
            what: The value that is not finite.
        """
        last = [entry["loss"] for entry in self.state.log_history if "loss" in entry][-1:]
        return TrainingError(
            f"Expected finite numbers, got {what} at step {self.state.global_step + 1}"
            f"{f', after a loss of {last[0]:.4g} at the step before' if last else ''}. "
            f"{self._kept()} Lower the learning rate, warm up longer, or raise the temperature."
        )

    def _kept(self) -> str:
        kept = last_checkpoint(Path(self.args.output_dir))
        return f"The last good checkpoint is kept: {kept}." if kept else "No checkpoint was written yet."

    @contextlib.contextmanager
    def _told_of_lost_processes(self) -> Iterator[None]:
        """Say in one line what the libraries that connect devices say by an address and a long traceback."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, WorkbookError) or not re.search("gloo|NCCL", str(error)):
                raise
            raise TrainingError(
                f"Expected {self.accelerator.num_processes} processes to train together, lost one at step "
                f"{self.state.global_step + 1}. {self._kept()} See what the other one said, or whether it ran out of "
                "memory; then start again, with --resume where the command train was used."
            ) from error

    def so_far(self) -> dict[str, float]:
        """Tokens read and seconds trained so far in this stage, over all its sessions and devices."""
        tokens = self.accelerator.reduce(torch.tensor(self.tokens, device=self.args.device), "sum").item()
        seconds = time.perf_counter() - self.began
        return {"tokens": self.before["tokens"] + tokens, "seconds": self.before["seconds"] + seconds}

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the tokens and seconds so far to every entry of the log; see ``Trainer.log``."""
        super().log(logs | self.so_far(), *args, **kwargs)

    def train(self, checkpoint: Path | None) -> None:
        """Train, from a checkpoint or from the start.

        Args:
            checkpoint: Folder of the checkpoint, or None.

        Raises:
            InvalidValueError: The data has too few distinct rows to fill a batch.
            TrainingError: The loss or a gradient is not a finite number, or another process of the training has ended.
            OutputError: A checkpoint can't be written.
        """
        self.began = time.perf_counter()
        with writing(Path(self.args.output_dir)), self._told_of_lost_processes():
            super().train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if self.state.global_step < self.args.max_steps:
            raise InvalidValueError(
                "batch_size", "no more rows than have nothing in common, since a batch holds no text twice",
                self.args.train_batch_size, "Lower it, or give more data.",
            )  # fmt: skip

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> tuple[int, ...]:
        """The values of ``Trainer.set_initial_training_values``, but with as many epochs as steps.

        An epoch is shorter than its length says if texts repeat, since they fill no further batch. transformers counts
        full epochs, and would silently stop before ``max_steps``.
        """
        _, *rest = super().set_initial_training_values(*args, **kwargs)
        return self.args.max_steps, *rest

    def _init_training_state(
        self, max_steps: int, updates: int, epochs: int, checkpoint: str | None, trial: Any
    ) -> tuple[int, int]:
        """The epoch to continue in, and the number of its micro-batches that are done.

        They come from the checkpoint itself: transformers counts full epochs, and would take one step more if the last
        step was saved.
        """
        start = super()._init_training_state(max_steps, updates, epochs, checkpoint, trial)
        if checkpoint is None:
            return start
        if self.state.global_step == max_steps:
            return epochs, 0
        epoch, part = divmod(self.state.epoch, 1)
        # Where it skips what is done, transformers does not reach the sampler that several devices share, and would go
        # on in the order of the first epoch.
        sampler = self._train_dataloader.batch_sampler
        while sampler is not None:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(int(epoch))
            sampler = getattr(sampler, "batch_sampler", None)
        return int(epoch), round(part * len(self._train_dataloader))

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        save_weights(self.trainable(), Path(output_dir or self.args.output_dir))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()  # each process has written its random states
        if self.args.should_save:
            folder = Path(self.args.output_dir)
            write_checksums(
                folder / f"checkpoint-{self.state.global_step}",
                ("*.safetensors", "*.pt", "*.pth", "trainer_state.json"),
            )
            for old in checkpoints(folder)[_KEPT:]:  # only now that the new one is whole
                shutil.rmtree(old)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with writing(Path(output_dir) / OPTIMIZER_NAME):
            super()._save_optimizer_and_scheduler(output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        with writing(Path(output_dir) / "rng_state.pth"):
            super()._save_rng_state(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_weights(self.trainable(), Path(resume_from_checkpoint))


class EvaluationCallback(TrainerCallback):
    """Measures the model at regular steps, before the first and after the last; the numbers go into the log.

    Args:
        trainer: The trainer whose model is measured.
        steps: Steps between two measurements.
        measure: Function of the model that returns numbers by name. torch's random states are left as they were.
    """

    def __init__(self, trainer: StageTrainer, steps: int, measure: Callable[[SentenceTransformer], dict[str, float]]):
        self.trainer, self.steps, self.measure = trainer, steps, measure

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure before the first step, but not when resumed; see ``TrainerCallback.on_train_begin``."""
        if state.global_step == 0:
            self._measure()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure after every ``steps`` steps and after the last; see ``TrainerCallback.on_step_end``."""
        if state.global_step % self.steps == 0 or state.global_step == state.max_steps:
            self._measure()

    def _measure(self) -> None:
        trainer = self.trainer
        devices = [trainer.args.device] if trainer.args.device.type == "cuda" else []
        so_far, began = trainer.so_far(), time.perf_counter()
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            trainer.model.eval()
            measured = {
                f"measured/{name}": value if isinstance(value, str) else float(value)
                for name, value in self.measure(trainer.model).items()
            }
        trainer.began += time.perf_counter() - began  # the seconds of training are counted alone
        # Straight into the log: trainer.log would tell the trainer that this step's loss has been logged.
        trainer.state.log_history.append({"step": trainer.state.global_step, **so_far, **measured})


class _Guard(TrainerCallback):
    """Continues the counts of a checkpoint; before an update, averages what the distributed wrapper does not know, and
    stops where it would spoil the weights."""

    def __init__(self, trainer: StageTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.log_history:
            self.trainer.before = {name: state.log_history[-1][name] for name in ("tokens", "seconds")}

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._average_objective()
        gradients = [p.grad for p in self.trainer.trainable().values() if p.grad is not None]
        if gradients and not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            raise self.trainer.not_finite("gradients that are not")

    def _average_objective(self) -> None:
        """Average the gradients of the objective's own parameters, such as a head, over the devices.

        Only the model is wrapped, and only its gradients are averaged there.
        """
        accelerator = self.trainer.accelerator
        if accelerator.num_processes > 1:
            for name, parameter in self.trainer.trainable().items():
                if name.startswith(_OBJECTIVE):
                    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    parameter.grad = accelerator.reduce(gradient, "mean")


def trainable(model: nn.Module, loss: nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that train, of the model and then of the objective alone, by name.

    Args:
        model: The model that trains.
        loss: The objective.
    """
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    known = {id(p) for p in model.parameters()}
    extra = {f"{_OBJECTIVE}{n}": p for n, p in loss.named_parameters() if p.requires_grad and id(p) not in known}
    return own | extra


def save_weights(parameters: dict[str, torch.Tensor], folder: Path) -> None:
    """Write parameters as safetensors, on the CPU and in their own dtype.

    Args:
        parameters: By name.
        folder: An existing folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: p.detach().cpu().contiguous() for name, p in parameters.items()}, folder / WEIGHTS)


def load_weights(parameters: dict[str, torch.Tensor], folder: Path) -> None:
    """Copy saved values into parameters of the same names.

    Args:
        parameters: By name.
        folder: Where they were saved.

    Raises:
        DamagedFileError: The file can't be read, or names or shapes differ.
    """
    try:
        saved = load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise DamagedFileError(
            f"{folder / WEIGHTS}: expected tensors, got {error}. Delete the folder to train the stage again."
        ) from error
    if {n: v.shape for n, v in saved.items()} != {n: p.shape for n, p in parameters.items()}:
        raise DamagedFileError(
            f"{folder / WEIGHTS}: expected the {len(parameters)} tensors that this stage trains, got {len(saved)} of "
            "other names or shapes. Delete the folder to train the stage again."
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a stage, newest first; folders of other names are not ours."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.partition("-")[2].isdecimal()]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]), reverse=True)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is whole, or None; damaged ones are removed.

    One that was cut off while being written is removed silently; one that changed since, or can't be loaded, with a
    warning.
    """
    for checkpoint in checkpoints(folder):
        try:
            if (checkpoint / CHECKSUMS).is_file():
                _check(checkpoint)
                return checkpoint
        except DamagedFileError as error:
            warnings.warn(str(error), stacklevel=2)
        shutil.rmtree(checkpoint)
    return None


def _check(checkpoint: Path) -> None:
    """Refuse a checkpoint in which a file is absent, changed, or not what it should be, without reading tensors."""
    hint = "It is not used; training goes on from an earlier one, or from the start."
    states = sorted(path.name for path in checkpoint.glob("rng_state*.pth")) or ["rng_state.pth"]
    readers = {
        WEIGHTS: lambda path: safe_open(path, "pt"),
        TRAINER_STATE_NAME: TrainerState.load_from_json,
        **dict.fromkeys([OPTIMIZER_NAME, SCHEDULER_NAME, *states], lambda path: torch.load(path, "cpu", mmap=True)),
    }
    verify_checksums(checkpoint, hint, required=readers)
    for name, read in readers.items():
        try:
            with safe_globals():
                read(str(checkpoint / name))
        except Exception as error:  # a truncated file raises whatever its reader meets first
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise DamagedFileError(
                f"{checkpoint / name}: expected a file that can be loaded, got {reason}. {hint}"
            ) from error
