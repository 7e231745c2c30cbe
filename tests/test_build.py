"""Properties that every method's embedder must have."""

import json
import math

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import workbook
from workbook import backbones
from workbook.corpora import authored
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.methods import icl
from workbook.modules import load_embedder

TEXTS = [
    "Basil likes warm soil.",
    "why do my tomato leaves curl at noon",
    "a",
    "Compost turned weekly is ready in about twelve weeks; cold heaps need a year, or longer if nobody turns them!",
    "naïve café, 3½ limes 😀 終わり",
]
INSTRUCTION = "Given a question about gardening, find notes that help answer it"
POOLED = ("mean", "weighted-mean", "last-token", "nv-embed", "lens", "causal2vec")
"""A method for each kind of pooling, and the one with an encoder in front."""
CASES = [(method, mode) for method in workbook.METHODS for mode in ("causal", "bidirectional")]


def build(method, mode, backbone="tiny-mistral", **options):
    return workbook.build(method, backbone, attention=mode, dtype="float32", device="cpu", **options)


def close(a, b, atol=1e-5):
    np.testing.assert_allclose(a, b, atol=atol, rtol=0)


# Attention and backbone have no part in how a method pools: each of them meets each kind of pooling once.
@pytest.mark.parametrize(
    ("method", "mode", "backbone"),
    [(method, mode, "tiny-mistral") for method, mode in CASES]
    + [(method, "causal", other) for method in POOLED for other in ("tiny-llama", "tiny-qwen2")],
)
def test_batch_size_order_and_padding_side_change_nothing(method, mode, backbone):
    model = build(method, mode, backbone)
    expected = model.encode(TEXTS, prompt=INSTRUCTION)
    assert expected.shape == (5, model.get_embedding_dimension())
    assert expected.dtype == np.float32
    # The rounding of a real encoder, after a decoder that widens it.
    atol = 1e-4 if workbook.METHODS[method].chain.encoder else 1e-5
    close(model.encode(TEXTS, prompt=INSTRUCTION, batch_size=1), expected, atol)
    close(model.encode(TEXTS[::-1], prompt=INSTRUCTION, batch_size=2)[::-1], expected, atol)
    model.tokenizer.padding_side = "left"
    close(model.encode(TEXTS, prompt=INSTRUCTION), expected, atol)


def test_the_real_backbone_is_as_steady(smollm2):
    for mode in ("causal", "bidirectional"):
        smollm2[0].attention = mode
        expected = smollm2.encode(TEXTS)
        scale = np.abs(expected).max()  # its states reach tens, where the tiny ones stay near one
        close(smollm2.encode(TEXTS, batch_size=1) / scale, expected / scale)
        smollm2.tokenizer.padding_side = "left"
        close(smollm2.encode(TEXTS) / scale, expected / scale)
        smollm2.tokenizer.padding_side = "right"


@pytest.mark.parametrize("mode", ["causal", "bidirectional"])
def test_grouping_by_length_changes_nothing(mode, monkeypatch):
    """On a CPU a large batch goes through the decoder in groups; with a tiny budget every batch does."""
    model = build("mean", mode)
    expected = model.encode(TEXTS, prompt=INSTRUCTION)
    monkeypatch.setattr("workbook.modules.passes._PASS", {"cpu": 1})
    calls = []
    model[0].decoder.register_forward_hook(lambda *_: calls.append(1))
    for side in ("right", "left"):
        model.tokenizer.padding_side = side
        close(model.encode(TEXTS, prompt=INSTRUCTION), expected)
    assert len(calls) > 4


@pytest.mark.parametrize(("method", "mode"), CASES)
def test_saved_and_loaded_by_plain_sentence_transformers(method, mode, tmp_path):
    model = build(method, mode, max_length=120)
    model.save(str(tmp_path / "model"))
    again = SentenceTransformer(
        str(tmp_path / "model"), trust_remote_code=True, device="cpu", model_kwargs={"dtype": "float32"}
    )
    close(again.encode(TEXTS, prompt=INSTRUCTION), model.encode(TEXTS, prompt=INSTRUCTION))
    assert again[0].attention == mode
    assert again.max_seq_length == 120
    assert workbook.attention.probe(again[0].decoder) == mode
    ours = load_embedder(tmp_path / "model", device="cpu", model_kwargs={"dtype": "float32"})
    np.testing.assert_array_equal(ours.encode(TEXTS), again.encode(TEXTS))


def test_instruction_steers_but_is_not_pooled():
    """The vector is the mean over the text's states alone, and these states have seen the instruction."""
    model = build("mean", "causal", "tiny-llama")
    features = model.preprocess(TEXTS[:1], prompt=INSTRUCTION)
    assert features["pooling_mask"].sum() == len(TEXTS[0].encode())
    states = model[0](features)["token_embeddings"][0, -len(TEXTS[0].encode()) :]
    close(model.encode(TEXTS[:1], prompt=INSTRUCTION)[0], states.mean(dim=0).detach().numpy())
    assert np.abs(model.encode(TEXTS[:1]) - model.encode(TEXTS[:1], prompt=INSTRUCTION)).max() > 1e-3


def test_causal_prefix_is_blind_and_echo_is_not():
    """Pooling only what two texts share: causal states can't tell them apart, the second copy of Echo can."""
    shared, one, other = "The lamp on the desk ", "is broken.", "is new."
    length = len(shared.encode())

    def prefix_vector(method, mode, text):
        model = build(method, mode, "tiny-llama")
        features = model.preprocess([text])
        first = features["pooling_mask"][0].argmax()
        return model[0](features)["token_embeddings"][0, first : first + length].mean(dim=0).detach()

    def gap(method, mode):
        return (prefix_vector(method, mode, shared + one) - prefix_vector(method, mode, shared + other)).abs().max()

    assert gap("mean", "causal") < 1e-6
    assert gap("mean", "bidirectional") > 1e-3
    assert gap("echo", "causal") > 1e-3


def test_a_chat_template_changes_nothing():
    """sentence-transformers renders plain text through a chat template if there is one; the decoder module does not."""
    model = build("mean", "causal", "tiny-llama")
    expected = model.encode(TEXTS)
    model.tokenizer.chat_template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    close(model.encode(TEXTS), expected, atol=0)
    assert build("mean", "causal", "tiny-llama").tokenizer.chat_template is None  # and reaches no other model


ODD = ("", " ", "\n\t", "\x00\x07\x1b", "😀👩‍👩‍👧‍👦", "word " * 2_000)


@pytest.mark.parametrize("method", workbook.METHODS)
def test_odd_texts_have_finite_vectors(method):
    model = build(method, "causal", "tiny-llama", max_length=64)
    for text in ODD:
        vectors = model.encode([text, "an ordinary text"])
        assert np.isfinite(vectors).all(), text
        assert np.abs(vectors[0]).max() > 0, text


def test_no_texts_no_vectors():
    assert len(build("mean", "causal", "tiny-llama").encode([])) == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: workbook.build("meen"), UnknownNameError, r"Unknown method 'meen'\. Did you mean 'mean'\?"),
        (lambda: workbook.build("mean", "tiny-lama"), UnknownNameError, "Did you mean 'tiny-llama'"),
        (lambda: workbook.build("mean", "tiny-llama", poling="mean"), UnknownNameError, "Did you mean 'pooling'"),
        (lambda: workbook.build("mean", "tiny-llama", pooling="max"), UnknownNameError, "weighted_mean"),
        (lambda: workbook.build("mean", "tiny-llama", max_length=-1), InvalidValueError, "positive whole number"),
        (lambda: workbook.build("mean", "tiny-llama", max_length=True), InvalidValueError, "positive whole number"),
        (lambda: workbook.build("mean", "tiny-llama", dtype="int8"), InvalidValueError, "float32, bfloat16"),
        (lambda: workbook.build("mean", "tiny-llama", attn_implementation="x"), InvalidValueError, "got 'x'"),
    ],
)
def test_unknown_names_and_values(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_loading_options_are_named_only_where_they_are_taken():
    chain = workbook.METHODS["mean"].chain
    own, loading = chain.with_loading(dtype="float32", max_length=64)
    assert (own, loading) == (chain.with_options(max_length=64), {"dtype": "float32"})
    with pytest.raises(UnknownNameError, match=r"Unknown option 'dtyp'\. Did you mean 'dtype'\? .* dtype, attn_impl"):
        chain.build("tiny-llama", dtyp="float32")
    with pytest.raises(
        UnknownNameError, match=r"^Unknown option 'dtype'\. Expected one of: pooling, .*prefix_cache\.$"
    ):
        chain.with_options(dtype="float32")


def test_template_may_be_given_as_data():
    """As saved: a model with a template of its own loads without that template being known by name."""
    template = json.loads(json.dumps(build("echo", "causal", "tiny-llama")[0].template))
    custom = build("mean", "causal", "tiny-llama", template=template)
    close(custom.encode(TEXTS), build("echo", "causal", "tiny-llama").encode(TEXTS), atol=0)


SHOTS = {INSTRUCTION: [("what eats aphids", "Ladybirds."), ("how deep does garlic go", "Two inches.")]}


def test_examples_are_saved_and_can_be_taken_out(tmp_path):
    zero = build("icl", "causal", "tiny-llama")
    model = workbook.build("icl", zero, examples=SHOTS)
    expected, bare = model.encode(TEXTS, prompt=INSTRUCTION), zero.encode(TEXTS, prompt=INSTRUCTION)
    assert np.abs(expected - bare).max() > 1e-3
    model.save(str(tmp_path / "model"))
    again = SentenceTransformer(
        str(tmp_path / "model"), trust_remote_code=True, device="cpu", model_kwargs={"dtype": "float32"}
    )
    close(again.encode(TEXTS, prompt=INSTRUCTION), expected)
    assert again[0].examples == {INSTRUCTION: [list(pair) for pair in SHOTS[INSTRUCTION]]}
    for other in (None, "Find"):
        close(again.encode(TEXTS, prompt=other), zero.encode(TEXTS, prompt=other))
    again[0].examples = {}
    close(again.encode(TEXTS, prompt=INSTRUCTION), bare)


def test_the_examples_of_the_workbook_are_those_of_its_instructions():
    shots = icl.examples()
    assert set(shots) == set(authored.instructions("docs")["instruction"])
    assert {len(pairs) for pairs in shots.values()} == {3}
    assert {len(pairs) for pairs in icl.examples(2).values()} == {2}
    assert build("icl", "causal", examples=shots)[0].examples.keys() == shots.keys()


@pytest.mark.parametrize(
    ("method", "examples", "message"),
    [
        ("mean", SHOTS, "no place for them"),
        ("echo", SHOTS, "no place for them"),
        ("icl", {" Find": [("a", "b")]}, "blank or has spaces around it"),
        ("icl", {"Find": [("a",)]}, r"examples\.Find\.0\.1: Field required"),
        ("icl", {"Find": [("a", 3)]}, "valid string"),
        ("icl", ["a", "b"], "expected a mapping of names to values"),
    ],
)
def test_examples_that_would_not_be_read_are_refused(method, examples, message):
    with pytest.raises(InvalidValueError, match=message):
        build(method, "causal", examples=examples)


def test_gradients_reach_every_weight_of_the_decoder():
    model = build("weighted-mean", "bidirectional", "tiny-llama")
    model(model.preprocess(TEXTS))["sentence_embedding"].pow(2).sum().backward()
    assert all(p.grad is not None and math.isfinite(p.grad.norm()) for p in model.parameters())


def test_pooled_in_float32():
    model = workbook.build("mean", "tiny-llama", dtype="bfloat16", device="cpu")
    assert model[0].decoder.dtype == torch.bfloat16
    assert model.encode(TEXTS).dtype == np.float32


def test_a_decoder_can_be_shared_but_not_under_another_attention():
    first = build("mean", "causal", "tiny-llama")
    second = workbook.build("echo", first)
    assert second[0].decoder is first[0].decoder
    close(second.encode(TEXTS), build("echo", "causal", "tiny-llama").encode(TEXTS))
    with pytest.raises(InvalidValueError, match="attention: expected causal, as in the model that shares its decoder"):
        workbook.build("mean", first, attention="bidirectional")
    with pytest.raises(InvalidValueError, match="dtype: expected nothing, where a loaded decoder is shared"):
        workbook.build("mean", first, dtype="float32")
    assert workbook.attention.probe(first[0].decoder) == "causal"


@pytest.mark.parametrize("method", ["mean", "causal2vec"])
def test_a_saved_model_is_loaded_on_the_cpu_and_then_placed_as_asked(method, tmp_path, monkeypatch):
    """Whatever accelerator this machine has: it may not be the one that is asked for, or have no room."""
    workbook.build(method, "tiny-llama").save(str(tmp_path))
    devices, load_decoder = [], backbones.load_decoder

    def spied(*arguments, **options):
        devices.append(options.get("device"))
        return load_decoder(*arguments, **options)

    monkeypatch.setattr(backbones, "load_decoder", spied)
    loaded = load_embedder(tmp_path, device="meta")
    assert devices == ["cpu"]
    assert {p.device.type for p in loaded.parameters()} == {"meta"}


def test_new_weights_leave_every_random_state_alone(monkeypatch):
    """Also an accelerator's, which no fork of the CPU's puts back."""
    for accelerator in (torch.cuda, torch.xpu):
        monkeypatch.setattr(accelerator, "manual_seed_all", lambda seed: pytest.fail("seeded an accelerator"))
    before = torch.get_rng_state()
    one, other = (workbook.build("nv-embed", "tiny-llama", seed=seed) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(one[1].dictionary, other[1].dictionary)
