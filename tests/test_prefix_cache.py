"""What texts begin with is read once: the same vectors, from fewer tokens, and never in training."""

import contextlib
import pickle

import numpy as np
import pytest
import torch
from test_padding import counted
from training_tools import tiny

import workbook
from workbook import evaluation
from workbook.errors import InvalidValueError
from workbook.evaluation.run import prefixes_kept
from workbook.experiments import suite
from workbook.methods import icl
from workbook.modules import load_embedder, prefix

INSTRUCTION = "Given a question about gardening, find notes that help answer it"
SHOTS = {INSTRUCTION: [("what eats aphids", "Ladybirds."), ("how deep does garlic go", "Two inches.")]}
TEXTS = ["Basil likes warm soil.", "a", "", "naïve café, 3½ limes 😀", "Basil likes warm soil.", " 12", "word " * 40]
CASES = {
    **{method: (method, {}) for method in workbook.METHODS},
    "icl with examples": ("icl", {"examples": SHOTS}),
    "token in front of the instruction": ("causal2vec", {"template": "causal2vec-before"}),
    "BOS pooled": ("mean", {"template": "nv-embed"}),
    "last of a lexicon": ("lens", {"pooling_options": {"pooling": "last"}}),
}


def pair(method="last-token", backbone="tiny-llama", **options):
    """The same model without and with the cache."""
    options = {"attention": "causal", "max_length": 120} | options
    return [tiny(method, backbone, **options, prefix_cache=asked) for asked in (False, True)]


def close(one, other, atol=1e-5):
    np.testing.assert_allclose(one, other, atol=atol, rtol=0)


def kept(model):
    return list(model[0]._prefixes._kept)


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=pytest.mark.journey) if "causal2vec" in CASES[one] else one for one in CASES]
)
def test_vectors_are_those_of_the_plain_model(case):
    method, options = CASES[case]
    plain, cached = pair(method, "tiny-mistral", **options)
    many = [f"{text} {number}" for number, text in enumerate(TEXTS * 10)][:64]
    for side in ("right", "left"):
        plain.tokenizer.padding_side = cached.tokenizer.padding_side = side
        for prompt in (INSTRUCTION, None):
            expected = plain.encode(many, prompt=prompt, batch_size=64)
            scale = max(1, np.abs(expected).max())
            close(cached.encode(many, prompt=prompt, batch_size=64) / scale, expected / scale)
            close(cached.encode(many[::-1], prompt=prompt, batch_size=7)[::-1] / scale, expected / scale)
        expected = plain.encode(TEXTS, prompt=INSTRUCTION)
        close(cached.encode(TEXTS, prompt=INSTRUCTION, batch_size=1) / scale, expected / scale)
    # In front of the instruction stands a text's own token, and behind BOS nothing is worth keeping.
    assert len(kept(cached)) >= (case != "token in front of the instruction")


@pytest.mark.parametrize(
    ("backbone", "kernel"),
    [
        (name, kernel)
        for name in ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3")
        for kernel in ("sdpa", "eager")
    ]
    + [("tiny-gemma2", "eager")],  # which has no other
)
def test_backbones_with_windows_and_without(backbone, kernel):
    """The windows of the tiny ones are four tokens, much shorter than the prefix."""
    plain, cached = pair("icl", backbone, examples=SHOTS, attn_implementation=kernel)
    close(cached.encode(TEXTS, prompt=INSTRUCTION), plain.encode(TEXTS, prompt=INSTRUCTION))
    assert kept(cached)


def test_a_beginning_is_kept_from_the_shortest_that_pays_on():
    ids = torch.arange(40).expand(4, 40)
    for length in (prefix.SHORTEST - 1, prefix.SHORTEST):
        ((beginning, rows),) = prefix.by_beginning(ids, (ids < length).long(), a_pass=0)
        assert (len(beginning), rows) == (length if length == prefix.SHORTEST else 0, [0, 1, 2, 3])


def test_without_bos_too():
    plain, cached = pair()
    for model in (plain, cached):
        model.tokenizer.backend_tokenizer.post_processor = None
    close(cached.encode(TEXTS, prompt=INSTRUCTION), plain.encode(TEXTS, prompt=INSTRUCTION))
    assert kept(cached)[0][0] != cached.tokenizer.bos_token_id


def test_states_are_given_for_every_token():
    plain, cached = pair("mean")
    with torch.no_grad():
        one, other = (model[0](model.preprocess(TEXTS, prompt=INSTRUCTION)) for model in (plain, cached))
    real = one["attention_mask"].bool()
    close(other["token_embeddings"][real], one["token_embeddings"][real])


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_of_several_instructions(side):
    plain, cached = pair()
    rows = [{"instruction": INSTRUCTION if n % 3 else "Find the note", "text": text} for n, text in enumerate(TEXTS)]
    rows.append({"instruction": "", "text": "bare"})
    plain.tokenizer.padding_side = cached.tokenizer.padding_side = side
    close(cached.encode(rows), plain.encode(rows))
    assert len(kept(cached)) == 2


def test_the_decoder_reads_the_prefix_once():
    plain, cached = pair("icl", examples=SHOTS)
    reads = []
    for model in (plain, cached):
        seen = counted(model)
        for _ in range(2):
            model.encode(TEXTS[:2] * 4, prompt=INSTRUCTION, batch_size=4)
        reads.append(seen["all"])
    (front,) = map(len, kept(cached))
    assert front > 100
    assert reads[0] - 16 * front <= reads[1] - front < reads[0] / 3


def test_an_evaluation_reads_the_prefix_once():
    plain, cached = pair("icl", examples=SHOTS)
    whole = workbook.hybrid(plain, tiny("llm2vec", "tiny-llama"))
    with prefixes_kept(whole), prefixes_kept(cached):
        assert [part[0].prefix_cache for part in (plain, whole[0].second, cached)] == [True, False, True]
        close(plain.encode(TEXTS, prompt=INSTRUCTION), cached.encode(TEXTS, prompt=INSTRUCTION), 0)
    assert [part[0].prefix_cache for part in (plain, whole[0].second, cached)] == [False, False, True]


def test_an_evaluation_reads_less_and_finds_the_same(monkeypatch):
    found = []
    for keeps in (prefixes_kept, lambda _: contextlib.nullcontext()):
        monkeypatch.setattr("workbook.evaluation.run.prefixes_kept", keeps)
        model = tiny("icl", "tiny-llama", examples=icl.examples())
        seen = counted(model)
        scores = evaluation.evaluate(model, "ParaphraseLadder", scale="quick", instructions="docs", max_length=200)
        found.append((scores["score"].item(), seen["all"]))
    (kept_score, less), (score, more) = found
    assert kept_score == pytest.approx(score, abs=1e-3)
    assert less < more / 2


def test_states_that_are_kept_for_another_pooling_are_not_taken_for_those_behind_another_beginning():
    (plain, cached), (_, other) = pair("last-token"), pair("last-token")
    other[0].decoder = cached[0].decoder  # one decoder, two caches, as of two poolings
    asked = [INSTRUCTION, INSTRUCTION.replace("gardening", "harvesting")]
    with suite.read_once(cached[0].decoder):
        for one in asked * 2:
            for model in (cached, other):
                close(model.encode(TEXTS, prompt=one), plain.encode(TEXTS, prompt=one))


def test_a_hybrid_keeps_a_cache_in_each_half():
    plain, cached = (workbook.hybrid(*models) for models in zip(pair("lens"), pair("mean"), strict=True))
    close(cached.encode(TEXTS, prompt=INSTRUCTION), plain.encode(TEXTS, prompt=INSTRUCTION))
    assert all(kept(part) for part in (cached[0].first, cached[0].second))


def test_a_changed_weight_is_seen():
    plain, cached = pair()
    before = cached.encode(TEXTS, prompt=INSTRUCTION)
    with torch.no_grad():
        for model in (plain, cached):
            model[0].decoder.layers[0].self_attn.v_proj.weight.mul_(2)
    after = cached.encode(TEXTS, prompt=INSTRUCTION)
    assert np.abs(after - before).max() > 1e-2
    close(after, plain.encode(TEXTS, prompt=INSTRUCTION))
    cached[0].decoder.bfloat16()
    cached.encode(TEXTS, prompt=INSTRUCTION)
    assert cached[0]._prefixes.get(cached[0].decoder, kept(cached)[0]).states.dtype is torch.bfloat16
    cached.train()
    assert not kept(cached)


def test_it_is_not_used_in_training():
    gradients = []
    for model in pair():
        model.train()(model.preprocess(TEXTS, prompt=INSTRUCTION))["sentence_embedding"].pow(2).sum().backward()
        gradients.append([one.grad for one in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():  # as in the first pass of GradCache
        model(model.preprocess(TEXTS, prompt=INSTRUCTION))
    assert not kept(model)


def test_it_is_not_used_where_a_hook_may_look_for_a_position():
    _, cached = pair()
    hook = cached[0].decoder.layers[0].register_forward_hook(lambda *_: None)
    cached.encode(TEXTS, prompt=INSTRUCTION)
    assert not kept(cached)
    hook.remove()
    cached.encode(TEXTS, prompt=INSTRUCTION)
    assert kept(cached)
    assert workbook.attention.probe(cached[0].decoder) == "causal"


def test_memory_is_bounded(monkeypatch):
    plain, cached = pair()
    cached.encode(TEXTS, prompt=INSTRUCTION)
    size = cached[0]._prefixes.bytes
    assert size > 0
    monkeypatch.setattr(prefix, "BYTES", 2.5 * size)
    for number in range(5):
        prompt = f"{INSTRUCTION[:-1]}{number}"
        close(cached.encode(TEXTS, prompt=prompt), plain.encode(TEXTS, prompt=prompt))
    assert len(kept(cached)) == 2
    monkeypatch.setattr(prefix, "BYTES", 0)
    close(cached.encode(TEXTS, prompt=INSTRUCTION), plain.encode(TEXTS, prompt=INSTRUCTION))
    assert not kept(cached)


def test_it_is_saved_and_copies_are_empty(tmp_path):
    _, cached = pair()
    expected = cached.encode(TEXTS, prompt=INSTRUCTION)
    assert pickle.loads(pickle.dumps(cached[0]._prefixes))._kept == {}
    cached.save(str(tmp_path))
    again = load_embedder(tmp_path, device="cpu", model_kwargs={"dtype": "float32"})
    assert again[0].prefix_cache
    close(again.encode(TEXTS, prompt=INSTRUCTION), expected)
    assert kept(again)
    again[0].prefix_cache = False
    assert "prefix_mask" not in again.preprocess(TEXTS)
    close(again.encode(TEXTS, prompt=INSTRUCTION), expected)


def test_it_is_part_of_no_key():
    plain, cached = pair()
    assert plain[0].resolved() == cached[0].resolved()
    assert "prefix_cache" not in workbook.METHODS["icl"].chain.resolved()


def test_bad_input():
    with pytest.raises(InvalidValueError, match=r"prefix_cache: expected causal attention.*'bidirectional'"):
        tiny("llm2vec", prefix_cache=True)
    with pytest.raises(InvalidValueError, match="prefix_cache: expected True or False, got 1"):
        tiny("icl", prefix_cache=1)
    _, cached = pair()
    with pytest.raises(InvalidValueError, match="prefix_cache: expected causal attention"):
        cached[0].attention = "bidirectional"
    assert cached[0].attention == "causal"
