"""The frame around a notebook: its parameters checked, its seed set, its figures and verdicts kept.

The setup cell of every notebook::

    run = notebook.start("01_attention", scale=scale, backbone=backbone, seed=seed, rerun=rerun,
                         output_dir=output_dir, pooling=pooling, layer=layer,
                         allowed={"pooling": ["mean", "last-token"], "layer": range(31)})
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pandas as pd
import torch
import transformers
from IPython import get_ipython
from IPython.display import Markdown, display
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from .. import __version__, backbones, figures
from ..errors import InvalidValueError
from ..evaluation.effects import Quantity
from ..files import ROOT, atomic_file, cache_path
from ..papers import claims, ledger
from ..papers.verdicts import Verdict, judge
from ..scale import Scale, live_scale
from . import parameters, results

PACKAGES = ("torch", "transformers", "sentence-transformers", "mteb", "peft", "numpy", "scikit-learn", "matplotlib")
"""The packages whose versions decide the results of a notebook."""


def start(
    notebook: str,
    *,
    scale: str,
    backbone: str,
    seed: int,
    rerun: bool,
    output_dir: str | Path,
    allowed: Mapping[str, Any] | None = None,
    **own: Any,
) -> Run:
    """Check a notebook's parameters, set the seed and the figure style, and start its record afresh.

    Results of an earlier run of the notebook in the output folder are removed, so that a run that fails leaves no old
    verdicts and figures behind.

    Args:
        notebook: The notebook's name, such as ``01_attention``; its number prefixes the figures.
        scale: Name of the scale.
        backbone: Name, folder or hub id of the backbone.
        seed: Seed of python, numpy and torch.
        rerun: Compute live what is otherwise read from recorded runs.
        output_dir: Folder for figures and verdicts; ``""`` for ``outputs/<scale>`` of the project.
        allowed: The allowed values of each of the notebook's own parameters: a list, a ``range``, a type such as
            ``float``, or an annotated type such as ``Annotated[float, Field(gt=0)]``.
        **own: The notebook's own parameters, each with an entry in ``allowed``.

    Raises:
        UnknownNameError: A parameter injected by papermill that does not exist, or a value that is not in its list.
        InvalidValueError: A value of the wrong type or out of range, or a scale that is recorded and not run live.
        ModelNotFoundError: The backbone is not on this machine and can't be fetched.
        DamagedFileError: The backbone is damaged, or ``claims.json`` in ``output_dir`` does not hold verdicts.
        OutputError: ``output_dir`` can't be written.
    """
    allowed = dict(allowed or {})
    if unmatched := sorted(set(own) ^ set(allowed)):
        raise InvalidValueError("allowed", "one entry for each of the notebook's own parameters", unmatched)
    parameters.refuse_unknown(["scale", *parameters.COMMON, *own])
    chosen = live_scale(scale)
    for name, value in {"backbone": backbone, "seed": seed, "rerun": rerun, "output_dir": output_dir}.items():
        parameters.check(name, value, *parameters.COMMON[name])
    for name, rule in allowed.items():
        parameters.check_own(name, own[name], rule)
    if backbone not in backbones.TINY:
        backbones.resolve(backbone)  # absent or damaged: said here, not after minutes of work
    figures.use_style()
    pd.set_option("display.max_colwidth", None, "display.width", 120)  # tables show their texts whole
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if (shell := get_ipython()) is not None:
        _silence_progress_bars()
        shell.display_formatter.formatters["image/png"].for_type(Figure, figures.png)
        shell.display_formatter.formatters["text/html"].for_type(pd.DataFrame, _html)
    folder = Path(output_dir).expanduser().resolve() if str(output_dir) else ROOT / "outputs" / chosen.name
    return Run(notebook, chosen, backbone, seed, rerun, folder, own)


class Run:
    """One run of a notebook: its parameters, and the folder of its results. :func:`start` makes it.

    Attributes:
        scale: The scale, with its sizes.
        backbone: Name of the backbone.
        seed: The seed.
        rerun: Whether to compute live what is otherwise read from recorded runs.
        output_dir: Folder of the results.
    """

    def __init__(
        self,
        notebook: str,
        scale: Scale,
        backbone: str,
        seed: int,
        rerun: bool,
        output_dir: Path,
        own: Mapping[str, Any],
    ):
        self.notebook = Path(notebook).stem
        self.scale = scale
        self.backbone = backbone
        self.seed = seed
        self.rerun = rerun
        self.output_dir = output_dir
        self._own = dict(own)
        self._judged: dict[str, Verdict] = {}
        self._began = time.monotonic()
        self._figures: list[str] = []
        results.clear(output_dir, self.notebook)
        self._write_manifest()

    def __repr__(self) -> str:
        own = "".join(f", {name}={value!r}" for name, value in self._own.items())
        return f"{self.notebook} at scale {self.scale.name}: backbone={self.backbone!r}, seed={self.seed}{own}"

    def figure(self, fig: Figure, name: str, data: pd.DataFrame) -> None:
        """Save a figure as ``figures/NN_name`` under the output folder, with its data, and show it.

        Args:
            fig: A figure from a function of `workbook.figures`.
            name: File name without number and ending.
            data: The plotted values.

        Raises:
            InvalidValueError: ``name`` is not a plain file name, or ``data`` not a frame.
            OutputError: The folder can't be written, or holds a file of that name that is from no run of ours.
        """
        stem, folder = results.figure_name(self.notebook, name), self.output_dir / "figures"
        names = [f"{stem}.{ending}" for ending in figures.ENDINGS]
        if not set(names) <= set(self._figures):
            # The same notebook may run twice at a time: what the other lists is ours as well.
            self._figures = list(dict.fromkeys([*self._figures, *results.listed(self.output_dir, self.notebook)]))
            results.refuse_foreign(folder / one for one in names if one not in self._figures)
            self._figures = list(dict.fromkeys([*self._figures, *names]))
            self._write_manifest()  # listed before they are written, so that a killed run's are dropped too
        figures.save(fig, stem, data, folder)
        if get_ipython() is not None:
            display(fig, metadata={"image/png": {"alt": figures.described(stem) or figures.titles(fig) or stem}})

    def experiment(self, name: str, recorded: str = "cpu") -> pd.DataFrame:
        """The rows of an experiment: as recorded, and with ``rerun`` also its ``rerun_variants`` from this run.

        A record of earlier recipes or data is returned too, under a note that says so. If nothing is recorded for a
        backbone, ``rerun`` computes all variants. Live results are kept in the cache, cell by cell: a stopped run
        continues where it was.

        Args:
            name: A name from ``workbook.experiments.EXPERIMENTS``.
            recorded: Scale of the record.

        Returns:
            Tidy rows; ``source`` is ``recorded`` or ``this run``, ``label`` the variant, marked if it is from this run.

        Raises:
            UnknownNameError: No such experiment or scale.
            MissingDataError: No record of this backbone, and no ``rerun``.
            DamagedFileError: The record can't be read.
        """
        from .. import experiments  # here, since sentence-transformers takes seconds to import

        experiment = experiments.get(name)
        record = experiments.Record(experiment, recorded, self.backbone)
        frames = []
        if record.exists() or not self.rerun:
            frames.append(record.load(stale=True).assign(source="recorded"))
            if warning := record.warning():
                _note(f"**Not today's numbers.** {warning}")
        variants = experiment.rerun_variants if frames else tuple(variant.name for variant in experiment.variants)
        if self.rerun and variants:
            live = experiments.Record(experiment, self.scale.name, self.backbone, cache_path("runs"))
            frames.append(live.fill([self.seed], variants, progress=False).assign(source="this run"))
        frame = pd.concat(frames, ignore_index=True)
        live = frame["source"] == "this run"
        return frame.assign(label=frame["variant"].mask(live, frame["variant"] + " (this run)"))

    def level(self, recorded: str, *frames: pd.DataFrame) -> str:
        """Scale of what claims are judged by: that of the records, or this run's if some of it has no record.

        Args:
            recorded: Scale of the records.
            *frames: Frames from :meth:`experiment`.
        """
        return recorded if all("recorded" in set(frame["source"]) for frame in frames) else self.scale.name

    def recorded(self, name: str, recorded: str = "cpu") -> str:
        """One line on the origin of an experiment's recorded numbers, for the text under its table.

        Args:
            name: A name from ``workbook.experiments.EXPERIMENTS``.
            recorded: Scale of the record.

        Raises:
            UnknownNameError: No such experiment or scale.
            DamagedFileError: The record can't be read.
        """
        from .. import experiments

        return experiments.Record(experiments.get(name), recorded, self.backbone).provenance()

    def claim(
        self,
        claim_id: str,
        *,
        scale: str | None = None,
        **measured: Quantity | float,
    ) -> Verdict:
        """Judge a claim by what this run measured or read, and record the verdict in ``claims.json``.

        Args:
            claim_id: Its id in ``data/claims.json``.
            scale: Scale of what was measured, if it is from a record and not from this run.
            **measured: Quantities by the names in the claim's rule; a bare number has no sampling error.

        Raises:
            UnknownNameError: No such claim or scale.
            InvalidValueError: The claim can't be used.
            OutputError: The folder can't be written.
        """
        verdict = judge(
            claims.get(claim_id),
            measured,
            scale=scale or self.scale.name,
            notebook=self.notebook,
            resamples=self.scale.resamples,
        )
        claims.write([verdict], self.output_dir / "claims.json")
        self._judged[claim_id] = verdict
        return verdict

    def claims(self, measured: Mapping[str, Quantity | float], *, scale: str | None = None) -> list[Verdict]:
        """Judge all claims of this notebook that were not judged before; see :meth:`claim`.

        Args:
            measured: Quantities by the names in the rules. A clause is not tested if one of its names is not there.
            scale: See :meth:`claim`.
        """
        return [
            self.claim(claim.id, scale=scale, **measured)
            for claim in claims.load().values()
            if claim.notebook == self.notebook and claim.id not in self._judged
        ]

    def effects(self) -> pd.DataFrame:
        """The effects of the claims judged so far, one row per clause, see `workbook.papers.ledger.effects`."""
        return ledger.effects(self._judged.values())

    def forest(self, title: str) -> None:
        """Draw the effects in points of the claims judged so far, beside the paper's, as the figure ``effects``.

        A clause that is not tested has no effect to look at: its number, and why, stand in the table alone.

        Args:
            title: The figure's title.

        Raises:
            OutputError: As :meth:`figure`.
        """
        rows = self.effects().query("unit == 'points' and effect.notna() and found != 'not tested'", engine="python")
        # Two papers may claim the opposite of each other: a difference stands there once.
        rows = rows[~rows["label"].map(lambda words: frozenset(words.replace(": ", " - ").split(" - "))).duplicated()]
        if len(rows):
            xlabel = "difference in points, so that more is what is claimed"
            drawn = figures.forest(rows.assign(verdict=rows["found"]), title=title, xlabel=xlabel)
            self.figure(drawn, "effects", rows)

    def verdicts(self) -> Words:
        """The claims judged so far in words, one row each, see `workbook.papers.ledger.readable`."""
        return Words(ledger.readable(self.effects()), ("verdict", "claim"))

    def provenance(self) -> str:
        """The versions and settings of the results, for the last cell: the same text on every machine with these pins.

        Device, times and the interpreter go to ``manifests/<notebook>.json`` in the output folder.

        Raises:
            OutputError: The folder can't be written.
        """
        self._write_manifest()
        versions = ", ".join(f"{name} {version}" for name, version in _versions().items())
        return f"{self!r}\n{versions}"

    def _write_manifest(self) -> None:
        cuda = torch.cuda.is_available()
        carried = backbones.CARRIED.get(self.backbone)
        manifest = {
            "notebook": self.notebook,
            "parameters": {
                "scale": self.scale.name,
                "backbone": self.backbone,
                "seed": self.seed,
                "rerun": self.rerun,
                **self._own,
            },
            "backbone_sha256": carried.sha256 if carried else None,
            "figures": self._figures,
            "versions": _versions(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "device": torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {os.cpu_count()} cores",
            "threads": torch.get_num_threads(),
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._began, 1),
        }
        with atomic_file(self.output_dir / "manifests" / f"{self.notebook}.json") as temporary:
            temporary.write_text(json.dumps(manifest, indent=1, default=str) + "\n", encoding="utf-8")


class Words:
    """A table of sentences: in a notebook its cells wrap and keep their lines, as text each row is a line.

    Args:
        frame: The table; its columns are text.
        line: The columns of the text form, in this order; None for all. A notebook's file holds both forms.
    """

    def __init__(self, frame: pd.DataFrame, line: Sequence[str] | None = None):
        self.frame, self.line = frame, list(frame if line is None else line)

    def __repr__(self) -> str:
        rows = self.frame[self.line].itertuples(index=False)
        return "\n".join(" | ".join(row).replace("\n", "; ") for row in rows)

    def _repr_html_(self) -> str:
        # Once for the table: a style of every cell would name each by an id, half of the page.
        cells = "white-space: pre-line; text-align: left; vertical-align: top; overflow-wrap: anywhere"
        styles = [{"selector": "td", "props": cells}, {"selector": "th", "props": "text-align: left"}]
        shown = Styler(self.frame, uuid="words", cell_ids=False).hide(axis="index").format(escape="html")
        page = shown.set_table_styles(styles).to_html()
        page = re.sub(r' class="[^"]*"', "", page)  # a tenth of the page, which no style asks for
        return re.sub(r">\n\s*<", "><", page)  # lines within cells stay


def _html(frame: pd.DataFrame) -> str:
    """A table without the line and the indent that pandas gives each cell: a twentieth of a notebook's file."""
    return " ".join(frame._repr_html_().split()).replace("> <", "><")


def _versions() -> dict[str, str]:
    """Versions without the local part, which only names the platform of a wheel (``2.13.0+cu130``)."""
    return {"workbook": __version__} | {name: metadata.version(name).split("+")[0] for name in PACKAGES}


def _note(text: str) -> None:
    """Show a note in the notebook, or a warning outside one."""
    if get_ipython() is None:
        warnings.warn(text, stacklevel=3)
    else:
        display(Markdown(f"> {text}"))


def _silence_progress_bars() -> None:
    """Switch off loading bars, which would fill a notebook with timings that differ from run to run."""
    transformers.utils.logging.disable_progress_bar()
    huggingface_hub.utils.disable_progress_bars()
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
