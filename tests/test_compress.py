"""Compression of one matrix, against second implementations written column by column from the formulas."""

import pytest
import torch

from workbook import compress
from workbook.errors import InvalidValueError, UnknownNameError


@pytest.fixture(scope="module")
def layer():
    """A weight (6, 160), wider than one block of 128 columns, and 400 correlated inputs of different size."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(160, 160, generator=generator) / 6
    inputs = torch.randn(400, 160, generator=generator) @ (mixing + torch.eye(160)) * torch.linspace(0.1, 3, 160)
    return torch.randn(6, 160, generator=generator), inputs


def gram(inputs):
    return inputs.T @ inputs


def naive(weight, hessian, stays, value=lambda row, number: number):
    """Optimal Brain Surgeon from left to right: each step inverts the Hessian of the columns that remain.

    Args:
        weight: (rows, columns).
        hessian: (columns, columns).
        stays: Function of a column's number, the current weights, and all later inverses' first entries; returns the
            columns that are decided now, by number, as bool (rows,).
        value: Function of a row and a number that returns the number as it is stored.
    """
    weight, hessian = weight.double().clone(), hessian.double()
    columns = weight.shape[1]
    damped = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(columns)
    inverses = [torch.linalg.inv(damped[j:, j:]) for j in range(columns)]
    kept = {}
    for j in range(columns):
        kept |= stays(j, weight, [inverse[0, 0] for inverse in inverses])
        for row in range(len(weight)):
            new = value(row, weight[row, j].item()) if kept[j][row] else 0.0
            error = (weight[row, j] - new) / inverses[j][0, 0]
            weight[row, j:] -= error * inverses[j][0]
            weight[row, j] = new
    return weight


def lowest_in_groups(of, share):
    """What stays where, at each first column of a group, the lowest w^2 / [H^-1] of it go.

    Args:
        of: Columns of a group.
        share: None for half of each row of the group; else the share of the group with all its rows.
    """

    def stays(j, weight, firsts):
        if j % of:
            return {}
        group = range(j, min(j + of, weight.shape[1]))
        scores = {(r, c): float(weight[r, c] ** 2 / firsts[c]) for r in range(len(weight)) for c in group}
        if share is None:
            gone = {p for r in range(len(weight)) for p in sorted(((r, c) for c in group), key=scores.get)[: of // 2]}
        else:
            gone = {*sorted(scores, key=scores.get)[: int(share * len(scores))]}
        return {c: [(r, c) not in gone for r in range(len(weight))] for c in group}

    return stays


def test_wanda_is_weight_times_norm_within_each_row(layer):
    weight, inputs = layer
    scores = compress.wanda(weight, inputs.norm(dim=0))
    kept = compress.mask(scores, 0.3)
    for i, row in enumerate(weight.tolist()):
        own = [abs(w) * sum(x * x for x in inputs[:, j].tolist()) ** 0.5 for j, w in enumerate(row)]
        assert torch.allclose(scores[i], torch.tensor(own), rtol=1e-4)
        gone = {*sorted(range(160), key=own.__getitem__)[:48]}
        assert {j for j in range(160) if not kept[i, j]} == gone


def test_a_share_goes_in_each_row_or_in_all_at_once():
    scores = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    assert compress.mask(scores, 0.5).tolist() == [[False, False, True, True]] * 2
    assert compress.mask(scores, 0.5, per_row=False).tolist() == [[False] * 4, [True] * 4]
    assert compress.magnitude(torch.tensor([[-2.0, 1.0]])).tolist() == [[2.0, 1.0]]


@pytest.mark.parametrize("pattern", compress.PATTERNS)
def test_a_pattern_leaves_n_of_m(pattern, layer):
    stay, of = map(int, pattern.split(":"))
    kept = compress.mask(compress.magnitude(layer[0]), pattern)
    assert (kept.view(6, -1, of).sum(dim=2) == stay).all()
    assert not kept[0, :of].equal(kept[1, :of]) or not kept[0, of : 2 * of].equal(kept[1, of : 2 * of])


@pytest.mark.parametrize(
    ("sparsity", "of", "share"), [("2:4", 4, None), ("4:8", 8, None), (0.5, 128, 0.5), (0.3, 128, 0.3)]
)
def test_sparsegpt_is_obs_column_by_column(layer, sparsity, of, share):
    weight, inputs = layer
    pruned = compress.sparsegpt(weight, gram(inputs), sparsity)
    expected = naive(weight, gram(inputs), lowest_in_groups(of, share))
    assert (pruned - expected).abs().max() < 1e-4
    assert ((pruned == 0) == (expected == 0)).all()


@pytest.mark.parametrize("sparsity", ["2:4", 0.5])
def test_sparsegpt_changes_the_output_less_than_magnitude(layer, sparsity):
    weight, inputs = layer
    pruned = compress.sparsegpt(weight, gram(inputs), sparsity)
    kept = compress.mask(compress.magnitude(weight), sparsity, per_row=False)
    assert (kept == 0).sum() == (pruned == 0).sum()
    assert (inputs @ (pruned - weight).T).norm() < (inputs @ (weight * kept - weight).T).norm()


def nearest(form):
    """All numbers of a form, for a search of the nearest one."""
    if form == "int8":
        return torch.arange(-127.0, 128)
    values = torch.arange(256, dtype=torch.uint8).view(compress.FORMATS[form]).float()
    return values[values.isfinite()]


@pytest.mark.parametrize("form", compress.FORMATS)
def test_rounding_takes_the_nearest_of_all_values(layer, form):
    weight = layer[0]
    stored, scale = compress.round_to_nearest(weight, form)
    assert (stored.dtype, scale.dtype, scale.shape) == (compress.FORMATS[form], torch.float32, (6, 1))
    top = nearest(form).max()
    assert torch.allclose(scale, weight.abs().amax(dim=1, keepdim=True) / top)
    distances = (weight.unsqueeze(-1) / scale.unsqueeze(-1) - nearest(form)).abs()
    found = (weight / scale - stored.float()).abs()
    assert torch.allclose(found, distances.amin(dim=-1), atol=1e-5)


@pytest.mark.parametrize("form", compress.FORMATS)
def test_gptq_is_obs_column_by_column(layer, form):
    weight, inputs = layer
    stored, scale = compress.gptq(weight, gram(inputs), form)
    values = nearest(form).double()

    def value(row, number):
        return values[(values - number / scale[row].item()).abs().argmin()].item() * scale[row].item()

    expected = naive(weight, gram(inputs), lambda j, *_: {j: [True] * 6}, value)
    assert (stored.float() * scale - expected).abs().max() < 1e-4
    plain, _ = compress.round_to_nearest(weight, form)
    assert (inputs @ (stored.float() * scale - weight).T).norm() < (inputs @ (plain.float() * scale - weight).T).norm()


@pytest.mark.parametrize("form", compress.FORMATS)
def test_zeros_stay_and_rows_of_zeros_too(layer, form):
    weight, inputs = layer
    pruned = compress.sparsegpt(weight, gram(inputs), "2:4")
    pruned[2] = 0
    for stored, scale in (compress.round_to_nearest(pruned, form), compress.gptq(pruned, gram(inputs), form)):
        restored = stored.float() * scale
        assert (restored[pruned == 0] == 0).all()
        assert restored.isfinite().all()
        assert restored.norm() > 0


def test_inputs_that_are_never_there_weigh_nothing(layer):
    weight, inputs = layer
    inputs = inputs.clone()
    inputs[:, 5] = 0
    pruned = compress.sparsegpt(weight, gram(inputs), 0.5)
    assert pruned.isfinite().all()
    assert (pruned[:, 5] == 0).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda w, h: compress.mask(w, "1:4"), UnknownNameError, "Unknown sparsity '1:4'.*2:4, 4:8.*0.5"),
        (lambda w, h: compress.mask(w, 1.0), InvalidValueError, "share between 0 and 1, got 1.0"),
        (lambda w, h: compress.mask(w, 0), InvalidValueError, "share between 0 and 1, got 0"),
        (lambda w, h: compress.mask(w, True), InvalidValueError, "share between 0 and 1, got True"),
        (lambda w, h: compress.mask(w, float("nan")), InvalidValueError, "share between 0 and 1, got nan"),
        (lambda w, h: compress.mask(w[:, :158], "2:4"), InvalidValueError, "divides the columns of weight, got 158"),
        (lambda w, h: compress.sparsegpt(w, h, "4:4"), UnknownNameError, "Unknown sparsity '4:4'"),
        (lambda w, h: compress.round_to_nearest(w, "int4"), UnknownNameError, "Unknown form 'int4'.*int8"),
        (lambda w, h: compress.gptq(w, h, "fp8"), UnknownNameError, "Unknown form 'fp8'.*e4m3"),
        (lambda w, h: compress.gptq(w, h * float("nan"), "int8"), InvalidValueError, "a singular one"),
        (lambda w, h: compress.sparsegpt(w, torch.ones_like(h), "2:4", damping=0.0), InvalidValueError, "singular"),
    ],
)
def test_bad_input(layer, call, error, message):
    weight, inputs = layer
    with pytest.raises(error, match=message):
        call(weight, gram(inputs))
