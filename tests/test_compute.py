"""From tokens to operations and money: against torch's own counter, and against loops over batches."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import workbook
from workbook import backbones, probes
from workbook.errors import InvalidValueError
from workbook.probes import SIZES, Size

DEVICE = {"peak": 1e12, "utilisation": 0.5, "price": 3.6}


def counted(transformer, batch, tokens):
    """What torch counts of a forward pass; in eager attention, whose products it sees on a CPU."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        transformer(input_ids=torch.ones(batch, tokens, dtype=torch.long, device=transformer.device))
    return counter.get_total_flops()


@pytest.mark.parametrize("backbone", ["tiny-llama", "tiny-qwen3", "tiny-mistral", "smollm2-135m"])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 16), (3, 96)])
def test_operations_are_those_that_torch_counts(backbone, batch, tokens):
    """To one in a thousand: torch counts the rotation's frequencies too, and no norm or activation either."""
    decoder = backbones.load_decoder(backbone, dtype="float32", attn_implementation="eager", device="cpu")
    ours = batch * Size.of(decoder).flops(tokens)
    assert ours == pytest.approx(counted(decoder, batch, tokens), rel=1e-3)


def test_a_kept_front_costs_its_attention_alone():
    decoder = workbook.build("mean", "tiny-llama", dtype="float32", attn_implementation="eager")[0].decoder
    size, ids = Size.of(decoder), torch.ones(1, 50, dtype=torch.long)
    with torch.no_grad():
        past = decoder(input_ids=ids[:, :40], use_cache=True).past_key_values
        with FlopCounterMode(display=False) as counter:
            decoder(input_ids=ids[:, 40:], past_key_values=past)
    assert size.flops(10, front=40) == pytest.approx(counter.get_total_flops(), rel=1e-3)
    assert size.flops(10, front=40) < size.flops(50) / 4


def test_the_sizes_are_those_of_the_models():
    decoder = backbones.load_decoder("smollm2-135m", device="cpu")
    assert Size.of(decoder) == SIZES["SmolLM2-135M"]
    encoder = backbones.load_encoder("minilm", device="cpu")[0].model
    assert Size.of(encoder).layers == encoder.config.num_hidden_layers
    billions = {name: size.weights / 1e9 for name, size in SIZES.items()}
    assert (round(billions["Mistral-7B"], 2), round(billions["LLaMA-2-7B"], 2)) == (6.98, 6.48)
    with pytest.raises(InvalidValueError, match="blocks of linear layers"):
        Size.of(torch.nn.Module())


def test_a_bill_follows_its_formula():
    size, lengths = SIZES["S-LLaMA-1.3B"], [10, 20, 90]
    bill = probes.estimate(size, lengths, 3000, **DEVICE)
    flops = sum(1000 * (2 * size.weights * n + 4 * 24 * 2048 * n * n) for n in lengths)
    assert bill.tokens == 3000 * 40
    assert bill == pytest.approx((120_000, flops, flops / 5e11, flops / 5e11 / 1000))
    assert bill.flops > probes.estimate(size, 40, 3000, **DEVICE).flops  # attention grows with the square
    assert probes.estimate(size, 40, **DEVICE | {"price": 0.0}).money == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"utilisation": 1.1}, "utilisation: expected a number, above 0, at most 1, got 1.1"),
        ({"utilisation": 0}, "utilisation"),
        ({"peak": 0}, "peak: expected a number, finite, above 0, got 0"),
        ({"price": float("nan")}, "price: expected a number, finite, from 0"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [3, -1]}, "tokens"),
        ({"texts": -1}, "texts"),
        ({"front": float("inf")}, "front"),
    ],
)
def test_a_bill_refuses_what_is_no_number(change, said):
    with pytest.raises(InvalidValueError, match=said):
        probes.estimate(**{"size": SIZES["Mistral-7B"], "tokens": 40} | DEVICE | change)


def test_padding_against_a_matrix_for_each_batch():
    draw = np.random.default_rng(0)
    for size in (1, 4, 64):
        lengths = draw.integers(1, 40, 30)
        real = cells = 0
        for start in range(0, 30, size):
            rows = [[1] * n for n in lengths[start : start + size]]
            width = max(map(len, rows))
            matrix = np.array([row + [0] * (width - len(row)) for row in rows])
            real, cells = real + matrix.sum(), cells + matrix.size
        assert probes.padding_share(lengths, size) == pytest.approx(1 - real / cells)
        assert probes.padding_share(sorted(lengths), size) <= probes.padding_share(lengths, size)
    assert probes.padding_share(lengths, 1) == 0


def test_padding_refuses_what_is_no_batch():
    for lengths, size, said in (([], 2, "at least one"), ([3, 0], 2, "lengths"), ([3], 0, "batch_size")):
        with pytest.raises(InvalidValueError, match=said):
            probes.padding_share(lengths, size)


def test_utilisation_is_operations_over_time_over_the_peak():
    decoder = backbones.load_decoder("tiny-llama", device="cpu")
    found = probes.utilisation(decoder, [(1, 8), (4, 16)], turns=3)
    assert found[["turn", "texts", "tokens"]].to_numpy().tolist() == [
        [turn, *batch] for turn in range(3) for batch in ((1, 8), (4, 16))
    ]
    flops = found["texts"] * [Size.of(decoder).flops(tokens) for tokens in found["tokens"]]
    assert found["utilisation"].tolist() == pytest.approx((flops / found["seconds"] / found["peak"]).tolist())
    assert (found["utilisation"] > 0).all()
    for batches, turns, said in (([(0, 8)], 1, "texts"), ([(1, 0)], 1, "tokens"), ([(1, 8)], 0, "turns")):
        with pytest.raises(InvalidValueError, match=said):
            probes.utilisation(decoder, batches, turns)
