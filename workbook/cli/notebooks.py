"""Commands about notebooks, their records and their claims."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidValueError
from ..files import ROOT
from ..scale import get_scale, live_scale
from .application import ScaleOption, app, bars_wanted, say


@app.command()
def run(
    notebooks: Annotated[
        list[str] | None, typer.Argument(metavar="[NN]...", help="Numbers or names, such as 01; all of them if none.")
    ] = None,
    scale: ScaleOption = "cpu",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run folder; outputs/SCALE of the project if not given.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Backbone; the notebooks' own default if not given.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; the notebooks' own default if not given.")] = None,
    rerun: Annotated[
        bool | None,
        typer.Option(help="Compute live what is otherwise read from recorded runs; by default above scale quick."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="How many notebooks at a time.")] = 1,
    cell_timeout: Annotated[
        int | None, typer.Option(min=1, help="Seconds a cell may take; a longer one fails its notebook.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--notebooks", help="Folder of the notebooks, if not the project's.")
    ] = None,
) -> None:
    """Execute notebooks and write a report, after each of them.

    A stopped run continues where it was; an unchanged notebook is not run again.
    A notebook that fails does not stop the others, but the exit code is 1.
    """
    from ..runs import report, runner

    rerun = live_scale(scale).name != "quick" if rerun is None else rerun
    if backbone and (folder := Path(backbone).expanduser()).is_dir():
        backbone = str(folder.resolve())  # a notebook runs in its own folder, where a relative path would start
    optional = {"backbone": backbone, "seed": seed}
    parameters = {"scale": scale, "rerun": rerun} | {k: v for k, v in optional.items() if v is not None}
    chosen = runner.find(notebooks or [], source)
    began = time.monotonic()
    width = max(len(path.stem) for path in chosen)
    failed = 0
    folder = output or ROOT / "outputs" / scale
    with _bars() as told, runner.Session(folder, parameters, cell_timeout, told) as session:
        for outcome in session.run(chosen, jobs):
            told(outcome.name)
            failed += outcome.status == runner.FAILED
            print(
                f"{outcome.name:<{width}}  {outcome.status:<9}  {outcome.seconds:7.1f} s  "
                f"({_clock(time.monotonic() - began)} elapsed)  {outcome.problem}".rstrip(),
                flush=True,
            )
            page = report.write(session.folder)  # after each, so that a stopped run leaves one
    print(f"Report: {page}")
    raise typer.Exit(1 if failed else 0)


@app.command("report")
def write_report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Run folder, such as outputs/cpu.")],
) -> None:
    """Write index.html, and a page for each executed notebook, into the folder of a run, finished or stopped."""
    from ..runs import report

    print(f"Report: {report.write(folder)}")


@app.command()
def claims(
    scale: ScaleOption = "cpu",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run folder; outputs/SCALE of the project if not given.")
    ] = None,
) -> None:
    """Print what a run found for each claim of the papers; write ledger.json, ledger.csv and a figure into its folder.

    Published and here are effects: the claimed difference in its units, with its 95% interval.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ..papers import ledger

    folder = output or ROOT / "outputs" / get_scale(scale).name
    rows = ledger.write(folder)
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    for paper, part in rows.groupby("paper", sort=False):
        text = ledger.readable(part)
        drawn = Table(*text.columns, title=paper, show_lines=True)
        for cells in text.itertuples(index=False):
            drawn.add_row(*map(escape, cells))
        console.print(drawn)
    print(ledger.counts(rows).to_string())
    print(f"Ledger: {folder / 'ledger.json'}, {folder / 'ledger.csv'}")


@app.command()
def record(
    notebooks: Annotated[
        list[str],
        typer.Argument(metavar="NN...", help="Numbers of notebooks, or names of experiments, in the order to record."),
    ],
    scale: ScaleOption = "cpu",
    backbone: Annotated[str, typer.Option(help="Carried model, folder or Hub id.")] = "smollm2-135m",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, counted from 0.")] = 3,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only that variant, of a single experiment; may be repeated, in their order."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; data/runs if not given.")] = None,
) -> None:
    """Record experiments, one variant and seed at a time; what is recorded and current is kept.

    Without --output, records go into data/runs, where notebooks read them. Name another folder for a trial.

    Each is computed in a process of its own, so that memory does not grow over days.
    A stopped command continues where it was. Several at once share the work.
    """
    from .. import experiments

    get_scale(scale)
    chosen = [experiments.Record(experiment, scale, backbone, output) for experiment in experiments.find(notebooks)]
    names = tuple(variant or ())
    if names and len(chosen) > 1:
        raise InvalidValueError("--variant", "one experiment", ", ".join(one.experiment.name for one in chosen))
    for seed in range(seeds):  # a whole table of one seed is worth more than three seeds of half a table
        for one in chosen:
            one.fill(range(seed + 1), names, wait=False, apart=True, progress=bars_wanted(), told=say)
    for one in chosen:
        one.fill(range(seeds), names, apart=True, progress=bars_wanted(), told=say)
        print(one.provenance())


@app.command()
def doctor() -> None:
    """Print what is installed, which models are available, which device is used, and whether the notebooks can run."""
    from .. import doctor

    findings = doctor.examine()
    width = max(len(finding.name) for finding in findings)
    marks = {True: "ok", False: "MISSING", None: "-"}
    for finding in findings:
        print(f"{marks[finding.well]:<7}  {finding.name:<{width}}  {finding.detail}")
    ready = all(finding.well is not False for finding in findings)
    print("The notebooks can run." if ready else "The notebooks can't run: see what is MISSING above.")
    raise typer.Exit(0 if ready else 1)


@contextlib.contextmanager
def _bars() -> Iterator[Callable[..., None]]:
    """A bar for each notebook that runs, if the output is a terminal and the command not quiet.

    Yields:
        Function of a notebook, of the number of the cell that begins, and of the number of all; without these the
        notebook has ended, and its bar goes away.
    """
    if bars_wanted() is False or not sys.stdout.isatty():
        yield lambda *_: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    cells = TextColumn("cell {task.fields[cell]} of {task.total}")
    with Progress(
        TextColumn("{task.description}"), BarColumn(), cells, TimeElapsedColumn(), transient=True
    ) as progress:
        tasks: dict[str, Any] = {}

        def told(name: str, cell: int = 0, of: int = 0) -> None:
            if not cell:
                if name in tasks:
                    progress.remove_task(tasks.pop(name))
            elif name in tasks:
                progress.update(tasks[name], completed=cell - 1, cell=cell)
            else:
                tasks[name] = progress.add_task(name, total=of, cell=cell)

        yield told


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"
