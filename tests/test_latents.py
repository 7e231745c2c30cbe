"""The look at latent attention: against naive second implementations, on data whose answer is known, and on noise."""

import numpy as np
import pandas as pd
import pytest
import torch

from workbook import attention as modes
from workbook import build, probes
from workbook.errors import InvalidValueError, UnknownNameError

TEXTS = ["A fine kettle.", "It broke on the second day and nobody answered.", "", "Good.", "Too loud for my kitchen."]
INSTRUCTION = "Tell praise from blame"


@pytest.fixture
def tiny():
    def tiny(**options):
        own = {"attention": "bidirectional", "template": "nv-embed", "dtype": "float32", "device": "cpu"}
        own |= {"pooling": "latent_attention", "pooling_options": {"latents": 16}}
        return build("mean", "tiny-llama", **{**own, **options})

    return tiny


@torch.no_grad()
def naive(model, text, instruction):
    """One text, token by token, head by head: queries and keys written out."""
    features = model[0].preprocess([text], instruction)
    states = model[0](features)["token_embeddings"][0].float()
    block = model[1]
    keys = block.to_kv(block.context_norm(block.dictionary)).chunk(2, dim=-1)[0]
    size = block.head_dimension
    rows = [
        [
            (keys[:, head * size : (head + 1) * size] @ query[head * size : (head + 1) * size] / size**0.5).softmax(0)
            for head in range(block.heads)
        ]
        for query, pooled in zip(block.to_q(block.query_norm(states)), features["pooling_mask"][0], strict=True)
        if pooled
    ]
    return torch.stack([torch.stack(row) for row in rows]).mean(dim=0).numpy()


@pytest.mark.parametrize("instruction", [None, INSTRUCTION])
def test_latent_attention_against_a_naive_loop(tiny, instruction):
    model = tiny()
    found = probes.latent_attention(model, TEXTS, instruction)
    assert found.dtype == np.float32
    assert found.shape == (len(TEXTS), 8, 16)
    np.testing.assert_allclose(found, [naive(model, text, instruction) for text in TEXTS], atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-6)
    assert np.ptp(found, axis=0).min() > 1e-5  # no latent that all texts read alike


@pytest.mark.parametrize("side", ["left", "right"])
def test_neither_padding_nor_batch_nor_order_moves_it(tiny, side):
    model = tiny()
    expected = probes.latent_attention(model, TEXTS, INSTRUCTION, batch_size=1)
    model[0].tokenizer.padding_side = side
    try:
        for batch_size in (2, 3, 32):
            found = probes.latent_attention(model, TEXTS, INSTRUCTION, batch_size=batch_size)
            np.testing.assert_allclose(found, expected, atol=1e-6)
        turned = probes.latent_attention(model, TEXTS[::-1], INSTRUCTION, batch_size=2)
        np.testing.assert_allclose(turned[::-1], expected, atol=1e-6)
    finally:
        model[0].tokenizer.padding_side = "right"  # the tiny backbones share one tokenizer


def test_the_instruction_is_read_but_not_pooled(tiny):
    """The tokens behind it see it; in a decoder without layers none sees another, and nothing of it is left."""
    model = tiny(attention="causal")
    for blind in (False, True):
        if blind:
            model[0].decoder.layers = torch.nn.ModuleList()
        one, other = (probes.latent_attention(model, TEXTS, words) for words in (INSTRUCTION, "Name the goods"))
        assert (np.abs(one - other).max() < 1e-6) == blind


def test_half_precision_gives_distributions_too(tiny):
    found = probes.latent_attention(tiny(dtype="bfloat16"), TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-6)


def test_the_model_is_left_as_it_was(tiny):
    model = tiny()
    before = model.encode(TEXTS)
    model.train()
    model[0].decoder.config.attention_dropout = 0.5
    for layer in model[0].decoder.layers:
        layer.self_attn.attention_dropout = 0.5
    one, other = (probes.latent_attention(model, TEXTS) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert model.training
    assert model[0].decoder.training
    assert modes.probe(model[0].decoder) == "bidirectional"
    np.testing.assert_array_equal(model.eval().encode(TEXTS), before)


# Which latents tell two classes apart


def noise(seed, texts=12, heads=2, latents=8):
    return np.random.default_rng(seed).dirichlet(np.ones(latents), size=(texts, heads))


HALVES = ["good"] * 6 + ["bad"] * 6


def t_statistic(one, other):
    """Student's, with pooled variance, written out; 0 where nothing varies."""
    pooled = sum((part - part.mean()) @ (part - part.mean()) for part in (one, other)) / (len(one) + len(other) - 2)
    error = (pooled * (1 / len(one) + 1 / len(other))) ** 0.5
    return (one.mean() - other.mean()) / error if error else 0.0


@pytest.mark.parametrize("labels", [HALVES, ["good", "bad", "bad"] * 4])
def test_against_a_naive_double_loop(labels):
    attention = noise(0)
    attention[:, 1, 3] = 0.25  # read alike by all
    frame = probes.discriminating_latents(attention, labels, "good", permutations=150, seed=5)
    first = np.array(labels) == "good"
    largest = []
    for places in np.random.default_rng(5).permuted(np.tile(np.arange(12), (150, 1)), axis=1):
        shuffled = first[places]
        largest.append(
            max(
                abs(t_statistic(attention[shuffled, head, latent], attention[~shuffled, head, latent]))
                for head in range(2)
                for latent in range(8)
            )
        )
    assert len(frame) == 16
    for row in frame.itertuples():
        one, other = attention[first, row.head, row.latent], attention[~first, row.head, row.latent]
        expected = t_statistic(one, other)
        assert row.difference == pytest.approx(one.mean() - other.mean())
        assert row.statistic == pytest.approx(expected, abs=1e-9)
        assert row.p == pytest.approx((1 + sum(t >= abs(expected) - 1e-9 for t in largest)) / 151)
    flat = frame[(frame["head"] == 1) & (frame["latent"] == 3)].iloc[0]
    assert (flat["difference"], flat["statistic"], flat["p"]) == (0, 0, 1)
    keys = [(row.p, -abs(row.statistic)) for row in frame.itertuples()]
    assert keys == sorted(keys)


def test_noise_gives_a_false_alarm_in_one_of_twenty():
    smallest = [
        probes.discriminating_latents(noise(seed), HALVES, "good", permutations=199, seed=seed)["p"].min()
        for seed in range(100)
    ]
    assert 0 < np.mean(np.array(smallest) < 0.05) < 0.12
    assert np.mean(np.array(smallest) < 0.5) > 0.35  # and it is no coward: p is spread evenly


def test_a_planted_latent_is_found():
    attention = noise(3, texts=20, heads=4, latents=32)
    attention[:10, 2, 17] += 0.3
    frame = probes.discriminating_latents(attention, [1] * 10 + [0] * 10, 1)
    assert frame.columns.tolist() == ["head", "latent", "difference", "statistic", "p"]
    assert frame.loc[0, ["head", "latent"]].tolist() == [2, 17]
    assert frame.loc[0, "difference"] > 0.2
    assert frame.loc[0, "p"] < 0.01
    assert (frame["p"] < 0.05).sum() == 1


def test_bounds_of_p():
    """Apart without any spread inside the classes: as often as two of four texts are drawn alike, one time in three."""
    attention = np.repeat([0.9, 0.9, 0.1, 0.1], 2).reshape(4, 1, 2)
    frame = probes.discriminating_latents(attention, list("aabb"), "a", permutations=3000)
    assert np.isfinite(frame["statistic"]).all()
    assert frame["p"].tolist() == pytest.approx([1 / 3, 1 / 3], abs=0.03)
    apart = np.repeat([0.9, 0.1], 12).reshape(24, 1, 1)
    frame = probes.discriminating_latents(apart, [True] * 12 + [False] * 12, True, permutations=99)
    assert frame["p"].tolist() == [1 / 100]
    frame = probes.discriminating_latents(np.full((4, 2, 2), 0.1), list("aabb"), "a", permutations=9)
    assert frame["p"].tolist() == [1] * 4


def test_swapping_the_classes_turns_the_sign_alone():
    labels = ["good", "bad", "bad"] * 4
    one, other = (probes.discriminating_latents(noise(1), labels, name, permutations=300) for name in ("good", "bad"))
    pd.testing.assert_frame_equal(
        one.assign(difference=-one["difference"], statistic=-one["statistic"]), other, rtol=1e-12
    )


def test_it_does_not_matter_how_many_permutations_go_through_at_once(monkeypatch):
    expected = probes.discriminating_latents(noise(2), HALVES, "good", permutations=300)
    monkeypatch.setattr("workbook.probes.latents._BLOCK", 7)
    pd.testing.assert_frame_equal(probes.discriminating_latents(noise(2), HALVES, "good", permutations=300), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: probes.latent_attention(m, []), "texts: expected at least one, in a list"),
        (lambda m: probes.latent_attention(m, "a text"), "texts: expected at least one, in a list"),
        (lambda m: probes.latent_attention(m, ["a", None]), "texts: expected strings, got None"),
        (lambda m: probes.latent_attention(m, ["a"], 3), "instruction .prompt.: expected a string"),
        (lambda m: probes.latent_attention([m[1]], TEXTS), "expected a model whose first module is a Decoder"),
        (lambda m: probes.latent_attention([m[0]], TEXTS), "expected a Decoder and a LatentAttention"),
    ],
)
def test_bad_models_and_texts(tiny, call, message):
    with pytest.raises(InvalidValueError, match=message):
        call(tiny())


def test_another_pooling_is_named(tiny):
    with pytest.raises(
        InvalidValueError, match=r"a LatentAttention with latents, got \['Decoder', 'Pooling'\]. Build it"
    ):
        probes.latent_attention(tiny(pooling="mean", pooling_options={}), TEXTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": noise(0)[0]}, r"attention: expected finite numbers \(texts, heads, latents\)"),
        ({"attention": np.full((12, 1, 1), np.nan)}, "attention: expected finite numbers"),
        ({"labels": HALVES[1:]}, "labels: expected 12, one a text, got 11"),
        ({"labels": ["good"] * 12}, "labels: expected two classes of at least two texts each"),
        ({"labels": ["so-so", *HALVES[1:]]}, "labels: expected two classes"),
        ({"labels": ["good"] * 11 + ["bad"]}, "at least two texts each, got {'good': 11, 'bad': 1}"),
        ({"permutations": 0}, "permutations: expected a positive whole number"),
        ({"permutations": 9.0}, "permutations: expected a positive whole number"),
    ],
)
def test_bad_attention_and_labels(arguments, message):
    given = {"attention": noise(0), "labels": HALVES, "positive": "good"}
    with pytest.raises(InvalidValueError, match=message):
        probes.discriminating_latents(**{**given, **arguments})


def test_an_unknown_class_is_named():
    with pytest.raises(UnknownNameError, match=r"Unknown label 'god'\. Did you mean 'good'"):
        probes.discriminating_latents(noise(0), HALVES, "god")
