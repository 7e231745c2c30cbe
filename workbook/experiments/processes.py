"""Computing in a process of its own, which gives all its memory back when it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any
from unittest import mock

from ..errors import TrainingError

_RETURNED = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(2 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""Settings of glibc, which keeps what is freed in pieces: two arenas, and bytes from which memory is given back.

Retraining SmolLM2-135M with states held 6 to 7 GB with them where it held 13 to 16, as sampled. A small model's memory
does not change.
"""


def in_own_process(compute: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, computed in a fresh process; its errors are raised here.

    The process does not outlive the call, not even when that is interrupted, or this process killed.

    Args:
        compute: A function that can be pickled.
        *arguments: What it is called with; they are pickled too.

    Raises:
        TrainingError: The process died.
    """
    # Not a fork: torch's threads, and a CUDA device, do not survive one.
    returned = mock.patch.dict(os.environ, {**_RETURNED, **os.environ})
    with returned, ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_follow_parent) as pool:
        try:
            return pool.submit(compute, *arguments).result()
        except BrokenProcessPool as error:
            raise TrainingError(
                "Expected a process to compute a cell, it died: the system ends one that takes too much memory. What "
                "was recorded is kept. Free some memory, and give the same command again."
            ) from error
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _follow_parent() -> None:
    """Leave it to the parent to end this process, and end it when the parent is gone."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches both; the parent's answer is enough
    threading.Thread(target=watch, daemon=True).start()
