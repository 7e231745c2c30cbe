"""Pruning and rounding of one weight matrix: the published rules, on plain tensors (rows, columns)."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from ..errors import InvalidValueError, UnknownNameError, whole
from ..quantized import FORMATS, Quantized, dtype_of

PATTERNS = ("2:4", "4:8")
"""The semi-structured patterns of the paper, weights that stay in each group; any ``N:M`` works, as does a share."""
DAMPING = 0.01
"""Added to the diagonal of a Hessian, as a share of its mean; SparseGPT and GPTQ, both papers' code."""
BLOCK = 128
"""Columns that are compressed before the rest of the matrix is updated; as in both papers."""


def magnitude(weight: torch.Tensor) -> torch.Tensor:
    """Scores by magnitude: |W|, float32 (rows, columns).

    Args:
        weight: (rows, columns).

    Example:
        >>> magnitude(torch.tensor([[3.0, -4.0]]))
        tensor([[3., 4.]])
    """
    return _matrix("weight", weight).abs()


def wanda(weight: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
    """Wanda's scores: the magnitude of a weight times the norm of the input that it weighs, float32 (rows, columns).

    Args:
        weight: (rows, columns).
        norms: (columns,), Euclidean norm of each input feature over the calibration tokens.

    Raises:
        InvalidValueError: Norms of another shape.

    Source: Sun et al. 2023, equation 1.

    Example:
        >>> wanda(torch.tensor([[3.0, -4.0]]), torch.tensor([2.0, 1.0]))
        tensor([[6., 4.]])
    """
    scores = magnitude(weight)
    if norms.shape != scores.shape[1:]:
        raise InvalidValueError("norms", f"one for each of {scores.shape[1]} columns", tuple(norms.shape))
    return scores * norms.float()


def mask(scores: torch.Tensor, sparsity: str | float, per: str = "row") -> torch.Tensor:
    """Which weights stay: True at the highest scores, bool (rows, columns).

    Args:
        scores: (rows, columns).
        sparsity: ``N:M``, of each M neighbours in a row N stay; or the share that goes, between 0 and 1.
        per: For a share, what is compared: weights of one ``row``, or of the whole ``matrix``.

    Raises:
        InvalidValueError: A pattern or share that is none, a pattern that does not divide the columns, or NaN.
        UnknownNameError: Another ``per``.

    Example:
        >>> mask(torch.tensor([[1.0, 4.0, 3.0, 2.0]]), "2:4")
        tensor([[False,  True,  True, False]])
    """
    if per not in ("row", "matrix"):
        raise UnknownNameError("comparison", per, ("row", "matrix"))
    if bool(scores.isnan().any()):
        raise InvalidValueError("scores", "numbers", "NaN", "Inputs or weights have overflowed; calibrate in float32.")
    stays, of, share = parsed(sparsity)
    rows, columns = scores.shape
    if of:
        _divides(of, columns, sparsity)
        groups = scores.reshape(-1, of)
        dropped = of - stays
    else:
        groups = scores if per == "row" else scores.reshape(1, -1)
        dropped = int(groups.shape[1] * share)
    if not dropped:
        return torch.ones_like(scores, dtype=torch.bool)
    highest = groups.kthvalue(dropped, dim=1, keepdim=True).values  # of those that go; on a CPU faster than a sort
    kept, equal = groups > highest, groups == highest
    spare = groups.shape[1] - dropped - kept.sum(dim=1, keepdim=True)
    last = equal.flip(1).cumsum(dim=1).flip(1) <= spare  # of equal scores the last stay
    return (kept | equal & last).view(rows, columns)


def sparsegpt(weight: torch.Tensor, hessian: torch.Tensor, sparsity: str | float, block: int = BLOCK) -> torch.Tensor:
    """Prune by SparseGPT: weights go where that costs least, and those to the right make up for it.

    The Hessian is damped, as in the published code: its diagonal gains 1 % of its mean, so that one of too low a rank
    serves too. Of an input that is always zero the diagonal counts as 1, and its weights become 0.

    Args:
        weight: (rows, columns).
        hessian: (columns, columns), of the inputs X: X X^T, up to a factor.
        sparsity: See :func:`mask`; a share is of each block of columns.
        block: Columns after which the rest is updated; for a pattern a multiple of its M.

    Returns:
        The pruned weights, float32 (rows, columns).

    Raises:
        InvalidValueError: As :func:`mask`; a Hessian of another shape, with NaN, zero throughout, or singular even
            when damped; or a block that a pattern does not divide.

    Source: Frantar & Alistarh 2023, algorithm 1.
    """
    _, of, _ = parsed(sparsity)
    if of:
        _divides(of, weight.shape[1], sparsity)
        _divides(of, block, sparsity, "block")

    def chosen(weights: torch.Tensor, diagonal: torch.Tensor) -> torch.Tensor:
        return mask((weights / diagonal) ** 2, sparsity, "matrix")

    def zeroed(values: torch.Tensor, kept: torch.Tensor, _: int) -> torch.Tensor:
        return values * kept

    return _compensated(weight, hessian, zeroed, chosen, of or block, block)


def round_to_nearest(weight: torch.Tensor, form: str) -> Quantized:
    """Each weight as the nearest value of the format, with a symmetric scale per row: zero stays zero.

    Args:
        weight: (rows, columns).
        form: One of :data:`~workbook.quantized.FORMATS`.

    Raises:
        UnknownNameError: No such format.

    Example:
        >>> round_to_nearest(torch.tensor([[127.0, -1.2, 0.0]]), "int8").codes
        tensor([[127,  -1,   0]], dtype=torch.int8)
    """
    weight = _matrix("weight", weight)
    scale = _scale(weight, form)
    return Quantized(_codes(weight, scale, form), scale)


def gptq(weight: torch.Tensor, hessian: torch.Tensor, form: str, block: int = BLOCK) -> Quantized:
    """Round column by column by GPTQ: the weights to the right make up for the error of each; zeros stay zero.

    Args:
        weight: (rows, columns).
        hessian: See :func:`sparsegpt`.
        form: One of :data:`~workbook.quantized.FORMATS`.
        block: Columns after which the rest is updated.

    Raises:
        UnknownNameError: No such format.
        InvalidValueError: A Hessian as in :func:`sparsegpt`.

    Source: Frantar et al. 2022, algorithm 1; scales of the rows are fixed beforehand, from their largest weights.
    """
    weight = _matrix("weight", weight)
    scale, zero = _scale(weight, form), weight == 0

    def rounded(values: torch.Tensor, _: torch.Tensor, column: int) -> torch.Tensor:
        made = _codes(values.unsqueeze(1), scale, form).float() * scale
        return made.squeeze(1) * ~zero[:, column]

    made = _compensated(weight, hessian, rounded, None, block, block)
    return Quantized(_codes(made, scale, form), scale)


def parsed(sparsity: str | float) -> tuple[int, int, float]:
    """Sparsity as (N, M, share): a pattern has no share, a share no pattern; what is absent is 0.

    Args:
        sparsity: See :func:`mask`; also a share as a string.

    Raises:
        InvalidValueError: Anything else.
    """
    if isinstance(sparsity, str) and (found := re.fullmatch(r"(\d+):(\d+)", sparsity)):
        stays, of = int(found[1]), int(found[2])
        if 0 < stays < of:
            return stays, of, 0.0
    try:
        share = 0.0 if isinstance(sparsity, bool) else float(sparsity)
    except (TypeError, ValueError):
        share = 0.0
    if not 0 < share < 1:
        expected = "N:M with 0 < N < M, such as 2:4, or a share between 0 and 1"
        raise InvalidValueError("sparsity", expected, sparsity)
    return 0, 0, share


def _compensated(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    changed: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
    chosen: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    every: int,
    block: int,
) -> torch.Tensor:
    """Change columns from left to right; those further right take up the error (optimal brain surgeon).

    Args:
        weight: (rows, columns).
        hessian: (columns, columns).
        changed: Function of a column (rows,), of the mask of what stays (rows,) and of the column's number.
        chosen: Function of the weights of some columns and of their diagonal that returns what stays; None for all.
        every: Columns for which ``chosen`` is asked at once, just before the first of them is changed.
        block: Columns after which the rest is updated.
    """
    block = whole("block", block)
    # A copy in which a column's numbers lie side by side, as a row.
    left = _matrix("weight", weight).T.clone(memory_format=torch.contiguous_format)
    factor = _factor(hessian, len(left)).to(left.dtype)
    left[hessian.diagonal() == 0] = 0  # of an input that never spoke any weight does: they go first, as published
    kept = torch.ones_like(left, dtype=torch.bool)
    for begin in range(0, len(left), block):
        end = min(begin + block, len(left))
        errors = torch.zeros_like(left[begin:end])
        for column in range(begin, end):
            if chosen and (column - begin) % every == 0:
                part = slice(column, min(column + every, end))
                kept[part] = chosen(left[part].T, factor.diagonal()[part]).T
            made = changed(left[column], kept[column], column)
            error = (left[column] - made) / factor[column, column]
            left[column + 1 : end].addr_(factor[column, column + 1 : end], error, alpha=-1)
            left[column], errors[column - begin] = made, error
        left[end:] -= factor[begin:end, end:].T @ errors
    return left.T.contiguous()


def _factor(hessian: torch.Tensor, columns: int) -> torch.Tensor:
    """Upper Cholesky factor of the inverse of the damped Hessian, float64: its rows are the updates of all columns."""
    if hessian.shape != (columns, columns):
        raise InvalidValueError("hessian", f"of shape {(columns, columns)}", tuple(hessian.shape))
    if not bool(hessian.any()):
        raise InvalidValueError("hessian", "X X^T of inputs that are not all zero", "zero throughout")
    damped = hessian.double().clone()
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += DAMPING * diagonal.mean()
    # Factored from its last column on, H = R R^T with R upper: then R^-1 is the upper factor of the inverse.
    lower, failed = torch.linalg.cholesky_ex(damped.flip(0, 1))
    if not bool(failed) and _finite(lower):
        identity = torch.eye(columns, dtype=lower.dtype, device=lower.device)
        upper = torch.linalg.solve_triangular(lower.flip(0, 1), identity, upper=True)
        if _finite(upper):
            return upper
    raise InvalidValueError(
        "hessian", f"positive definite once {DAMPING:.0%} of its mean diagonal is added", "one that is not",
        "Give X X^T of finite inputs; more or other calibration texts may help.",
    )  # fmt: skip


def _scale(weight: torch.Tensor, form: str) -> torch.Tensor:
    largest = weight.abs().amax(dim=1, keepdim=True)
    return torch.where(largest > 0, largest / _largest(form), torch.ones_like(largest))


def _codes(weight: torch.Tensor, scale: torch.Tensor, form: str) -> torch.Tensor:
    dtype, most = FORMATS[form], _largest(form)
    values = (weight / scale).clamp(-most, most)
    return (values if dtype.is_floating_point else values.round()).to(dtype)


def _largest(form: str) -> float:
    dtype = dtype_of(form)
    return torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


def _matrix(name: str, values: torch.Tensor) -> torch.Tensor:
    if not isinstance(values, torch.Tensor) or values.ndim != 2 or not _finite(values):
        got = getattr(values, "shape", type(values).__name__)
        raise InvalidValueError(name, "a matrix of finite numbers", got)
    return values.detach().float()


def _finite(values: torch.Tensor) -> bool:
    """Whether all are finite numbers; the largest magnitude says so in a tenth of the time of looking at each."""
    return not values.numel() or bool(values.abs().amax().isfinite())


def _divides(of: int, columns: int, sparsity: str | float, name: str = "weight") -> None:
    if columns % of:
        raise InvalidValueError(
            "sparsity", f"a pattern that divides the {columns} columns of {name}", sparsity,
            "Take a share, such as 0.5, or another pattern.",
        )  # fmt: skip
