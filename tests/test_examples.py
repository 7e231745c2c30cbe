"""The examples in docstrings say what happens."""

import doctest
import importlib

from workbook.files import ROOT


def test_examples_hold():
    tried = {}
    for path in sorted((ROOT / "workbook").rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            tried[name] = doctest.testmod(importlib.import_module(name))
    assert len(tried) > 5
    assert {name: result for name, result in tried.items() if result.failed or not result.attempted} == {}
