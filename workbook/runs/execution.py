"""One notebook through papermill: read, executed, written all or nothing, and what went wrong in it."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError
from papermill.exceptions import PapermillExecutionError

from ..errors import DamagedFileError
from ..files import atomic_file


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook, in nbformat 4.

    Raises:
        DamagedFileError: It is something else, or newer than this nbformat reads.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        raise DamagedFileError(
            f"Expected a notebook in {path}, found something else ({_first_line(error)}). "
            "Restore it; a run's copy you may delete."
        ) from error
    return notebook


def execute(
    source: Path,
    target: Path,
    parameters: Mapping[str, Any],
    cell_timeout: int | None,
    told: Callable[[str, int, int], None] | None,
) -> str:
    """Run a notebook under a temporary name, rename it, and return what went wrong, or an empty string.

    Args:
        source: The notebook; it is only read.
        target: Path of the executed copy.
        parameters: Parameters; ``rerun`` is left out if the notebook does not declare it.
        cell_timeout: Seconds that a cell may take; None for no limit.
        told: Called as a code cell begins; see :class:`~.runner.Session`.

    Raises:
        OutputError: The copy can't be written.
    """
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    try:
        notebook = read_notebook(source)
    except DamagedFileError as error:
        return str(error)
    if not _declares(notebook, "rerun"):
        parameters = {name: value for name, value in parameters.items() if name != "rerun"}
    problem = ""
    begun, of = itertools.count(1), sum(map(_runs, notebook.cells)) + 1  # and the parameters that papermill adds

    def tell(cell: nbformat.NotebookNode, **_: Any) -> None:
        if told and _runs(cell):
            told(source.stem, next(begun), of)

    with atomic_file(target) as temporary:
        nbformat.write(notebook, temporary)  # stays if papermill does not come to begin
        try:
            papermill.execute_notebook(
                notebook,
                str(temporary).replace("{", "{{").replace("}", "}}"),  # papermill fills in what stands in braces
                parameters,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                execution_timeout=cell_timeout,
                on_cell_start=tell,
                resources={"metadata": {"path": str(source.parent)}},  # papermill's cwd would be the whole process's
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],  # its chatter would break our lines
            )
        except PapermillExecutionError as error:
            problem = f"In [{error.exec_count}]: {error.ename}: {_first_line(error.evalue)}"
        except Exception as error:  # a dead kernel, a cell that takes too long: the rest goes on
            if isinstance(error, OSError) and not isinstance(error, CellTimeoutError):
                raise
            problem = f"{type(error).__name__}: {_first_line(error)}"
        executed = nbformat.read(temporary, as_version=4)
        # papermill marks what a dead kernel or sys.exit left behind as completed: look at what really ran
        code = [cell for cell in executed.cells if _runs(cell)]
        started = [cell for cell in code if cell.metadata.get("papermill", {}).get("start_time")]
        finished = len(started) == len(code) and all(cell.execution_count for cell in code)
        if not finished and not problem.startswith("In ["):
            left = len(code) - len(started)
            problem = f"In [{len(started)}]: {problem or 'the notebook ended itself'}; cells not run: {left}"
    return problem


def _runs(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip())


def _declares(notebook: nbformat.NotebookNode, name: str) -> bool:
    cells = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    return any(re.search(rf"^{name}\b", cell.source, re.MULTILINE) for cell in cells)


def _first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), "no message")
