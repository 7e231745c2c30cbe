"""What can go wrong, by name. Every message says what was expected, what came, and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral


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

    def __init__(self, name: str, expected: str, got: object, hint: str = ""):
        shown = repr(got)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(f"{name}: expected {expected}, got {shown}.{' ' + hint if hint else ''}")


def whole(name: str, value: object, least: int = 1, most: int | None = None, *, of: str = "", hint: str = "") -> int:
    """A value that has to be a whole number, as an int: of any type of integer, numpy's too, but no bool.

    Args:
        name: Of the value, for the message.
        value: What was given.
        least: The smallest that will do.
        most: The largest, or None for no bound.
        of: What is counted, for the message, such as ``tokens``.
        hint: A sentence that the message ends with.

    Raises:
        InvalidValueError: Anything else; the message says from where to where.

    Example:
        >>> whole("top", 5)
        5
        >>> whole("max_length", 0, of="tokens")
        Traceback (most recent call last):
        workbook.errors.InvalidValueError: max_length: expected a positive whole number of tokens, got 0.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        counted = f"whole number of {of}" if of else "whole number"
        bounded = f"a {counted} from {least}" + ("" if most is None else f" to {most}")
        expected = f"a positive {counted}" if (least, most) == (1, None) else bounded
        raise InvalidValueError(name, expected, value, hint)
    return int(value)


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
