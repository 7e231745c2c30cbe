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
from training_tools import StoppedError, steps_counted, tiny, trained, weights

from workbook.errors import OutputError
from workbook.objectives import mntp
from workbook.objectives.head import IGNORED
from workbook.training import Recipe, Stage, train_into


def sha256(model):
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in weights(model).values())).hexdigest()


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
    said = {}
    for name, stage in stages.items():
        with steps_counted(pytest.MonkeyPatch(), stop_at=5), pytest.raises(StoppedError):
            trained(stage, save_every=2)
        for attempt in ("resumed", "again"):
            with steps_counted(pytest.MonkeyPatch()) as steps:
                done = trained(stage, save_every=2)
            said[f"{name} {attempt}"] = [*steps], sha256(done.model), [*done.history["tokens"]]
        said["processes"] = PartialState().num_processes
        if PartialState().is_main_process:
            save_file(weights(done.model), folder / f"{name}.safetensors")
    said["masks"] = masks_of(stage.model_copy(update={"steps": 1, "options": {"rate": 0.5}}))
    into = train_into(folder / "out", tiny(), Recipe(stages=(stage,)), plan={"a": 1}, progress=False)
    said["into"] = sha256(into.model)
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
    main({name: Stage.model_validate(stage) for name, stage in given.items()}, Path(sys.argv[2]))
