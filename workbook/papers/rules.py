"""The rules of claims: comparisons between linear expressions of named quantities, read without running them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping

from ..errors import InvalidValueError

_COMPARISONS = {ast.Gt: operator.gt, ast.GtE: operator.gt, ast.Lt: operator.lt, ast.LtE: operator.lt}


def names(clause: str, where: str) -> set[str]:
    """The names of the quantities in a comparison.

    Args:
        clause: A comparison, such as ``"mean > last_token + 5"``.
        where: Owner of the comparison, for messages.

    Raises:
        InvalidValueError: The comparison can't be read.
    """
    return {name for margin in margins(clause, where) for name in margin if name}


def margins(clause: str, where: str) -> list[dict[str, float]]:
    """A comparison as linear forms, one per comparison sign, positive where it holds.

    Args:
        clause, where: See `names`.

    Returns:
        Coefficients by name, the constant under ``""``.

    Raises:
        InvalidValueError: The comparison can't be read.
    """
    try:
        tree = ast.parse(clause, mode="eval").body
        if not isinstance(tree, ast.Compare):
            raise ValueError("no comparison")
        sides = [_linear(side) for side in (tree.left, *tree.comparators)]
        signs = [1 if _COMPARISONS[type(comparison)] is operator.gt else -1 for comparison in tree.ops]
    except (SyntaxError, ValueError, KeyError) as error:
        expected = "comparisons with < or > of names, numbers, sums and differences, such as 'mean > last_token + 5'"
        raise InvalidValueError(where, expected, clause) from error
    pairs = zip(sides, sides[1:], signs, strict=False)
    return [_add(left, right, -1, sign) for left, right, sign in pairs]


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
