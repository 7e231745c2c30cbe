import pytest
import torch
from parity import Fixture

from workbook.errors import InvalidValueError, UnknownNameError
from workbook.modules import ContextualPooling, LatentAttention, Lexicon, Pooling, SelfAttention
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


MODULES = {
    **{pooling: Pooling(pooling, 32) for pooling in POOLINGS},
    "latent_attention": LatentAttention(32, latents=4, heads=2, head_dimension=4),
    "self_attention": SelfAttention(32, heads=2, head_dimension=4),
    "contextual": ContextualPooling(32, representation="eos"),
    **{f"lexicon {pooling}": Lexicon(torch.eye(32), pooling) for pooling in ("max", "sum", "last")},
}


@pytest.mark.parametrize("module", MODULES)
def test_a_text_of_which_nothing_is_pooled(module):
    """The released code of LLM2Vec averages all columns of rows 2 and 3, padding included, or makes 0 of them."""
    fixture = Fixture("llm2vec_pooling/empty_text_quirk")
    states, real, pooled = (fixture.tensors[name] for name in ("hidden_states", "attention_mask", "text_mask"))
    features = {"token_embeddings": states, "attention_mask": real, "pooling_mask": pooled, "context": states[:, :1]}
    message = "pooling_mask: expected a pooled token in every row, got 'none in row 2'. Drop the texts"
    with pytest.raises(InvalidValueError, match=message):
        MODULES[module](dict(features))
    full = [0, 1, 4]
    vectors = MODULES[module]({name: value[full] for name, value in features.items()})["sentence_embedding"]
    assert vectors.isfinite().all()
    if module in POOLINGS:
        torch.testing.assert_close(vectors, fixture.expected[f"released.{module}"][full], **fixture.tolerance())


def test_unknown_pooling():
    with pytest.raises(UnknownNameError, match="Did you mean 'weighted_mean'"):
        Pooling("weighted-mean", 8)
