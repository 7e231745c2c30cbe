"""What can go wrong, by name. Every message says what was expected, what came, and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WorkbookError(Exception):
    """Base of every error that a user can mend; the command line prints its message alone, without a traceback."""


class UnknownNameError(WorkbookError, ValueError):
    """A method, backbone, scale, suite, task or parameter that does not exist."""

    def __init__(self, kind: str, got: object, allowed: Iterable[str], hint: str = ""):
        allowed = list(allowed)
        close = difflib.get_close_matches(str(got), allowed, n=1)
        guess = f" Did you mean {close[0]!r}?" if close else ""
        message = f"Unknown {kind} {got!r}.{guess} Expected one of: {', '.join(allowed)}."
        super().__init__(f"{message} {hint}".strip())


class InvalidValueError(WorkbookError, ValueError):
    """A value of the wrong type or outside its range."""

    def __init__(self, name: str, expected: str, got: object, way_out: str = ""):
        shown = repr(got)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(f"{name}: expected {expected}, got {shown}.{' ' + way_out if way_out else ''}")


class ModelNotFoundError(WorkbookError, FileNotFoundError):
    """No backbone of that name on this machine, and none could be fetched."""


class MissingDataError(WorkbookError, FileNotFoundError):
    """A data file, folder or data set that is needed and absent."""


class DamagedFileError(WorkbookError, ValueError):
    """A file whose content does not match its checksum or format."""


class OutputError(WorkbookError, OSError):
    """A folder that can't be written: read-only, full, or not a folder."""


class AttentionError(WorkbookError, RuntimeError):
    """The attention that was measured is not the attention that was asked for."""


class TrainingError(WorkbookError, RuntimeError):
    """A training that can't go on, such as one whose loss is no longer a number."""
