"""Recorded runs: the numbers of an experiment as three small files, filled cell by cell, and checked for staleness.

``<name>-<scale>-<backbone>.csv`` holds tidy rows with the columns variant and seed first. The ``.npz`` beside it holds
the outcome of every item behind them, those of one size as the rows of one array. The manifest, the ``.json``, lists
for every cell what it was computed from and by what, with checksums of its rows and outcomes. A cell with the current
fingerprint is never computed again. The manifest is written last and read first: a cell exists once it lists it. A
recording that was stopped before that leaves one cell whose rows have another checksum: filling the record computes it
again, and nothing else reads it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from .. import backbones
from ..errors import DamagedFileError, MissingDataError
from ..evaluation.outcomes import Outcomes, pack, unpack
from ..files import ROOT, locked
from ..scale import get_scale
from .cells import cell_name, cells_of, computed_by, has_outcomes, read_arrays, read_rows, write_files
from .grid import Experiment, Variant
from .processes import in_own_process

RECORDED = ROOT / "data" / "runs"
"""Folder of the records that the project keeps."""


class Record:
    """The record of one experiment at one scale in one folder.

    Args:
        experiment: The experiment.
        scale: Name of the scale at which it is trained.
        backbone: Name of the backbone.
        folder: Folder of the files; None for :data:`RECORDED`.

    Raises:
        UnknownNameError: No such scale.
    """

    def __init__(self, experiment: Experiment, scale: str, backbone: str = "smollm2-135m", folder: Path | None = None):
        self.experiment, self.scale, self.backbone = experiment, get_scale(scale).name, backbone
        self.folder = Path(folder or RECORDED)
        stem = f"{experiment.name}-{scale}-{Path(backbone).name}"
        self.csv, self.json, self.npz = (self.folder / f"{stem}.{ending}" for ending in ("csv", "json", "npz"))

    def exists(self) -> bool:
        """True if there is a manifest, even a damaged one; rows without one are of a recording that stopped early."""
        return self.json.is_file()

    def read(self) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
        """The rows, and the manifest's entry of each cell; both empty if nothing is recorded.

        Raises:
            DamagedFileError: One of the two files is missing or can't be read, or a cell has other rows than were
                written.
        """
        frame, cells, changed = self._read()
        if changed:
            raise self._damaged(f"other rows than were recorded for {', '.join(map(cell_name, changed))}")
        return frame, cells

    def _read(self) -> tuple[pd.DataFrame, list[dict[str, Any]], list[dict[str, Any]]]:
        """As :meth:`read`, and the cells whose rows are not those that were written.

        Raises:
            DamagedFileError: The manifest or the rows are missing or can't be read.
        """
        if not self.exists():
            if self.csv.is_file() and not self.csv.read_bytes().startswith(b"variant,seed,"):
                raise DamagedFileError(
                    f"Expected no file or the rows of a record in {self.csv}, got something else. Move it away, or "
                    "choose another folder with --output."
                )
            return pd.DataFrame(columns=["variant", "seed"]), [], []
        try:
            frame, cells, intact = read_rows(self.csv, self.json)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}".strip().partition("\n")[0]) from error
        there = {(cell["variant"], cell["seed"]) for cell in intact}
        rows = frame.loc[[cell in there for cell in cells_of(frame)]].reset_index(drop=True)
        return rows, intact, [cell for cell in cells if cell not in intact]

    def _damaged(self, reason: str) -> DamagedFileError:
        return DamagedFileError(
            f"Expected a record in {self.csv} and {self.json.name}, got {reason}. Restore both from the "
            f"repository, or delete both and record again: {self._command}."
        )

    def stale(self) -> list[str]:
        """Names of the recorded cells whose fingerprint is no longer that of the experiment."""
        _, cells = self.read()
        names = [f"{self.experiment.name}, {cell_name(cell)}" for cell in cells]
        return [name for name, cell in zip(names, cells, strict=True) if not self._is_current(cell)]

    def fill(
        self,
        seeds: Iterable[int],
        variants: tuple[str, ...] = (),
        *,
        wait: bool = True,
        progress: bool | None = None,
        apart: bool = False,
        told: Callable[[str], None] | None = None,
    ) -> pd.DataFrame:
        """Compute missing and stale cells, keep each as soon as it is done, and return the rows of all cells asked for.

        If the record of another experiment in this folder has a cell of the same fingerprint, made by the same
        functions, it is taken from there.

        Several processes may fill one record at a time: each takes cells that no other is computing. At the end, stale
        cells that were not asked for are dropped, unless only some variants were. Cells whose rows are not those that
        were written count as missing; a warning names them.

        Args:
            seeds: Seeds.
            variants: Names of variants; empty for all.
            wait: Wait for cells that other processes are computing; otherwise leave their rows out.
            progress: Whether to show a bar over the cells; None for in a terminal.
            apart: Compute each cell in a process of its own, which gives its memory back when it ends; it costs the
                seconds of loading the libraries.
            told: Called with the name and the seconds of each cell that was computed.

        Raises:
            UnknownNameError: No such variant.
            DamagedFileError: One of the two files can't be read.
            OutputError: The folder can't be written.
            TrainingError: The process of a cell died, as one does that the system ends for want of memory.
        """
        asked = self.experiment.cells(list(seeds), variants)
        waiting = list(asked)
        with self._lock():
            *_, changed = self._read()
        if changed:
            other = ", ".join(map(cell_name, changed))
            warnings.warn(
                f"{self.csv}: expected the rows that were recorded, got others for {other}. "
                "They are computed again where they are asked for, and dropped where not.",
                stacklevel=2,
            )
        with tqdm(
            total=len(asked), desc=self.experiment.name, disable=None if progress is None else not progress
        ) as bar:
            while waiting:
                for variant, seed in list(waiting):
                    fingerprint = self._fingerprint(variant, seed)
                    # By what is computed alone: a cell that two experiments share is computed by one of them.
                    claim = f"cell-{fingerprint[:24]}"
                    try:
                        with locked(claim, timeout=0):
                            if not self._has(variant, seed, fingerprint) and not self._take(variant, seed, fingerprint):
                                began, name = time.perf_counter(), f"{variant.name}, seed {seed}"
                                bar.set_postfix_str(name)
                                compute = partial(in_own_process, self._compute) if apart else self._compute
                                compute(variant, seed, fingerprint, progress)
                                if told:
                                    told(f"{self.experiment.name}: {name}, {time.perf_counter() - began:.0f} s")
                    except filelock.Timeout:
                        continue
                    waiting.remove((variant, seed))
                    bar.update()
                if not wait:
                    break
                if waiting:
                    time.sleep(2)  # another process is computing what is left
        with self._lock():
            frame, cells, changed = self._read()
            kept = cells if variants else [cell for cell in cells if self._is_current(cell)]
            if changed or len(kept) < len(cells):
                self._write(frame, kept)
        names = {(variant.name, seed) for variant, seed in asked}
        frame = self._with_outcomes(frame, cells)
        return frame.loc[[cell in names for cell in cells_of(frame)]].reset_index(drop=True)

    def load(self, *, stale: bool = False) -> pd.DataFrame:
        """All recorded rows, and the outcomes behind them.

        Args:
            stale: Return rows of stale cells too; :meth:`warning` describes them.

        Returns:
            The rows with three columns more: ``outcomes`` (:class:`~workbook.evaluation.outcomes.Outcomes`; where there
            are none, or they can't be used, they say why), ``trained`` (False for a model that no seed changes) and
            ``stale`` (True for a cell of an earlier recipe or data).

        Raises:
            MissingDataError: Nothing is recorded.
            DamagedFileError: As :meth:`read`, or a recorded cell is stale and ``stale`` is False.
        """
        frame, cells = self.read()
        if not cells:
            raise MissingDataError(
                f"Expected the record {self.csv}, found none. Make it ({self._command}), or compute the numbers live: "
                "rerun = True."
            )
        if not stale and (old := self.stale()):
            raise DamagedFileError(
                f"Expected records of today's recipes, got stale ones: {'; '.join(old)}. Record them again: "
                f"{self._command}."
            )
        return self._with_outcomes(frame, cells)

    def _with_outcomes(self, frame: pd.DataFrame, cells: list[dict[str, Any]]) -> pd.DataFrame:
        """Rows with their outcomes, and whether a seed changes them."""
        arrays, made, reasons = self._arrays(), {}, {}
        for cell in cells:
            name = cell["variant"], cell["seed"]
            reasons[name] = self._unusable(cell)
            if not reasons[name]:
                try:
                    made |= {(*name, place): one for place, one in unpack(cell["outcomes"], arrays).items()}
                except DamagedFileError as error:
                    reasons[name] = f"{self.npz.name}, {cell_name(cell)}: {error} {self._again}"
        scores = frame["score"] if "score" in frame else pd.Series(np.nan, frame.index)
        places = frame.groupby(["variant", "seed"]).cumcount()
        found = [
            made.get((*cell, place)) or Outcomes.none(score, reasons[cell] or "It has no outcomes by item.")
            for cell, place, score in zip(cells_of(frame), places, scores, strict=True)
        ]
        untrained = {variant.name for variant in self.experiment.variants if not variant.seeded}
        current = {(cell["variant"], cell["seed"]) for cell in cells if self._is_current(cell)}
        return frame.assign(
            outcomes=pd.Series(found, frame.index, dtype=object),
            trained=~frame["variant"].isin(untrained),
            stale=[cell not in current for cell in cells_of(frame)],
        )

    def _arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the outcomes that can be read; the outcomes of those that are lost say so.

        Raises:
            DamagedFileError: The file is out of reach.
        """
        try:
            return read_arrays(self.npz)
        except OSError as error:  # what is only out of reach must not be written over
            raise self._damaged(f"no outcomes: {error}") from error

    def _unusable(self, cell: dict[str, Any]) -> str:
        """Why no verdict can rest on a cell, if so: a sentence."""
        if "outcomes" not in cell:
            return f"{self.csv.name} keeps no outcomes by item. {self._again}"
        today = self.experiment.measured_on()
        if changed := [name for name, was in cell["data"]["measured_on"].items() if today.get(name) != was]:
            return f"{self.csv.name} was measured on other items than today's: {', '.join(changed)}. {self._again}"
        return ""

    @property
    def _again(self) -> str:
        return f"Record it again: {self._command}."

    def warning(self) -> str:
        """A sentence for readers if recorded numbers come from earlier recipes, data or code; otherwise empty.

        Raises:
            DamagedFileError: As :meth:`read`.
        """
        stale, cells = self.stale(), self.read()[1]
        if not stale:
            return ""
        return (
            f"{self.experiment.name}: {len(stale)} of {len(cells)} recorded runs are of an earlier version of their "
            f"recipes or data, and today's would give other numbers. Record them again: {self._command}."
        )

    def provenance(self) -> str:
        """Where the numbers come from, in one line.

        Raises:
            DamagedFileError: As :meth:`read`.
        """
        _, cells = self.read()
        what = f"{self.experiment.name} at scale {self.scale}, backbone {backbones.shown(self.backbone)}"
        if not cells:
            return f"Nothing is recorded of {what}."
        seeds = sorted({cell["seed"] for cell in cells})
        devices = sorted({cell["device"] for cell in cells})
        taken = sum("taken_from" in cell for cell in cells)
        minutes = sum(cell["seconds"] for cell in cells if "taken_from" not in cell) / 60
        return (
            f"Recorded: {what}, seeds {', '.join(map(str, seeds))}, {len(cells)} cells"
            f"{f', {taken} of them from other records, the rest' if taken else ''} in {minutes:.0f} min "
            f"on {', '.join(devices)}."
        )

    @property
    def _command(self) -> str:
        named = backbones.shown(self.backbone)
        return f"python -m workbook record {self.experiment.name} --scale {self.scale} --backbone {named}"

    def _fingerprint(self, variant: Variant, seed: int) -> str:
        return self.experiment.fingerprint(variant, seed, self.scale, self.backbone)

    def _is_current(self, cell: dict[str, Any]) -> bool:
        known = {variant.name: variant for variant in self.experiment.variants}
        variant = known.get(cell["variant"])
        return variant is not None and self._fingerprint(variant, cell["seed"]) == cell["fingerprint"]

    def _lock(self) -> AbstractContextManager[None]:
        """The lock that is held while the two files are written, and while reading what others may be writing."""
        return locked(self.csv.name)

    def _has(self, variant: Variant, seed: int, fingerprint: str) -> bool:
        """True if a cell is recorded, and its outcomes are whole."""
        with self._lock():
            _, cells, _ = self._read()
            arrays = self._arrays()
        cell = next((c for c in cells if (c["variant"], c["seed"]) == (variant.name, seed)), None)
        return cell is not None and cell["fingerprint"] == fingerprint and has_outcomes(cell, arrays)

    def _take(self, variant: Variant, seed: int, fingerprint: str) -> bool:
        """Take a cell from the record of another experiment that measures alike; False if none has it whole."""
        from . import EXPERIMENTS

        for experiment in EXPERIMENTS.values():
            if experiment is self.experiment or not experiment.measures_like(self.experiment):
                continue
            other = Record(experiment, self.scale, self.backbone, self.folder)
            try:
                with other._lock():
                    frame, cells, _ = other._read()
                    arrays = other._arrays()
            except DamagedFileError:
                continue
            alike = (one for one in cells if one["fingerprint"] == fingerprint and has_outcomes(one, arrays))
            # Versions are counted by experiment: a stale cell of the other may have today's fingerprint of this one.
            cell = next((one for one in alike if other._is_current(one)), None)
            if cell:
                rows = frame[(frame["variant"] == cell["variant"]) & (frame["seed"] == cell["seed"])]
                rows = rows.drop(columns=["variant", "seed"]).dropna(axis=1, how="all")
                self._keep(variant, seed, rows, {"taken_from": experiment.name} | cell, arrays)
                return True
        return False

    def _compute(self, variant: Variant, seed: int, fingerprint: str, progress: bool | None) -> None:
        began = time.perf_counter()
        rows = self.experiment.run(variant, seed, self.scale, self.backbone, progress)
        rows = rows.drop(columns=["variant", "seed", "seconds"], errors="ignore")
        kept, arrays = pack(rows.pop("outcomes") if "outcomes" in rows else ())
        cell = {
            "fingerprint": fingerprint,
            "data": self.experiment.data(variant, self.scale, self.backbone),
            "seconds": round(time.perf_counter() - began, 1),
            **computed_by(),
            "outcomes": kept,
        }
        self._keep(variant, seed, rows, cell, arrays)

    def _keep(
        self, variant: Variant, seed: int, rows: pd.DataFrame, cell: dict[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Write one cell, in place of what the record had of it."""
        named = {"variant": variant.name, "seed": seed}
        rows = pd.concat([pd.DataFrame(named, index=rows.index), rows], axis=1)
        with self._lock():
            frame, cells, _ = self._read()
            frame = frame.loc[[other != (variant.name, seed) for other in cells_of(frame)]]
            others = [c for c in cells if (c["variant"], c["seed"]) != (variant.name, seed)]
            rows = pd.concat([frame, rows], ignore_index=True) if len(frame) else rows
            self._write(rows, [*others, named | cell | named], arrays)

    def _write(
        self, frame: pd.DataFrame, cells: list[dict[str, Any]], arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Write the cells, their rows and outcomes, in the order of the variants and of the seeds."""
        order = {variant.name: place for place, variant in enumerate(self.experiment.variants)}
        cells = sorted(cells, key=lambda cell: (order.get(cell["variant"], len(order)), cell["seed"]))
        place = {(cell["variant"], cell["seed"]): place for place, cell in enumerate(cells)}
        frame = frame.assign(_place=[place.get(cell) for cell in cells_of(frame)]).dropna(subset="_place")
        frame = frame.sort_values("_place", kind="stable").drop(columns="_place")
        said = {
            "experiment": self.experiment.name,
            "description": self.experiment.description,
            "scale": self.scale,
            "backbone": backbones.shown(self.backbone),
            "backbone_sha256": backbones.content_sha256(self.backbone),
        }
        write_files(self.csv, self.npz, self.json, frame, self._arrays() | dict(arrays or {}), said, cells)
