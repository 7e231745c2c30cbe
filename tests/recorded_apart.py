"""An experiment that other processes can unpickle: they find its method when they import this.

``RECORDED_APART`` names the folder of its data, which also gets a file for each process that measures a cell.
"""

import os
import signal
import time
from pathlib import Path

import test_records

from workbook import methods
from workbook.errors import UnknownNameError
from workbook.experiments import Experiment, Record

FOLDER = Path(os.environ.get("RECORDED_APART", "."))

if "RECORDED_APART" in os.environ:
    methods.METHODS["small"] = test_records.small(FOLDER)


def measure(model, sizes):
    """The vectors; a file in the folder says which process it was."""
    (FOLDER / f"process-{os.getpid()}-{time.time_ns()}").touch()
    return test_records.vectors(model, sizes)


def forever(model, sizes):
    measure(model, sizes)
    while True:
        time.sleep(0.05)


def killed(model, sizes):
    os.kill(os.getpid(), signal.SIGKILL)


def refused(model, sizes):
    raise UnknownNameError("colour", "rde", ["red"])


def experiment(measure):
    """The small experiment with that measure."""
    return Experiment("02_small", "Means", (test_records.PLAIN, test_records.TRAINED), measure=measure)


def main():
    """Record the first cell, which never ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts behind it ignore ctrl-C
    Record(experiment(forever), "quick", "tiny-llama", FOLDER / "runs").fill([0], apart=True)
