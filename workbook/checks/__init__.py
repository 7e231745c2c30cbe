"""Exercise checks that say what is wrong and never stop a notebook.

The checks of ``01_attention.ipynb`` are in ``workbook/checks/attention.py``, one function per exercise:

>>> @exercise(1, hint="Divide by the number of real tokens, not by the length.")
... def exercise_1(pool):
...     expect("pool([[2], [4]], mask=[1, 0])", pool([[2], [4]], mask=[1, 0]), [2.0])

The learner's stub, a wrong answer and a right one:

>>> def pool(states, mask):
...     raise NotImplementedError
>>> exercise_1(pool)
Exercise 1: not attempted yet.
>>> exercise_1(lambda states, mask: [sum(s[0] for s in states) / 2])
Exercise 1: not yet. pool([[2], [4]], mask=[1, 0]): expected [2.], got [3.].
Hint: Divide by the number of real tokens, not by the length.
>>> exercise_1(lambda states, mask: [2.0])
Exercise 1: correct.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np


class _WrongAnswerError(Exception):
    """A wrong answer, with what `expect` found."""


def exercise(number: int, *, hint: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function that calls `expect` on a learner's answer into a check that prints and never raises.

    Args:
        number: Number of the exercise in its notebook.
        hint: Shown after a wrong answer.
    """

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(check)
        def checked(*answers: Any) -> None:
            try:
                check(*answers)
            except NotImplementedError:
                print(f"Exercise {number}: not attempted yet.")
                return
            except _WrongAnswerError as wrong:
                problem = str(wrong)
            except Exception as error:
                problem = f"It raised {type(error).__name__}: {error} (line {_line(error)} of your code)."
            else:
                print(f"Exercise {number}: correct.")
                return
            print(f"Exercise {number}: not yet. {problem}")
            if hint:
                print(f"Hint: {hint}")

        return checked

    return decorate


def expect(what: str, got: object, expected: object, *, tolerance: float = 1e-5) -> None:
    """Compare one answer with the expected one; only inside a function made by `exercise`.

    Args:
        what: What was computed, as the learner would write it.
        got: The learner's value: a number, text, a list, an array or a tensor.
        expected: The right value.
        tolerance: Largest difference between numbers, absolute or relative.

    Raises:
        _WrongAnswerError: The answer is wrong; the check prints the message.
    """
    if got is None:
        raise _WrongAnswerError(f"{what}: got None. Is a `return` missing?")
    if isinstance(expected, str | bool) or expected is None:
        if isinstance(got, np.bool_):
            got = bool(got)
        if type(got) is not type(expected) or got != expected:
            raise _WrongAnswerError(f"{what}: expected {expected!r}, got {_show(got)}.")
        return
    wanted = _array(expected)
    try:
        given = _array(got)
        numeric = given.dtype.kind in "biuf"
    except (TypeError, ValueError):
        numeric = False
    if wanted.dtype.kind not in "biuf":
        if not isinstance(got, type(expected)) or got != expected:
            raise _WrongAnswerError(f"{what}: expected {expected!r}, got {_show(got)}.")
    elif not numeric:
        raise _WrongAnswerError(f"{what}: expected numbers of shape {wanted.shape}, got {type(got).__name__}.")
    elif given.shape != wanted.shape:
        raise _WrongAnswerError(f"{what}: expected shape {wanted.shape}, got shape {given.shape}.")
    elif not np.isfinite(given).all() and np.isfinite(wanted).all():
        raise _WrongAnswerError(f"{what}: got a value that is not finite, {_show(given)}. Is something divided by 0?")
    elif not np.allclose(given, wanted, rtol=tolerance, atol=tolerance):
        raise _WrongAnswerError(f"{what}: expected {_show(wanted)}, got {_show(given)}.")


def _array(value: object) -> np.ndarray:
    """An array of a number, list, array or tensor (one that carries gradients, or bfloat16, included)."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
    return np.asarray(value)


def _show(value: object) -> str:
    if isinstance(value, np.ndarray):
        return np.array2string(value, precision=4, threshold=12, edgeitems=3, separator=", ").replace("\n", "")
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _line(error: Exception) -> int | None:
    """Line in the last frame that is not this module's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    return frames[-1].lineno if frames else None
