"""Synthetic training data: a chat model thinks up tasks, then writes examples of them.

A chat model is any function of a prompt that returns an answer: :func:`chat_model`, or a call of some service. An
answer is used only if it is the JSON that was asked for.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from ..errors import InvalidValueError, UnknownNameError, whole
from .prompts import PROMPTS, Prompts, Text, plain

__all__ = ["PROMPTS", "Examples", "chat_model", "examples", "tasks"]

Chat = Callable[[str], str]

_TASKS = TypeAdapter(list[Text])
_COLUMNS = ("query", "positive", "negative_1", "negative_2")
_COPIED = 3  # words from which on a text of the prompt that comes back is a copy, and no answer


class Examples(NamedTuple):
    """The result of step two.

    Attributes:
        rows: Columns query, positive, for long-short tasks negative_1, for short-long ones negative_2 too, and
            instruction (the task). Written as ``.jsonl``, one file per kind, they are training data; short-short pairs
            have no hard negatives until :func:`~.curation.mine` finds some. Empty if no answer was usable.
        attempts: One row per call: kind, task, attempt (from 1), ok, reason (blank if ok) and the output.
    """

    rows: pd.DataFrame
    attempts: pd.DataFrame


class _UnusableError(Exception):
    """An answer that is not used, with the reason."""


def tasks(chat: Chat, kind: str, *, attempts: int = 3) -> list[str]:
    """Step one: tasks that a chat model thinks up.

    Args:
        chat: Function of a prompt that returns an answer.
        kind: One of :data:`PROMPTS`.
        attempts: Largest number of calls; the first usable answer ends them. Call again for more tasks.

    Returns:
        The tasks in their order, each once, however many the model gave. Those that the prompt itself holds are left
        out. A warning counts the unusable answers before the usable one.

    Raises:
        UnknownNameError: No such kind.
        InvalidValueError: No answer was a JSON list of strings; the message counts them and says why.

    Source: NV-Embed, section 4.3, tables 15 and 16.
    """
    prompt = _prompts(kind).brainstorm
    reasons = []
    for _ in range(whole("attempts", attempts)):
        try:
            found = _read_tasks(_answer(chat, prompt), prompt)
        except _UnusableError as unusable:
            reasons.append(str(unusable))
            continue
        if reasons:
            warnings.warn(f"{len(reasons)} answers are no list of tasks: left out ({_counted(reasons)}).", stacklevel=2)
        return found
    raise InvalidValueError(
        "chat",
        "a JSON list of tasks",
        f"{len(reasons)} unusable answers",
        f"Why: {_counted(reasons)}. Ask a larger model, allow it longer answers, or write the tasks by hand.",
    )


def examples(chat: Chat, kind: str, tasks: Sequence[str], *, seed: int = 0, attempts: int = 1) -> Examples:
    """Step two: an example of each task, written by a chat model.

    An answer is used if it holds one JSON object and no other bracket, with exactly the keys asked for, each once, and
    strings that are not blank, differ from each other (upper and lower case aside) and copy neither the prompt nor an
    earlier example. Prose or a fence around the object does no harm. It is not checked whether the answer is true, and
    as long and as hard as asked for: a small model gets the form right before it gets the label right.

    Args:
        chat: Function of a prompt that returns an answer.
        kind: One of :data:`PROMPTS`.
        tasks: Sentences, from :func:`tasks` or your own; one that is named twice gets two examples.
        seed: Of the placeholders' values, which are drawn again for each call. Short-short prompts have none: there
            only the chat model makes two examples of a task differ.
        attempts: Largest number of calls per example; the first usable answer ends them.

    Returns:
        The examples in the order of the tasks, and the outcome of each call. Failures raise nothing: a small model may
        well give no usable example at all, and the attempts show why.

    Raises:
        UnknownNameError: No such kind.
        InvalidValueError: No task, or one that is blank or not a string.

    Source: NV-Embed, section 4.3, tables 15 and 16: 40,000 examples of each kind, two of each task.
    """
    prompts = _prompts(kind)
    if isinstance(tasks, str) or not len(tasks):
        raise InvalidValueError("tasks", "a list of at least one task", tasks)
    attempts = whole("attempts", attempts)
    for task in tasks:
        if not isinstance(task, str) or not task.strip():
            raise InvalidValueError("tasks", "sentences", task)
    rows, log, known = [], [], set()
    for place, task in enumerate(tasks):
        for attempt in range(1, attempts + 1):
            draw = np.random.default_rng([seed, place, attempt])
            values = {name: choices[draw.integers(len(choices))] for name, choices in prompts.placeholders.items()}
            output, reason = _answer(chat, prompts.example.format(task=task, **values)), ""
            try:
                texts = _read_example(output, prompts, task)
                if (told := tuple(map(plain, texts))) in known:
                    raise _UnusableError("repeats an earlier example")
                known.add(told)
                rows.append([*texts, task.strip()])
            except _UnusableError as unusable:
                reason = str(unusable)
            log.append([kind, task, attempt, not reason, reason, output])
            if not reason:
                break
    columns = [*_COLUMNS[: len(prompts.output.model_fields)], "instruction"]
    return Examples(
        pd.DataFrame(rows, columns=columns, dtype=object),
        pd.DataFrame(log, columns=["kind", "task", "attempt", "ok", "reason", "output"]),
    )


def chat_model(
    backbone: str = "smollm2-135m",
    *,
    max_new_tokens: int = 1024,
    seed: int = 0,
    temperature: float = 0.7,
    device: str | None = None,
) -> Chat:
    """A chat model on a backbone that follows instructions, in its own chat template, one question at a time.

    Args:
        backbone: See ``workbook.backbones.resolve``. The paper used Mixtral-8x22B-Instruct; the default shows how the
            steps work, but the little that it writes is not worth training on.
        max_new_tokens: Longest answer in tokens; what does not fit is cut.
        seed: Of sampling. The same questions in the same order get the same answers; a question that is asked again
            gets another one.
        temperature: Of sampling; 0 always takes the likeliest token.
        device: A torch device; see ``workbook.backbones.load_decoder``.

    Returns:
        Function of a question that returns the answer's text.

    Raises:
        InvalidValueError: An impossible number, or a backbone without a chat template.
        UnknownNameError, ModelNotFoundError, DamagedFileError: As ``workbook.backbones.resolve``.
    """
    import torch

    from ..backbones import load_decoder, load_tokenizer

    max_new_tokens = whole("max_new_tokens", max_new_tokens)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature < np.inf:
        raise InvalidValueError("temperature", "0 or more", temperature)
    tokenizer = load_tokenizer(backbone)
    if not tokenizer.chat_template:
        raise InvalidValueError(
            "backbone", "a chat model, with a chat template", backbone, "Name one that was tuned on instructions."
        )
    model = load_decoder(backbone, device=device, lm_head=True)
    devices = [model.device] if model.device.type == "cuda" else []
    sampling = {"do_sample": True, "temperature": float(temperature)} if temperature else {"do_sample": False}
    seeds = np.random.default_rng(seed)

    def chat(prompt: str) -> str:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(model.device)
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(int(seeds.integers(2**63)))
            output = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=max_new_tokens,
                pad_token_id=tokenizer.pad_token_id,
                **sampling,
            )
        return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()

    return chat


def _prompts(kind: str) -> Prompts:
    if kind not in [*PROMPTS]:
        raise UnknownNameError("kind of synthetic task", kind, PROMPTS)
    return PROMPTS[kind]


def _answer(chat: Chat, prompt: str) -> str:
    output = chat(prompt)
    if not isinstance(output, str):
        raise InvalidValueError("chat", "a function that returns the answer as text", output)
    return output


def _read_tasks(output: str, prompt: str) -> list[str]:
    found = _valid(_TASKS.validate_python, _only_json(output))
    given = plain(prompt)
    own: dict[str, str] = {}
    for task in found:
        if plain(task) not in given:
            own.setdefault(plain(task), task)
    if not own:
        raise _UnusableError("no task but those of the prompt")
    return [*own.values()]


def _read_example(output: str, prompts: Prompts, task: str) -> list[str]:
    example = _valid(prompts.output.model_validate, _only_json(output))
    given = plain(prompts.example)
    for number, (name, text) in enumerate(example):
        copied = len(text.split()) >= _COPIED and plain(text) in given
        if copied or (number == 0 and plain(text) == plain(task)):
            raise _UnusableError(f"{name} copies the prompt")
    return [text for _, text in example]


def _only_json(output: str) -> Any:
    """The one JSON value in an answer; with any other bracket beside it, it would not be clear which is meant."""
    start = re.search(r"[\[{]", output)
    if start is None:
        raise _UnusableError("no JSON")
    try:
        value, end = json.JSONDecoder(object_pairs_hook=_once).raw_decode(output, start.start())
    except json.JSONDecodeError as error:
        raise _UnusableError(f"broken or cut JSON: {error.msg}") from error
    except RecursionError as error:
        raise _UnusableError("broken or cut JSON: too deep") from error
    if re.search(r"[\[\]{}]", output[end:]):
        raise _UnusableError("more than one JSON value")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise _UnusableError("a key twice")
    return dict(pairs)


def _valid(validate: Callable[[Any], Any], value: Any) -> Any:
    try:
        return validate(value)
    except ValidationError as error:
        said = [(".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")) for one in error.errors()]
        raise _UnusableError("; ".join(f"{where}: {what}" if where else what for where, what in said)) from error


def _counted(reasons: list[str]) -> str:
    return "; ".join(f"{count} x {reason}" for reason, count in pd.Series(reasons).value_counts(sort=False).items())
