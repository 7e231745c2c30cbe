"""Run by several processes at once: trains stages, and writes down what each process ended with.

Args:
    stages.json: The stages, by name.
    folder: Gets the weights of each stage, a trained model, and what each process said.
"""

import gc
import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from accelerate import PartialState
from safetensors.torch import save_file
from training_tools import StoppedError, steps_counted, tiny, tiny_for, trained, weights, without_dropout

from workbook.errors import OutputError
from workbook.objectives import mntp
from workbook.objectives.head import IGNORED
from workbook.training import Recipe, Stage, train_into
from workbook.training.trainer import StageTrainer


def sha256(values):
    return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in values)).hexdigest()


def seen_at_the_end(patch):
    """Hashes of all that trained, a head of the objective's own included, stage by stage."""
    found, train = [], StageTrainer.train

    def spied(trainer, checkpoint):
        train(trainer, checkpoint)
        found.append(sha256(trainer.trainable().values()))

    patch.setattr(StageTrainer, "train", spied)
    return found


def masks_of(stage):
    """Where this process masks, by micro-batch."""
    masks, mask_tokens = [], mntp.mask_tokens

    def evaluated(*arguments, **options):
        ids, labels = mask_tokens(*arguments, **options)
        masks.append((labels != IGNORED).tolist())
        return ids, labels

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mntp, "mask_tokens", evaluated)
        trained(stage)
    return masks


def main(stages, folder):
    torch.set_num_threads(1)
    gc.freeze()  # as in conftest.py
    said = {"ended": seen_at_the_end(pytest.MonkeyPatch())}
    for name, stage in stages.items():
        with steps_counted(pytest.MonkeyPatch(), stop_at=5), pytest.raises(StoppedError):
            trained(stage, model=tiny_for(stage.objective), teacher=tiny(), save_every=2)
        for attempt in ("resumed", "again"):
            with steps_counted(pytest.MonkeyPatch()) as steps:
                done = trained(stage, model=tiny_for(stage.objective), teacher=tiny(), save_every=2)
            said[f"{name} {attempt}"] = [*steps], sha256(weights(done.model).values()), [*done.history["tokens"]]
        said["processes"] = PartialState().num_processes
        if PartialState().is_main_process:
            save_file(weights(done.model), folder / f"{name}.safetensors")
    said["masks"] = masks_of(stage.model_copy(update={"steps": 1, "options": {"rate": 0.5}}))
    into = train_into(folder / "out", tiny(), Recipe(stages=(stage,)), plan={"a": 1}, progress=False)
    said["into"] = sha256(weights(into.model).values())
    for resume in (False, True):
        try:
            again = train_into(
                folder / "out", tiny(), Recipe(stages=(stage,)), plan={"a": 1}, resume=resume, progress=False
            )
        except OutputError as error:
            again = str(error)
        said[f"into again, resume {resume}"] = again
    (folder / f"said-{PartialState().process_index}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    with without_dropout(pytest.MonkeyPatch()):
        main({name: Stage.model_validate(stage) for name, stage in given.items()}, Path(sys.argv[2]))
