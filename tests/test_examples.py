"""Docstrings: their examples say what happens, and functions of several arguments describe them."""

import doctest
import importlib
import inspect

from workbook.files import ROOT

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "workbook").rglob("*.py"))
}


def test_examples_hold():
    tried = {}
    for name, path in FILES.items():
        if ">>> " in path.read_text(encoding="utf-8"):
            tried[name] = doctest.testmod(importlib.import_module(name))
    assert len(tried) > 5
    assert {name: result for name, result in tried.items() if result.failed or not result.attempted} == {}


def undescribed(module):
    """Public functions and methods of several arguments without Args; an override has those of what it overrides."""
    classes = [one for name, one in vars(module).items() if inspect.isclass(one) and not name.startswith("_")]
    for place in (module, *(one for one in classes if one.__module__ == module.__name__)):
        inherited = {name for base in getattr(place, "__mro__", ())[1:] for name in vars(base)}
        for name, found in vars(place).items():
            function = inspect.unwrap(getattr(found, "__func__", found))
            if name.startswith("_") or name in inherited or not inspect.isfunction(function):
                continue
            taken = inspect.signature(function).parameters.keys() - {"self", "cls"}
            if function.__module__ == module.__name__ and len(taken) > 1 and "Args:" not in (function.__doc__ or ""):
                yield f"{place.__name__}.{name}"


def test_arguments_are_described():
    commands = ("workbook.cli.", "workbook.__main__")  # they describe theirs in typer's way
    modules = [importlib.import_module(name) for name in FILES if not name.startswith(commands)]
    assert [name for module in modules for name in undescribed(module)] == []
