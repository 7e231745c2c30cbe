"""The parameters of a notebook: what every notebook takes, what is allowed of its own, and what papermill injected."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from IPython import get_ipython
from pydantic import Field, Strict, TypeAdapter, ValidationError

from ..errors import InvalidValueError, UnknownNameError

COMMON = {
    "backbone": (Annotated[str, Strict(), Field(pattern=r"\S")], "a backbone's name, folder or hub id"),
    "seed": (Annotated[int, Strict(), Field(ge=0, lt=2**32)], "an integer from 0 to 4294967295"),
    "rerun": (Annotated[bool, Strict()], "True or False"),
    "output_dir": (Annotated[str | Path, Field()], "a folder, or '' for outputs/<scale>"),
}
"""Of the parameters that every notebook takes, besides the scale: the type, and in words."""


def check(name: str, value: object, kind: Any, expected: str) -> None:
    """Refuse a value of another type.

    Args:
        name: The parameter.
        value: Its value.
        kind: The type.
        expected: The type in words, for the message.

    Raises:
        InvalidValueError: It is of another.
    """
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise InvalidValueError(name, expected, value, _hint(value)) from error


def check_own(name: str, value: object, rule: Any) -> None:
    """Refuse a value of a notebook's own parameter that is not allowed.

    Args:
        name: The parameter.
        value: Its value.
        rule: What is allowed; see :func:`~.notebook.start`.

    Raises:
        UnknownNameError: It is not in the list.
        InvalidValueError: It is of another type, or out of range.
    """
    if isinstance(rule, range):
        integer = isinstance(value, int) and not isinstance(value, bool)
        if not (integer and value in rule):
            step = f" in steps of {rule.step}" if rule.step != 1 else ""
            raise InvalidValueError(name, f"an integer from {rule[0]} to {rule[-1]}{step}", value, _hint(value))
    elif isinstance(rule, Collection):
        if not any(value == item and type(value) is type(item) for item in rule):
            raise UnknownNameError(name, value, map(str, rule), _hint(value))
    else:
        strict = TypeAdapter(Annotated[rule, Strict()])
        try:
            strict.validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise InvalidValueError(name, problem, value, _hint(value)) from error


def refuse_unknown(declared: list[str]) -> None:
    """Refuse names that papermill injected and the notebook does not have; papermill itself only warns.

    Raises:
        UnknownNameError: There is one; the message lists those that it has.
    """
    shell = get_ipython()
    if shell is None:
        return
    injected = [cell for cell in shell.user_ns.get("In", []) if cell.startswith("# Parameters\n")]
    for statement in ast.parse(injected[-1]).body if injected else []:
        for target in getattr(statement, "targets", []):
            if isinstance(target, ast.Name) and target.id not in declared:
                raise UnknownNameError("parameter", target.id, declared)


def _hint(value: object) -> str:
    """A hint for values that papermill injects as text: it casts only True, False, None, integers and floats."""
    if not isinstance(value, str):
        return ""
    text = value.strip()
    if text.lower() in {"true", "yes", "on", "false", "no", "off"}:
        word = text.lower() in {"true", "yes", "on"}
        return f"This is text; on papermill's command line write True or False: -p NAME {word}."
    try:
        return f"This is text; write the number itself, {float(text)!r}, without quotes (in YAML 1.0e-5, not 1e-5)."
    except ValueError:
        return ""
