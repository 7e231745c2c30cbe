"""Running models over tasks, and comparing two of them item by item."""

from __future__ import annotations

import contextlib
import logging
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..backbones import capability
from ..corpora import authored
from ..errors import InvalidValueError, whole
from ..files import atomic_file, scratch_folder, writing
from ..scale import Scale, get_scale
from .effects import Quantity, effect
from .suites import MTEB_LENGTH, OFFLINE, OFFLINE_SUITES, ONE_CORPUS, SUITES, task_names, tasks

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

COLUMNS = ["model", "suite", "task", "type", "metric", "score", "low", "high", "items", "seconds"]


def evaluate(
    model: SentenceTransformer,
    suite: str | Iterable[str] = OFFLINE_SUITES,
    *,
    scale: Scale | str = "quick",
    instructions: str | None = "suite",
    name: str | None = None,
    seed: int = 0,
    batch_size: int = 32,
    max_length: int | None = None,
    devices: Sequence[str] = (),
    key: str | None = None,
    table: Path | None = None,
    mteb_results: Path | None = None,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Evaluate a model on a suite through mteb.

    The scores are mteb's, and depend on the model and the scale alone. ``low`` and ``high`` bound the 95 % normal
    bootstrap interval over items (queries, texts, pairs; pairs that share their first text are drawn together). For
    clustering the resamples are mteb's own, each clustered again. If a score can't be taken apart into items (tasks of
    several languages or splits, rarer metrics), both are NaN. The outcomes of the items are kept in
    ``frame.attrs["outcomes"]`` for :func:`compare`.

    Args:
        model: Any SentenceTransformer. Queries go through ``encode_query``, documents through ``encode_document``.
        suite: Names of suites, from :data:`SUITES`, or of tasks; those of mteb too.
        scale: Sizes of the offline tasks, resamples, and the longest text of the offline tasks in tokens.
        instructions: ``suite`` for those of each task's suite (a paper's); a paper's name, ``docs`` or ``english`` for
            that set, and for tasks that it lacks the suite's; None for none. They are given bare, as ``prompt``, to
            models that begin with a ``workbook.modules.Decoder``, which lays them out. ``suite`` gives none to single
            tasks, nor to other models, which would put a bare instruction straight before the text and pool both; a
            model's own prompts still apply.
        name: Name of the model in the frame; by default its own.
        seed: Of the bootstrap.
        batch_size: Texts per batch.
        max_length: Longest text in tokens; None for the scale's in offline tasks and
            :data:`~.suites.MTEB_LENGTH` in others. A model that is made for shorter texts keeps its own.
        devices: Torch devices that share the texts, each with a copy of the model in a process of its own; none for
            the device where the model lies.
        key: Hash of the model's content. With it, results are kept in the cache (:class:`~.kept.Kept`), and what is
            there is not computed again; None keeps nothing.
        table: A CSV file, written again with a row more after every task.
        mteb_results: A folder for mteb's own result files, as ``mteb.ResultCache`` and the leaderboard read them, under
            the model's name and its ``key``, which is needed.
        progress: Whether to show a bar over the tasks; None for in a terminal and in a notebook.

    Returns:
        One row per task: model, suite, task, type, metric, score, low, high (points, that is x100), items, seconds.

    Raises:
        InvalidValueError, UnknownNameError: A value outside its range, a name that does not exist; a named set of
            instructions for a model that does not begin with a Decoder; or a model whose vectors are not finite.
        MissingDataError: The data of a task are not on this machine and can't be fetched.
        OutputError: The table, or the cache, can't be written.
    """
    from sentence_transformers import SentenceTransformer

    from ..modules import Decoder

    if not isinstance(model, SentenceTransformer):
        raise InvalidValueError("model", "a SentenceTransformer", model, "workbook.build(method) makes one.")
    batch_size, seed = whole("batch_size", batch_size), whole("seed", seed, 0)
    max_length = None if max_length is None else whole("max_length", max_length, of="tokens")
    if mteb_results and key is None:
        raise InvalidValueError("mteb_results", "a key of the model beside it", None, "They come from what is kept.")
    scale = scale if isinstance(scale, Scale) else get_scale(scale)
    names, asked = task_names(suite), [suite] if isinstance(suite, str) else list(suite)
    first = next(iter(model), None)
    lays_out = all(isinstance(next(iter(part), None), Decoder) for part in _parts(model))
    if instructions not in ("suite", None) and not lays_out:
        _instructions(instructions)  # a name that does not exist is the first mistake
        expected = f"suite or None for a model that begins with {type(first).__name__} instead of a Decoder"
        hint = "To give it instructions in its own words, set them as model.prompts['query'] and ['document']."
        raise InvalidValueError("instructions", expected, instructions, hint)
    label = name or model.model_card_data.model_name or "model"
    suites = {task: one for one in asked[::-1] if one in SUITES for task in SUITES[one].tasks}
    known = _known(instructions if lays_out else None, suites, names)
    for device in devices:
        capability(device)  # refuses one that is not there
    rows, outcomes = [], {}
    with _undisturbed(), contextlib.ExitStack() as stack:
        found = tasks(names, scale)
        if table is not None:  # whether it can be written is known before hours of work
            with writing(table), scratch_folder(table.parent):
                pass
        bar = stack.enter_context(_bar(len(found), label, progress))
        from .encoder import Encoder
        from .items import outcomes_of
        from .kept import Kept, meta_of

        dtype = next(model.parameters()).dtype
        logger.info("%s is on %s, in %s", label, model.device, str(dtype).removeprefix("torch."))
        for length, group in groupby(found, key=lambda task: max_length or _length(task, scale)):
            kept, left = None if key is None else Kept(key, dtype, known, length), list(group)
            with cut_to(model, length), prefixes_kept(model), _pool(model, devices) as pool:
                encoder = Encoder(model, known, batch_size, pool)
                while left:
                    task = left.pop(0)
                    bar.set_postfix_str(task.metadata.name)
                    result, seconds = outcomes_of(task, encoder, kept)
                    outcomes[task.metadata.name] = result
                    if mteb_results:
                        kept.export(task, encoder.mteb_model_meta, meta_of(model, label, key), mteb_results)
                    score = effect({"it": 1.0}, {"it": Quantity.of(result)}, scale.resamples, seed)
                    rows.append(
                        {
                            "model": label,
                            "suite": suites.get(task.metadata.name, "tasks"),
                            "task": task.metadata.name,
                            "type": task.metadata.type,
                            "metric": task.metadata.main_score,
                            "score": score.value,
                            "low": max(score.low, -100.0),
                            "high": min(score.high, 100.0),
                            "items": result.items,
                            "seconds": seconds,
                        }
                    )
                    if table is not None:
                        with atomic_file(table) as temporary:
                            pd.DataFrame(rows, columns=COLUMNS).to_csv(temporary, index=False, lineterminator="\n")
                    if not {task.metadata.name} & ONE_CORPUS or not {one.metadata.name for one in left} & ONE_CORPUS:
                        encoder.forget()
                    bar.update()
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame.attrs |= {"outcomes": outcomes, "bootstrap": (scale.resamples, seed), "scale": scale.name}
    return frame


def instructions_of(asked: str, method: str | None) -> str | None:
    """The instructions of a saved model, as :func:`evaluate` takes them.

    Args:
        asked: The name of a set, ``none``, or empty for the method's own.
        method: The method that trained the model, if known; one without a paper has the suites'.
    """
    if asked:
        return None if asked == "none" else asked
    return method if method and method.replace("-", "_") in authored.PAPERS else "suite"


def compare(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Paired difference of two models, first minus second, over the same items; see :func:`~.effects.effect`.

    Both models have the same resamples, so that what makes an item hard for both drops out of the interval.

    Args:
        first: A frame from :func:`evaluate`, or some of its rows (frames joined by ``pd.concat`` have lost the items).
        second: Another, at the same scale.

    Returns:
        One row per task in both, then one per suite as in :func:`average`: task, type, metric, difference, low, high,
        detectable (points; 95 % interval; smallest effect to be seen with 80 % power), items.

    Raises:
        InvalidValueError: A frame without items, no task in common, or different texts.
    """
    for side, frame in (("first", first), ("second", second)):
        if not isinstance(frame, pd.DataFrame) or "outcomes" not in frame.attrs:
            raise InvalidValueError(side, "a frame as evaluate gave it", type(frame), "Compare before pd.concat.")
    shared = first[first["task"].isin(second["task"])]
    if shared.empty:
        raise InvalidValueError("second", f"a frame with one of the tasks {list(first['task'])}", list(second["task"]))
    both = {"first": Quantity.of(shared), "second": Quantity.of(second[second["task"].isin(shared["task"])])}
    resamples, seed = first.attrs["bootstrap"]
    rows = []
    for name, rows_of in _groups_of_tasks(shared):
        on = {side: quantity.on(list(rows_of["task"])) for side, quantity in both.items()}
        gap = effect({"first": 1.0, "second": -1.0}, on, resamples, seed)
        kind = rows_of.iloc[0] if name in list(rows_of["task"]) else {"type": "", "metric": ""}
        rows.append([name, kind["type"], kind["metric"], gap.value, gap.low, gap.high, gap.detectable, gap.items])
    columns = ["task", "type", "metric", "difference", "low", "high", "detectable", "items"]
    return pd.DataFrame(rows, columns=columns)


def average(scores: pd.DataFrame) -> pd.DataFrame:
    """The mean over the tasks of each suite, of one model, with its 95 % interval; suites are never mixed.

    Args:
        scores: A frame from :func:`evaluate`.

    Returns:
        One row per suite that has several tasks in ``scores``, with its columns; the row's task is the suite's name.

    Raises:
        InvalidValueError: A frame without items, or without rows.
    """
    if not isinstance(scores, pd.DataFrame) or "outcomes" not in scores.attrs or scores.empty:
        expected = "a frame as evaluate gave it, with a task or more"
        raise InvalidValueError("scores", expected, type(scores), "Average before pd.concat.")
    rows = []
    for name, tasks_of in _groups_of_tasks(scores):
        if name in set(tasks_of["task"]):
            continue
        found = effect({"it": 1.0}, {"it": Quantity.of(tasks_of)}, *scores.attrs["bootstrap"])
        row = tasks_of.iloc[:1].assign(task=name, type="", metric="", score=found.value, low=found.low, high=found.high)
        rows.append(row.assign(items=found.items, seconds=tasks_of["seconds"].sum()))
    found = pd.concat(rows, ignore_index=True) if rows else scores.iloc[:0]
    found.attrs["scale"] = scores.attrs.get("scale", "")
    return found


def _length(task: Any, scale: Scale) -> int:
    return scale.max_length if task.metadata.name in OFFLINE else MTEB_LENGTH


def _known(name: str | None, suites: Mapping[str, str], names: Sequence[str]) -> pd.DataFrame | None:
    """The instructions of tasks: of the named set, and where that is ``suite`` or has none, of each task's suite."""
    if name is None:
        return None
    own = None if name == "suite" else _instructions(name)
    rows = [] if own is None else [own[own["task"].isin(names)]]
    for task in names:
        if task in suites and (own is None or task not in set(own["task"])):
            of_suite = _instructions(SUITES[suites[task]].instructions)
            rows.append(of_suite[of_suite["task"] == task])
    return pd.concat(rows, ignore_index=True) if rows else None


def _instructions(name: str) -> pd.DataFrame:
    """The instructions of a set for evaluation, without those for training."""
    frame = authored.instructions(name)
    return frame[frame["source"].str.contains("evaluation")]


def _groups_of_tasks(scores: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each task alone, then the tasks of each suite that has several in the frame, by name."""
    for _, row in scores.iterrows():
        yield row["task"], _part(scores, scores["task"] == row["task"])
    for suite in scores["suite"].unique():
        inside = scores["suite"] == suite
        if suite in SUITES and inside.sum() > 1:
            yield suite, _part(scores, inside)


def _part(scores: pd.DataFrame, chosen: pd.Series) -> pd.DataFrame:
    rows = scores[chosen]
    rows.attrs |= scores.attrs
    return rows


@contextlib.contextmanager
def _pool(model: SentenceTransformer, devices: Sequence[str]) -> Iterator[dict[str, Any] | None]:
    """Processes with copies of the model, as it is now, on several devices; None for no devices."""
    if not devices:
        yield None
        return
    pool = model.start_multi_process_pool(list(devices))
    try:
        yield pool
    finally:
        model.stop_multi_process_pool(pool)


def _bar(total: int, label: str, progress: bool | None) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, desc=label, leave=False, disable=None if progress is None else not progress)


@contextlib.contextmanager
def cut_to(model: SentenceTransformer, max_length: int) -> Iterator[None]:
    """Limit a model to inputs of at most ``max_length`` tokens inside the block.

    Args:
        model: Any SentenceTransformer, or a hybrid.
        max_length: Longest input in tokens.
    """
    before = [(part, part.max_seq_length) for part in _parts(model)]
    for part, length in before:
        part.max_seq_length = min(length or max_length, max_length)
    try:
        yield
    finally:
        for part, length in before:
            part.max_seq_length = length


@contextlib.contextmanager
def prefixes_kept(model: SentenceTransformer) -> Iterator[None]:
    """Read instruction and examples once inside the block, and not with every text, where attention is causal.

    Vectors are the same but for rounding; see ``prefix_cache`` of :class:`workbook.modules.Decoder`.

    Args:
        model: Any SentenceTransformer, or a hybrid.
    """
    from ..modules import Decoder

    firsts = [next(iter(part), None) for part in _parts(model)]
    decoders = [one for one in firsts if isinstance(one, Decoder) and one.attention == "causal"]
    decoders = [one for one in decoders if not one.prefix_cache]
    for decoder in decoders:
        decoder.prefix_cache = True
    try:
        yield
    finally:
        for decoder in decoders:
            decoder.prefix_cache = False


def _parts(model: SentenceTransformer) -> list[SentenceTransformer]:
    """The embedders that read the texts: both of a hybrid, else the model itself."""
    from ..modules import Hybrid

    first = next(iter(model), None)
    return (
        [part for one in (first.first, first.second) for part in _parts(one)] if isinstance(first, Hybrid) else [model]
    )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Undo mteb's side effects: on every random state (it seeds all with 42), progress bars and warnings."""
    import torch
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    bars = not are_progress_bars_disabled()
    states = random.getstate(), np.random.get_state()
    disable_progress_bars()
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*superseded.*")
            # mteb asks by the old name.
            warnings.filterwarnings("ignore", message="The `get_sentence_embedding_dimension` method")
            # mteb stops its logistic regression after 100 steps, on purpose: scores are what others get from it.
            warnings.filterwarnings("ignore", message="lbfgs failed to converge")
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if bars:
            enable_progress_bars()
