"""The rules of claims: comparisons between linear expressions of named quantities, read without running them."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidValueError, UnknownNameError
from ..evaluation.suites import SUITES

_COMPARISONS = {ast.Gt: operator.gt, ast.GtE: operator.gt, ast.Lt: operator.lt, ast.LtE: operator.lt}


@dataclass(frozen=True)
class Comparison:
    """A comparison as an effect and the side of it that is claimed.

    Attributes:
        weights: The effect, as weights of named quantities.
        above: The effect is claimed to be above this; minus infinity if the claim has no such bound.
        below: And below this; infinity likewise. A claim of no difference has both: its margin.
        suite: The suite whose average the quantities are; empty if they are not averages over one.
    """

    weights: Mapping[str, float]
    above: float
    below: float
    suite: str = ""

    def outcome(self, low: float, high: float) -> str:
        """``holds`` if the whole interval is on the claimed side, ``fails`` if it is on the other, else ``open``.

        Args:
            low: Lower end of the effect's interval.
            high: Upper end.
        """
        if low > self.above and high < self.below:
            return "holds"
        return "fails" if high < self.above or low > self.below else "open"

    def room(self, effect: float) -> float:
        """How far an effect is on the claimed side, from its nearest bound; negative if it is on the other."""
        return min(effect - self.above, self.below - effect)

    def effect(self, numbers: Mapping[str, float]) -> float:
        """The effect of exact numbers by name."""
        return sum(weight * numbers[name] for name, weight in self.weights.items())


def read(clause: str, where: str) -> Comparison:
    """A comparison from its text.

    An effect of several quantities is written so that the claim is that it is large: ``a < b`` is about b - a.

    Args:
        clause: Such as ``"mean > last_token + 5"``, or a margin, ``"-1 < a - b < 1"``; in front the suite if there is
            one, ``"docs: mean > last_token"``.
        where: Owner of the comparison, for messages.

    Raises:
        UnknownNameError: No such suite.
        InvalidValueError: It can't be read; it names no quantity, so that nothing measured decides it; it is a chain
            about several effects; or no number is on the claimed side.
    """
    suite, _, text = clause.rpartition(":")
    if suite and suite not in SUITES:
        raise UnknownNameError(f"suite in {where}", suite, SUITES)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if not isinstance(tree, ast.Compare):
            raise ValueError("no comparison")
        sides = [_linear(side) for side in (tree.left, *tree.comparators)]
        signs = [1 if _COMPARISONS[type(comparison)] is operator.gt else -1 for comparison in tree.ops]
    except (SyntaxError, ValueError, KeyError) as error:
        expected = "comparisons with < or > of names, numbers, sums and differences, such as 'mean > last_token + 5'"
        raise InvalidValueError(where, expected, clause) from error
    pairs = zip(sides, sides[1:], signs, strict=False)
    margins = [_add(left, right, -1, sign) for left, right, sign in pairs]
    forms = [{name: weight for name, weight in margin.items() if name and weight} for margin in margins]
    if not all(forms):
        raise InvalidValueError(where, "a quantity in every comparison, since numbers alone decide nothing", clause)
    weights = forms[0]
    if len(forms) > 1 or len(weights) == 1:  # in the words of the rule: a share stays a share
        written = next(side for side in sides if any(side.get(name) for name in weights))
        sign = math.copysign(1.0, next(written[name] / weights[name] for name in weights if written.get(name)))
        weights = {name: sign * weight for name, weight in weights.items()}
    above, below = -math.inf, math.inf
    for margin, form in zip(margins, forms, strict=True):
        factor = next(form.get(name, 0.0) / weight for name, weight in weights.items())
        if set(form) != set(weights) or any(not math.isclose(form[n], factor * w) for n, w in weights.items()):
            hint = "Write each comparison as a clause of its own."
            raise InvalidValueError(where, "a chain about one effect", clause, hint)
        bound = 0.0 - margin.get("", 0.0) / factor
        above, below = (max(above, bound), below) if factor > 0 else (above, min(below, bound))
    if above >= below:
        raise InvalidValueError(where, "a side that some effect is on", clause)
    return Comparison(weights, above, below, suite)


def _linear(node: ast.expr) -> dict[str, float]:
    match node:
        case ast.Name(id=name):
            return {name: 1.0}
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return {"": float(number)}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _add({}, _linear(operand), -1)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _add(_linear(left), _linear(right), 1)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _add(_linear(left), _linear(right), -1)
        case ast.BinOp(left=ast.Constant(value=int() | float() as factor), op=ast.Mult(), right=right):
            return {name: factor * weight for name, weight in _linear(right).items()}
    raise ValueError(f"not linear: {ast.unparse(node)}")


def _add(left: Mapping[str, float], right: Mapping[str, float], sign: float, scale: float = 1) -> dict[str, float]:
    return {name: scale * (left.get(name, 0) + sign * right.get(name, 0)) for name in {**left, **right}}
