"""Training a method into a folder: the request is written down first, and a resume must repeat it."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
from pydantic import BaseModel, ConfigDict, ValidationError

from ..checksums import sha256
from ..errors import DamagedFileError, InvalidValueError, MissingDataError, OutputError, WorkbookError
from ..files import alone, atomic_file, cache_path, check_room, refuse_filled, remove_scratch, scratch_folder, writing

if TYPE_CHECKING:
    import pandas as pd
    from sentence_transformers import SentenceTransformer

    from .recipe import Evaluator, Recipe
    from .run import Trained

PLAN = "training.json"
HISTORY = "history.csv"
CURVE = "curve.csv"
CARD = "README.md"
LOGS = "logs"


class _Plan(BaseModel):
    """The content of ``training.json``."""

    model_config = ConfigDict(frozen=True, strict=True)

    asked: dict[str, Any]
    begun_with: dict[str, Any] = {}
    keys: list[str]
    files: dict[str, str] = {}
    done: dict[str, Any] | None = None


def train_into(
    output: Path,
    model: SentenceTransformer,
    recipe: Recipe,
    *,
    plan: Mapping[str, Any],
    seed: int = 0,
    data: Mapping[str, str] | None = None,
    evaluator: Evaluator | None = None,
    resume: bool = False,
    progress: bool | None = None,
    report_to: Sequence[str] = (),
) -> Trained | None:
    """Train a model by a recipe and save it into a folder.

    The folder holds the model, as sentence-transformers saves it, ``history.csv`` (the loss by step), with an evaluator
    ``curve.csv`` (what it measured, by step), and ``training.json``: the request, the result, and the checksum of each
    file that was written. Only those files are ever replaced; all others in the folder stay. TensorBoard's files lie in
    ``logs``, in a folder for each stage.

    The folder is written into before anything trains, and never replaced itself: it may be a mount point, a link, or
    the current folder. Meanwhile a second training into it is refused, even of the same recipe. With two folders, the
    same recipe is trained once, and the second training waits for the first.

    Args:
        output: The folder; it must be absent or empty, or hold the same training if it is resumed. A training that
            ended before anything of it was kept does not count.
        model: The model, as built.
        recipe: Its stages.
        plan: What else identifies the training, such as method, scale and backbone; plain data.
        seed: See :func:`~.run.train`.
        data: Sources or files in place of the recipe's own, by stage.
        evaluator: See :func:`~.run.train`.
        resume: Continue the training that the folder holds. What the cache no longer holds of it starts again, with a
            warning.
        progress, report_to: See :func:`~.run.train`.

    Returns:
        The trained model and its history; None if the folder already held it, finished and whole.

    Raises:
        OutputError: The folder holds something else, or other files where the model's belong; another training writes
            there; or it can't be written.
        MissingDataError: Nothing to resume.
        InvalidValueError: A resume that asks for something else, or would continue with other weights or versions of
            the library (the message names what differs); or as :func:`~.run.train`.
        DamagedFileError: ``training.json`` can't be read.
        UnknownNameError, TrainingError: As :func:`~.run.train`.
    """
    from .run import Training

    training = Training(
        model, recipe, seed=seed, data=data, evaluator=evaluator, progress=progress, report_to=report_to,
        logs=output / LOGS,
    )  # fmt: skip
    size = sum(parameter.nbytes for parameter in model.parameters())
    asked = {
        **plan,
        "seed": seed,
        "stages": {
            # The data by content: a file may be moved, but not changed.
            one.stage.name: one.stage.resolved() | {"data": one.data.fingerprint}
            for one in training.stages
        },
    }
    if evaluator:
        asked["evaluator"] = [evaluator.name, evaluator.every]
    written = {"asked": asked, "begun_with": training.surroundings, "keys": [one.key for one in training.stages]}
    written = json.loads(json.dumps(written))
    main = training.processes.is_main_process
    with contextlib.ExitStack() as held:
        if _decided(lambda: _begin(output, written, size, resume, held), main):
            return None
        trained = training.run()
        if main:
            _save(output, trained, written)
    return trained


def method_of(folder: Path) -> str | None:
    """The method by which a folder's model was trained, if ``workbook train`` wrote it; None for other folders.

    Args:
        folder: The folder.

    Raises:
        DamagedFileError: Its ``training.json`` can't be read.
    """
    plan = _plan(folder)
    return plan.asked.get("method") if plan else None


def finished_stages(folder: Path) -> tuple[str, dict[str, str]]:
    """The name of the backbone of a finished training, and the key of each stage in the cache, in their order.

    Args:
        folder: The folder that the training wrote.

    Raises:
        MissingDataError: No finished training in the folder.
        DamagedFileError: Its ``training.json`` can't be read.
    """
    plan = _plan(folder)
    if plan is None or plan.done is None:
        raise MissingDataError(
            f"Expected a finished training in {folder} (a folder with {PLAN}), found none. Give the folder that "
            "`train` wrote, and finish it by --resume if it was stopped."
        )
    return plan.asked.get("backbone", ""), {name: record["key"] for name, record in plan.done.items()}


def write_scores(folder: Path, scores: Sequence[pd.DataFrame]) -> bool:
    """Write scores into the card of a model that :func:`train_into` saved; the rest of the card stays as it is.

    Args:
        folder: The folder.
        scores: Frames, as of :meth:`~workbook.modules.card.Card.add_scores`.

    Returns:
        Whether they were written: not into other folders, whose cards are not ours to change, nor where there is none.

    Raises:
        DamagedFileError: ``training.json`` can't be read.
        OutputError: The folder can't be written, or a training writes there.
    """
    from ..modules.card import with_scores

    if not (plan := _plan(folder)) or plan.done is None or not (folder / CARD).is_file():
        return False
    with contextlib.ExitStack() as held:
        _hold(folder, held)
        plan = _plan(folder)
        text = before = (folder / CARD).read_bytes().decode("utf-8", "surrogateescape")
        for frame in scores:
            text = with_scores(text, frame)
        if text == before:
            return True
        with writing(folder), scratch_folder(folder) as scratch:
            (scratch / CARD).write_bytes(text.encode("utf-8", "surrogateescape"))
            if plan.files.get(CARD) == sha256(folder / CARD):  # a card that its reader changed is no longer ours
                files = plan.files | {CARD: sha256(scratch / CARD)}
                _write(folder, plan.model_copy(update={"files": files}).model_dump(mode="json"))
            os.replace(scratch / CARD, folder / CARD)
    return True


def _hold(folder: Path, held: contextlib.ExitStack) -> None:
    """Have the folder alone, as long as the stack holds it."""
    try:
        held.enter_context(alone(folder))
    except filelock.Timeout as error:
        raise OutputError(
            f"Another training is writing into {folder}. Wait for it to end, or choose another folder with --output."
        ) from error


def _decided(decide: Callable[[], bool], main: bool) -> bool:
    """The decision of the main process, in every process; its refusal ends them all."""
    from accelerate.utils import broadcast_object_list

    said, refusal = [False, ""], None
    if main:
        try:
            said[0] = decide()
        except WorkbookError as error:
            said[1], refusal = str(error), error
    broadcast_object_list(said)
    if said[1]:
        raise refusal or OutputError(said[1])
    return said[0]


def _begin(output: Path, written: dict[str, Any], size: int, resume: bool, held: contextlib.ExitStack) -> bool:
    """Lock the folder and write the plan into it; True if it already holds this training, finished and whole."""
    with writing(output):
        if _plan(output) is None:
            if resume:
                raise MissingDataError(
                    f"Expected a training to resume in {output}, found no {PLAN}. Start one: leave --resume out."
                )
            refuse_filled(output)
        _hold(output, held)
        before = _plan(output)
        remove_scratch(output)
        if before and _is_done(output, before, written, resume):
            return True
        check_room(output, size, "the model", "Make room, or choose a folder on a larger disk with --output.")
        _write(output, written | {"files": before.files if before else {}})
        return False


def _is_done(output: Path, before: _Plan, now: dict[str, Any], resume: bool) -> bool:
    """True if the training that a folder holds is finished and whole; refuses one that can't be continued.

    A training of which nothing is kept does not count: it ended before that, perhaps because of its data.
    """
    from .stage import begun

    done, kept = before.done is not None, [begun(key) for key in before.keys]
    if done or any(kept):
        if not resume:
            raise OutputError(
                f"{output} holds a training already. Go on with it by --resume, or choose another folder with --output."
            )
        _refuse_others(output, before.asked, now["asked"])
        found = {name: _sha256(output / name) for name in before.files}
        if done and found == before.files:
            return True
        _refuse_foreign(output, [name for name, own in before.files.items() if found[name] not in (own, None)])
        _refuse_others(output, before.begun_with, now["begun_with"])
    reached = len(kept) if done else max([1, *(number for number, is_kept in enumerate(kept, 1) if is_kept)])
    if resume and not all(kept[:reached]):
        warnings.warn(
            f"The cache {cache_path()} does not hold all of the training in {output}: it is another one, it was "
            "cleaned, or nothing was kept yet. What is missing begins anew.",
            stacklevel=2,
        )
    return False


def _refuse_others(output: Path, before: Any, now: Any) -> None:
    changed = [f"{name} {was!r}, now {now!r}" for name, was, now in _differences(before, now)]
    if changed:
        raise InvalidValueError(
            f"resume of {output}",
            "the training that it holds",
            "another",
            f"It was begun with {'; '.join(changed)}. Go back to that, or leave --resume out and choose another folder "
            "with --output.",
        )


def _refuse_foreign(output: Path, names: Sequence[str]) -> None:
    if names:
        raise OutputError(
            f"Expected to write {', '.join(names)} in {output}, found files there that this training did not write, "
            "or that were changed since. Move them away, then go on by --resume."
        )


def _save(output: Path, trained: Trained, written: dict[str, Any]) -> None:
    """Write model and history beside the folder's other files, and then note that they are whole."""
    with writing(output), scratch_folder(output) as scratch:
        made = scratch / "model"
        trained.model.save_pretrained(str(made))
        trained.history.to_csv(made / HISTORY, index=False, lineterminator="\n")
        if len(trained.curve):
            trained.curve.to_csv(made / CURVE, index=False, lineterminator="\n")
        paths = [path.relative_to(made).as_posix() for path in sorted(made.rglob("*")) if path.is_file()]
        files = {name: sha256(made / name) for name in paths}
        before = _plan(output)
        own = [name for name, old in before.files.items() if _sha256(output / name) == old] if before else []
        _refuse_foreign(output, [name for name in files if os.path.lexists(output / name) and name not in own])
        for name in own:
            (output / name).unlink()
        _write(output, written | {"files": files})  # before they exist, so that they are known as ours whatever happens
        for name in files:
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(made / name, output / name)
        done = {
            name: {key: record[key] for key in ("key", "source", "tokens", "seconds", "device", "platform", "versions")}
            for name, record in trained.manifest["stages"].items()
        }
        _write(output, written | {"files": files, "done": done})


def _write(output: Path, plan: dict[str, Any]) -> None:
    with atomic_file(output / PLAN) as temporary:
        temporary.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")


def _plan(output: Path) -> _Plan | None:
    """The content of ``training.json``, or None if there is none."""
    path = output / PLAN
    if not path.is_file():
        return None
    try:
        return _Plan.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise DamagedFileError(
            f"{path}: expected what a training was asked for, got something else ({reason}). Start again in another "
            "folder."
        ) from error


def _sha256(path: Path) -> str | None:
    """Hex sha256 of a file; None if there is nothing, an empty string if there is something else."""
    if path.is_file():
        return sha256(path)
    return "" if os.path.lexists(path) else None


def _differences(before: Any, now: Any, name: str = "") -> Sequence[tuple[str, Any, Any]]:
    """The leaves in which two nested dicts differ: (dotted name, before, now)."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            difference
            for key in dict.fromkeys([*before, *now])
            for difference in _differences(before.get(key), now.get(key), f"{name}.{key}".lstrip("."))
        ]
    return [] if before == now else [(name, before, now)]
