"""The look at lexicon vectors: against naive second implementations, position by position."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from workbook import build, probes
from workbook.errors import InvalidValueError
from workbook.modules import Decoder, Lexicon
from workbook.modules import lexicon as module
from workbook.modules.lexicon import LEXICON_POOLINGS
from workbook.templates import Template
from workbook.vocabulary.tokens import token_text

TEXTS = ["A cat sat.", "why do my tomato leaves curl", "a", "", "naïve café, 3½ limes"]
INSTRUCTION = "Find the note"
CLUSTERS = 40


@pytest.fixture
def tiny():
    def tiny(pooling="max", clusters=CLUSTERS, **options):
        options = {"dtype": "float32", "device": "cpu"} | options
        return build("lens", "tiny-llama", pooling_options={"pooling": pooling, "clusters": clusters}, **options)

    return tiny


@torch.no_grad()
def naive(model, text, instruction=None):
    """Ids, which of them are the text's, and at each pooled position log(1 + relu(logit)) of every cluster."""
    features = model[0].preprocess([text], instruction)
    states = model[0](features)["token_embeddings"][0].double()
    ids, marked = features["input_ids"][0].tolist(), features["pooling_mask"][0].tolist()
    if model[1].pooling == "last":
        places = [len(ids) - 1]
    else:
        places = [place for place in range(len(ids) - 1) if marked[place + 1]]
    head = model[1].head.double()
    return ids, marked, {place: [max(0.0, float(states[place] @ row)) for row in head] for place in places}


def weights_of(given, pooling):
    per_position = np.log1p(np.array([*given.values()]))
    return per_position.sum(axis=0) if pooling == "sum" else per_position.max(axis=0)


@pytest.mark.parametrize("instruction", [None, INSTRUCTION])
@pytest.mark.parametrize("pooling", LEXICON_POOLINGS)
def test_top_clusters_against_a_naive_loop(tiny, pooling, instruction):
    model = tiny(pooling)
    frame = probes.top_clusters(model, TEXTS, instruction, top=6)
    assert frame.columns.tolist() == ["text", "cluster", "weight", "words", "position", "token", "own"]
    assert frame["text"].tolist() == sorted([*range(len(TEXTS))] * 6)
    assert frame["own"].nunique() == 2
    cluster_of, tokenizer = model[1].clusters.tolist(), model.tokenizer
    for index, rows in frame.groupby("text"):
        ids, marked, given = naive(model, TEXTS[index], instruction)
        weight = weights_of(given, pooling)
        order = np.argsort(-weight, kind="stable")[:6]
        assert rows["cluster"].tolist() == order.tolist()
        np.testing.assert_allclose(rows["weight"], weight[order] / np.linalg.norm(weight), rtol=1e-4)
        for row in rows.itertuples():
            assert row.words == [token_text(tokenizer, id_) for id_, c in enumerate(cluster_of) if c == row.cluster]
            assert row.position == max(given, key=lambda place: given[place][row.cluster])
            predicted = ids[row.position] if pooling == "last" else ids[row.position + 1]
            assert row.token == tokenizer.decode([predicted])
            own = {cluster_of[id_] for id_, mark in zip(ids, marked, strict=True) if mark}
            assert row.own == (row.cluster in own)


def test_only_what_is_shown_is_decoded(tiny, monkeypatch):
    """The words of a whole vocabulary take a second."""
    model, decoded = tiny(), []
    monkeypatch.setattr(module, "token_text", lambda tokenizer, token: decoded.append(token) or str(token))
    (row,) = probes.top_clusters(model, TEXTS[:1], top=1).itertuples()
    assert decoded == [token for token, cluster in enumerate(model[1].clusters.tolist()) if cluster == row.cluster]
    assert row.words == [str(token) for token in decoded]


@pytest.mark.parametrize("side", ["left", "right"])
def test_weights_and_positions_are_those_of_a_padded_batch(tiny, side):
    """A position counts real tokens, on whichever side the batch is padded."""
    model = tiny()
    frame = probes.top_clusters(model, TEXTS, INSTRUCTION, top=CLUSTERS)
    model.tokenizer.padding_side = side
    try:
        with torch.no_grad():
            features = model[0](model[0].preprocess(TEXTS, INSTRUCTION))
        vectors = model.encode(TEXTS, prompt=INSTRUCTION)
        assert probes.top_clusters(model, TEXTS, INSTRUCTION, top=CLUSTERS).equals(frame)
    finally:
        model.tokenizer.padding_side = "right"  # the tiny backbones share one tokenizer
    columns, numbers = model[1].contributions(features), features["attention_mask"].cumsum(dim=1) - 1
    assert len(frame) == (vectors > 0).sum()
    for row in frame.itertuples():
        assert row.weight == pytest.approx(vectors[row.text, row.cluster], abs=1e-5)
        assert row.position == numbers[row.text, columns[row.text, row.cluster]]


def test_a_first_token_with_nothing_in_front_stands_for_itself(tiny):
    model = tiny("max", "vocabulary")
    pieces = (("{text}", True), ("{eos}", False))
    decoder = Decoder(model[0].decoder, model.tokenizer, "bidirectional", Template(instructed=pieces, plain=pieces))
    model = SentenceTransformer(modules=[decoder, model[1]], device="cpu")
    frame = probes.top_clusters(model, ["a", "ab"])
    assert frame["position"].tolist() == [0] * 10
    assert frame["token"].tolist() == ["a"] * 5 + ["b"] * 5
    assert probes.by_position(model, "a", [1]).index.tolist() == ["a"]


def test_what_has_no_weight_is_left_out(tiny):
    module = tiny()[0]
    for head, kept in ((torch.zeros(2, 32), 0), (torch.stack([torch.full((32,), 10.0), torch.zeros(32)]), 1)):
        clusters = torch.arange(len(module.tokenizer)) % 2
        model = SentenceTransformer(modules=[module, Lexicon(head, clusters=clusters)], device="cpu")
        frame = probes.top_clusters(model, [TEXTS[1]])
        assert frame.shape == (kept, 7)
        assert frame["weight"].tolist() == pytest.approx([1.0] * kept)


@pytest.mark.parametrize("pooling", LEXICON_POOLINGS)
def test_positions_lead_to_the_weights(tiny, pooling):
    """Their largest, or their sum, is what the module pools; and each by the plain formula."""
    model = tiny(pooling)
    text, chosen = TEXTS[1], np.array([39, 3, 17, 0])
    frame = probes.by_position(model, text, chosen, INSTRUCTION)
    assert frame.to_numpy().dtype == np.float64
    assert frame.columns.tolist() == chosen.tolist()
    assert frame.index.tolist() == (["</s>"] if pooling == "last" else list(text))
    with torch.no_grad():
        expected = model[1].weights(model[0](model[0].preprocess([text], INSTRUCTION)))[0, chosen]
    pooled = frame.sum() if pooling == "sum" else frame.max()
    np.testing.assert_allclose(pooled, expected, rtol=1e-5)
    given = np.log1p([*naive(model, text, INSTRUCTION)[2].values()])
    np.testing.assert_allclose(frame, given[:, chosen], rtol=1e-4, atol=1e-5)
    assert (frame.to_numpy() == 0).any()


@pytest.mark.parametrize("pooling", LEXICON_POOLINGS)
def test_both_looks_know_where_zero_is(tiny, pooling):
    model = tiny(pooling)
    whole = probes.by_position(model, TEXTS[1], range(CLUSTERS))
    model[1].zero = zero = float(np.expm1(whole.max()).median())
    above = probes.by_position(model, TEXTS[1], range(CLUSTERS))
    np.testing.assert_allclose(np.expm1(above), np.maximum(np.expm1(whole) - zero, 0), atol=1e-4)
    assert (above.to_numpy() == 0).sum() > (whole.to_numpy() == 0).sum()
    pooled = above.sum() if pooling == "sum" else above.max()
    weights = probes.top_clusters(model, [TEXTS[1]], top=CLUSTERS).set_index("cluster")["weight"]
    np.testing.assert_allclose(pooled[weights.index] / np.linalg.norm(pooled), weights, atol=1e-5)
    assert len(weights) == (pooled > 0).sum() < CLUSTERS


def test_both_looks_agree(tiny):
    model = tiny()
    frame = probes.top_clusters(model, [TEXTS[1]])
    places = probes.by_position(model, TEXTS[1], frame["cluster"]).to_numpy().argmax(axis=0)
    assert places.tolist() == frame["position"].tolist()  # <s> stands at 0, and predicts the first token


def test_half_precision(tiny):
    model = tiny(dtype="bfloat16")
    frame = probes.top_clusters(model, TEXTS, top=CLUSTERS)
    np.testing.assert_allclose(frame.groupby("text")["weight"].apply(lambda w: (w**2).sum()), 1, rtol=1e-5)
    heaviest = int(frame["cluster"][0])
    largest = model[1].weights(model[0](model[0].preprocess(TEXTS[:1])))[0, heaviest].item()
    assert probes.by_position(model, TEXTS[0], [heaviest]).max().item() == pytest.approx(largest, rel=0.02)


def test_the_model_is_left_as_it_was(tiny):
    model = tiny(attention="causal")
    before = model.encode(TEXTS)
    model.train()
    for layer in model[0].decoder.layers:
        layer.self_attn.attention_dropout = 0.5
    one, other = (probes.top_clusters(model, TEXTS) for _ in range(2))
    assert one.equals(other)
    assert probes.by_position(model, TEXTS[0], [1, 2]).equals(probes.by_position(model, TEXTS[0], [1, 2]))
    assert model.training
    assert model[0].decoder.training
    np.testing.assert_array_equal(model.eval().encode(TEXTS), before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: probes.top_clusters(m, []), "texts: expected at least one, in a list"),
        (lambda m: probes.top_clusters(m, "a text"), "texts: expected at least one, in a list"),
        (lambda m: probes.top_clusters(m, ["a", None]), "texts: expected strings, got None"),
        (lambda m: probes.top_clusters(m, [[5, 6]]), r"texts: expected strings, got \[5, 6\]"),
        (lambda m: probes.top_clusters(m, ["a"], 3), "instruction .prompt.: expected a string"),
        (lambda m: probes.top_clusters(m, ["a"], top=0), "top: expected a positive whole number, got 0"),
        (lambda m: probes.top_clusters(m, ["a"], top=2.0), "top: expected a positive whole number, got 2.0"),
        (lambda m: probes.top_clusters([m[1]], TEXTS), "expected a model whose first module is a Decoder"),
        (lambda m: probes.top_clusters([m[0]], TEXTS), r"expected a Decoder and a Lexicon, got \['Decoder'\]. Build"),
        (
            lambda m: probes.top_clusters([m[0], Lexicon(m[1].head)], TEXTS),
            f"tokenizer: expected that of {CLUSTERS} clustered tokens",
        ),
        (lambda m: probes.by_position([m[0]], "a", [0]), "expected a Decoder and a Lexicon"),
        (lambda m: probes.by_position(m, ["a"], [0]), r"texts: expected strings, got \['a'\]"),
        (lambda m: probes.by_position(m, "a", [0], 3), "instruction .prompt.: expected a string"),
        (lambda m: probes.by_position(m, "a", []), r"clusters: expected whole numbers from 0 to 39, .* got \[\]"),
        (lambda m: probes.by_position(m, "a", np.array([], dtype=int)), "clusters: expected whole numbers"),
        (lambda m: probes.by_position(m, "a", [1, 40]), r"clusters: expected whole numbers .* got \[1, 40\]"),
        (lambda m: probes.by_position(m, "a", [-1]), "clusters: expected whole numbers from 0"),
        (lambda m: probes.by_position(m, "a", [0.0]), "clusters: expected whole numbers"),
        (lambda m: probes.by_position(m, "a", [True]), "clusters: expected whole numbers"),
        (lambda m: probes.by_position(m, "a", 3), "clusters: expected whole numbers"),
        (lambda m: probes.by_position(m, "a", "12"), "clusters: expected whole numbers"),
    ],
)
def test_bad_input(tiny, call, message):
    with pytest.raises(InvalidValueError, match=message):
        call(tiny())


def test_another_pooling_is_named():
    model = build("mean", "tiny-llama", dtype="float32", device="cpu")
    with pytest.raises(InvalidValueError, match=r"a Lexicon, got \['Decoder', 'Pooling'\]. Build it with workbook"):
        probes.top_clusters(model, TEXTS)
