"""Lexicon pooling: against the published numbers, by the plain formula, and by what must hold."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from devices import DEVICES
from parity import Fixture
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from training_tools import differing, stage, trained, weights, write_data

import workbook
from workbook import backbones, probes
from workbook.checksums import write_checksums
from workbook.corpora.authored import topics
from workbook.errors import DamagedFileError, InvalidValueError, OutputError, UnknownNameError
from workbook.modules import Decoder, Lexicon
from workbook.modules.lexicon import LEXICON_POOLINGS, pooled_positions
from workbook.modules.projection import max_logits, sum_weights
from workbook.modules.saving import WEIGHTS
from workbook.templates import TEMPLATES
from workbook.tiny import tiny_tokenizer
from workbook.vocabulary.sparse import Entry, above_mean, decode, sparse, write_index

TEXTS = ["Basil likes warm soil.", "why do my tomato leaves curl at noon", "a", "naïve café, 3½ limes 😀 終わり"]
INSTRUCTION = "Find the note that answers"
SIDES = ("query", "document")


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def lens(pooling="max", head=None, **options):
    """A tiny chain with a random head of 50 rows."""
    options = {"attention": "bidirectional", "template": "lens", "dtype": "float32", "device": "cpu"} | options
    decoder = workbook.build("mean", "tiny-mistral", **options)[0]
    head = random(50, 32) if head is None else head
    return SentenceTransformer(modules=[decoder, Lexicon(head, pooling)], device="cpu", similarity_fn_name="cosine")


def plain(states, mask, head, pooling):
    """The formula as it stands in the paper, all logits at once."""
    pooled = torch.log(1 + torch.relu(states @ head.T)) * mask.unsqueeze(-1)
    return pooled.sum(dim=1) if pooling == "sum" else pooled.max(dim=1).values


def chunked(states, mask, head, pooling, logits):
    if pooling == "sum":
        return sum_weights(states, mask, head, logits)
    return max_logits(states, mask, head, logits)[0].log1p()


def batch(seed=1, width=16, dtype=torch.float32):
    states = random(3, 7, width, seed=seed, dtype=dtype)
    real = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1]])
    text = torch.tensor([[0, 0, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 0]])
    return {"token_embeddings": states, "attention_mask": real, "pooling_mask": text}


def moved_right(tensor, real):
    """The rows of a left-padded tensor with their padding on the right."""
    return torch.stack([row.roll(-int((mask == 0).sum()), dims=0) for row, mask in zip(tensor, real, strict=True)])


# The published code


def marked_texts(fixture, side):
    """As the template marks them: from behind the last <query>, or from behind <s>, to in front of </s>."""
    ids, real = fixture.tensors[f"{side}.input_ids"], fixture.tensors["attention_mask"]
    mark = fixture.about["query_mark_id"] if side == "query" else 1
    columns = torch.arange(ids.shape[1])
    start = torch.where(ids == mark, columns, -1).amax(dim=1, keepdim=True)
    return (columns > start) & (columns < ids.shape[1] - 1), real


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("side", SIDES)
def test_parity_with_lens(side, padding):
    fixture = Fixture("lens_pooling/states")
    head = load_file(fixture.folder / "extra.safetensors")["cluster_head.weight"]
    text, real = marked_texts(fixture, side)
    states, expected = fixture.tensors["token_states"], fixture.expected[f"{side}.pool_mask"]
    if padding == "right":
        states, text, expected, real = (moved_right(tensor, real) for tensor in (states, text, expected, real))
    assert torch.equal(pooled_positions(text, real, "max").long(), expected)
    features = {"token_embeddings": states, "attention_mask": real, "pooling_mask": text}
    for pooling in LEXICON_POOLINGS:
        module = Lexicon(head, pooling)
        fixture.close(module.weights(features), f"{side}.{pooling}")
        fixture.close(module(dict(features))["sentence_embedding"], f"{side}.{pooling}_normalised")


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("side", SIDES)
def test_parity_with_lens_from_text_to_vector(side, padding):
    """Its tokenizer knows <instruct> and <query>, which the template writes as strings."""
    fixture = Fixture("lens_pooling/text_end_to_end")
    backbone = fixture.decoder()
    backbone.config.sliding_window = None  # the fixture's models run without it
    decoder = Decoder(backbone, fixture.tokenizer(padding), "bidirectional", "lens")
    given, expected = fixture.texts[side], {}
    for name in ("input_ids", "attention_mask", "pool_mask", "token_states"):
        expected[name] = fixture.expected[f"{side}.{name}"]
    if padding == "right":
        real = expected["attention_mask"]
        expected = {name: moved_right(tensor, real) for name, tensor in expected.items()}
    with torch.no_grad():
        features = decoder(decoder.preprocess(given["texts"], prompt=given.get("instruction")))
    assert features["input_ids"].equal(expected["input_ids"])
    assert features["attention_mask"].equal(expected["attention_mask"])
    pooled = pooled_positions(features["pooling_mask"], features["attention_mask"], "max")
    assert pooled.long().equal(expected["pool_mask"])
    real = expected["attention_mask"].bool()
    bounds = fixture.tolerance("token_states")
    torch.testing.assert_close(features["token_embeddings"][real], expected["token_states"][real], **bounds)
    head = load_file(fixture.folder / "extra.safetensors")["cluster_head.weight"]
    for pooling in LEXICON_POOLINGS:
        module = Lexicon(head, pooling)
        fixture.close(module.weights(features), f"{side}.{pooling}")
        fixture.close(module(dict(features))["sentence_embedding"], f"{side}.{pooling}_normalised")


# Which positions


def test_positions_lie_one_to_the_left_of_the_text():
    given = batch()
    text, real = given["pooling_mask"], given["attention_mask"]
    assert pooled_positions(text, real, "max").int().tolist() == [
        [0, 1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0],
    ]
    assert pooled_positions(text, real, "last").nonzero().tolist() == [[0, 6], [1, 3], [2, 6]]


def test_a_first_token_that_is_all_stands_for_itself():
    """Without a beginning of text nothing predicts the first token: of one token its own position is pooled."""
    real = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 0]])
    text = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 0, 0]])
    assert pooled_positions(text, real, "max").nonzero().tolist() == [[0, 0], [1, 1], [2, 0]]
    decoder = Decoder(backbones.load_decoder("tiny-llama"), backbones.load_tokenizer("smollm2-135m"), template="lens")
    features = decoder.preprocess(["soil"])
    assert features["pooling_mask"].tolist() == [[1, 0]]
    assert pooled_positions(features["pooling_mask"], features["attention_mask"], "max").tolist() == [[True, False]]


def test_the_template_on_tokenizers_with_and_without_the_marks():
    """Three tokens where they are known; strings where they are not, and the vocabulary stays as it is."""
    known = Fixture("lens_pooling/text_end_to_end").tokenizer("left")
    ids, text, _ = TEMPLATES["lens"].encode(known, ["soil"], "Find", 64)[0]
    assert known.convert_ids_to_tokens(ids)[:2] == ["<s>", "<instruct>"]
    assert known.convert_ids_to_tokens(ids[text.index(1) - 1]) == "<query>"
    assert (ids[-1], text[-1]) == (known.eos_token_id, 0)
    smol = backbones.load_tokenizer("smollm2-135m")
    size = len(smol)
    ids, text, _ = TEMPLATES["lens"].encode(smol, ["soil"], "Find", 64)[0]
    assert smol.decode(ids) == f"<instruct>Find\n<query>soil{smol.eos_token}"
    assert smol.decode(ids[text.index(1) - 1]) == ">"
    assert len(smol) == size


@pytest.mark.parametrize("text", ["soil.", "soil." * 40], ids=["whole", "cut"])
def test_the_prompt_of_promptreps_ends_in_the_mark_that_opens_the_word(text):
    smol = backbones.load_tokenizer("smollm2-135m")
    ids, pooling_mask, _ = TEMPLATES["promptreps"].encode(smol, [text], "Find", 32)[0]
    marks = torch.tensor([pooling_mask])
    assert len(ids) <= 32
    assert smol.decode(ids).startswith('Find\nThis sentence: " soil.')
    assert smol.decode(ids).endswith(' " means in one word: "')
    assert pooled_positions(marks, torch.ones_like(marks), "last").nonzero().tolist() == [[0, len(ids) - 1]]


@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_the_instruction_is_not_pooled(pooling):
    """What its own states are does not matter, but for the last, which predicts the text; padding's don't either."""
    module, given = Lexicon(random(20, 16), pooling), batch()
    pooled = pooled_positions(given["pooling_mask"], given["attention_mask"], pooling)
    states = given["token_embeddings"].masked_fill(~pooled.unsqueeze(-1), float("nan")).requires_grad_()
    vectors = module(given | {"token_embeddings": states})["sentence_embedding"]
    torch.testing.assert_close(vectors, module(given)["sentence_embedding"])
    vectors.sum().backward()
    assert states.grad.isfinite().all()
    assert (states.grad[~pooled] == 0).all()


# Chunks


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("logits", [1, 40, 333, 2**22])
@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_chunks_equal_the_plain_formula(pooling, logits, device):
    """Values and gradients, in chunks of one logit and of all."""
    mask, head = torch.rand(5, 9, generator=torch.Generator().manual_seed(2)) > 0.4, random(37, 8, seed=3)
    mask[:, 4] = True
    mask, head, factors = (given.to(device) for given in (mask, head, random(5, 37, seed=5)))
    made = []
    for function in (plain, lambda *given: chunked(*given, logits)):
        states = random(5, 9, 8, seed=4).to(device).requires_grad_()
        weight = function(states, mask, head, pooling)
        (normalize(weight, dim=1) * factors).sum().backward()
        made.append((weight.detach(), states.grad))
    assert (made[0][1].abs().amax(dim=(1, 2)) > 0.01).all()
    for expected, got in zip(*made, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


class Largest(TorchDispatchMode):
    """Numbers of the largest tensor that is made inside, forward or backward."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **kwargs or {})
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):  # of a sparse one, what it holds
                self.numbers = max(self.numbers, tensor._nnz() if tensor.is_sparse else tensor.numel())
        return made


@pytest.mark.parametrize("logits", [4096, 12800])
@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_never_more_logits_than_asked_for(pooling, logits):
    """Of 51200, where all else that is made is smaller; in rows of the head alone, and in several texts."""
    head, mask = random(200, 4, seed=3), torch.ones(8, 32, dtype=torch.bool)
    states = random(8, 32, 4, seed=4).requires_grad_()
    with Largest() as forward:
        weight = chunked(states, mask, head, pooling, logits)
    with Largest() as backward:
        weight.sum().backward()
    assert forward.numbers == logits
    assert backward.numbers <= logits
    assert (backward.numbers == logits) == (pooling == "sum")  # the maximum needs no logits to go back


@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_gradients_by_differences(pooling):
    states = random(2, 4, 3, dtype=torch.float64).requires_grad_()
    mask = torch.tensor([[True, True, False, True], [False, True, True, False]])
    head = random(6, 3, seed=7, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda given: chunked(given, mask, head, pooling, 5), states)


def test_the_gradient_of_a_maximum_by_hand():
    """It reaches the position of the maximum alone, if that is above 0, and the head has none."""
    head, mask = torch.eye(3).requires_grad_(), torch.ones(1, 2, dtype=torch.bool)
    states = torch.tensor([[[1.0, 3.0, -1.0], [2.0, 1.0, -2.0]]]).requires_grad_()
    logits, positions = max_logits(states, mask, head)
    assert logits.tolist() == [[2.0, 3.0, 0.0]]
    assert positions[0, :2].tolist() == [1, 0]
    logits.sum().backward()
    assert states.grad.tolist() == [[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]
    assert head.grad is None


@pytest.mark.parametrize("pooling", LEXICON_POOLINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(pooling, dtype):
    """The product in the states' precision, the rest in float32, with autocast and without."""
    module, given = Lexicon(random(20, 16), pooling), batch()
    exact = module(dict(given))["sentence_embedding"]
    states = given["token_embeddings"].to(dtype).requires_grad_()
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            half = module(given | {"token_embeddings": states})["sentence_embedding"]
        assert half.dtype == torch.float32
        assert (exact * half).sum(dim=1).min() > 0.999
        half.sum().backward()
    assert states.grad.dtype == dtype
    assert states.grad.isfinite().all()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(module(dict(given))["sentence_embedding"], exact, rtol=0, atol=0)
    half = module.bfloat16()(given | {"token_embeddings": states})["sentence_embedding"]  # as a model is cast whole
    assert half.dtype == torch.float32
    half.sum().backward()


def test_contributions_lead_back_to_the_weights():
    module, given = Lexicon(random(40, 16)), batch()
    weight, positions = module.weights(given), module.contributions(given)
    assert positions.dtype == torch.int64
    states, pooled = given["token_embeddings"], pooled_positions(given["pooling_mask"], given["attention_mask"], "max")
    assert (positions == -1).equal(weight == 0)
    assert (positions == -1).any()
    for text, cluster in (positions >= 0).nonzero().tolist():
        place = positions[text, cluster]
        assert pooled[text, place]
        logit = states[text, place] @ module.head[cluster]
        torch.testing.assert_close(logit.log1p(), weight[text, cluster], rtol=1e-5, atol=1e-6)


# In a chain


@pytest.mark.parametrize("pooling", LEXICON_POOLINGS)
def test_batch_size_order_and_padding_side_change_nothing(pooling):
    model = lens(pooling)
    for prompt in (INSTRUCTION, None):
        expected = model.encode(TEXTS, prompt=prompt)
        assert expected.shape == (4, 50)
        assert expected.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, rtol=1e-5)
        close = {"atol": 1e-5, "rtol": 0}
        np.testing.assert_allclose(model.encode(TEXTS, prompt=prompt, batch_size=1), expected, **close)
        np.testing.assert_allclose(model.encode(TEXTS[::-1], prompt=prompt, batch_size=2)[::-1], expected, **close)
        model.tokenizer.padding_side = "left"
        np.testing.assert_allclose(model.encode(TEXTS, prompt=prompt), expected, **close)
        model.tokenizer.padding_side = "right"


@pytest.mark.parametrize("pooling", LEXICON_POOLINGS)
def test_saved_and_loaded(pooling, tmp_path):
    model = lens(pooling)
    model.save(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    assert loaded[1].pooling == pooling
    assert loaded[1].head.equal(model[1].head)
    assert loaded.get_embedding_dimension() == 50
    np.testing.assert_allclose(loaded.encode(TEXTS), model.encode(TEXTS), rtol=0, atol=1e-6)


def test_a_damaged_head_is_refused(tmp_path):
    Lexicon(random(5, 4)).save(str(tmp_path))
    assert Lexicon.load(str(tmp_path)).head.shape == (5, 4)
    content = bytearray((tmp_path / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (tmp_path / WEIGHTS).write_bytes(content)
    with pytest.raises(DamagedFileError, match=WEIGHTS):
        Lexicon.load(str(tmp_path))
    save_file({"tail": torch.ones(2)}, tmp_path / WEIGHTS)
    write_checksums(tmp_path)
    with pytest.raises(DamagedFileError, match="expected the weights of Lexicon"):
        Lexicon.load(str(tmp_path))


@pytest.mark.parametrize("adapter", [True, False], ids=["adapters", "whole"])
def test_the_head_stays_frozen(adapter, tmp_path, monkeypatch):
    """In a stage that trains adapters and in one that trains everything; the head was made from the embeddings."""
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "cache"))
    decoder = backbones.load_decoder("tiny-llama", dtype="float32")
    tokenizer = backbones.load_tokenizer("tiny-llama")
    pooling = Lexicon(decoder.get_input_embeddings().weight)
    model = SentenceTransformer(modules=[Decoder(decoder, tokenizer, "bidirectional", "lens"), pooling], device="cpu")
    assert [*pooling.parameters()] == []
    before = weights(model)
    changes = {} if adapter else {"adapter": None}
    trained(stage(write_data(tmp_path), "contrastive", **changes), model=model)
    changed = differing(before, model)
    assert changed
    assert "1.head" in before
    assert "1.head" not in changed
    assert adapter or any("embed_tokens" in name for name in changed)
    assert not model[1].head.requires_grad


# Mistakes


@pytest.mark.parametrize(
    ("head", "pooling", "error", "message"),
    [
        (torch.ones(3, 4), "mean", UnknownNameError, "Unknown lexicon pooling 'mean'. Expected one of: max, sum, last"),
        (torch.ones(3), "max", InvalidValueError, r"head: expected a floating tensor \(clusters, dim\).*\(3,\)"),
        (torch.ones(0, 4), "max", InvalidValueError, r"\(0, 4\)"),
        (torch.ones(3, 4, dtype=torch.int64), "max", InvalidValueError, "int64"),
        ([[1.0]], "max", InvalidValueError, "got 'list'"),
        (torch.tensor([[1.0], [float("nan")]]), "max", InvalidValueError, "others in row 1"),
    ],
)
def test_heads_that_are_none(head, pooling, error, message):
    with pytest.raises(error, match=message):
        Lexicon(head, pooling)


def test_a_head_of_another_width():
    with pytest.raises(InvalidValueError, match="head: expected 32 columns, as wide as the token states, got 24"):
        lens(head=random(50, 24)).encode(TEXTS)


@pytest.mark.parametrize("pooling", LEXICON_POOLINGS)
def test_a_row_of_which_nothing_is_pooled(pooling):
    given = batch()
    given["pooling_mask"][1] = 0
    with pytest.raises(InvalidValueError, match=r"pooling_mask: expected a pooled token in every row.*row 1"):
        Lexicon(random(5, 16), pooling)(given)


@pytest.mark.parametrize("prompt", [None, INSTRUCTION])
@pytest.mark.parametrize("text", ["</s>", "<s></s>", "<s> </s>", "</s>\n", " \t<unk>"])
def test_a_text_of_special_tokens_only(text, prompt):
    model = lens()
    with pytest.raises(InvalidValueError, match=re.escape(f"words, not special tokens alone, got {text!r}. Nothing")):
        model.encode([*TEXTS, text], prompt=prompt)
    assert np.isfinite(model.encode([f"{text} and more"], prompt=prompt)).all()


@pytest.mark.parametrize("text", ["", " ", "\x00", "word " * 1000])
def test_odd_texts_have_vectors(text):
    """An empty one too, as with every template: what its beginning predicts."""
    vectors = lens(max_length=64).encode([text, "an ordinary text"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


def test_a_text_of_special_tokens_is_read_by_other_templates():
    assert TEMPLATES["plain"].encode(tiny_tokenizer(), ["</s>"], None, 8)[0].pooling_mask == [0, 1]


# Sparse


def test_sparse_and_back_to_words():
    vectors = np.array([[0.1, 0.0, 0.3, 0.3], [0.0, 0.0, 0.0, 0.0]], dtype=np.float32)
    expected = [{2: pytest.approx(0.3), 3: pytest.approx(0.3), 0: pytest.approx(0.1)}, {}]
    assert sparse(vectors, 9) == expected
    assert sparse(torch.tensor(vectors).bfloat16(), 2)[0].keys() == {2: 0, 3: 0}.keys()
    words = {0: ["a"], 2: ["cat", "cats"], 3: ["sat"]}
    [[first], []] = decode(vectors, words, 1)
    assert first == Entry(2, pytest.approx(0.3), ("cat", "cats"))
    with pytest.raises(InvalidValueError, match="words: expected those of cluster 3, got '2 clusters'"):
        decode(vectors, {0: ["a"], 2: ["cat"]}, 3)


def test_sparse_products_approach_the_dense(tmp_path):
    """All weights are kept here: what is left is the rounding."""
    vectors = lens().encode(TEXTS)
    write_index(tmp_path / "index.jsonl", "abcd", vectors, 50)
    rows = [json.loads(line) for line in (tmp_path / "index.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [*"abcd"]
    assert all(type(value) is int and value > 0 for row in rows for value in row["vector"].values())
    product = sum(value * rows[1]["vector"].get(name, 0) for name, value in rows[0]["vector"].items())
    assert product / 1000**2 == pytest.approx(float(vectors[0] @ vectors[1]), abs=5e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: above_mean([[1.0]], [[1.0, 2.0]]), r"collection: expected vectors of 1 clusters, got \(1, 2\)"),
        (
            lambda path: above_mean([[1.0]], np.ones((0, 1))),
            "collection: expected 3 texts at least, .* got 0. Give more",
        ),
        (lambda path: above_mean([[1.0]], [[1.0]]), "collection: expected 3 texts at least, .* got 1. Give more"),
        (
            lambda path: above_mean([[1.0]], [[1.0], [2.0]]),
            "collection: expected 3 texts at least, .* got 2. Give more",
        ),
        (lambda path: above_mean([[1.0]], [[-1.0]]), "weights of 0 or more"),
        (lambda path: sparse([[1.0]], 0), "top: expected a positive whole number, got 0"),
        (lambda path: sparse([1.0], 1), "vectors"),
        (lambda path: sparse([["a"]], 1), "vectors"),
        (lambda path: sparse([[-1.0]], 1), "weights of 0 or more"),
        (lambda path: sparse([[float("nan")]], 1), "weights of 0 or more"),
        (lambda path: sparse([[float("inf")]], 1), "weights of 0 or more, finite"),
        (lambda path: write_index(path, ["a"], [[1.0, float("inf")]], 1), "weights of 0 or more, finite"),
        (lambda path: write_index(path, ["a", "a"], [[1.0], [2.0]], 1), "ids: expected 2 that differ"),
        (lambda path: write_index(path, ["a"], [[1.0], [2.0]], 1), "ids: expected 2 that differ"),
        (lambda path: write_index(path, ["a"], [[1.0]], 1, scale=0.5), "scale"),
    ],
)
def test_what_is_no_sparse_vector(call, message, tmp_path):
    with pytest.raises(InvalidValueError, match=message):
        call(tmp_path / "index.jsonl")
    assert [*tmp_path.iterdir()] == []


def test_an_index_that_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Could not write"):
        write_index(tmp_path / "file" / "index.jsonl", ["a"], [[1.0]], 1)


# Built by name


def test_built_by_name_from_the_head_of_its_backbone():
    from workbook.vocabulary.clusters import clusters_of

    model = workbook.build("lens", "tiny-llama", dtype="float32", device="cpu")
    made = clusters_of("tiny-llama", len(tiny_tokenizer()) // 8)  # smaller than the paper's vocabulary
    assert model[1].head.equal(made.centroids)
    assert model[1].clusters.equal(made.assignment)
    assert model.encode(TEXTS, prompt=INSTRUCTION).shape == (4, len(made))
    assert workbook.build("lens", "tiny-llama", pooling_options={"clusters": 20})[1].head.shape == (20, 32)
    other = workbook.build("lens", "tiny-llama", pooling_options={"seed": 1})[1]
    assert other.clusters.equal(clusters_of("tiny-llama", len(made), seed=1).assignment)
    assert not other.clusters.equal(made.assignment)


def test_the_vocabulary_as_it_is():
    options = {"clusters": "vocabulary", "pooling": "sum"}
    model = workbook.build("lens", "tiny-qwen2", pooling_options=options, dtype="float32", device="cpu")
    assert model[1].pooling == "sum"
    weight = backbones.load_head("tiny-qwen2").weight
    assert model[1].head.equal(weight)
    assert model[1].clusters.tolist() == [*range(len(tiny_tokenizer()))]
    assert model[1].words(tiny_tokenizer())[tiny_tokenizer().convert_tokens_to_ids("a")] == ["a"]


def test_words_of_some_clusters():
    lexicon, tokenizer = workbook.build("lens", "tiny-llama", pooling_options={"clusters": 20})[1], tiny_tokenizer()
    every = lexicon.words(tokenizer)
    assert sorted(word for words in every for word in words) == sorted(map(tokenizer.decode, range(len(tokenizer))))
    assert lexicon.words(tokenizer, [7, 0, 7]) == [every[7], every[0], every[7]]
    assert lexicon.words(tokenizer, []) == []
    for cluster in (20, -1):
        with pytest.raises(InvalidValueError, match=f"clusters: expected numbers from 0 to 19, got {cluster}"):
            lexicon.words(tokenizer, [0, cluster])


def zeroed(zero, **options):
    own = {"clusters": "vocabulary", "zero": zero} | options
    return workbook.build("lens", "tiny-llama", pooling_options=own, dtype="float32", device="cpu")


def test_the_mean_as_zero_changes_no_prediction_and_leaves_the_average_logit_at_0():
    raw, centred = zeroed("paper"), zeroed("mean")
    states = random(3, 5, 32)
    before, after = (states @ model[1].head.T for model in (raw, centred))
    torch.testing.assert_close(before.softmax(-1), after.softmax(-1))
    assert before.mean(-1).abs().max() > 0.01
    torch.testing.assert_close(after.mean(-1), torch.zeros(3, 5), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["max", "sum", "last"])
def test_a_zero_above_the_mean(pooling):
    """Every logit by itself, against a loop over texts and positions; gradients as through plain operations."""
    model = zeroed(0.25, pooling=pooling)
    features = model[0](model.preprocess(TEXTS))
    states = features["token_embeddings"] = features["token_embeddings"].detach().requires_grad_()
    found, expected = model[1].weights(features), []
    mask = pooled_positions(features["pooling_mask"], features["attention_mask"], pooling)
    for own, here in zip(states, mask, strict=True):
        weights = torch.log1p((own[here] @ model[1].head.T - 0.25).relu())
        expected.append(weights.sum(dim=0) if pooling == "sum" else weights.max(dim=0).values)
    expected = torch.stack(expected)
    assert 0 < (expected > 0).float().mean() < 1
    torch.testing.assert_close(found, expected)
    scale = random(*expected.shape)
    gradients = [torch.autograd.grad((made * scale).sum(), states)[0] for made in (found, expected)]
    torch.testing.assert_close(*gradients)
    if pooling != "sum":
        assert ((model[1].contributions(features) >= 0) == (expected > 0)).all()


def test_a_share_of_the_weights_is_active():
    texts = topics()["text"].head(64).tolist()
    for share in (0.05, 0.3):
        model = zeroed(f"share {share}", clusters=20)
        assert np.isclose((model.encode(texts) > 0).mean(), share, atol=0.01)
        assert zeroed(model[1].zero, clusters=20).encode(texts[:4]) == pytest.approx(model.encode(texts[:4]), abs=1e-6)


def test_a_zero_outlives_the_disk(tmp_path):
    model = zeroed("share 0.2")
    model.save(str(tmp_path / "model"))
    loaded = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True)
    assert loaded[1].zero == model[1].zero > 0
    assert loaded.encode(TEXTS) == pytest.approx(model.encode(TEXTS), abs=1e-6)


def test_zero_by_default_is_the_mean_where_the_head_is_the_table_of_words():
    for backbone, tied in (("tiny-gemma2", True), ("tiny-mistral", False)):
        assert backbones.load_config(backbone).tie_word_embeddings == tied
        zero = "mean" if tied else "paper"
        own = {"clusters": "vocabulary"}
        heads = [
            workbook.build("lens", backbone, pooling_options=given, dtype="float32")[1].head
            for given in (own, own | {"zero": zero})
        ]
        assert heads[0].equal(heads[1])
        weight = backbones.load_head(backbone).weight.float()
        assert heads[0].equal(weight - weight.mean(dim=0) if tied else weight)


@pytest.mark.parametrize(
    "zero", ["Paper", "half", "share", "share 0", "share 1.5", "share x", -1, float("nan"), True, [0]]
)
def test_a_zero_that_is_none(zero):
    with pytest.raises(InvalidValueError, match="zero: expected"):
        zeroed(zero)


def test_a_share_that_lies_below_the_mean():
    with pytest.raises(InvalidValueError, match=r"zero: expected a share below that of the logits above the mean, \d"):
        zeroed("share 0.9", pooling="last")


def test_shuffled_clusters_keep_sizes_and_nothing_else():
    plain, mixed = (zeroed("paper", clusters=20, shuffled=shuffled)[1] for shuffled in (False, True))
    assert plain.clusters.bincount().tolist() == mixed.clusters.bincount().tolist()
    assert (plain.clusters == mixed.clusters).float().mean() < 0.5
    weight = backbones.load_head("tiny-llama").weight.detach().float()
    means = torch.stack([weight[mixed.clusters == cluster].mean(dim=0) for cluster in range(20)])
    centre = plain.head.mean(dim=0)
    # As long as the k-means rows and around the same mean: the control differs in what its clusters mean alone.
    torch.testing.assert_close(mixed.head.mean(dim=0), centre)
    cosines = torch.cosine_similarity(mixed.head - centre, means - means.mean(dim=0))
    assert float(cosines.detach().min()) > 0.9
    lengths = [(one.head - centre).norm(dim=1) for one in (plain, mixed)]
    np.testing.assert_allclose(lengths[1], lengths[0], rtol=0.3)  # but for the mean row, subtracted once more
    assert (means - means.mean(dim=0)).norm(dim=1).mean() < 0.7 * lengths[0].mean()
    assert zeroed("paper", clusters=20, shuffled=True, seed=1)[1].clusters.tolist() != mixed.clusters.tolist()
    with pytest.raises(InvalidValueError, match="shuffled: expected False, where nothing is clustered"):
        zeroed("paper", shuffled=True)


def test_clusters_of_ones_own(tmp_path):
    from workbook.vocabulary.clusters import cluster_head

    made = cluster_head(backbones.load_head("tiny-llama").weight, 7, seed=5)
    made.save(tmp_path / "clusters")
    options = {"clusters": str(tmp_path / "clusters"), "zero": "paper"}
    model = workbook.build("lens", "tiny-llama", pooling_options=options, dtype="float32", device="cpu")
    assert model[1].head.equal(made.centroids)
    for cluster, words in enumerate(model[1].words(tiny_tokenizer())):
        assert sorted(words) == sorted(made.words(tiny_tokenizer(), cluster))
    with pytest.raises(InvalidValueError, match="head: expected the one the clusters were made from"):
        workbook.build("lens", "tiny-qwen2", pooling_options=options)


@pytest.mark.parametrize("k", [0, 1, 260, 10**6])
def test_an_impossible_number_of_clusters(k):
    with pytest.raises(InvalidValueError, match="k: expected a whole number of clusters from 2 to 259"):
        workbook.build("lens", "tiny-llama", pooling_options={"clusters": k})


@pytest.mark.parametrize("clusters", ["1000", "Vocabulary", "nowhere/clusters", Path("nowhere")])
def test_clusters_by_a_name_that_is_none(clusters):
    with pytest.raises(InvalidValueError, match=r"clusters: expected a whole number, 'vocabulary', or a folder of clu"):
        workbook.build("lens", "tiny-llama", pooling_options={"clusters": clusters})


@pytest.mark.parametrize("name", ["spherical", "shuffled"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_what_is_no_bool(name, value):
    for clusters in (20, "vocabulary"):
        with pytest.raises(InvalidValueError, match=f"{name}: expected True or False, got {value!r}"):
            workbook.build("lens", "tiny-llama", pooling_options={"clusters": clusters, name: value})


def test_an_unknown_option_of_the_lexicon():
    with pytest.raises(
        UnknownNameError, match=r"lexicon pooling.*: pooling, clusters, spherical, shuffled, zero, seed"
    ):
        workbook.build("lens", "tiny-llama", pooling_options={"k": 20})


def test_a_decoder_that_is_shared_brings_the_head_of_its_backbone():
    mean = workbook.build("mean", "tiny-llama", attention="bidirectional", device="cpu")
    shared = workbook.build("lens", mean)
    assert shared[0].decoder is mean[0].decoder
    assert shared[1].head.equal(workbook.build("lens", "tiny-llama")[1].head)


def test_a_map_that_does_not_fit():
    head = random(5, 8)
    for clusters, message in (
        (torch.tensor([0, 5]), "rows of the head, 0 to 4, got '0 to 5'"),
        (torch.tensor([-1, 2]), "rows of the head, 0 to 4"),
        (torch.tensor([0.0, 1.0]), "an int64 tensor"),
        (torch.zeros(0, dtype=torch.int64), "an int64 tensor"),
        (torch.tensor([0, 4, 1, 1]), "one token at least for each of the head's 5 rows, got 'none in clusters 2, 3'"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            Lexicon(head, clusters=clusters)
    with pytest.raises(InvalidValueError, match="tokenizer: expected that of 2 clustered tokens, got '259 tokens'"):
        Lexicon(head[:2], clusters=torch.tensor([0, 1])).words(tiny_tokenizer())


def test_a_head_without_a_map_and_maps_of_all_kinds_outlive_the_disk(tmp_path):
    """A published head has none; random clusters and merged spellings stand for tokens as k-means does."""
    made = {"published": Lexicon(random(5, 8))}
    for kind in ("random clusters", "merged", "vocabulary"):
        head = probes.head_of("tiny-llama", kind)
        made[kind] = Lexicon(head.rows, clusters=head.assignment)
    for kind, module in made.items():
        (tmp_path / kind).mkdir()
        module.save(str(tmp_path / kind))
        assert Lexicon.load(str(tmp_path / kind)).clusters.equal(module.clusters)
