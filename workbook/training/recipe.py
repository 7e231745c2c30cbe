"""Training as data: a recipe is a list of stages, a stage is an objective, a dataset and a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from ..errors import InvalidValueError, UnknownNameError, WorkbookError, whole
from ..resolved import digest, resolved

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TRAINING = 2
"""Counts up when the same stage comes to give other weights: kept stages and records of the old count are stale."""

DROPOUT = 1
"""Counts up likewise, for stages with dropout alone: what is dropped depends on how a batch is laid out."""

HALF = 1
"""Counts up likewise, for backbones in half precision alone: what was trained in float32 stays as it is."""

STORED = "stored"
"""The teacher of a stage whose rows bring a teacher's scores with them."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class Adapter(BaseModel):
    """Low-rank adapters on the decoder's linear layers; they are merged into its weights when a stage ends.

    An encoder that trains with the decoder gets them on all its linear layers.

    The sum is rounded once, to the weights' dtype. In half precision that is coarser than many an update, so the
    adapters are also kept as they are, in the cache beside the stage: ``stages/KEY/adapters/decoder``, as peft saves
    them.

    Attributes:
        rank: Rank of the update.
        alpha: The update is scaled by alpha / rank.
        dropout: Dropout before the adapters; expensive on a CPU.
        targets: Names of the linear layers that get one.
        keep_zeros: Whether weights that are zero stay zero, as a pruned model needs it; see
            :class:`~.masked.MaskedLora`.

    Source: Hu et al. 2022; rank 16 and alpha 32 throughout LLM2Vec (appendices D.1 and G.2).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("q_proj", "k_proj", "v_proj", "o_proj")
    keep_zeros: bool = False


class Others(BaseModel):
    """Batches of the rows whose task is not retrieval: classes, clusters and graded pairs.

    A batch still comes from one data set. No teacher scores these rows.

    Attributes:
        batch_size: Rows per update, over all devices.
        in_batch: Whether documents of other rows are negatives. They mislead where rows share a class or a cluster;
            without them a row is contrasted with its own hard negatives alone, and may share its texts with others.

    Source: LENS, section 4.1 (256 rows, in-batch negatives in retrieval alone). Its released code has them in batches
    of graded pairs too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_size: PositiveInt
    in_batch: bool = False


class Stage(BaseModel):
    """One stage of a training.

    Attributes:
        name: Name of the stage, unique in its recipe.
        objective: A name from ``workbook.objectives.OBJECTIVES``.
        options: Options of the objective, such as ``{"temperature": 0.05}``.
        data: A source of training data, or a file; see ``workbook.data.rows.load``.
        limit: Number of its rows that are used; None for all.
        negatives: Number of hard negatives used per row; None for all that it has.
        blend: Mix tasks within a batch, each row with its own instructions; otherwise a batch comes from one data set.
        mixed: Refuse data that are all of retrieval: see ``workbook.data.rows.load``.
        teacher: Scores each query with its own positive and hard negatives, and the objective learns from its scores
            too; see :class:`~.teacher.Teacher`. :data:`STORED` for scores that come with the rows. Contrastive stages
            only.
        others: Batches of their own for rows whose task is not retrieval; None to treat all tasks alike. Contrastive
            stages only. Data that are all of retrieval are refused.
        steps: Number of updates of the weights.
        batch_size: Rows per update, over all devices and accumulated micro-batches. Batches, and the negatives in them,
            are the same on any number of devices.
        accumulation: Number of micro-batches that a batch is split into. Contrastive batches become smaller by it,
            because a micro-batch is contrasted with itself alone: split those by the objective's ``mini_batch_size``
            (GradCache) instead.
        max_length: Longest input in tokens.
        learning_rate: Highest learning rate.
        warmup_steps: Number of steps below the highest rate at the start. The rate rises linearly, from the first
            step on, which has a share of it already.
        decay_steps: Steps after which its linear decay would reach 0; None for ``steps``.
        weight_decay: Of AdamW.
        max_grad_norm: Longer gradients are scaled to this norm.
        adapter: Low-rank adapters in the decoder, and in a trainable encoder beside it; None trains all their
            parameters. The layers that make contextual tokens, and modules after the decoder, are always trained whole.
        frozen: The decoder does not train, and reads each text once; only what follows it trains. Contrastive stages
            without an adapter only; see :func:`~.states.read_once`.
        context_alone: Only the layers that make contextual tokens train, through a decoder that stays as it is. Stages
            without an adapter only.
        context_rate: Learning rate of those layers, by that of all else.
        gradient_checkpointing: Compute the activations of the decoder's layers again instead of keeping them, which
            saves memory and costs time.
        compiled: Compile the decoder's layers with torch.compile: a minute more at the start, then faster, see
            ``benchmarks/README.md``. Results are the same up to rounding, but for dropout, which is drawn otherwise. On
            a CPU it needs a C++ compiler.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    objective: str
    options: dict[str, Any] = {}
    data: str = "docs"
    limit: PositiveInt | None = None
    negatives: NonNegativeInt | None = None
    blend: bool = False
    mixed: bool = False
    teacher: str | None = None
    others: Others | None = None
    steps: PositiveInt
    batch_size: PositiveInt
    accumulation: PositiveInt = 1
    max_length: PositiveInt
    learning_rate: PositiveFloat
    warmup_steps: NonNegativeInt = 0
    decay_steps: PositiveInt | None = None
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    adapter: Adapter | None = Adapter()
    frozen: bool = False
    context_alone: bool = False
    context_rate: PositiveFloat = 1.0
    gradient_checkpointing: bool = False
    compiled: bool = False

    def reading(self) -> dict[str, Any]:
        """The arguments of :func:`workbook.data.rows.load` for its training data, but for the tokenizer."""
        return {
            "source": self.data,
            "objective": self.objective,
            "max_length": self.max_length,
            "limit": self.limit,
            "negatives": self.negatives,
            "blend": self.blend,
            "mixed": self.mixed,
            "tasks": self.others is not None,
            "scores": self.teacher == STORED,
        }

    def resolved(self) -> dict[str, Any]:
        """The stage as plain data: every field, and every option of its objective, defaults included.

        Only the data are left out: they are known by their content, wherever they lie.

        Raises:
            UnknownNameError: No such objective, or no such option of it.
            InvalidValueError: An option outside its range.
        """
        from ..objectives import get  # it imports torch, which takes seconds, and most recipes are only looked at

        described = resolved(self) | {"options": resolved(get(self.objective).validated(self.options))}
        del described["data"]
        return described

    def counts(self) -> dict[str, int]:
        """The counts of changes that a stage of this kind is known by, besides its fields."""
        from ..objectives import get

        drops = get(self.objective).drops or (self.adapter is not None and self.adapter.dropout > 0)
        return {"training": TRAINING} | ({"dropout": DROPOUT} if drops else {})

    @model_validator(mode="after")
    def _a_frozen_decoder_has_nothing_that_trains(self) -> Stage:
        if self.frozen and (self.objective != "contrastive" or self.adapter is not None):
            got = self.objective if self.objective != "contrastive" else "an adapter"
            raise ValueError(f"frozen: expected a contrastive stage without an adapter (adapter=None), got {got}")
        return self

    @model_validator(mode="after")
    def _where_the_context_trains_alone_nothing_else_does(self) -> Stage:
        if self.context_alone and (self.frozen or self.adapter is not None):
            got = "a frozen decoder that reads each text once" if self.frozen else "an adapter"
            raise ValueError(f"context_alone: expected a stage without an adapter (adapter=None), got {got}")
        return self

    @model_validator(mode="after")
    def _tasks_that_are_told_apart_are_not_blended(self) -> Stage:
        wanted = "others" if self.others else "teacher" if self.teacher == STORED else None
        if wanted and (self.objective != "contrastive" or self.blend):
            got = "a blend of all tasks" if self.objective == "contrastive" else self.objective
            raise ValueError(f"{wanted}: expected a contrastive stage whose batches are of one data set, got {got}")
        if self.others and self.accumulation > 1:
            raise ValueError(
                "accumulation: expected 1 beside others, since an update is one batch of one task, got "
                f"{self.accumulation}; split a batch by options.mini_batch_size instead"
            )
        return self

    @model_validator(mode="after")
    def _decay_outlasts_the_steps(self) -> Stage:
        if self.decay_steps is not None and self.decay_steps < self.steps:
            raise ValueError(
                f"decay_steps: expected no fewer than steps ({self.steps}), since the rest would train at a rate of 0, "
                f"got {self.decay_steps}; leave it out to end at 0"
            )
        return self


class Recipe(BaseModel):
    """The stages of a method, in their order; none for a method that is not trained.

    Attributes:
        stages: The stages; their names differ.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stages: tuple[Stage, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Recipe:
        names = [stage.name for stage in self.stages]
        if len({*names}) < len(names):
            raise ValueError(f"expected stages of different names, got {', '.join(names)}")
        return self

    def fingerprint(self) -> str:
        """Hex sha256 of the resolved stages, data aside: equal for equal recipes, on every machine."""
        return digest([stage.resolved() | stage.counts() for stage in self.stages])

    def only(self, *names: str) -> Recipe:
        """The recipe of some of the stages, in the recipe's order.

        Args:
            *names: Names of the stages.

        Raises:
            UnknownNameError: No such stage.
        """
        known = [stage.name for stage in self.stages]
        for name in names:
            if name not in known:
                raise UnknownNameError("stage", name, known)
        return Recipe(stages=tuple(stage for stage in self.stages if stage.name in names))

    def changed(self, values: Mapping[str, Any]) -> Recipe:
        """The recipe with other values, checked as if they stood in it.

        Args:
            values: By stage and field, such as ``contrastive.steps``, ``contrastive.adapter.rank``,
                ``contrastive.others.batch_size`` or ``contrastive.options.temperature``. Data have their own argument
                in :func:`~.run.train`.

        Raises:
            UnknownNameError: No such stage or field; the message lists all.
            InvalidValueError: A value that the field does not take. Options of an objective are checked when a
                training begins.
            WorkbookError: Values that do not go together.

        Examples:
            >>> recipe = Recipe(stages=(Stage(name="mntp", objective="mntp", steps=9, batch_size=4, max_length=32,
            ...                               learning_rate=1e-4),))
            >>> recipe.changed({"mntp.steps": 5, "mntp.adapter.rank": 8}).stages[0].adapter.rank
            8
        """
        plain = {stage.name: stage.model_dump() for stage in self.stages}
        for place, value in values.items():
            name, _, field = place.partition(".")
            if name not in plain:
                raise UnknownNameError("stage", name, plain)
            into, kind = plain[name], f"field of stage {name}"
            known = [one for one in Stage.model_fields if one not in ("name", "data")]
            first, dot, rest = field.partition(".")
            if dot and first in ("adapter", "others", "options"):
                into[first] = into[first] or {}  # an adapter where there was none
                into, field, kind = into[first], rest, f"field of {name}.{first}"
                nested = {"adapter": Adapter, "others": Others}.get(first)
                known = list(nested.model_fields) if nested else [rest]
            if field not in known:
                raise UnknownNameError(kind, field, known)
            into[field] = value
        return Recipe(stages=tuple(_validated(one) for one in plain.values()))


def _validated(fields: dict[str, Any]) -> Stage:
    try:
        return Stage(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # of several fields together: the validator's own words
            raise WorkbookError(f"{fields['name']}.{first['ctx']['error']}.") from None
        place, said = ".".join([fields["name"], *map(str, first["loc"])]), first["msg"]
        raise InvalidValueError(place, said.removeprefix("Input should be "), first["input"]) from None


@dataclass(frozen=True)
class Evaluator:
    """A measurement taken while a stage trains, for a curve of convergence.

    Attributes:
        name: Name of the measurement; a stage that was trained under another name is trained again.
        every: Steps between two measurements; the first is before the first step, the last after the last step.
        measure: Function of the model that returns numbers by name; texts too, which are kept beside them.

    Raises:
        InvalidValueError: ``every`` is not a positive whole number.
    """

    name: str
    every: int
    measure: Callable[[SentenceTransformer], Mapping[str, float | str]]

    def __post_init__(self):
        whole("every", self.every, of="steps")
