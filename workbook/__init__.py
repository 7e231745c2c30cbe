"""Five ways to turn a decoder-only LLM into a text embedder: learn them, train them, take them apart."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from .methods import METHODS, build, hybrid, recipe

__version__ = "0.1.0"
__all__ = ["METHODS", "build", "hybrid", "recipe"]


def __getattr__(name: str) -> Any:
    """A part of the library, such as ``workbook.evaluation``, imported when it is first asked for.

    Raises:
        AttributeError: There is none of that name.
    """
    if name in _parts():
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}. Its parts are: {', '.join(_parts())}.")


def __dir__() -> list[str]:
    return sorted({*globals(), *_parts()})


def _parts() -> list[str]:
    return [one.name for one in iter_modules(__path__) if not one.name.startswith("_")]
