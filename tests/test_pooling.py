import pytest
import torch
from parity import Fixture

from workbook.errors import UnknownNameError
from workbook.modules import Pooling
from workbook.modules.pooling import POOLINGS, pool


def naive(states, mask, pooling):
    """The definition, one token at a time."""
    rows = []
    for row, keep in zip(states, mask, strict=True):
        kept = [state for state, k in zip(row, keep, strict=True) if k]
        weights = {
            "mean": [1] * len(kept),
            "weighted_mean": range(1, len(kept) + 1),
            "last_token": [0] * (len(kept) - 1) + [1],
        }[pooling]
        rows.append(sum(w * state for w, state in zip(weights, kept, strict=True)) / sum(weights))
    return torch.stack(rows)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_against_the_definition(pooling):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(5, 9, 4, generator=generator)
    mask = (torch.rand(5, 9, generator=generator) > 0.4).long()
    mask[:, 4] = 1
    torch.testing.assert_close(pool(states, mask, pooling), naive(states, mask, pooling))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_what_is_masked_does_not_count(pooling):
    states = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[0, 0, 1, 1, 1, 0], [1, 1, 0, 0, 1, 1]])
    spoiled = states.masked_fill(~mask.bool().unsqueeze(-1), float("nan"))
    torch.testing.assert_close(pool(spoiled, mask, pooling), pool(states, mask, pooling))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("kind", ["text_only", "with_instruction"])
def test_parity_with_llm2vec(pooling, kind):
    fixture = Fixture("llm2vec_pooling/states")
    inputs = fixture.tensors
    mask = inputs["text_mask" if kind == "text_only" else "attention_mask"]
    fixture.close(pool(inputs["hidden_states"], mask, pooling), f"{pooling}.{kind}")


@pytest.mark.parametrize("case", ["right_padded", "right_padded_without_instruction", "left_padded"])
def test_parity_with_gritlm(case):
    fixture = Fixture("gritlm_pooling/states")
    inputs = fixture.tensors
    for pooling, key in (("mean", "mean"), ("weighted_mean", "weightedmean"), ("last_token", "lasttoken")):
        fixture.close(pool(inputs["hidden_states"], inputs[f"{case}.mask"], pooling), f"{case}.{key}")


def test_unknown_pooling():
    with pytest.raises(UnknownNameError, match="Did you mean 'weighted_mean'"):
        Pooling("weighted-mean", 8)
