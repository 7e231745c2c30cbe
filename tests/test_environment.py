"""pyproject.toml, constraints.txt, environment.yml and models.txt describe one environment, and this is it."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from workbook import __version__, backbones, doctor
from workbook.backbones import folders
from workbook.checksums import sha256
from workbook.files import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
CUDA = ("nvidia-", "cuda-", "triton")
"""Packages that torch brings where it is built for CUDA, in versions of its own choice."""
OLD_PYTHON = {"overrides"}
"""What jupyter-server needs under Python 3.11 alone; it needs nothing itself."""
FLASH = {"flash-attn", "einops", "ninja"}
"""What `doctor.INSTALL_FLASH` brings. No extra: its build needs the torch that is already there."""


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def lines(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def pins():
    return {canonical(name): version for name, version in (line.split("==") for line in lines("constraints.txt"))}


def closure(requirements):
    """Names of the packages that these requirements lead to under Python 3.11, whichever is running."""
    todo, seen = [Requirement(line) for line in requirements], set()
    while todo:
        requirement = todo.pop()
        name, extras = canonical(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for needed in map(Requirement, () if name in OLD_PYTHON else metadata.requires(name) or ()):
            environments = [{"extra": extra, "python_version": "3.11"} for extra in extras or {""}]
            if needed.marker is None or any(needed.marker.evaluate(environment) for environment in environments):
                todo.append(needed)
    return {name for name, _ in seen}


def test_every_package_is_pinned_and_every_pin_is_needed():
    needed = closure([*PROJECT["dependencies"], *EXTRAS["notebooks"], *EXTRAS["dev"], *EXTRAS["book"]])
    needed = {name for name in needed if not name.startswith(CUDA)}
    assert needed | FLASH == set(pins())


def test_every_package_is_pinned_once():
    names = [line.split("==")[0] for line in lines("constraints.txt")]
    assert len(set(map(canonical, names))) == len(names)


def test_installed_versions_are_the_pinned_ones():
    left_out = FLASH | (OLD_PYTHON if sys.version_info >= (3, 12) else set())
    wanted = {name: version for name, version in pins().items() if name not in left_out}
    assert {name: metadata.version(name).split("+")[0] for name in wanted} == wanted


def test_the_library_imports_only_what_it_declares():
    providers = metadata.packages_distributions()
    declared = set(map(canonical, PROJECT["dependencies"]))
    for path in (ROOT / "workbook").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"workbook"}:
                assert declared & set(map(canonical, providers[top])), f"{path.name} imports {top}"


def test_conda_gives_the_same_environment():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    python, pip, packages = environment["dependencies"]
    version = python.removeprefix("python=")
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    assert pip == "pip"
    assert packages["pip"] == ["--constraint constraints.txt", "--editable .[notebooks,dev,book]"]


def test_one_command_makes_the_environment_of_conda():
    head = re.findall(r"^#   (.+)$", (ROOT / "environment.yml").read_text(encoding="utf-8"), re.MULTILINE)
    command = ["make", "--dry-run", "--no-print-directory", "conda"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines() == head


def test_binder_has_the_same_python_and_the_same_pins():
    own, binder = (yaml.safe_load((ROOT / path / "environment.yml").read_text()) for path in ("", ".binder"))
    assert binder == {"channels": own["channels"], "dependencies": own["dependencies"][:2]}
    script = ROOT / ".binder" / "postBuild"
    assert os.access(script, os.X_OK)
    assert "--constraint constraints.txt --editable .\n" in script.read_text()
    assert "--no-deps --require-hashes --requirement models.txt\n" in script.read_text()


def test_the_citation_is_of_this_version_and_of_the_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    titles = [reference["title"] for reference in citation["references"]]
    assert len(titles) == 5
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(title in readme for title in titles)


def test_carried_models_are_pinned_by_hash():
    carried = {canonical(model.package) for model in backbones.CARRIED.values()}
    found = {}
    for line in lines("models.txt"):
        name, version = re.fullmatch(r"(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}", line).groups()
        found[canonical(name)] = version
    assert set(found) == carried
    assert found == {name: metadata.version(name) for name in found}
    assert not carried & set(pins())


def test_carried_models_are_the_files_that_were_checked():
    for model in backbones.CARRIED.values():
        assert sha256(folders._package_file(model)) == model.sha256


def test_one_version():
    assert __version__ == PROJECT["version"] == metadata.version(PROJECT["name"])


def test_the_distribution_is_not_another_package():
    """``pip install workbook`` brings what somebody else wrote."""
    assert PROJECT["name"] == doctor.DISTRIBUTION != "workbook"
    assert PROJECT["scripts"] == {"workbook": "workbook.cli:main"}
    assert doctor._distribution().well
    assert "mteb" in doctor._required()
