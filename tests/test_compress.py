"""Pruning and rounding of one matrix, against second implementations from the papers' formulas."""

import pytest
import torch

from workbook import compress
from workbook.compress import matrices
from workbook.errors import InvalidValueError, UnknownNameError

ROWS, COLUMNS = 6, 16


@pytest.fixture(scope="module")
def made():
    """A weight, inputs of correlated features, and their X X^T."""
    drawn = torch.Generator().manual_seed(0)
    weight = torch.randn(ROWS, COLUMNS, generator=drawn)
    inputs = torch.randn(200, COLUMNS, generator=drawn) @ torch.randn(COLUMNS, COLUMNS, generator=drawn)
    return weight, inputs, inputs.T @ inputs


def error(weight, changed, inputs):
    """Squared error of the layer's output."""
    return float(((weight - changed) @ inputs.T).square().sum())


def damped(hessian):
    return hessian.double() + 0.01 * hessian.double().diagonal().mean() * torch.eye(len(hessian)).double()


def surgeon(weight, hessian, change, kept_of):
    """Optimal brain surgeon column by column, with the explicit inverse of the Hessian of the columns that remain."""
    left, full = weight.double().clone(), damped(hessian)
    kept = torch.ones_like(left, dtype=torch.bool)
    for column in range(left.shape[1]):
        inverse = torch.linalg.inv(full[column:, column:])
        kept_of(column, left, full, kept)
        quantized = change(left[:, column].clone(), kept[:, column], column)
        ratio = (left[:, column] - quantized) / inverse[0, 0]
        left[:, column:] -= ratio.unsqueeze(1) * inverse[0]
        left[:, column] = quantized
    return left


def saliency(full, column, left, width):
    """w^2 / [H^-1]_jj of some columns, each with the inverse of what remains when its turn comes."""
    diagonal = [torch.linalg.inv(full[j:, j:])[0, 0] for j in range(column, column + width)]
    return left[:, column : column + width] ** 2 / torch.stack(diagonal)


def test_by_hand():
    weight = torch.tensor([[4.0, -1.0, 2.0, 3.0], [1.0, 2.0, -3.0, 4.0], [0.5, 0.1, 0.2, 0.4], [1.0, -5.0, 2.0, 0.0]])
    norms = torch.tensor([1.0, 10.0, 1.0, 1.0])
    assert compress.magnitude(weight).tolist() == weight.abs().tolist()
    assert compress.wanda(weight, norms)[0].tolist() == [4, 10, 2, 3]
    assert compress.mask(compress.magnitude(weight), "2:4").int().tolist() == [
        [1, 0, 0, 1], [0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 1, 0]
    ]  # fmt: skip
    assert compress.mask(compress.wanda(weight, norms), "2:4").int().tolist()[0] == [1, 1, 0, 0]
    by_matrix = compress.mask(compress.magnitude(weight), 0.5, "matrix")
    assert by_matrix.sum(dim=1).tolist() == [3, 3, 0, 2]
    assert compress.mask(compress.magnitude(weight), 0.25).sum(dim=1).tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("sparsity", ["2:4", "4:8", "1:4", "0.5", 0.5, 0.3])
def test_ties_leave_the_count(sparsity):
    stays, of, share = matrices.parsed(sparsity)
    kept = compress.mask(torch.ones(3, 16), sparsity)
    assert kept.sum(dim=1).tolist() == [16 * stays // of if of else 16 - int(16 * share)] * 3
    groups = kept.view(-1, of or 16).int()
    assert bool((groups.diff(dim=1) >= 0).all())  # of equal scores the last stay


def test_scores_that_are_no_numbers():
    with pytest.raises(InvalidValueError, match="scores: expected numbers, got 'NaN'"):
        compress.mask(torch.tensor([[1.0, float("nan"), 3.0, 2.0]]), "2:4")


@pytest.mark.parametrize("weight", [torch.ones(1, 16), torch.ones(6, 1), torch.ones(16, 6).T, torch.ones(6, 16)])
def test_a_weight_is_left_as_it_is(weight):
    inputs = torch.randn(64, weight.shape[1], generator=torch.Generator().manual_seed(0))
    made = compress.sparsegpt(weight, inputs.T @ inputs, 0.5)
    compress.gptq(weight, inputs.T @ inputs, "int8")
    assert bool((weight == 1).all())
    assert made.untyped_storage().data_ptr() != weight.untyped_storage().data_ptr()


@pytest.mark.parametrize(("sparsity", "of"), [("2:4", 4), ("4:8", 8)])
@pytest.mark.parametrize("block", [8, 16, 128])
def test_sparsegpt_by_pattern_is_the_surgeon(made, sparsity, of, block):
    weight, _, hessian = made

    def choose(column, left, full, kept):
        if column % of == 0:
            lowest = saliency(full, column, left, of).argsort(dim=1)[:, : of // 2]
            kept[:, column : column + of] = torch.ones(ROWS, of, dtype=torch.bool).scatter(1, lowest, False)

    expected = surgeon(weight, hessian, lambda values, kept, _: values * kept, choose)
    assert torch.allclose(compress.sparsegpt(weight, hessian, sparsity, block=block).double(), expected, atol=1e-4)


@pytest.mark.parametrize("block", [4, 16])
def test_sparsegpt_by_share_is_the_surgeon(made, block):
    weight, _, hessian = made

    def choose(column, left, full, kept):
        if column % block == 0:
            lowest = saliency(full, column, left, block).flatten().argsort()[: ROWS * block // 2]
            chosen = torch.ones(ROWS * block, dtype=torch.bool).scatter(0, lowest, False)
            kept[:, column : column + block] = chosen.view(ROWS, block)

    expected = surgeon(weight, hessian, lambda values, kept, _: values * kept, choose)
    assert torch.allclose(compress.sparsegpt(weight, hessian, 0.5, block=block).double(), expected, atol=1e-4)


@pytest.mark.parametrize("form", ["int8", "e4m3", "e5m2"])
def test_gptq_is_the_surgeon(made, form):
    weight, _, hessian = made
    found = compress.gptq(weight, hessian, form, block=4)
    most = {"int8": 127, "e4m3": 448, "e5m2": 57344}[form]
    scale = weight.abs().amax(dim=1) / most

    def rounded(values, _, column):
        values = (values.float() / scale).clamp(-most, most)
        codes = values.round() if form == "int8" else values.to(compress.FORMATS[form]).float()
        return (codes * scale).double()

    expected = surgeon(weight, hessian, rounded, lambda *_: None)
    assert found.codes.dtype is compress.FORMATS[form]
    # A value on the edge between two codes may fall to either side: few may, and by no more than one step.
    close = (found.dequantized().double() - expected).abs() < 1e-4
    assert close.float().mean() > 0.97


@pytest.mark.parametrize("sparsity", ["2:4", "4:8", 0.5])
def test_sparsegpt_changes_the_output_less(sparsity):
    """On average: columns are taken greedily from the left, which for one matrix in ten or so is worse."""
    ratios = []
    for seed in range(20):
        drawn = torch.Generator().manual_seed(seed)
        weight, mixed = torch.randn(32, 64, generator=drawn), torch.randn(64, 64, generator=drawn)
        inputs = torch.randn(500, 64, generator=drawn) @ mixed
        small = compress.sparsegpt(weight, inputs.T @ inputs, sparsity)
        by_size = weight * compress.mask(compress.magnitude(weight), sparsity, "matrix")
        by_wanda = weight * compress.mask(compress.wanda(weight, inputs.norm(dim=0)), sparsity)
        assert {int((one == 0).sum()) for one in (small, by_size, by_wanda)} == {weight.numel() // 2}
        other = torch.tensor([error(weight, one, inputs) for one in (by_size, by_wanda)])
        ratios.append(error(weight, small, inputs) / other)
    assert bool((torch.stack(ratios).mean(dim=0) < (1 if sparsity == 0.5 else 0.8)).all())


@pytest.mark.parametrize("form", compress.FORMATS)
def test_gptq_changes_the_output_less(made, form):
    weight, inputs, hessian = made
    plain = compress.round_to_nearest(weight, form).dequantized()
    assert error(weight, compress.gptq(weight, hessian, form).dequantized(), inputs) < error(weight, plain, inputs)


def test_wanda_is_exact_for_uncorrelated_inputs():
    """With a diagonal X X^T the score squared is the error that a weight's removal makes."""
    drawn = torch.Generator().manual_seed(1)
    weight, norms = torch.randn(4, 8, generator=drawn), torch.rand(8, generator=drawn)
    removed = torch.stack([(weight[:, j] * norms[j]).square() for j in range(8)], dim=1)
    assert torch.allclose(compress.wanda(weight, norms).square(), removed)


@pytest.mark.parametrize("form", compress.FORMATS)
def test_rounding(made, form):
    weight = made[0].clone()
    weight[0], weight[1, 3] = 0, 0
    found = compress.round_to_nearest(weight, form)
    assert (found.codes.element_size(), found.scale.shape) == (1, (ROWS, 1))
    assert found.dequantized()[0].count_nonzero() == 0
    assert found.dequantized()[1, 3] == 0
    relative = {"int8": 1 / 127, "e4m3": 1 / 16, "e5m2": 1 / 8}[form]  # half a step of mantissa; of int8 of the largest
    bound = weight.abs() if form != "int8" else weight.abs().amax(dim=1, keepdim=True) / 2
    assert bool(((found.dequantized() - weight).abs() <= relative * bound + 1e-6).all())
    assert torch.allclose(found.dequantized().abs().amax(dim=1), weight.abs().amax(dim=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", compress.FORMATS)
def test_a_narrow_dtype_rounds_the_weights_and_not_their_scales(form, dtype):
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(2)) * 0.005
    found = compress.round_to_nearest(weight, form)
    exact = found.codes.double() * found.scale.double()
    kept = exact.abs() > torch.finfo(dtype).smallest_normal
    error = ((found.dequantized(dtype).double() - exact) / exact)[kept].abs().max()
    assert error <= torch.finfo(dtype).eps


@pytest.mark.parametrize("form", compress.FORMATS)
def test_zeros_outlive_gptq(made, form):
    weight, _, hessian = made
    small = compress.sparsegpt(weight, hessian, "2:4")
    found = compress.gptq(small, hessian, form).dequantized()
    assert bool((found[small == 0] == 0).all())


def test_an_input_that_is_always_zero(made):
    weight, _, hessian = made
    hessian = hessian.clone()
    hessian[3], hessian[:, 3] = 0, 0
    hessian *= 1e-4  # the other inputs are quiet: whatever stands for the dead one must not outrank them
    found = {share: compress.sparsegpt(weight, hessian, share) for share in ("2:4", 0.5)}
    found["int8"] = compress.gptq(weight, hessian, "int8").dequantized()
    rest = [column for column in range(weight.shape[1]) if column != 3]
    for share, one in found.items():
        assert bool((one[:, 3] == 0).all()), share
        assert bool(one.isfinite().all()), share
    alone = compress.gptq(weight[:, rest], hessian[rest][:, rest], "int8").dequantized()
    scales = weight.abs().amax(dim=1) == weight[:, rest].abs().amax(dim=1)  # rows whose scale is not the dead weight's
    torch.testing.assert_close(found["int8"][scales][:, rest], alone[scales], atol=2e-2, rtol=0)


@pytest.mark.parametrize("sparsity", ["2:4", 0.5])
def test_a_hessian_of_too_low_a_rank_is_damped(made, sparsity):
    """As in the published code; what the few inputs say is used: they change less than by magnitude alone."""
    weight, inputs, _ = made
    few = inputs[:4]
    found = compress.sparsegpt(weight, few.T @ few, sparsity)
    alone = weight * compress.mask(compress.magnitude(weight), sparsity, "matrix")
    assert bool(found.isfinite().all())
    assert error(weight, found, few) < 0.1 * error(weight, alone, few)


@pytest.mark.parametrize("sparsity", ["4:4", "0:4", "5:4", "two:four", 0, 1, 1.5, -0.5, True, None, float("nan"), "1"])
def test_no_sparsity(sparsity):
    with pytest.raises(InvalidValueError, match="sparsity: expected N:M"):
        compress.mask(torch.ones(4, 8), sparsity)


def test_bad_matrices(made):
    weight, _, hessian = made
    with pytest.raises(InvalidValueError, match="divides the 16 columns of weight, got '2:5'"):
        compress.mask(weight, "2:5")
    with pytest.raises(InvalidValueError, match="divides the 6 columns of block"):
        compress.sparsegpt(weight, hessian, "2:4", block=6)
    with pytest.raises(UnknownNameError, match="Unknown comparison 'rows'"):
        compress.mask(weight, 0.5, "rows")
    with pytest.raises(UnknownNameError, match="Unknown format 'int4'"):
        compress.round_to_nearest(weight, "int4")
    with pytest.raises(InvalidValueError, match="norms: expected one for each of 16 columns"):
        compress.wanda(weight, torch.ones(4))
    with pytest.raises(InvalidValueError, match="a matrix of finite numbers"):
        compress.magnitude(weight / 0)
    with pytest.raises(InvalidValueError, match="hessian: expected of shape"):
        compress.sparsegpt(weight, hessian[:4], 0.5)
    for broken in (-hessian, hessian * float("nan")):
        with pytest.raises(InvalidValueError, match="hessian: expected positive definite"):
            compress.gptq(weight, broken, "int8")
    for use in (lambda one: compress.gptq(weight, one, "int8"), lambda one: compress.sparsegpt(weight, one, "2:4")):
        with pytest.raises(InvalidValueError, match=r"hessian: expected X X\^T of inputs that are not all zero"):
            use(hessian * 0)
    with pytest.raises(InvalidValueError, match="block: expected a positive whole number"):
        compress.gptq(weight, hessian, "int8", block=0)


def test_the_factor_is_that_of_the_inverse():
    inputs = torch.randn(300, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs[:, 7] = 0  # an input that never spoke
    hessian = inputs.T @ inputs
    damped = hessian.clone()
    damped[7, 7] = 1
    damped += matrices.DAMPING * damped.diagonal().mean() * torch.eye(24, dtype=torch.float64)
    expected = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    torch.testing.assert_close(matrices._factor(hessian, 24), expected, atol=1e-10, rtol=1e-8)
