"""Imports point downward, modules are short, and importing the library is cheap. Ruff sees to the docstrings (D1)."""

import ast
import subprocess
import sys

import pytest

from workbook.files import ROOT

LAYERS = (
    {"errors"},
    {"files"},
    {"checksums", "precision", "quantized", "resolved", "scale", "texts", "tiny"},
    {"backbones", "corpora"},
    {"adapters", "attention", "templates", "vocabulary"},
    {"modules"},
    {"compress", "objectives"},
    {"data"},
    {"training"},
    {"methods", "probes", "evaluation"},
    {"experiments", "checks", "figures"},
    {"papers"},
    {"explore", "runs", "doctor", "embedders", "published"},
    {"cli"},
)
"""From the bottom up; a module imports from layers below its own only."""
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
BARRED = {
    "figures": {"torch", "transformers", "sentence_transformers", "mteb"},
    "probes": {"matplotlib", "seaborn"},
    "errors": {"torch", "transformers"},
    "files": {"torch", "transformers"},
    "checksums": {"torch", "transformers"},
    "scale": {"torch", "transformers"},
}
"""What a module must not know."""
LONGEST = 400
"""Lines of a module: more are two responsibilities, or one that has become too large."""
HEAVY = {"torch", "transformers", "sentence_transformers", "mteb", "matplotlib", "pandas", "IPython"}

FILES = {str(path.relative_to(ROOT / "workbook")): path for path in sorted((ROOT / "workbook").rglob("*.py"))}


def imports(source, package):
    """Absolute dotted names of everything that a module imports anywhere, other than for type checking.

    Args:
        source: Text of the module.
        package: Dotted name of the package it is in.
    """
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in ast.walk(node):
                child.for_types = True
    for node in nodes:
        if hasattr(node, "for_types"):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
            base = base if node.level else node.module
            yield from (f"{base}.{alias.name}" for alias in node.names)


def breaches(source, name):
    """What a module imports and should not, by its path under ``workbook``."""
    *folders, stem = name.removesuffix(".py").split("/")
    own = (folders or [stem])[0]
    if own in ("__init__", "__main__"):
        return []
    if own not in RANK:
        return [f"{own} has no layer"]
    found = []
    for dotted in imports(source, ".".join(["workbook", *folders])):
        top, *rest = dotted.split(".")
        if top in BARRED.get(own, ()):
            found.append(f"{own} knows {top}")
        if top != "workbook" or not rest or rest[0] == "__version__":
            continue
        if rest[0] not in RANK:
            found.append(f"{rest[0]} has no layer")
        elif rest[0] != own and RANK[rest[0]] >= RANK[own]:
            found.append(f"{own} imports {rest[0]}")
        elif own == "methods" == rest[0] and stem != "__init__" and rest[1:2] not in ([stem], ["chain"], ["stages"]):
            found.append(f"method {stem} imports another, {rest[1]}")
    return found


def test_imports_point_downward():
    found = {name: breaches(path.read_text(encoding="utf-8"), name) for name, path in FILES.items()}
    assert {name: breach for name, breach in found.items() if breach} == {}


@pytest.mark.parametrize(
    ("name", "line", "breach"),
    [
        ("scale.py", "from . import backbones", "scale imports backbones"),
        ("files.py", "def f():\n    from .scale import get_scale", "files imports scale"),
        ("modules/decoder.py", "from ..methods import METHODS", "modules imports methods"),
        ("modules/decoder.py", "import workbook.cli", "modules imports cli"),
        ("methods/lens.py", "from .anchor import Anchor", "method lens imports another, anchor"),
        ("training/data.py", "from ..evaluation import offline", "training imports evaluation"),
        ("objectives/mntp.py", "from ..training import data", "objectives imports training"),
        ("figures/charts.py", "import torch.nn", "figures knows torch"),
        ("probes/states.py", "from matplotlib import pyplot", "probes knows matplotlib"),
        ("extra.py", "", "extra has no layer"),
        ("cli/application.py", "from .. import extra", "extra has no layer"),
    ],
)
def test_breaches_are_seen(name, line, breach):
    assert breaches(line, name) == [breach]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("methods/lens.py", "from .chain import Chain\nfrom ..modules import Decoder"),
        ("modules/decoder.py", "from .pooling import Pooling"),
        ("training/data.py", "from ..objectives import MNTP\nfrom ..corpora.docs import load_docs"),
        ("methods/lens.py", "from ..training import data"),
        ("scale.py", "if TYPE_CHECKING:\n    from .cli import app"),
        ("runs/runner.py", "from .. import __version__\nfrom ..papers import claims"),
    ],
)
def test_the_rest_is_allowed(name, line):
    assert breaches(line, name) == []


def test_modules_are_short():
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in FILES.items()}
    long = [f"{name} has {count} lines" for name, count in lines.items() if count > LONGEST]
    assert not long, (
        f"{', '.join(long)}, expected at most {LONGEST}: move a part with a task of its own to a new module."
    )


@pytest.mark.journey
@pytest.mark.parametrize("module", ["workbook", "workbook.files", "workbook.scale", "workbook.cli"])
def test_importing_is_cheap(module):
    program = f"import sys, {module}; print(*({HEAVY} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


@pytest.mark.journey
def test_a_notebook_starts_without_sentence_transformers():
    program = "import sys, workbook.runs.notebook; print('sentence_transformers' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False"]


@pytest.mark.journey
def test_every_part_is_reached_after_import_workbook():
    parts = ["evaluation", "probes", "modules", "templates", "figures"]
    program = f"import workbook; print(*(getattr(workbook, part).__name__ for part in {parts})); workbook.nothing"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.split() == [f"workbook.{part}" for part in parts]
    assert "has no attribute 'nothing'. Its parts are: adapters" in result.stderr
    import workbook

    assert {*RANK} <= {*dir(workbook)}
    assert (ROOT / "workbook" / "py.typed").is_file()


def test_options_of_build_are_typed():
    from dataclasses import fields

    from workbook.methods.chain import LOADING, Chain, Options

    assert [*Options.__annotations__] == [*(one.name for one in fields(Chain)), "seed", *LOADING]
