"""Pruning and rounding of one weight matrix: magnitude, Wanda, SparseGPT, rounding to nearest, GPTQ."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

import torch

from ..errors import InvalidValueError, UnknownNameError
from ..quantized import FORMATS

CRITERIA = ("magnitude", "wanda", "sparsegpt")
"""Criteria by which weights are pruned."""

PATTERNS = ("2:4", "4:8")
"""Patterns n:m, of which n weights stay in each m along a row; a share such as 0.5 has no pattern."""

ROUNDINGS = ("rtn", "gptq")
"""Ways to round weights: to the nearest value, and so that later columns make up for the error of earlier ones."""

_BLOCK = 128  # columns after which what they changed is carried over to the rest, at once


def magnitude(weight: torch.Tensor) -> torch.Tensor:
    """Scores |W|, (rows, columns) in float32.

    Args:
        weight: (rows, columns).
    """
    return weight.float().abs()


def wanda(weight: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
    """Scores |W_ij| ||X_j||, (rows, columns) in float32: what a weight does to the output, with its usual input.

    Args:
        weight: (rows, columns).
        norms: (columns,), the Euclidean norm of each input over all tokens.

    Source: Sun et al. 2023, A Simple and Effective Pruning Approach for Large Language Models, equation 1.
    """
    return weight.float().abs() * norms.float()


def mask(scores: torch.Tensor, sparsity: str | float, *, per_row: bool = True) -> torch.Tensor:
    """The weights that stay: those of the highest scores.

    Args:
        scores: (rows, columns).
        sparsity: A pattern of :data:`PATTERNS`, or the share of weights that go.
        per_row: Whether a share goes in each row, as in Wanda; False for the share of the whole matrix.

    Returns:
        Bool (rows, columns), True where a weight stays.

    Raises:
        UnknownNameError: No such pattern.
        InvalidValueError: A share that is not between 0 and 1, or a pattern that does not divide the columns.

    Examples:
        >>> mask(torch.tensor([[4.0, 1.0, 2.0, 3.0]]), "2:4").tolist()
        [[True, False, False, True]]
    """
    check_sparsity(sparsity, scores.shape[1])
    if isinstance(sparsity, str):
        stay, of = map(int, sparsity.split(":"))
        groups, fewer = scores.reshape(-1, of), of - stay
    else:
        groups = scores if per_row else scores.reshape(1, -1)
        fewer = int(groups.shape[1] * sparsity)
    lowest = groups.argsort(dim=1, stable=True)[:, :fewer]
    return torch.ones_like(groups, dtype=torch.bool).scatter_(1, lowest, False).view_as(scores)


def check_sparsity(sparsity: str | float, columns: int = 0, layer: str = "weight") -> None:
    """Refuse what is neither a pattern nor a share, or a pattern that does not fit.

    Args:
        sparsity: See :func:`mask`.
        columns: Number of columns.
        layer: Their layer's name, for the error.

    Raises:
        UnknownNameError, InvalidValueError: As :func:`mask`.
    """
    if isinstance(sparsity, str):
        if sparsity not in PATTERNS:
            raise UnknownNameError("sparsity", sparsity, PATTERNS, "A share of weights, such as 0.5, works too.")
        if columns % (of := int(sparsity.partition(":")[2])):
            hint = f"{sparsity} needs a multiple of {of}. Give a share, such as 0.5."
            raise InvalidValueError("sparsity", f"a pattern that divides the columns of {layer}", columns, hint)
    elif not isinstance(sparsity, Real) or isinstance(sparsity, bool) or not 0 < sparsity < 1:
        raise InvalidValueError("sparsity", f"one of {[*PATTERNS]}, or a share between 0 and 1", sparsity)


def round_to_nearest(weight: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights in eight bits with a scale for each row; 0 stays 0.

    Args:
        weight: (rows, columns).
        form: A name of :data:`FORMATS`.

    Returns:
        Stored values (rows, columns) in the dtype of the form, and scales, float32 (rows, 1); their product is the
        weight, rounded.

    Raises:
        UnknownNameError: No such form.
    """
    scale = _scale(weight, form)
    return _stored(weight / scale, form), scale


def sparsegpt(
    weight: torch.Tensor, hessian: torch.Tensor, sparsity: str | float, damping: float = 0.01
) -> torch.Tensor:
    """A pruned matrix whose other weights are changed, so that its output changes least.

    Columns are settled from left to right, and what one loses the later ones make up for. Which weights go is decided
    for 128 columns at once with all rows (a share), or for each m columns and row (a pattern).

    Args:
        weight: (rows, columns).
        hessian: (columns, columns), X X^T of the inputs, summed over tokens.
        sparsity: See :func:`mask`.
        damping: What is added to the Hessian's diagonal, as a share of its mean.

    Returns:
        (rows, columns), in the weight's dtype.

    Raises:
        UnknownNameError: As :func:`mask`.
        InvalidValueError: As :func:`mask`, or a singular Hessian.

    Source: Frantar & Alistarh 2023, SparseGPT, algorithm 1; damping as in the published code.
    """
    check_sparsity(sparsity, weight.shape[1])
    every = int(sparsity.partition(":")[2]) if isinstance(sparsity, str) else _BLOCK

    def choose(columns: slice, current: torch.Tensor, diagonal: torch.Tensor) -> torch.Tensor:
        return mask((current / diagonal) ** 2, sparsity, per_row=False)

    return _settled(weight, hessian, damping, every, choose, lambda column: column).to(weight.dtype)


def gptq(
    weight: torch.Tensor, hessian: torch.Tensor, form: str, damping: float = 0.01
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights in eight bits, rounded so that later columns make up for the error of earlier ones; 0 stays 0.

    Args:
        weight: (rows, columns).
        hessian: As of :func:`sparsegpt`.
        form: A name of :data:`FORMATS`.
        damping: As of :func:`sparsegpt`.

    Returns:
        As of :func:`round_to_nearest`, with the same scales.

    Raises:
        UnknownNameError: No such form.
        InvalidValueError: A singular Hessian.

    Source: Frantar et al. 2022, GPTQ, algorithm 1. That weights of 0 stay is SparseGPT's joint pruning and rounding
    (Frantar & Alistarh 2023, section 3.5).
    """
    scale = _scale(weight, form)
    stay = weight != 0

    def choose(columns: slice, current: torch.Tensor, diagonal: torch.Tensor) -> torch.Tensor:
        return stay[:, columns]

    def rounded(column: torch.Tensor) -> torch.Tensor:
        return _stored(column / scale[:, 0], form).float() * scale[:, 0]

    return _stored(_settled(weight, hessian, damping, _BLOCK, choose, rounded) / scale, form), scale


def _settled(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    damping: float,
    every: int,
    choose: Callable[[slice, torch.Tensor, torch.Tensor], torch.Tensor],
    settle: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The weights after each column was settled in its turn and the later ones made up for it.

    Args:
        weight, hessian, damping: See :func:`sparsegpt`.
        every: For how many columns at once it is decided what stays.
        choose: Function of columns, of their current weights and of their diagonal of the factor; returns what stays.
        settle: Function of a column's weights that returns those it ends with.
    """
    weight = weight.float().clone()
    factor = _inverse_factor(hessian, damping)
    weight[:, hessian.diagonal() == 0] = 0  # inputs that are never there
    for start in range(0, weight.shape[1], _BLOCK):
        end = min(start + _BLOCK, weight.shape[1])
        part, own = weight[:, start:end], factor[start:end, start:end]
        stay = torch.ones_like(part, dtype=torch.bool)
        errors = torch.zeros_like(part)
        for i in range(end - start):
            if i % every == 0:
                columns = slice(i, min(i + every, end - start))
                of_all = slice(start + columns.start, start + columns.stop)
                stay[:, columns] = choose(of_all, part[:, columns], own.diagonal()[columns])
            column = settle(part[:, i] * stay[:, i])
            errors[:, i] = (part[:, i] - column) / own[i, i]
            part[:, i + 1 :] -= errors[:, i].outer(own[i, i + 1 :])
            part[:, i] = column
        weight[:, end:] -= errors @ factor[start:end, end:]
    return weight


def _inverse_factor(hessian: torch.Tensor, damping: float) -> torch.Tensor:
    """The upper Cholesky factor of the inverse of the damped Hessian: row i is what settling column i needs."""
    damped = hessian.float().clone()
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += damping * hessian.float().diagonal().mean()
    try:
        lower = torch.linalg.cholesky(damped)
        factor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    except torch.linalg.LinAlgError as error:
        factor, reason = None, str(error).partition("\n")[0]
    else:
        reason = "it has values that are not finite"
    if factor is None or not factor.isfinite().all():
        raise InvalidValueError(
            "hessian", "one that can be inverted after damping", f"a singular one ({reason})",
            "Calibrate with more, and more varied, texts.",
        )  # fmt: skip
    return factor


def _scale(weight: torch.Tensor, form: str) -> torch.Tensor:
    """Scales of rows, float32 (rows, 1), with which the largest weight of a row is the largest value of the form."""
    if form not in FORMATS:
        raise UnknownNameError("form", form, FORMATS)
    largest = weight.float().abs().amax(dim=1, keepdim=True) / _largest(form)
    return torch.where(largest > 0, largest, 1.0)


def _largest(form: str) -> float:
    return 127.0 if form == "int8" else torch.finfo(FORMATS[form]).max


def _stored(values: torch.Tensor, form: str) -> torch.Tensor:
    """Scaled weights in the dtype of a form; what is too large for it becomes its largest value."""
    values = values.float().clamp(-_largest(form), _largest(form))
    return (values.round() if form == "int8" else values).to(FORMATS[form])
