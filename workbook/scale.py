"""Scales: the sizes of everything in a run. A scale is data, never an ``if`` in the code."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, PositiveInt

from .errors import InvalidValueError, UnknownNameError


class Scale(BaseModel):
    """The sizes of one scale.

    Attributes:
        name: A key of :data:`SCALES`.
        queries: Queries of an offline retrieval or reranking task, and pairs of either label in pair classification.
        documents: Documents of an offline retrieval task, the relevant ones included.
        texts: Texts of an offline clustering task; classification trains and tests on a third more each.
        pairs: Pairs of an offline STS task.
        max_length: Longest input in tokens; the rest of a text is cut at the right.
        resamples: Bootstrap resamples of an interval.
        probe_texts: Texts that a probe of hidden states reads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    queries: PositiveInt
    documents: PositiveInt
    texts: PositiveInt
    pairs: PositiveInt
    max_length: PositiveInt
    resamples: PositiveInt
    probe_texts: PositiveInt


SCALES: dict[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            name="quick", queries=32, documents=48, texts=48, pairs=48, max_length=64, resamples=1000, probe_texts=32
        ),
        Scale(
            name="cpu",
            queries=200,
            documents=400,
            texts=240,
            pairs=10_000,
            max_length=128,
            resamples=2000,
            probe_texts=64,
        ),
        Scale(
            name="night",
            queries=1000,
            documents=2000,
            texts=600,
            pairs=10_000,
            max_length=128,
            resamples=2000,
            probe_texts=128,
        ),
        Scale(
            name="gpu",
            queries=1000,
            documents=4000,
            texts=2000,
            pairs=10_000,
            max_length=256,
            resamples=2000,
            probe_texts=128,
        ),
        Scale(
            name="paper",
            queries=10_000,
            documents=100_000,
            texts=10_000,
            pairs=10_000,
            max_length=512,
            resamples=2000,
            probe_texts=128,
        ),
    )
}
"""Scales by name, the smallest first."""

RECORDED = ("night",)
"""Scales of trainings that take two cores a night: recorded in the background, never run live."""


def get_scale(name: str) -> Scale:
    """The scale of that name.

    Raises:
        UnknownNameError: No such scale; the message lists all.
    """
    if not isinstance(name, str) or name not in SCALES:
        raise UnknownNameError("scale", name, SCALES)
    return SCALES[name]


def live_scale(name: str) -> Scale:
    """The scale of that name, for what runs while someone waits: a notebook, or a run of all.

    Raises:
        UnknownNameError: No such scale; the message lists all.
        InvalidValueError: One of :data:`RECORDED`; the message says how it is recorded and shown.
    """
    scale = get_scale(name)
    if name in RECORDED:
        raise InvalidValueError(
            "scale",
            f"one that runs live ({', '.join(one for one in SCALES if one not in RECORDED)})",
            name,
            f'It is recorded with `workbook record --scale {name}`, and shown in notebooks through recorded="{name}".',
        )
    return scale
