"""The errors of the library. Every message says what was expected, what came, and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any


class WorkbookError(Exception):
    """Base of all errors that a user can fix; the command line prints the message alone, without a traceback."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Several make their message of parts that they don't keep, and would not come out of another process whole.
        return _restored, (type(self), self.args)


def _restored(kind: type[WorkbookError], args: tuple[Any, ...]) -> WorkbookError:
    error = kind.__new__(kind)
    error.args = args
    return error


class UnknownNameError(WorkbookError, ValueError):
    """A method, backbone, scale, suite, task or parameter that does not exist.

    Args:
        kind: What the name is of, such as ``method``.
        got: The name that was given.
        allowed: All names that exist.
        hint: A sentence that ends the message.
    """

    def __init__(self, kind: str, got: object, allowed: Iterable[str], hint: str = ""):
        allowed = list(allowed)
        close = difflib.get_close_matches(str(got), allowed, n=1)
        guess = f" Did you mean {close[0]!r}?" if close else ""
        message = f"Unknown {kind} {got!r}.{guess} Expected one of: {', '.join(allowed)}."
        super().__init__(f"{message} {hint}".strip())


class InvalidValueError(WorkbookError, ValueError):
    """A value of the wrong type or outside its range.

    Args:
        name: Name of the value.
        expected: Description of the values that are allowed.
        got: The value that was given.
        hint: A sentence that ends the message.
    """

    def __init__(self, name: str, expected: str, got: object, hint: str = ""):
        shown = repr(got)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(f"{name}: expected {expected}, got {shown}.{' ' + hint if hint else ''}")


def whole(name: str, value: object, least: int = 1, most: int | None = None, *, of: str = "", hint: str = "") -> int:
    """A value as an int, if it is a whole number of any integer type, numpy's too, but not a bool.

    Args:
        name: Name of the value, for the message.
        value: The value that was given.
        least: The smallest that is allowed.
        most: The largest that is allowed, or None for no bound.
        of: What is counted, for the message, such as ``tokens``.
        hint: A sentence that ends the message.

    Raises:
        InvalidValueError: Anything else; the message gives the range.

    Examples:
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
    """A measured attention that is not the one that was asked for."""


class TrainingError(WorkbookError, RuntimeError):
    """A training that can't continue, such as one whose loss is no longer a number."""
