"""The papers' claims as data, and the verdict of a run on each.

``data/claims.json`` is a list of `Claim`. A rule is a list of comparisons between linear expressions of named
quantities, for example ``"weighted_mean > last_token"``, ``"bidirectional < causal - 5"``, ``"-2 < a - b < 2"``.
It is written before the run. The run gives an `Estimate` for every name, and `judge` derives the verdict.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors import DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError
from ..files import atomic_file, data_path, locked
from ..scale import SCALES, get_scale
from . import rules

REPRODUCED = "reproduced"
PARTLY = "partly"
NOT_REPRODUCED = "not reproduced"
NOT_TESTED = "not tested at this scale"
NO_INTERVAL = "not tested without an interval"


class Estimate(BaseModel):
    """A measured number with its interval.

    Attributes:
        value: The number, in the units of the claim's rule.
        low: Lower end of its confidence interval; equal to ``value`` for a number without sampling error, None if the
            width of the interval is not known, such as for a single seed.
        high: Upper end of the interval, or None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    value: float
    low: float | None
    high: float | None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval with one end")
        if self.low is not None and self.low > self.high:
            raise ValueError("low is above high")
        return self

    def format(self, sign: str = "") -> str:
        """As text with its interval, ``2.1 [0.4, 3.8]``: three digits, or whole numbers from a thousand on.

        Args:
            sign: ``"+"`` to write it before positive values too.
        """
        form = ",.0f" if abs(self.value) >= 1000 else ".3g"
        interval = "" if self.low is None or self.low == self.high else f" [{self.low:{form}}, {self.high:{form}}]"
        return f"{self.value:{sign}{form}}{interval}"

    @classmethod
    def of(cls, measured: object) -> Self:
        """An estimate from an `Estimate`, a bare number, ``(value, low, high)``, or a row with score, low and high.

        If both ends are NaN, as in tables, there is no interval.

        >>> Estimate.of((42.0, 40.5, 43.1))
        Estimate(value=42.0, low=40.5, high=43.1)
        >>> Estimate.of((42.0, math.nan, math.nan))
        Estimate(value=42.0, low=None, high=None)

        Raises:
            InvalidValueError: None of these, not finite, or an interval whose ends are swapped.
        """
        try:
            if isinstance(measured, cls):
                return measured
            if hasattr(measured, "keys"):  # a dict, a pandas Series
                value = measured["score"] if "score" in measured else measured["value"]
                low, high = measured["low"], measured["high"]
            elif isinstance(measured, str):
                raise TypeError("text")
            else:
                value, low, high = measured if isinstance(measured, tuple | list) else (measured,) * 3
            value, low, high = float(value), float(low), float(high)
            ends = (None, None) if math.isnan(low) and math.isnan(high) else (low, high)
            return cls(value=value, low=ends[0], high=ends[1])
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            expected = "a finite number, (value, low, high) with low <= high, or a row with score, low and high"
            raise InvalidValueError("measured value", expected, measured) from error


class Claim(BaseModel):
    """One claim of one paper.

    Attributes:
        id: Short name, unique in the file.
        paper: The paper's short name.
        place: Section, figure or table.
        statement: The claim in our words.
        published: The paper's numbers by model, then by the names that the rule uses.
        rule: Comparisons that hold if the claim does; judged one by one.
        scale: The smallest scale at which a run can test it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    paper: str
    place: str
    statement: str
    published: dict[str, dict[str, float]] = {}
    rule: Annotated[tuple[str, ...], Field(min_length=1)]
    scale: str

    def names(self) -> list[str]:
        """The quantities in the rule, sorted.

        Raises:
            InvalidValueError: The rule can't be read; the message names the claim.
        """
        return sorted({name for clause in self.rule for name in rules.names(clause, f"rule of claim {self.id!r}")})

    def published_effects(self, clause: str) -> dict[str, float]:
        """The effect of a comparison of the rule in the paper's own numbers, see `effect`.

        Returns:
            Effects by model, without models for which the paper does not print all quantities of the comparison.
        """
        names = rules.names(clause, f"rule of claim {self.id!r}")
        printed = {model: numbers for model, numbers in self.published.items() if names <= set(numbers)}
        return {model: effect(clause, numbers, self.id).value for model, numbers in printed.items()}


class Verdict(BaseModel):
    """The verdict of a notebook's run on a claim; prints as one line without measured numbers, equal on every machine.

    Raises:
        ValueError: A verdict, or an outcome of a comparison, that its own numbers contradict.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    notebook: str = ""
    paper: str
    place: str
    statement: str
    verdict: Literal[
        "reproduced", "partly", "not reproduced", "not tested at this scale", "not tested without an interval"
    ]
    scale: str
    clauses: dict[str, Literal["holds", "overlaps", "fails", "no interval"]]
    published: dict[str, dict[str, float]]
    measured: dict[str, Estimate]
    did_not_learn: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _follows_from_its_numbers(self) -> Self:
        outcomes = {clause: _outcome(found) for clause, found in self.effects().items()}
        if outcomes != self.clauses or self.verdict != _summed_up(outcomes):
            raise ValueError(f"{self.verdict!r} by {self.clauses}, where its numbers say {_summed_up(outcomes)!r}")
        return self

    def effects(self) -> dict[str, Estimate]:
        """The effect of each comparison of the rule; empty if the scale was too small or a model did not learn."""
        return {clause: effect(clause, self.measured, self.id) for clause in self.clauses}

    def format(self) -> str:
        """The verdict, and the models that did not learn if that is the reason."""
        return self.verdict + (f" (did not learn: {', '.join(self.did_not_learn)})" if self.did_not_learn else "")

    def __str__(self) -> str:
        return f"{self.id}: {self.format()}"

    __repr__ = __str__


def load(path: Path | None = None) -> dict[str, Claim]:
    """All claims by id, in the order of the file.

    Args:
        path: The file; None for ``data/claims.json``.

    Raises:
        InvalidValueError: A claim lacks a field, or has an unknown one or a rule that can't be read; it is named.
        UnknownNameError: A claim's scale does not exist.
        DamagedFileError: The file is not a JSON list.
        MissingDataError: The file is absent.
    """
    path = path or data_path("claims.json")
    claims: dict[str, Claim] = {}
    for entry in _read_list(path):
        name = entry.get("id", "without an id") if isinstance(entry, dict) else entry
        try:
            claim = Claim.model_validate(entry)
        except ValidationError as error:
            problem = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise InvalidValueError(f"claim {name!r} in {path}", "the fields of a Claim", problem) from error
        for clause in claim.rule:
            rules.margins(clause, f"rule of claim {claim.id!r} in {path}")
        if claim.scale not in SCALES:
            raise UnknownNameError(f"scale of claim {claim.id!r} in {path}", claim.scale, SCALES)
        if claim.id in claims:
            raise InvalidValueError(f"claim {name!r} in {path}", "an id used once", claim.id)
        claims[claim.id] = claim
    return claims


def get(claim_id: str) -> Claim:
    """The claim of that id.

    Raises:
        UnknownNameError: No such claim; the message lists all.
    """
    claims = load()
    if claim_id not in claims:
        raise UnknownNameError("claim", claim_id, claims)
    return claims[claim_id]


def judge(
    claim: Claim, measured: Mapping[str, object], *, scale: str, notebook: str = "", did_not_learn: Collection[str] = ()
) -> Verdict:
    """The verdict on a claim, derived from its rule.

    A comparison holds if the whole interval of its difference is above zero; it overlaps if the direction is right but
    the interval reaches zero. If all hold, the claim is reproduced; if all fail, not reproduced; anything between is
    partly. With a comparison of numbers without an interval, the claim is not tested. The interval of a difference is
    that of the key ``"a - b"`` if the run has one (a paired difference is sharper); otherwise it follows from the two
    intervals, which then must not overlap.

    Args:
        claim: The claim.
        measured: Arguments of `Estimate.of` by name; paired differences by ``"a - b"``.
        scale: The run's scale.
        notebook: Name of the notebook that judges.
        did_not_learn: Names of its models that did not learn what they were trained for. If there are any, the claim
            is not tested: a comparison with them would judge their training.

    Raises:
        InvalidValueError: A name of the rule was not measured, a value is not finite, the rule can't be read, or
            ``did_not_learn`` is text.
        UnknownNameError: A measured name that the rule does not know, or no such scale.
    """
    if isinstance(did_not_learn, str):
        raise InvalidValueError("did_not_learn", "a collection of names", did_not_learn, f"Write [{did_not_learn!r}].")
    names = claim.names()
    estimates = {key: Estimate.of(value) for key, value in measured.items()}
    for key in estimates:
        if any(name.strip() not in names for name in key.split(" - ")):
            raise UnknownNameError(f"quantity of claim {claim.id!r}", key, names)
    order = list(SCALES)
    untested = did_not_learn or order.index(get_scale(scale).name) < order.index(claim.scale)
    rule = () if untested else claim.rule
    clauses = {clause: _outcome(effect(clause, estimates, claim.id)) for clause in rule}
    return Verdict(
        **claim.model_dump(include={"id", "paper", "place", "statement", "published"}),
        notebook=notebook,
        verdict=_summed_up(clauses),
        scale=scale,
        clauses=clauses,
        measured=estimates,
        did_not_learn=tuple(sorted(did_not_learn)),
    )


def effect(clause: str, measured: Mapping[str, object], claim_id: str) -> Estimate:
    """The effect of a comparison: the margin by which it holds, negative if it fails.

    Args:
        clause: A comparison, such as ``"mean > last_token + 5"``; of a chain the narrowest part counts.
        measured: See `judge`.
        claim_id: Id of the claim, for messages.

    Returns:
        The margin in the units of the comparison, with an interval if all its quantities have one.

    Raises:
        InvalidValueError: A name was not measured, a value is not finite, or the comparison can't be read.
    """
    estimates = {name: Estimate.of(value) for name, value in measured.items()}
    where = f"rule of claim {claim_id!r}"
    margins = [_interval(margin, estimates, claim_id) for margin in rules.margins(clause, where)]
    value = min(margin.value for margin in margins)
    if any(margin.low is None for margin in margins):
        return Estimate(value=value, low=None, high=None)
    return Estimate(value=value, low=min(m.low for m in margins), high=min(m.high for m in margins))


def write(verdicts: Iterable[Verdict], path: Path) -> None:
    """Add verdicts to a run's claims file; an earlier one of the same notebook on the same claim is replaced.

    Several notebooks may write at the same time.

    Args:
        verdicts: The verdicts.
        path: The claims file.

    Raises:
        DamagedFileError: The file is there and holds something else.
        OutputError: The file can't be written.
    """
    with _alone(path):
        merged = {(verdict.id, verdict.notebook): verdict for verdict in [*read(path), *verdicts]}
        _replace([merged[key] for key in sorted(merged)], path)


def drop(notebook: str, path: Path) -> None:
    """Remove a notebook's verdicts from a run's claims file, if there are any.

    Args:
        notebook: Name of the notebook.
        path: The claims file.

    Raises:
        DamagedFileError: The file is there and holds something else.
        OutputError: The file can't be written.
    """
    if not Path(path).exists():
        return
    with _alone(path):
        verdicts = read(path)
        kept = [verdict for verdict in verdicts if verdict.notebook != notebook]
        if kept != verdicts:
            _replace(kept, path)


def read(path: Path) -> list[Verdict]:
    """The verdicts in a run's claims file, each checked against its own numbers; none if there is no file yet.

    Raises:
        DamagedFileError: The file does not hold verdicts, or holds one that its numbers contradict.
    """
    path = Path(path)
    if not path.exists():
        return []
    try:
        return [Verdict.model_validate(entry) for entry in _read_list(path)]
    except (ValidationError, InvalidValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise DamagedFileError(f"Expected verdicts in {path}, got {reason}. Delete it and run again.") from error


def _alone(path: Path) -> AbstractContextManager[None]:
    """Lock a claims file against other processes, since notebooks that run at the same time write to it too."""
    return locked(f"claims-{hashlib.sha256(os.fsencode(Path(path).resolve())).hexdigest()[:24]}")


def _replace(verdicts: list[Verdict], path: Path) -> None:
    with atomic_file(Path(path)) as temporary:
        entries = [verdict.model_dump(mode="json") for verdict in verdicts]
        temporary.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_list(path: Path) -> list:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise MissingDataError(f"Expected claims in {path}, found no file. Name another.") from error
    except ValueError as error:
        raise DamagedFileError(f"Expected JSON in {path}: {error}. Restore it, or delete it and run again.") from error
    if not isinstance(entries, list):
        raise DamagedFileError(f"Expected a JSON list in {path}, found {type(entries).__name__}.")
    return entries


def _outcome(found: Estimate) -> str:
    if found.low is None:
        return "no interval"
    if found.low > 0:
        return "holds"
    return "overlaps" if found.value > 0 else "fails"


def _summed_up(clauses: Mapping[str, str]) -> str:
    """The verdict that follows from the outcomes of a rule's comparisons."""
    outcomes = frozenset(clauses.values())
    if "no interval" in outcomes:
        return NO_INTERVAL
    known = {frozenset(): NOT_TESTED, frozenset({"holds"}): REPRODUCED, frozenset({"fails"}): NOT_REPRODUCED}
    return known.get(outcomes, PARTLY)


def _interval(margin: Mapping[str, float], measured: Mapping[str, Estimate], claim_id: str) -> Estimate:
    """Value and interval of a linear form, from a measured difference if there is one."""
    weights = {name: weight for name, weight in margin.items() if name and weight}
    terms = [(weight, name) for name, weight in weights.items()]
    if len(weights) == 2 and math.isclose(sum(weights.values()), 0, abs_tol=1e-12):
        first, second = weights
        for key, weight in ((f"{first} - {second}", weights[first]), (f"{second} - {first}", weights[second])):
            if key in measured:
                terms = [(weight, key)]
    if absent := sorted(name for _, name in terms if name not in measured):
        raise InvalidValueError(f"claim {claim_id!r}", f"a measured value for {', '.join(absent)}", sorted(measured))
    constant = margin.get("", 0.0)
    value = constant + sum(weight * measured[name].value for weight, name in terms)
    if any(measured[name].low is None for _, name in terms):
        return Estimate(value=value, low=None, high=None)
    ends = [(weight * measured[name].low, weight * measured[name].high) for weight, name in terms]
    return Estimate(value=value, low=constant + sum(map(min, ends)), high=constant + sum(map(max, ends)))
