"""Training a method into a folder: what was asked for is written down first, and a resume must ask for the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFileError, InvalidValueError, MissingDataError, OutputError
from ..files import atomic_file, atomic_folder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .recipe import Recipe
    from .run import Trained

PLAN = "training.json"
HISTORY = "history.csv"


def train_into(
    output: Path,
    model: SentenceTransformer,
    recipe: Recipe,
    *,
    plan: Mapping[str, Any],
    seed: int = 0,
    data: Mapping[str, str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Trained:
    """Train a model by a recipe and save it into a folder.

    The folder holds the model, as sentence-transformers saves it, ``training.json`` (what was asked for, and what came
    of it) and ``history.csv`` (the loss by step).

    Args:
        output: The folder; it must be absent or empty, or hold the same training if it is resumed. A training that
            ended before anything of it was kept is not in the way.
        model: As built.
        recipe: Its stages.
        plan: What else identifies the training, such as method, scale and backbone; plain data.
        seed: As for :func:`~.run.train`.
        data: Sources or files in place of the recipe's own, by stage.
        resume: Go on with the training that the folder holds.
        progress: As for :func:`~.run.train`.

    Raises:
        OutputError: The folder holds something else, or can't be written.
        MissingDataError: Nothing to resume.
        InvalidValueError: A resume that asks for something else; the message names what differs.
        DamagedFileError: ``training.json`` can't be read.
    """
    from .run import Training

    training = Training(model, recipe, seed=seed, data=data, progress=progress)
    asked = {
        **plan,
        "seed": seed,
        "stages": {
            # The data by content: a file may be moved, but not changed.
            one.stage.name: one.stage.resolved() | {"data": one.data.fingerprint}
            for one in training.stages
        },
    }
    asked = json.loads(json.dumps(asked))
    written = {"asked": asked, "keys": [one.key for one in training.stages]}
    _check(output, asked, resume)
    training.processes.wait_for_everyone()  # each process has looked before one writes
    writes = training.processes.is_main_process
    if writes:
        with atomic_file(output / PLAN) as temporary:
            temporary.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    trained = training.run()
    if writes:
        done = {
            name: {key: record[key] for key in ("key", "source", "tokens", "seconds", "device", "platform", "versions")}
            for name, record in trained.manifest["stages"].items()
        }
        with atomic_folder(output) as folder:
            trained.model.save_pretrained(str(folder))
            (folder / PLAN).write_text(json.dumps(written | {"done": done}, indent=1) + "\n", encoding="utf-8")
            trained.history.to_csv(folder / HISTORY, index=False, lineterminator="\n")
    return trained


def _check(output: Path, asked: Mapping[str, Any], resume: bool) -> None:
    from .stage import begun

    path = output / PLAN
    if not path.is_file():
        if resume:
            raise MissingDataError(
                f"Expected a training to resume in {output}, found no {PLAN}. Start one: leave --resume out."
            )
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise OutputError(f"Expected an absent or empty folder, got {output}. Choose another with --output.")
        return
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        before, keys = plan["asked"], plan["keys"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(
            f"{path}: expected what a training was asked for, got {error!r}. Start again in another folder."
        ) from error
    if "done" not in plan and not any(map(begun, keys)):
        return  # nothing would be lost: it ended, perhaps over its data, before anything was kept
    if not resume:
        raise OutputError(
            f"{output} holds a training already. Go on with it by --resume, or choose another folder with --output."
        )
    changed = [f"{name} {was!r}, now {now!r}" for name, was, now in _differences(before, asked)]
    if changed:
        raise InvalidValueError(
            f"resume of {output}",
            "the training that it holds",
            "another",
            f"It was begun with {'; '.join(changed)}. Ask for the same, or choose another folder with --output.",
        )


def _differences(before: Any, now: Any, name: str = "") -> Sequence[tuple[str, Any, Any]]:
    """The leaves in which two nested dicts differ: (dotted name, before, now)."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            difference
            for key in dict.fromkeys([*before, *now])
            for difference in _differences(before.get(key), now.get(key), f"{name}.{key}".lstrip("."))
        ]
    return [] if before == now else [(name, before, now)]
