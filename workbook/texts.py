"""Checks that a text can be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import InvalidValueError

LONGEST = 5_000_000
"""Characters of the longest text that is read. A text is tokenized whole before it is cut, since its end can change
tokens before it; a million characters take seconds, and no book has more than this."""


def is_text(value: Any) -> bool:
    """True for a string that UTF-8 can hold: JSON can escape half of a surrogate pair, which nothing reads."""
    return isinstance(value, str) and _broken(value) is None


def check_text(name: str, value: Any) -> None:
    """Refuse a value that a tokenizer can't read, or not in reasonable time.

    Args:
        name: Name of the value, for the error.
        value: Anything.

    Raises:
        InvalidValueError: Not a string, or one that UTF-8 can't hold or that has more than :data:`LONGEST` characters.
    """
    if not isinstance(value, str):
        if isinstance(value, Iterable) and not isinstance(value, list | tuple | dict | bytes):
            # Such as a Series or a generator, which sentence-transformers' encode takes for one text.
            many = "a string, or a list, tuple or array of strings"
            raise InvalidValueError(name, many, _kind(value), "Turn it into a list of strings first.")
        raise InvalidValueError(name, "strings", value, "Drop it, or turn it into text first.")
    if len(value) > LONGEST:
        got = f"{len(value):,} characters: {value[:20]}..."
        raise InvalidValueError(name, f"at most {LONGEST:,} characters in a text", got, "Cut it, or split it.")
    if (place := _broken(value)) is not None:
        hint = f"Drop that half of a surrogate pair, character {place + 1}, or mend where the text comes from."
        raise InvalidValueError(name, "strings that UTF-8 can hold", value[place : place + 20], hint)


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")


def _broken(text: str) -> int | None:
    """Index of the first character that UTF-8 can't hold, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
