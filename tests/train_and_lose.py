"""Run by several processes at once: trains a stage, in which one of them is killed at some step, if any.

Args:
    stages.json: The stage, by name.
    folder: Gets the trained weights.
    step: The step, counted from 1; 0 for none.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from accelerate import PartialState
from safetensors.torch import save_file
from training_tools import trained, weights

from workbook import cli
from workbook.training import Stage
from workbook.training.trainer import StageTrainer


def main(stage, folder, lost):
    step = StageTrainer.training_step

    def until(trainer, *arguments, **options):
        if PartialState().process_index == 1 and trainer.state.global_step + 1 == lost:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(trainer, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageTrainer, "training_step", until)
        done = trained(stage, save_every=2)
    if PartialState().is_main_process:
        save_file(weights(done.model), folder / "kept.safetensors")


if __name__ == "__main__":
    (given,) = json.loads(Path(sys.argv[1]).read_text()).values()
    cli.app = lambda: main(Stage.model_validate(given), Path(sys.argv[2]), int(sys.argv[3]))
    cli.main()
