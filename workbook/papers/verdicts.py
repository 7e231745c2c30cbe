"""A paper's claim, and the verdict of a run on it.

A rule is a list of comparisons of linear expressions of named quantities, for example ``"weighted_mean > last_token"``,
or a margin, ``"-1 < a - b < 1"``. It is written before the run. The run measures the quantities, and `judge` derives
the verdict from the effects and their intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ..errors import WorkbookError
from ..evaluation.effects import LEVEL, Estimate, Quantity, effect
from ..evaluation.suites import SUITES
from ..scale import SCALES, get_scale
from . import rules

SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_TESTED = "supported", "contradicted", "inconclusive", "not tested"
_WEAKEST = (CONTRADICTED, NOT_TESTED, INCONCLUSIVE, SUPPORTED)
_OUTCOMES = {"holds": SUPPORTED, "fails": CONTRADICTED, "open": INCONCLUSIVE}
_Word = Literal["supported", "contradicted", "inconclusive", "not tested"]


class Claim(BaseModel):
    """One claim of one paper.

    Attributes:
        id: Short name, unique in the file.
        paper: The paper's short name.
        place: Section, figure or table.
        notebook: Name of the notebook that judges it.
        statement: The claim in our words, one or two sentences.
        note: What the paper leaves open, and how the rule reads it.
        published: The paper's numbers by model, then by the names that the rule uses.
        unit: Unit of its effects.
        rule: Clauses that hold if the claim does, judged one by one: comparisons, after ``docs:`` or ``other:`` if they
            are about averages over that suite.
        scale: The smallest scale at which a run can test it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    paper: str
    place: str
    notebook: str = ""
    statement: str
    note: str = ""
    published: dict[str, dict[str, float]] = {}
    unit: str = "points"
    rule: Annotated[tuple[str, ...], Field(min_length=1)]
    scale: str

    @field_validator("rule")
    @classmethod
    def _decidable(cls, rule: tuple[str, ...]) -> tuple[str, ...]:
        for clause in rule:
            rules.read(clause, "rule")
        return rule

    @field_validator("scale")
    @classmethod
    def _known(cls, scale: str) -> str:
        return get_scale(scale).name

    def names(self) -> list[str]:
        """The quantities in the rule, sorted."""
        return sorted({name for comparison in self.clauses().values() for name in comparison.weights})

    def clauses(self) -> dict[str, rules.Comparison]:
        """The clauses of the rule by their text."""
        return {clause: rules.read(clause, f"rule of claim {self.id!r}") for clause in self.rule}

    def published_effects(self, clause: str) -> dict[str, float]:
        """The effect of a clause in the paper's own numbers.

        Args:
            clause: One of the rule's.

        Returns:
            Effects by model, without models for which the paper does not print all quantities of the comparison.
        """
        comparison = self.clauses()[clause]
        printed = {model: numbers for model, numbers in self.published.items() if {*comparison.weights} <= {*numbers}}
        return {model: comparison.effect(numbers) for model, numbers in printed.items()}


class Finding(BaseModel):
    """What a run found on one clause of a claim.

    Attributes:
        verdict: Of the clause alone.
        effect: The effect with its error; None if it could not be measured.
        why: Why the clause was not tested, a sentence for readers; empty if it was.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdict: _Word
    effect: Estimate | None = None
    why: str = ""


class Verdict(BaseModel):
    """The verdict of a notebook's run on a claim; prints as one line without measured numbers, equal on every machine.

    A claim is supported if all its clauses are, and contradicted if one is even when its interval is widened for their
    number. Otherwise it is not tested if a clause was not, and inconclusive if all were.

    Raises:
        ValueError: A verdict, on the claim or a clause, that its own numbers contradict.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    claim: Claim
    notebook: str = ""
    scale: str
    verdict: _Word
    findings: dict[str, Finding]

    @model_validator(mode="after")
    def _follows_from_its_numbers(self) -> Self:
        clauses = self.claim.clauses()
        if set(self.findings) != set(clauses):
            raise ValueError(f"findings on {sorted(self.findings)}, where the rule has {sorted(clauses)}")
        for clause, found in self.findings.items():
            due = NOT_TESTED if found.why else _word(clauses[clause], found.effect)
            if found.verdict != due:
                raise ValueError(f"{found.verdict!r} for {clause!r}, where its numbers say {due!r}")
        if self.verdict != (due := _summed_up(self.claim, self.findings)):
            raise ValueError(f"{self.verdict!r} for the claim, where its clauses say {due!r}")
        return self

    @property
    def id(self) -> str:
        """The claim's id."""
        return self.claim.id

    def why(self) -> str:
        """What the verdict rests on, in a sentence or two: why it was not tested, or what would settle it."""
        caveats = [found.effect.caveat for found in self.findings.values() if found.effect and not found.why]
        return " ".join(dict.fromkeys(filter(None, [*self._reasons(), *caveats])))

    def _reasons(self) -> list[str]:
        if self.verdict == NOT_TESTED:
            return [found.why for found in self.findings.values()]
        if self.verdict != INCONCLUSIVE:
            return []
        if alone := sum(one.verdict == CONTRADICTED for one in self.findings.values()):
            are = "One clause is" if alone == 1 else f"{alone} clauses are"
            return [f"{are} contradicted alone, but not after correction for {len(self.findings)} clauses."]
        clauses, seen = self.claim.clauses(), []
        for clause in (clause for clause, found in self.findings.items() if found.verdict == INCONCLUSIVE):
            rooms = [clauses[clause].room(printed) for printed in self.claim.published_effects(clause).values()]
            if rooms and max(rooms) <= 0:
                return ["The paper's own effect is not on the claimed side."]
            seen += [room >= self.findings[clause].effect.detectable for room in rooms]
        if not seen:
            return ["The paper prints no effect to compare with."]
        if all(seen):
            return ["Effects of the paper's size would probably have been seen."]
        some = "Some of the paper's effects are" if any(seen) else "The paper's effect is"
        return [f"{some} too near the claim's bound for this many items and seeds."]

    def __str__(self) -> str:
        return f"{self.id}: {self.verdict}"

    __repr__ = __str__


def judge(
    claim: Claim,
    measured: Mapping[str, Quantity | float],
    *,
    scale: str,
    notebook: str = "",
    resamples: int = 2000,
) -> Verdict:
    """The verdict on a claim, derived from its rule.

    A clause is supported if the whole 95 % interval of its effect is on the claimed side (inside the margin, for a
    claim of no difference), contradicted if all of it is on the other side, inconclusive otherwise. It is not tested
    without an interval, at too small a scale, if something was not measured, or if a quantity says why nothing about it
    can be tested: a comparison with a model that did not learn would judge its training.

    Args:
        claim: The claim.
        measured: What was measured, by the names in the rule; others may be among them. A number has no sampling error.
        scale: Scale of what was measured.
        notebook: Name of the notebook that judges.
        resamples: Bootstrap resamples of the items.

    Raises:
        UnknownNameError: No such scale.
    """
    order = list(SCALES)
    too_small = order.index(get_scale(scale).name) < order.index(claim.scale)
    findings = {}
    for clause, comparison in claim.clauses().items():
        reasons = [f"Scale {scale} is too small: it needs {claim.scale} or more."] * too_small
        if missing := [name.replace("_", " ") for name in comparison.weights if name not in measured]:
            reasons.append(f"Nothing was measured for {', '.join(missing)}.")
            findings[clause] = Finding(verdict=NOT_TESTED, why=" ".join(reasons))
            continue
        try:
            found = effect(comparison.weights, _quantities(comparison, measured), resamples)
        except WorkbookError as error:
            findings[clause] = Finding(verdict=NOT_TESTED, why=" ".join([*reasons, str(error)]))
            continue
        why = " ".join(dict.fromkeys(filter(None, [*reasons, found.why])))
        word = NOT_TESTED if why else _word(comparison, found)
        findings[clause] = Finding(verdict=word, effect=None if math.isnan(found.value) else found, why=why)
    return Verdict(claim=claim, notebook=notebook, scale=scale, verdict=_summed_up(claim, findings), findings=findings)


def _quantities(comparison: rules.Comparison, measured: Mapping[str, Any]) -> dict[str, Any]:
    """The quantities of a comparison, on the tasks of its suite if it has one."""
    chosen = {name: measured[name] for name in comparison.weights}
    if not comparison.suite:
        return chosen
    tasks = SUITES[comparison.suite].tasks
    return {name: one.on(tasks) if isinstance(one, Quantity) else one for name, one in chosen.items()}


def _word(comparison: rules.Comparison, found: Estimate | None, level: float = LEVEL) -> str:
    if found is None or found.error is None:
        return NOT_TESTED
    return _OUTCOMES[comparison.outcome(*found.interval(level))]


def _summed_up(claim: Claim, findings: Mapping[str, Finding]) -> str:
    """The verdict on a claim, which needs all its clauses, from those on the clauses.

    One clause of many comes out wrong by chance more often than one alone: to contradict the claim, the interval of a
    clause is widened by Bonferroni's correction.
    """
    level = 1 - (1 - LEVEL) / len(findings)
    clauses = claim.clauses()
    words = {found.verdict for found in findings.values()} - {CONTRADICTED}
    for clause, found in findings.items():
        if found.verdict == CONTRADICTED:
            words.add(_word(clauses[clause], found.effect, level))
    return min(words, key=_WEAKEST.index)
