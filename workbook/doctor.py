"""A diagnosis of this machine: what is installed, and whether the notebooks can run with it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any, NamedTuple

from .files import ROOT, cache_path, data_path

DISTRIBUTION = "llm-embedding-workbook"
"""What pip calls the project; ``workbook`` on PyPI is another."""

NEEDED = ("smollm2-135m", "minilm")
"""The models that the notebooks load by default."""

INSTALL_FLASH = "python -m pip install --no-build-isolation -c constraints.txt ninja flash-attn"
"""A step of its own, after all else: flash attention comes as source, whose build reads the torch that is installed."""


class Finding(NamedTuple):
    """One line of the diagnosis.

    Attributes:
        name: What was checked.
        well: True if it is fine, False if the notebooks can't run, None if they can run without it.
        detail: What was found, and the way out.
    """

    name: str
    well: bool | None
    detail: str


def examine() -> list[Finding]:
    """Findings on everything the notebooks need: packages, models, data, accelerator."""
    from . import backbones  # loads torch

    installed = {d.name: d.version for d in metadata.distributions()}
    return [
        _distribution(),
        *packages(_pins(), installed, _required()),
        *models(backbones.available()),
        _data(),
        contextual(),
        Finding("cache", None, str(cache_path())),
        Finding("WORKBOOK_DATA", None, os.environ.get("WORKBOOK_DATA", "not set: public data comes from the Hub")),
        *accelerator(backbones.capability(), installed),
    ]


def packages(pins: Mapping[str, str], installed: Mapping[str, str], required: Iterable[str]) -> list[Finding]:
    """Findings on installed versions against pinned ones; local parts such as ``+cpu`` do not count.

    Args:
        pins: Version by package, from constraints.txt.
        installed: Version by package in this environment.
        required: The packages that must be there.
    """
    pins = {_canonical(name): version for name, version in pins.items()}
    found = {_canonical(name): version.split("+")[0] for name, version in installed.items()}
    absent = sorted(name for name in map(_canonical, required) if name not in found)
    other = [f"{name} {found[name]} (pinned {pin})" for name, pin in pins.items() if found.get(name, pin) != pin]
    same = sum(found.get(name) == pin for name, pin in pins.items())
    findings = [Finding("packages", True, f"{same} as pinned in constraints.txt")]
    if absent:
        findings.append(Finding("packages", False, f"not installed: {', '.join(absent)}; run `make setup`"))
    if other:
        note = "numbers can differ from the committed ones"
        findings.append(Finding("packages", None, f"not as pinned: {', '.join(other)}; {note}"))
    return findings


def models(available: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Findings on the models that are available.

    Args:
        available: ``name``, ``status`` and ``path`` of each, from `workbook.backbones.available`; a model without a
            path is not available.
    """
    findings = []
    for model in available:
        here = bool(model["path"])
        well = here if here or model["name"] in NEEDED else None
        findings.append(Finding(model["name"], well, f"{model['status']}{': ' if here else ''}{model['path'] or ''}"))
    return findings


def contextual(encoder: str = NEEDED[1]) -> Finding:
    """How long Causal2Vec's contextual token is on the default backbone as torch initialises it; `build` scales it.

    Args:
        encoder: Name of its encoder.
    """
    from .errors import WorkbookError
    from .methods import build
    from .modules.context_length import context_length

    name = "contextual token"
    try:
        with warnings.catch_warnings(action="ignore"):  # that it is short, as is said here
            model = build("causal2vec", NEEDED[0], encoder=encoder, encoder_options={"length": "torch"})
        found = context_length(model[0])
    except WorkbookError as error:
        return Finding(name, None, f"not measured: {error}")
    said = f"{found:.2f} times as long as a word embedding of {NEEDED[0]} as torch initialises it"
    return Finding(name, True, f"{said}; build makes causal2vec's as long as a word, and warns where it is far off")


def accelerator(capability: Mapping[str, Any], installed: Mapping[str, str]) -> list[Finding]:
    """Findings on the device, dtype and attention that would be used, and on what could be.

    Args:
        capability: From `workbook.backbones.capability`.
        installed: Version by package in this environment.
    """
    import torch

    device, kernel = capability["device"], capability["attn_implementation"]
    findings = [
        Finding("accelerator", True, f"{device}: {capability['why']}; {capability['dtype']}, attention {kernel}")
    ]
    if torch.backends.mps.is_available() and device != "mps":
        note = "not used unless device='mps' asks for it, in float32: no result was compared with a CPU's"
        findings.append(Finding("Apple GPU", None, note))
    version = {_canonical(name): version for name, version in installed.items()}.get("flash-attn")
    if version is None:
        flash = f"not installed; for a CUDA device from Ampere on, with nvcc: {INSTALL_FLASH}"
    elif kernel == "flash_attention_2":
        flash = f"{version}, used in half precision"
    else:
        flash = f"{version}, not used: it needs a CUDA device from Ampere on"
    return [*findings, Finding("flash attention", None, flash)]


def _data() -> Finding:
    try:
        return Finding("data", True, str(data_path("claims.json").parent))
    except FileNotFoundError as error:
        return Finding("data", False, str(error))


def _distribution() -> Finding:
    try:
        return Finding(DISTRIBUTION, True, metadata.version(DISTRIBUTION))
    except metadata.PackageNotFoundError:
        return Finding(DISTRIBUTION, False, "not installed under this name: run `pip install -e .` in the checkout")


def _pins() -> dict[str, str]:
    path = ROOT / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def _required() -> list[str]:
    """Direct dependencies, those of the extra ``notebooks`` included."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # said by _distribution
        return []
    wanted = (line for line in requirements if "extra ==" not in line or "notebooks" in line)
    return [re.match(r"[\w.-]+", line)[0] for line in wanted]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
