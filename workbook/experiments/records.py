"""Recorded runs: the numbers of an experiment as two small files, filled cell by cell, and checked for staleness.

``<name>-<scale>-<backbone>.csv`` holds tidy rows with the columns variant and seed first; the ``.json`` beside it says
of every cell what it was computed from and by what. A cell whose fingerprint is today's is never computed again.
"""

from __future__ import annotations

import io
import json
import platform
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock
import pandas as pd
import torch
from tqdm.auto import tqdm

from .. import __version__, backbones
from ..errors import DamagedFileError, MissingDataError
from ..files import ROOT, atomic_file, cache_path
from .grid import Experiment, Variant, backbone_sha256

RECORDED = ROOT / "data" / "runs"
"""The records that the project keeps."""

_PACKAGES = ("torch", "transformers", "sentence-transformers", "peft", "mteb", "numpy", "scikit-learn")


class Record:
    """The record of one experiment at one scale in one folder.

    Args:
        experiment: Which.
        scale: Name of the scale that it was trained at.
        backbone: Name of the backbone.
        folder: Where the files are.
    """

    def __init__(self, experiment: Experiment, scale: str, backbone: str = "smollm2-135m", folder: Path | None = None):
        self.experiment, self.scale, self.backbone = experiment, scale, backbone
        self.folder = Path(folder or RECORDED)
        stem = f"{experiment.name}-{scale}-{Path(backbone).name}"
        self.csv, self.json = self.folder / f"{stem}.csv", self.folder / f"{stem}.json"

    def exists(self) -> bool:
        """Whether anything is recorded."""
        return self.json.is_file()

    def read(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        """The rows and the manifest; both empty where nothing is recorded.

        Raises:
            DamagedFileError: One of the two files is missing or can't be read.
        """
        if not self.json.is_file() and not self.csv.is_file():
            return pd.DataFrame(columns=["variant", "seed"]), {}
        try:
            return pd.read_csv(self.csv), json.loads(self.json.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DamagedFileError(
                f"Expected a record in {self.csv} and {self.json.name}, got: {error}. Restore both from the "
                f"repository, or delete both and record again: {self._command}."
            ) from error

    def stale(self) -> list[str]:
        """The recorded cells that today's experiment would compute from something else, by name."""
        _, manifest = self.read()
        wrong = []
        for cell in manifest.get("cells", []):
            known = {variant.name: variant for variant in self.experiment.variants}
            variant = known.get(cell["variant"])
            if variant is None or self._fingerprint(variant, cell["seed"]) != cell["fingerprint"]:
                wrong.append(f"{self.experiment.name}, {cell['variant']}, seed {cell['seed']}")
        return wrong

    def fill(self, seeds: Iterable[int], variants: tuple[str, ...] = (), progress: bool | None = None) -> pd.DataFrame:
        """Compute what is missing or stale, keep every cell as soon as it is there, and return all rows asked for.

        Several processes may fill one record at a time: each takes cells that no other is at.

        Raises:
            OutputError: The folder can't be written.
        """
        cells = self.experiment.cells(list(seeds), variants)
        waiting = list(cells)
        locks = cache_path("locks")
        locks.mkdir(parents=True, exist_ok=True)
        with tqdm(
            total=len(cells), desc=self.experiment.name, disable=None if progress is None else not progress
        ) as bar:
            while waiting:
                for cell in list(waiting):
                    fingerprint = self._fingerprint(*cell)
                    try:
                        with filelock.FileLock(locks / f"{self.experiment.name}-{fingerprint[:24]}", timeout=0):
                            if not self._has(*cell, fingerprint):
                                bar.set_postfix_str(f"{cell[0].name}, seed {cell[1]}")
                                self._compute(*cell, fingerprint, progress)
                    except filelock.Timeout:
                        continue
                    waiting.remove(cell)
                    bar.update()
                else:
                    if waiting:
                        time.sleep(2)
        frame, _ = self.read()
        asked = {(variant.name, seed) for variant, seed in cells}
        return frame[[pair in asked for pair in zip(frame["variant"], frame["seed"], strict=True)]].reset_index(
            drop=True
        )

    def load(self) -> pd.DataFrame:
        """All recorded rows.

        Raises:
            MissingDataError: Nothing is recorded.
            DamagedFileError: As :meth:`read`, or a recorded cell is stale.
        """
        frame, manifest = self.read()
        if not manifest:
            raise MissingDataError(
                f"Expected the record {self.csv}, found none. Make it ({self._command}), or compute the numbers live: "
                "rerun = True."
            )
        if stale := self.stale():
            raise DamagedFileError(
                f"Expected records of today's recipes, got stale ones: {'; '.join(stale)}. Record them again: "
                f"{self._command}."
            )
        return frame

    def provenance(self) -> str:
        """Where the numbers come from, in one line."""
        _, manifest = self.read()
        cells = manifest["cells"]
        seeds = sorted({cell["seed"] for cell in cells})
        devices = sorted({cell["device"] for cell in cells})
        minutes = sum(cell["seconds"] for cell in cells) / 60
        return (
            f"Recorded: {self.experiment.name} at scale {self.scale}, backbone {self.backbone}, "
            f"seeds {', '.join(map(str, seeds))}, {len(cells)} cells in {minutes:.0f} min on {', '.join(devices)}."
        )

    @property
    def _command(self) -> str:
        number = self.experiment.name.partition("_")[0]
        return f"python -m workbook record {number} --scale {self.scale} --backbone {self.backbone}"

    def _fingerprint(self, variant: Variant, seed: int) -> str:
        return self.experiment.fingerprint(variant, seed, self.scale, self.backbone)

    def _has(self, variant: Variant, seed: int, fingerprint: str) -> bool:
        _, manifest = self.read()
        cells = {(cell["variant"], cell["seed"]): cell["fingerprint"] for cell in manifest.get("cells", [])}
        return cells.get((variant.name, seed)) == fingerprint

    def _compute(self, variant: Variant, seed: int, fingerprint: str, progress: bool | None) -> None:
        began = time.perf_counter()
        rows = self.experiment.run(variant, seed, self.scale, self.backbone, progress)
        rows = rows.drop(columns=["variant", "seed", "seconds"], errors="ignore")
        rows.insert(0, "variant", variant.name)
        rows.insert(1, "seed", seed)
        cell = {
            "variant": variant.name,
            "seed": seed,
            "fingerprint": fingerprint,
            "seconds": round(time.perf_counter() - began, 1),
            "device": backbones.capability()["why"],
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"workbook": __version__}
            | {name: metadata.version(name).partition("+")[0] for name in _PACKAGES},
        }
        with filelock.FileLock(cache_path("locks", self.csv.name)):
            frame, manifest = self.read()
            frame = frame[(frame["variant"] != variant.name) | (frame["seed"] != seed)]
            frame = pd.concat([frame, rows], ignore_index=True) if len(frame) else rows
            others = [c for c in manifest.get("cells", []) if (c["variant"], c["seed"]) != (variant.name, seed)]
            order = {v.name: place for place, v in enumerate(self.experiment.variants)}
            frame = frame.sort_values(
                ["variant", "seed"], key=lambda c: c.map(order) if c.name == "variant" else c, kind="stable"
            )
            manifest = {
                "experiment": self.experiment.name,
                "what": self.experiment.what,
                "scale": self.scale,
                "backbone": self.backbone,
                "backbone_sha256": backbone_sha256(self.backbone),
                "cells": sorted([*others, cell], key=lambda c: (order.get(c["variant"], -1), c["seed"])),
            }
            written = io.StringIO()
            frame.to_csv(written, index=False, float_format="%.5g", lineterminator="\n")
            with atomic_file(self.csv) as temporary:
                temporary.write_text(written.getvalue(), encoding="utf-8")
            with atomic_file(self.json) as temporary:
                temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
