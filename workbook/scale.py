"""Scales: the sizes of everything in a run. A scale is data, never an ``if`` in the code."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, PositiveInt

from .errors import UnknownNameError


class Scale(BaseModel):
    """The sizes of one scale.

    Attributes:
        name: ``quick``, ``cpu``, ``gpu`` or ``paper``.
        queries: Queries of an offline retrieval task.
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
        Scale(name="quick", queries=32, documents=48, texts=48, pairs=48, max_length=64, resamples=1000, probe_texts=8),
        Scale(
            name="cpu",
            queries=200,
            documents=400,
            texts=240,
            pairs=10_000,
            max_length=128,
            resamples=2000,
            probe_texts=16,
        ),
        Scale(
            name="gpu",
            queries=1000,
            documents=4000,
            texts=2000,
            pairs=10_000,
            max_length=256,
            resamples=2000,
            probe_texts=104,
        ),
        Scale(
            name="paper",
            queries=10_000,
            documents=100_000,
            texts=10_000,
            pairs=10_000,
            max_length=512,
            resamples=2000,
            probe_texts=104,
        ),
    )
}


def get_scale(name: str) -> Scale:
    """The scale of that name.

    Raises:
        UnknownNameError: No such scale; the message lists the four.
    """
    if not isinstance(name, str) or name not in SCALES:
        raise UnknownNameError("scale", name, SCALES)
    return SCALES[name]
