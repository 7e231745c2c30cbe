"""The base of all objectives, which declare the data they read, the attention they need, and their options."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, PositiveInt, ValidationError
from torch import nn
from torch.nn.functional import pad

from ..errors import InvalidValueError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sentence_transformers import SentenceTransformer


Whole = Annotated[
    PositiveInt,
    BeforeValidator(lambda value: int(value) if isinstance(value, Integral) and type(value) is not bool else value),
]
"""A positive whole number of any integer type, numpy's too, but not a bool, as of :func:`workbook.errors.whole`."""


class Options(BaseModel):
    """Options of an objective as data; an error gives the description of a field as what it expected.

    An option that is added later, and whose default changes nothing, goes into
    :data:`workbook.resolved.ADDED_LATER` with that default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Objective(nn.Module):
    """A training objective: a sentence-transformers loss that declares what it needs.

    Everything that the rest of the library needs to know of an objective is an attribute of its class. A new one takes
    such a class and a line in :data:`workbook.objectives.OBJECTIVES`.

    With a decoder in half precision, the trainer calls it under autocast. That is for the passes through the model; the
    loss itself is computed in float32, its products within :func:`workbook.precision.without_autocast`.

    Attributes:
        name: Its name in a stage.
        reads: ``pairs`` (query, positive and hard negatives), ``texts``, or ``chunks`` of running text.
        hard_negatives: Whether it uses the hard negatives of pairs; otherwise they are left out.
        teacher: Whether it learns from a teacher's scores, given as the labels of a batch.
        states: Whether it learns from the states of another model, which it is made with as ``teacher``.
        attention: The attention that the decoder must have, or None for either.
        own_attention: Whether it gives passes an attention of their own (``features | {"attention": ...}``). Flash
            attention takes no mask for that: where it was chosen, such a stage trains in sdpa.
        drops: Whether it drops something out by itself, besides what adapters do.
        Options: Its options, a pydantic model.

    Args:
        model: The model that is trained.
        **options: Fields of ``Options``.

    Raises:
        UnknownNameError: No such option.
        InvalidValueError: An option outside its range, or a decoder with another attention.
    """

    name: ClassVar[str]
    reads: ClassVar[Literal["pairs", "texts", "chunks"]] = "pairs"
    hard_negatives: ClassVar[bool] = False
    teacher: ClassVar[bool] = False
    states: ClassVar[bool] = False
    attention: ClassVar[str | None] = None
    own_attention: ClassVar[bool] = False
    drops: ClassVar[bool] = False
    Options: ClassVar[type[Options]] = Options

    def __init__(self, model: SentenceTransformer, **options: Any):
        super().__init__()
        self.options = self.validated(options)
        if self.attention is not None and (found := getattr(model[0], "attention", None)) != self.attention:
            raise InvalidValueError("attention", f"{self.attention}, which the objective {self.name} needs", found)
        self.model = model

    @classmethod
    def validated(cls, options: Mapping[str, Any]) -> Options:
        """Options as data, checked, with the defaults filled in.

        Raises:
            UnknownNameError: No such option, or no such choice.
            InvalidValueError: A value outside its range, or options that do not go together; the message says what is
                expected.
        """
        fields = cls.Options.model_fields
        for option in options:
            if option not in fields:
                raise UnknownNameError(f"option of {cls.name}", option, sorted(fields))
        try:
            return cls.Options(**options)
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:  # of several options together: the validator's own words
                raise first["ctx"]["error"] from error
            option = str(first["loc"][0])
            expected, got = fields[option].description or first["msg"], options[option]
            if first["type"] == "literal_error":
                raise UnknownNameError(expected, got, get_args(fields[option].annotation)) from error
            raise InvalidValueError(option, expected, got) from error

    @classmethod
    def stand_ins(cls, model: SentenceTransformer) -> dict[str, nn.Module]:
        """Small modules in place of those that the objective would read from disk, for a check that trains nothing.

        Args:
            model: The model that would be trained.

        Returns:
            Modules by the name of the argument they stand for.
        """
        return {}

    def check_batch(self, rows: int, columns: int) -> None:
        """Refuse data that the objective cannot learn from, before anything is trained.

        Args:
            rows: Rows of a batch, over all devices.
            columns: Columns of the data.

        Raises:
            InvalidValueError: Too few or too many columns, or too few rows; the message says what is expected.
        """
        if self.reads != "pairs" and columns != 1:
            raise InvalidValueError("training data", "one column of texts", f"{columns} columns", "Keep one.")

    def embedded(self, columns: Sequence[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
        """The vectors of each column, (rows, dim), with their gradients.

        Columns of a Decoder, known by their mask of pooled tokens, go through it in one pass, which it divides into
        groups of similar length. Other models would pad all to one length, and take one column after the other.

        Args:
            columns: Outputs of ``model.preprocess``; they are left as they are.
        """
        if "pooling_mask" not in columns[0]:
            return [self.model(dict(column))["sentence_embedding"] for column in columns]
        rows = [len(column["attention_mask"]) for column in columns]
        return list(self.model(joined(columns))["sentence_embedding"].split(rows))

    def get_config_dict(self) -> dict[str, Any]:
        """The options of the loss, for the model card."""
        return self.options.model_dump()


def joined(columns: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """All rows of some columns, one after the other, padded on the right with masked zeros.

    Args:
        columns: Outputs of ``model.preprocess``.
    """
    rows = {}
    for name in columns[0]:
        width = max(column[name].shape[1] for column in columns)
        rows[name] = torch.cat([pad(column[name], (0, width - column[name].shape[1])) for column in columns])
    return rows
