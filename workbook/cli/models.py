"""Commands about models: train, take over, measure and compress them."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidValueError, OutputError
from ..scale import get_scale
from .application import ScaleOption, app, bars_wanted, say

if TYPE_CHECKING:
    from ..training import Evaluator


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

    from .. import backbones, methods, training
    from ..training.devices import take_device

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
        progress=bars_wanted(),
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
    from .. import training

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

    from .. import published

    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    published.convert(model, output, dtype, told=say)
    print(f"Model: {output}")


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

    from .. import embedders, evaluation
    from ..training.folder import CARD, write_scores

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
        progress=bars_wanted(),
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
            help="magnitude, wanda, sparsegpt or random (a control) with --sparsity, rtn or gptq with --form alone; by "
            "default, and for --form beside --sparsity, the paper's: sparsegpt and gptq."
        ),
    ] = None,
    instruction: Annotated[str | None, typer.Option(help="With which the calibration texts are read.")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Backbone of a method: carried model, folder or Hub id; by default smollm2-135m.")
    ] = None,
) -> None:
    """Prune a model's decoder, store it in 8 bits, or both, without training, and write the model.

    It is calibrated on 128 documents of the docs corpus, or on more if a layer has more columns than these have tokens.
    Change is the length of the weights' difference over theirs.
    """
    if not (sparsity or form):
        raise InvalidValueError("compress", "--sparsity, --form or both", "neither")
    from transformers.utils import logging as transformers_logging

    from .. import compress as compression
    from .. import embedders
    from ..files import atomic_folder, refuse_filled

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


def _evaluator(suites: list[str] | None, every: int, scale: str) -> Evaluator:
    from .. import evaluation

    return evaluation.along(suites or evaluation.OFFLINE_SUITES, every, scale)


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
