"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import __version__
from .errors import InvalidValueError, OutputError, WorkbookError
from .files import ROOT
from .scale import SCALES, get_scale, live_scale

if TYPE_CHECKING:
    from .training import Evaluator

app = typer.Typer(
    name="workbook",
    help="Five ways to turn a decoder-only LLM into a text embedder: learn them, train them, take them apart.",
    epilog="Exit codes: 0 all went well; 1 a notebook failed, or can't run here; 2 a wrong argument, file or folder; "
    "130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_LOG = logging.getLogger("workbook")
"""What the library says of its decisions; its level is how much the command line tells."""

ScaleOption = Annotated[str, typer.Option("--scale", "-s", help=f"How much of everything: {', '.join(SCALES)}.")]


def main() -> None:
    """Run the command line; an error that the user can fix prints as one message.

    Raises:
        SystemExit: With 2 after such an error, otherwise with the command's exit code.
    """
    try:
        app()
    except WorkbookError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _print_version(asked: bool) -> None:
    if asked:
        print(f"workbook {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Say on stderr what train and evaluate decide: device, dtype, attention, caches."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results, warnings and errors alone: no bars.")
    ] = False,
) -> None:
    """Take the options that come before a command."""
    if verbose and quiet:
        raise InvalidValueError("--quiet", "--quiet or --verbose", "both")
    _LOG.setLevel(logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING)
    _LOG.handlers = [logging.StreamHandler()] if verbose else []


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
    from .runs import report, runner

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
    from .runs import report

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

    from .papers import ledger

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
def train(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Name of a method, such as llm2vec.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Folder for the model, absent or empty. Files added later stay; a second training is refused.",
        ),
    ],
    scale: ScaleOption = "cpu",
    backbone: Annotated[str, typer.Option(help="Carried model, folder or Hub id.")] = "smollm2-135m",
    seed: Annotated[int, typer.Option(min=0, help="Of data order, masks, dropout and adapters.")] = 0,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE=FILE", help="Own data for a stage (.jsonl, .csv, .txt); may be repeated."),
    ] = None,
    stages: Annotated[
        str | None, typer.Option(help="Only these stages, such as mntp,simcse; all of the recipe if not given.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of the method's chain, such as suffix=keywords; may be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="STAGE.FIELD=VALUE",
            help="Another value in the recipe, such as contrastive.steps=500 or mntp.adapter.rank=8; may be repeated.",
        ),
    ] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Evaluate every N steps of the last stage, into curve.csv.")
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="What --evaluate-every evaluates on; both offline suites if not given; may be repeated."),
    ] = None,
    report_to: Annotated[
        str | None,
        typer.Option(help="Installed experiment trackers: tensorboard (into OUTPUT/logs), wandb, or both by a comma."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only try each stage on its longest rows and print what it takes; no file is left."
        ),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training that OUTPUT holds.")] = False,
) -> None:
    """Train a method by its recipe and write a model in the format of sentence-transformers.

    With --resume, a training that was stopped continues from its last checkpoint and ends with the same weights.
    """
    from accelerate import PartialState
    from datasets.utils import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    from . import backbones, methods, training
    from .training.devices import take_device

    given = _assigned("--option", "NAME=VALUE, such as suffix=answer", option or [])
    take_device(cpu=given.get("device") == "cpu")

    # Warnings about the data are for its owner, to whom our source line says nothing.
    warnings.formatwarning = lambda message, *_: f"Warning: {message}\n"

    # One bar, the training's own: none for reading files or writing shards.
    disable_progress_bars()
    transformers_logging.disable_progress_bar()
    recipe = methods.recipe(method, scale, backbone)
    recipe = recipe if stages is None else recipe.only(*stages.split(","))
    changes = _assigned("--set", "STAGE.FIELD=VALUE, such as contrastive.steps=500", settings or [])
    recipe = recipe.changed({place: _plain(value) for place, value in changes.items()})
    own = _assigned("--data", "STAGE=FILE, such as contrastive=pairs.jsonl", data or [])
    if suite and not evaluate_every:
        raise InvalidValueError("--suite", "--evaluate-every beside it", suite, "It says what that evaluates on.")
    evaluator = _evaluator(suite, evaluate_every, scale) if evaluate_every else None
    options = methods.options(method, scale, backbone) | {name: _plain(value) for name, value in given.items()}
    chain, _ = methods.get(method).chain.with_loading(**options)
    plan = {
        "method": method,
        "scale": scale,
        "backbone": backbone,
        "backbone_sha256": backbones.content_sha256(backbone),
        "options": options,
        "chain": chain.resolved(),
    }
    model = methods.build(method, backbone, **options)
    if check:
        table = training.rehearse(model, recipe, seed=seed, data=own)
        if PartialState().is_main_process:
            print(table.to_string(index=False, float_format=lambda number: f"{number:,.3g}"))
        return
    trained = training.train_into(
        output,
        model,
        recipe,
        plan=plan,
        seed=seed,
        data=own,
        evaluator=evaluator,
        resume=resume,
        progress=_progress(),
        report_to=report_to.split(",") if report_to else [],
    )
    if not PartialState().is_main_process:
        return
    if trained is None:
        print(f"Nothing to do: {output} holds this training, done and whole.")
        return
    for stage, rows in trained.history.groupby("stage", sort=False):
        last = rows.iloc[-1]
        print(f"{stage}: {last.step:.0f} steps, {last.tokens:.0f} tokens, {last.seconds:.0f} s, loss {last.loss:.3f}")
    print(f"Model: {output}")


@app.command()
def adapters(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder that train wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the adapters, absent or empty.")],
) -> None:
    """Write the low-rank adapters of each stage of a training as folders that peft reads.

    They are merged into the trained model's weights. On the backbone, in their order, they give its decoder again.
    """
    from . import training

    folders = training.export_adapters(model, output)
    print(f"Adapters: {', '.join(map(str, folders))}")
    print(f"They are merged again by workbook.build(METHOD, BACKBONE, adapter={[*map(str, folders)]}).")


@app.command("import")
def import_checkpoint(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Local folder in the published layout of NV-Embed or LENS, or nvidia/NV-Embed-v2."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model, absent or empty.")],
    dtype: Annotated[
        str | None, typer.Option(help="Of the weights: float32, bfloat16 or float16; the checkpoint's if not given.")
    ] = None,
) -> None:
    """Read a published checkpoint and write it in the format of sentence-transformers, with this library's modules.

    Nothing but safetensors is read, and no code that comes with the checkpoint is run.
    Its names, shapes and settings are checked first, and its attention is measured.
    """
    from transformers.utils import logging as transformers_logging

    from . import published

    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    published.convert(model, output, dtype, told=_told)
    print(f"Model: {output}")


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
    from . import experiments

    get_scale(scale)
    chosen = [experiments.Record(experiment, scale, backbone, output) for experiment in experiments.find(notebooks)]
    names = tuple(variant or ())
    if names and len(chosen) > 1:
        raise InvalidValueError("--variant", "one experiment", ", ".join(one.experiment.name for one in chosen))
    for seed in range(seeds):  # a whole table of one seed is worth more than three seeds of half a table
        for one in chosen:
            one.fill(range(seed + 1), names, wait=False, apart=True, progress=_progress(), told=_told)
    for one in chosen:
        one.fill(range(seeds), names, apart=True, progress=_progress(), told=_told)
        print(one.provenance())


@app.command()
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a saved model, a method (untrained), the carried encoder minilm, or a Hub id.",
        ),
    ],
    suite: Annotated[
        list[str] | None,
        typer.Option(help="Suite of tasks, or any mteb task; may be repeated; both offline suites if not given."),
    ] = None,
    scale: ScaleOption = "cpu",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the table there, as CSV, task by task.")
    ] = None,
    mteb_results: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write mteb's own result files there, as its leaderboard reads them."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Backbone of a method: carried model, folder or Hub id; by default smollm2-135m.")
    ] = None,
    instructions: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A paper's set of instructions, or none; by default the method's own, for offline tasks the suite's.",
        ),
    ] = "",
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a text; by default 512, and the scale's in the offline suites.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per batch.")] = 32,
    devices: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Devices, such as cuda:0,cuda:1; the best one if not given.")
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep the result of each task, and take what is kept.")
    ] = True,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Run Python code that the model's folder holds or names, beyond workbook and sentence-transformers.",
        ),
    ] = False,
) -> None:
    """Evaluate a model on suites of tasks; scores are points with 95% intervals.

    They also go into the card (README.md) of a folder that train wrote.

    A stopped command continues at the task where it was.
    """
    get_scale(scale)
    if mteb_results and not cache:
        raise InvalidValueError("--mteb-results", "--cache", "--no-cache", "The files come from what is kept.")
    from transformers.utils import logging as transformers_logging

    from . import embedders, evaluation
    from .training.folder import CARD, write_scores

    # The output is a table: no loading bars, and no word on the dtype, which was chosen by measured capability.
    transformers_logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    several = devices.split(",") if devices else []
    one = embedders.load(
        model, backbone=backbone, device=several[0] if several else None, trust_remote_code=trust_remote_code
    )
    table = evaluation.evaluate(
        one.model,
        suite or evaluation.OFFLINE_SUITES,
        scale=scale,
        instructions=evaluation.instructions_of(instructions, one.method),
        name=one.name,
        batch_size=batch_size,
        max_length=max_length,
        devices=several if len(several) > 1 else (),
        key=one.key if cache else None,
        table=output,
        mteb_results=mteb_results,
        progress=_progress(),
    )
    parts = [part for part in (table, evaluation.average(table)) if len(part)]
    for part in parts:
        print(part.to_string(index=False, float_format=lambda number: f"{number:.1f}"))
    if output:
        print(f"Table: {output}")
    if mteb_results:
        print(f"Results of mteb: {mteb_results}")
    try:
        if one.folder and write_scores(one.folder, parts):
            print(f"Card: {one.folder / CARD}")
    except OutputError as error:  # the scores are above all the same
        print(f"Warning: the card was not written. {error}", file=sys.stderr)


@app.command()
def compress(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Folder of a saved model, or a method, which is compressed untrained."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model, absent or empty.")],
    sparsity: Annotated[
        str | None, typer.Option(help="Prune: N:M, such as 2:4 (of each 4 weights 2 stay), or a share, such as 0.5.")
    ] = None,
    form: Annotated[str | None, typer.Option(help="Quantize: int8, e4m3 or e5m2.")] = None,
    how: Annotated[
        str | None,
        typer.Option(
            help="magnitude, wanda or sparsegpt with --sparsity, rtn or gptq with --form alone; by default, and for "
            "--form beside --sparsity, the paper's: sparsegpt and gptq."
        ),
    ] = None,
    instruction: Annotated[str | None, typer.Option(help="With which the calibration texts are read.")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Backbone of a method: carried model, folder or Hub id; by default smollm2-135m.")
    ] = None,
) -> None:
    """Prune a model's decoder, store it in 8 bits, or both, without training, and write the model.

    It is calibrated on 128 documents of the docs corpus. Change is the length of the weights' difference over theirs.
    """
    if not (sparsity or form):
        raise InvalidValueError("compress", "--sparsity, --form or both", "neither")
    from transformers.utils import logging as transformers_logging

    from . import compress as compression
    from . import embedders
    from .files import atomic_folder, refuse_filled

    refuse_filled(output)
    transformers_logging.disable_progress_bar()
    before = small = embedders.load(model, backbone=backbone).model
    if sparsity:
        small = compression.prune(small, how or "sparsegpt", sparsity, instruction=instruction)
    if form:
        small = compression.quantize(small, (not sparsity and how) or "gptq", form, instruction=instruction)
    with atomic_folder(output) as folder:
        small.save_pretrained(str(folder))
    old, new = compression.report(before), compression.report(small, before)
    print(f"{'':<10}  {'before':>15}  {'after':>15}")
    for name, values in {
        "disk": (compression.disk_bytes(before), compression.disk_bytes(output)),
        "layers": (old["bytes"].sum(), new["bytes"].sum()),
    }.items():
        print(f"{name:<10}  {values[0]:>9,} bytes  {values[1]:>9,} bytes")
    print(f"{'zeros':<10}  {old['zeros'].mean():>15.1%}  {new['zeros'].mean():>15.1%}")
    print("Layers that changed most:")
    worst = new.nlargest(5, "change")[["block", "layer", "change", "zeros", "dtype", "bytes"]]
    print(worst.to_string(index=False, float_format=lambda number: f"{number:.3f}"))
    print(f"Model: {output}")


@app.command()
def doctor() -> None:
    """Print what is installed, which models are available, which device is used, and whether the notebooks can run."""
    from . import doctor

    findings = doctor.examine()
    width = max(len(finding.name) for finding in findings)
    marks = {True: "ok", False: "MISSING", None: "-"}
    for finding in findings:
        print(f"{marks[finding.well]:<7}  {finding.name:<{width}}  {finding.detail}")
    ready = all(finding.well is not False for finding in findings)
    print("The notebooks can run." if ready else "The notebooks can't run: see what is MISSING above.")
    raise typer.Exit(0 if ready else 1)


def _evaluator(suites: list[str] | None, every: int, scale: str) -> Evaluator:
    from . import evaluation

    return evaluation.along(suites or evaluation.OFFLINE_SUITES, every, scale)


def _progress() -> bool | None:
    """Whether to show bars, as the library takes it: not if the command is quiet, else where there is a terminal."""
    return None if _LOG.isEnabledFor(logging.WARNING) else False


def _told(what: str) -> None:
    """Say what was done beside a bar, or in a log, where it is seen at once; not if the command is quiet."""
    from tqdm import tqdm

    if _progress() is False:
        return
    tqdm.write(what)
    sys.stdout.flush()


def _assigned(option: str, expected: str, entries: Iterable[str]) -> dict[str, str]:
    """Values by name, from an option that may be repeated."""
    values: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not (name and equals and value):
            raise InvalidValueError(option, expected, entry)
        if name in values:
            raise InvalidValueError(option, f"one value for {name}", f"{values[name]} and {value}", "Give one of them.")
        values[name] = value
    return values


def _plain(value: str) -> Any:
    """The value of a number, true, false or other JSON; anything else stays a string."""
    try:
        return json.loads(value)
    except ValueError:
        return value


@contextlib.contextmanager
def _bars() -> Iterator[Callable[..., None]]:
    """A bar for each notebook that runs, if the output is a terminal and the command not quiet.

    Yields:
        Function of a notebook, of the number of the cell that begins, and of the number of all; without these the
        notebook has ended, and its bar goes away.
    """
    if _progress() is False or not sys.stdout.isatty():
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
