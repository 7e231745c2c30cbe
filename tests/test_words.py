"""The word-level probe: states against a naive second implementation, and words whose tags are known to be readable."""

import numpy as np
import pandas as pd
import pytest
import torch
from training_tools import write_encoder

from workbook import attention, build, probes
from workbook.errors import InvalidValueError

SENTENCES = [
    ["A", "dog", "12", "runs", ",", "café", "😀"],
    ["New York", "is", "far"],
    ["x"],
    ["Unbelievably", "antidisestablishmentarianism", "_", "(", "it", "'s", ")"],
]


@pytest.fixture
def tiny():
    def tiny(mode="causal", **options):
        return build("mean", "tiny-llama", attention=mode, dtype="float32", device="cpu", **options)

    return tiny


@torch.no_grad()
def naive(model, sentence, shifted):
    """One sentence at a time, no padding: grow the text word by word, and see which tokens are new."""
    decoder, tokenizer = model[0].decoder, model[0].tokenizer

    def tokens(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    ids = [tokenizer.bos_token_id, *tokens(" ".join(sentence))]
    states = decoder(torch.tensor([ids])).last_hidden_state[0]
    found = []
    for number in range(len(sentence)):
        before, after = " ".join(sentence[:number]), " ".join(sentence[: number + 1])
        first, last = 1 + len(tokens(before)), 1 + len(tokens(after))
        if number and tokenizer.decode(ids[first]) == " ":  # a space alone is nobody's
            first += 1
        found.append(states[first - shifted : last - shifted].mean(dim=0).numpy())
    return found


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("mode", attention.MODES)
def test_word_states_against_a_naive_loop(tiny, mode, shifted):
    model = tiny(mode)
    for sentence, states in zip(SENTENCES, probes.word_states(model, SENTENCES, shifted=shifted), strict=True):
        assert states.dtype == np.float32
        np.testing.assert_allclose(states, naive(model, sentence, shifted), atol=2e-5)


@pytest.mark.parametrize("shifted", [False, True])
def test_word_states_of_the_real_tokenizer_against_the_same_loop(smollm2, shifted):
    smollm2[0].attention = "causal"
    assert smollm2.tokenizer("a")["input_ids"][0] != smollm2.tokenizer.bos_token_id  # it puts none in front by itself
    for sentence, states in zip(SENTENCES, probes.word_states(smollm2, SENTENCES, shifted=shifted), strict=True):
        np.testing.assert_allclose(states, naive(smollm2, sentence, shifted), atol=2e-3)


@torch.no_grad()
@pytest.mark.parametrize("tokens", [1, 2])
def test_words_behind_a_contextual_token(tmp_path, tokens):
    """One sentence at a time: the token's states by the model's own pass, the words behind BOS and the token."""
    encoder = write_encoder(tmp_path, 64)
    options = {"encoder": encoder, "encoder_options": {"tokens": tokens}, "dtype": "float32", "device": "cpu"}
    model = build("causal2vec", "tiny-llama", max_length=64, **options)
    module, shifts = model[0], (False, True)
    unshifted, shifted = (probes.word_states(model, SENTENCES, shifted=shift, batch_size=3) for shift in shifts)
    for number, sentence in enumerate(SENTENCES):
        context = module.context_of(model.preprocess([" ".join(sentence)]))[0]
        table = module.decoder.get_input_embeddings()
        ids = model.tokenizer(" ".join(sentence), add_special_tokens=False, return_tensors="pt")["input_ids"][0]
        front = table(torch.tensor([model.tokenizer.bos_token_id]))
        states = module.decoder(inputs_embeds=torch.cat([front, context, table(ids)])[None]).last_hidden_state[0]
        one = len(model.tokenizer(sentence[0], add_special_tokens=False)["input_ids"])  # tokens of the first word
        first, left = states[1 + tokens : 1 + tokens + one], states[tokens : tokens + one]
        np.testing.assert_allclose(unshifted[number][0], first.mean(dim=0), atol=2e-5)
        np.testing.assert_allclose(shifted[number][0], left.mean(dim=0), atol=2e-5)
        np.testing.assert_allclose(unshifted[number][-1], states[-tokens_of(model, sentence) :].mean(dim=0), atol=2e-5)


def tokens_of(model, sentence):
    """Number of tokens of the last word, without the space in front of it."""
    return len(model.tokenizer(sentence[-1], add_special_tokens=False)["input_ids"])


def test_the_example_of_the_paper(tiny):
    """Words of two, three and one tokens: the byte tokenizer, and a decoder whose states are the positions."""
    model = tiny()

    class Positions(torch.nn.Module):
        config, training = model[0].decoder.config, False

        def forward(self, input_ids, **_):
            states = torch.arange(input_ids.shape[1]).float().view(1, -1, 1).expand(len(input_ids), -1, 2)
            return type("Output", (), {"last_hidden_state": states})()

    model[0].decoder = Positions()
    sentence = [["ab", "cde", "f"]]  # <s> a b _ c d e _ f
    assert probes.word_states(model, sentence)[0][:, 0].tolist() == [1.5, 5.0, 8.0]
    assert probes.word_states(model, sentence, shifted=True)[0][:, 0].tolist() == [0.5, 4.0, 7.0]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mode", attention.MODES)
def test_neither_padding_nor_the_batch_moves_a_state(tiny, mode, side):
    model = tiny(mode)
    expected = probes.word_states(model, SENTENCES, batch_size=1)
    model[0].tokenizer.padding_side = side
    try:
        for batch_size in (2, 3, 32):
            for one, other in zip(expected, probes.word_states(model, SENTENCES, batch_size=batch_size), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)
    finally:
        model[0].tokenizer.padding_side = "right"  # the tiny backbones share one tokenizer


def test_the_template_is_not_used_and_the_model_left_as_it_was(tiny):
    model = tiny("bidirectional", template="echo").train()
    for one, other in zip(
        probes.word_states(model, SENTENCES), probes.word_states(tiny("bidirectional"), SENTENCES), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert model[0].decoder.training
    assert attention.probe(model[0].decoder) == "bidirectional"


def test_a_shifted_causal_state_knows_nothing_of_its_word(tiny):
    """With the paper's shift a one-token word is read from the token before it; a causal one can't have seen it."""
    for mode, blind in (("causal", True), ("bidirectional", False)):
        one, other = probes.word_states(tiny(mode), [["ab", "c"], ["ab", "d"]], shifted=True)
        assert np.allclose(one[1], other[1], atol=1e-6) == blind


def frame(seed, count):
    """Sentences of five random letters, each tagged by where it stands in the alphabet; the comma is context."""
    random = np.random.default_rng(seed)
    words = [[*random.choice(list("cdef"), size=5).tolist(), ","] for _ in range(count)]
    tags = [["early" if word < "e" else "late" for word in sentence[:-1]] + [""] for sentence in words]
    return pd.DataFrame({"words": words, "tags": tags})


@pytest.mark.parametrize(
    ("mode", "shifted", "least", "most"),
    [("causal", False, 0.97, 1), ("causal", True, 0, 0.6), ("bidirectional", True, 0.65, 1)],
)
def test_the_probe_reads_what_a_state_has_seen(tiny, mode, shifted, least, most):
    """The state to the left of a word, here a space, knows of it only where attention looks ahead; half is chance."""
    rows = probes.word_probe(tiny(mode), frame(0, 120), frame(1, 60), shifted=shifted, steps=300, learning_rate=1e-2)
    assert least <= rows["correct"].mean() <= most


def test_rows_are_the_scored_words_in_order(tiny):
    test = pd.DataFrame(
        {"words": [[","], ["c", ",", "f"], ["d"]], "tags": [[""], ["early", "", "late"], ["new"]]}, index=[7, 8, 9]
    )
    rows = probes.word_probe(tiny(), frame(0, 60), test, steps=300, learning_rate=1e-2)
    assert rows.columns.tolist() == ["sentence", "word", "tag", "predicted", "correct"]
    assert rows.index.tolist() == [0, 1, 2]
    assert rows["sentence"].tolist() == [1, 1, 2]
    assert rows["word"].tolist() == ["c", "f", "d"]
    assert rows["tag"].tolist() == ["early", "late", "new"]
    assert set(rows["predicted"]) <= {"early", "late"}
    assert rows["correct"].tolist() == [float(row.tag == row.predicted) for row in rows.itertuples()]
    assert rows["correct"].tolist()[2] == 0  # a tag that was never learnt
    assert rows["correct"].dtype == float


def test_a_seed_decides_everything_and_nothing_global_moves(tiny):
    model, train, test = tiny(), frame(0, 20), frame(1, 40)
    torch.manual_seed(3)
    np.random.seed(3)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = probes.word_probe(model, train, test, seed=1, steps=20)
    assert torch.equal(torch.get_rng_state(), states[0])
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])
    torch.rand(5)
    pd.testing.assert_frame_equal(first, probes.word_probe(model, train, test, seed=1, steps=20))
    assert (first["predicted"] != probes.word_probe(model, train, test, seed=2, steps=20)["predicted"]).any()


def test_context_is_not_trained_on(tiny):
    """Words without a tag may be anything, as long as the rest of the sentence can't see them."""
    train = frame(0, 30)
    other = train.assign(words=[[*words[:-1], "zzz"] for words in train["words"]])
    test = frame(1, 30)
    rows = [probes.word_probe(tiny(), one, test, steps=20) for one in (train, other)]
    pd.testing.assert_frame_equal(*rows)


GOOD = frame(0, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: probes.word_states(m, []), "words: expected at least one, in a list"),
        (lambda m: probes.word_states([m[1]], SENTENCES), "expected a model whose first module is a Decoder"),
        (lambda m: probes.word_states(m, [["a"], []]), "sentence 1: expected a list of words, at least one, got"),
        (lambda m: probes.word_states(m, ["a b"]), "sentence 0: expected a list of words"),
        (lambda m: probes.word_states(m, [["a", 3]]), "sentence 0: expected a list of words"),
        (lambda m: probes.word_states(m, [["a", "", "b"]]), "sentence 0: expected words of at least one token, got ''"),
        (lambda m: probes.word_states(m, [["a"], ["b" * 600]]), "sentence 1: expected at most 512 tokens .* got 601"),
        (lambda m: probes.word_probe(m, GOOD.drop(columns="tags"), GOOD), "train: expected a frame with the columns"),
        (lambda m: probes.word_probe(m, GOOD, GOOD.drop(columns="words")), "test: expected a frame with the columns"),
        (
            lambda m: probes.word_probe(m, GOOD, pd.DataFrame({"words": [["a", "b"]], "tags": [["x"]]})),
            "test, sentence 0: expected 2 tags, one a word, got",
        ),
        (
            lambda m: probes.word_probe(m, GOOD, pd.DataFrame({"words": [["a"]], "tags": [[""]]})),
            "test: expected at least one word with a tag",
        ),
        (
            lambda m: probes.word_probe(m, pd.DataFrame({"words": [["a"]], "tags": [["x"]]}), GOOD),
            "train: expected words of at least two tags",
        ),
        (lambda m: probes.word_probe(m, GOOD, GOOD, steps=0), "steps: expected a positive whole number, got 0"),
        (lambda m: probes.word_probe(m, GOOD, GOOD, batch_size=2.5), "batch_size: expected a positive whole number"),
    ],
)
def test_bad_input(tiny, call, message):
    with pytest.raises(InvalidValueError, match=message):
        call(tiny())


def test_a_longer_window_takes_what_was_refused(tiny):
    assert probes.word_states(tiny(max_length=601), [["b" * 600]])[0].shape == (1, 32)


def test_guesses_without_a_model():
    learnt = pd.DataFrame({"words": [["a", "b", "a", ","], ["c", "d"]], "tags": [["x", "y", "x", ""], ["y", "y"]]})
    asked = pd.DataFrame({"words": [["a", "b", "e", ","]], "tags": [["x", "x", "y", ""]]})
    found = probes.word_guesses(learnt, asked)
    # The commonest tag is y, which one of three has; by word x, y, and for the unknown word y again.
    assert found == {"commonest tag": pytest.approx(100 / 3), "word alone": pytest.approx(200 / 3)}
