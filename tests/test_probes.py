"""The probes: against a naive second implementation, and on models whose answer is known."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers.util.quantization import quantize_embeddings

from workbook import attention, build, probes, recipe
from workbook.corpora import authored
from workbook.data import rows as training_data
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.vocabulary.sparse import above_mean

TEXTS = ["one two three four five six", "seven eight nine ten eleven twelve", "red green blue white black grey"]
TRIPLES = authored.future_tokens().head(6)


@pytest.fixture
def tiny():
    def tiny(method="mean", mode="causal"):
        return build(method, "tiny-llama", attention=mode, dtype="float32", device="cpu")

    return tiny


def cosine(a, b):
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_layer_cosine_against_a_naive_loop(tiny):
    model = tiny()
    frame = probes.layer_cosine(model, TEXTS[:2])
    decoder, tokenizer = model[0].decoder, model[0].tokenizer
    ids = torch.tensor([model[0].encode_texts(TEXTS[1:2])[0].input_ids])
    with torch.no_grad():
        causal = decoder(ids, output_hidden_states=True).hidden_states
        attention.set_mode(decoder, "bidirectional")
        both = decoder(ids, output_hidden_states=True).hidden_states
    rows = frame[frame.text == 1]
    assert len(rows) == len(causal) * ids.shape[1]
    for row in rows.itertuples():
        one, other = causal[row.layer][0, row.position], both[row.layer][0, row.position]
        assert row.cosine == pytest.approx(cosine(one, other), abs=1e-5)
        neighbour = both[row.layer][0, (row.position + 1) % ids.shape[1]]
        assert row.control == pytest.approx(cosine(one, neighbour), abs=1e-5)
    assert rows.token.iloc[0] == tokenizer.decode([ids[0, 0].item()])


def test_layer_means_leave_out_the_sink_and_the_input_embedding():
    rows = [("a", 0, 0, 1.0), ("a", 0, 1, 1.0), ("a", 1, 0, -1.0), ("a", 1, 1, 0.5), ("a", 1, 2, 0.7), ("b", 1, 1, 0.1)]
    frame = pd.DataFrame(rows, columns=["text", "layer", "position", "cosine"]).assign(control=0.2)
    means = probes.layer_means(frame)
    assert means[["text", "layer"]].to_numpy().tolist() == [["a", 1], ["b", 1]]
    assert means["cosine"].tolist() == pytest.approx([0.6, 0.1])
    with pytest.raises(UnknownNameError, match="column 'control'"):
        probes.layer_means(frame.drop(columns="control"))


@pytest.mark.parametrize("mode", attention.MODES)
def test_layer_cosine_leaves_the_model_as_it_was(tiny, mode):
    model = tiny(mode=mode)
    before = model.encode(TEXTS)
    model.train()
    probes.layer_cosine(model, TEXTS[:1])
    assert model[0].decoder.training
    assert attention.probe(model[0].decoder) == mode
    np.testing.assert_array_equal(model.eval().encode(TEXTS), before)


def test_layer_cosine_begins_at_one(tiny):
    """The input embedding knows nothing of attention; what follows does, except for the last token, which sees all."""
    frame = probes.layer_cosine(tiny(), TEXTS[:1]).pivot(index="layer", columns="position", values="cosine")
    np.testing.assert_allclose(frame.loc[0], 1, atol=1e-6)
    np.testing.assert_allclose(frame.loc[1].iloc[-1], 1, atol=1e-6)
    assert frame.loc[1].iloc[:-1].max() < 0.9999


def test_prefix_test_against_a_naive_loop(tiny):
    model = tiny(mode="bidirectional")
    frame = probes.prefix_test(model, TRIPLES)

    def prefix_vector(prefix, rest):
        """A byte tokenizer: a prefix has as many tokens as bytes."""
        features = model.preprocess([f"{prefix} {rest}"])
        first = int(features["pooling_mask"][0].argmax())
        states = model[0](features)["token_embeddings"][0]
        return states[first : first + len(prefix.encode())].mean(dim=0).detach()

    for row, triple in zip(frame.itertuples(), TRIPLES.itertuples(), strict=True):
        query = prefix_vector(triple.prefix, triple.query)
        positive, negative = (
            cosine(query, prefix_vector(triple.prefix, t)) for t in (triple.positive, triple.negative)
        )
        assert row.id == triple.id
        assert (row.positive, row.negative) == (pytest.approx(positive, abs=1e-5), pytest.approx(negative, abs=1e-5))
        assert row.margin == pytest.approx(positive - negative, abs=2e-5)
        assert row.correct == (0.5 if abs(positive - negative) < probes.TIE else float(positive > negative))
    assert not (frame.correct == 0.5).all()
    assert frame.margin.dtype == float


@pytest.mark.parametrize("method", ["mean", "weighted-mean", "last-token"])
def test_causal_prefixes_are_all_ties(tiny, method):
    frame = probes.prefix_test(tiny(method), TRIPLES)
    assert (frame.correct == 0.5).all()
    np.testing.assert_allclose(frame.margin, 0, atol=1e-5)


def test_echo_sees_what_follows(tiny):
    assert not (probes.prefix_test(tiny("echo"), TRIPLES).correct == 0.5).any()


def test_the_real_backbone_is_blind_to_the_future_and_bidirectional_attention_is_not(smollm2):
    smollm2[0].attention = "causal"
    assert (probes.prefix_test(smollm2, TRIPLES).correct == 0.5).all()
    smollm2[0].attention = "bidirectional"
    assert not (probes.prefix_test(smollm2, TRIPLES).correct == 0.5).any()


def test_recency_against_a_naive_loop(tiny):
    model = tiny("last-token")
    frame = probes.recency(model, TEXTS, windows=3)
    assert len(frame) == 9
    row = frame[(frame.text == 2) & (frame.window == 1)].iloc[0]
    changed = "red green nine white black grey".replace("nine white", "three four")
    expected = 1 - cosine(*model.encode([TEXTS[2], changed]))
    assert row.movement == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(frame.groupby("text")["share"].sum(), 1)


class _LastWords:
    """An embedder that reads nothing but the last two words."""

    def encode(self, texts, **_):
        return torch.stack([torch.tensor([float(ord(w[0])), float(len(w)), 1.0]) for w in map(self._words, texts)])

    def _words(self, text):
        return " ".join(text.split()[-2:])


def test_recency_of_an_embedder_that_reads_the_end_alone():
    share = probes.recency(_LastWords(), TEXTS, windows=3).groupby("window")["share"].mean()
    np.testing.assert_allclose(share, [0, 0, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: probes.layer_cosine(m, []), "texts: expected at least one, in a list, got"),
        (lambda m: probes.layer_cosine(m, "a text"), "texts: expected at least one, in a list"),
        (lambda m: probes.layer_cosine([m[1]], TEXTS), "expected a model whose first module is a Decoder"),
        (lambda m: probes.prefix_test(m, TRIPLES.drop(columns="query")), "triples: expected a frame with the columns"),
        (lambda m: probes.prefix_test(m, TRIPLES.head(0)), "expected at least one"),
        (lambda m: probes.recency(m, TEXTS, windows=-1), "windows: expected a whole number from 2, got -1"),
        (lambda m: probes.recency(m, TEXTS[:1]), "texts: expected at least two strings"),
        (lambda m: probes.recency(m, ["a b", *TEXTS]), "text 0: expected at least 5 words"),
    ],
)
def test_bad_input(tiny, call, message):
    with pytest.raises(InvalidValueError, match=message):
        call(tiny())


def test_encoding_cost_counts_tokens_and_takes_turns(tiny):
    order = []
    models = {name: tiny(name) for name in ("mean", "echo")}
    for name, model in models.items():
        model.register_forward_pre_hook(lambda *_, name=name: order.append(name))
    frame = probes.encoding_cost(models, TEXTS, turns=2)
    assert order == ["mean", "echo"] * 3  # once to warm up
    assert frame[["turn", "model"]].to_numpy().tolist() == [[0, "mean"], [0, "echo"], [1, "mean"], [1, "echo"]]
    for instruction in (None, "Find it"):
        frame = probes.encoding_cost(models, TEXTS, turns=1, instruction=instruction)
        laid = {name: model.preprocess(TEXTS, instruction) for name, model in models.items()}
        read = {name: int(features["attention_mask"].sum()) for name, features in laid.items()}
        assert dict(zip(frame["model"], frame["tokens"], strict=True)) == read
    assert (frame["seconds"] > 0).all()
    with pytest.raises(InvalidValueError, match="turns"):
        probes.encoding_cost(models, TEXTS, turns=0)


def test_training_cost_counts_tokens_takes_turns_and_leaves_the_models_alone(tiny):
    names = {"mean": "contrastive", "echo": "contrastive", "anchor": "reconstruction", "llm2vec": "mntp"}
    shared = tiny("mean")
    models = {name: build(name, shared) for name in ("mean", "echo", "anchor")}
    models["llm2vec"] = tiny("llm2vec", mode="bidirectional")
    stages = {name: recipe(name, "quick", "tiny-llama").only(stage).stages[0] for name, stage in names.items()}
    longer = {"max_length": 200, "batch_size": 4}  # its tokens are characters
    stages = {name: stage.model_copy(update=longer) for name, stage in stages.items()}
    weights = {name: {key: value.clone() for key, value in m.state_dict().items()} for name, m in models.items()}
    order = []
    for name, model in models.items():
        model.register_forward_pre_hook(lambda *_, name=name: order.append(name))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = probes.training_cost(models, stages, turns=2)
    passes = {"mean": 1, "echo": 1, "anchor": 3, "llm2vec": 1}  # sides are read together; Anchor writes each, too
    assert order == [name for name, count in passes.items() for _ in range(count)] * 3
    assert frame[["turn", "model"]].to_numpy().tolist() == [[turn, name] for turn in (0, 1) for name in models]
    assert (frame["seconds"] > 0).all()
    pairs = training_data.load("docs", "contrastive", tokenizer=shared.tokenizer, max_length=200)
    ((name, rows),) = pairs.datasets.items()
    for method in ("mean", "echo"):
        models[method].max_seq_length = 200
        sides = [models[method].preprocess(rows[:4][side], pairs.prompts[name].get(side)) for side in rows.column_names]
        read = sum(int(side["attention_mask"].sum()) for side in sides)
        assert frame[frame["model"] == method]["tokens"].tolist() == [read, read]
    assert (frame[frame["model"] == "llm2vec"]["tokens"] == 4 * 200).all()
    for name, model in models.items():
        assert not model.training
        assert model[0].attention == ("bidirectional" if name == "llm2vec" else "causal")
        assert all(parameter.grad is None for parameter in model.parameters())
        assert model.state_dict().keys() == weights[name].keys()
        assert all(torch.equal(value, weights[name][key]) for key, value in model.state_dict().items())


def test_training_cost_refuses(tiny):
    model, (stage,) = tiny(), recipe("mean", "quick", "tiny-llama").stages
    with pytest.raises(InvalidValueError, match="turns: expected a positive whole number, got 0"):
        probes.training_cost({"a": model}, {"a": stage}, turns=0)
    with pytest.raises(InvalidValueError, match=r"stages: expected one for each of the models, got \['a'\]. Add b."):
        probes.training_cost({"a": model, "b": model}, {"a": stage})
    with pytest.raises(InvalidValueError, match="expected a model whose first module is a Decoder"):
        probes.training_cost({"a": [model[1]]}, {"a": stage})
    with pytest.raises(UnknownNameError, match="objective"):
        probes.training_cost({"a": model}, {"a": stage.model_copy(update={"objective": "guess"})})


def test_index_cost_against_a_ranking_by_hand():
    draw = np.random.default_rng(0)
    queries = np.maximum(draw.normal(size=(6, 30)), 0)
    documents = np.maximum(np.concatenate([queries + draw.normal(size=(6, 30)), draw.normal(size=(9, 30))]), 0)
    found = [probes.index_cost(queries, documents, tops) for tops in ((2, 30), (None,))]
    cut = np.where(documents >= np.sort(documents, axis=1)[:, -2:-1], documents, 0)
    for kept, rows in ((cut, found[0][:6]), (documents, found[0][6:]), (documents, found[1])):
        scores = [[float(query @ document) for document in kept] for query in queries]
        ranks = [sum(score >= row[i] - 1e-6 for score in row) for i, row in enumerate(scores)]
        assert rows["reciprocal_rank"].tolist() == pytest.approx([100 / rank for rank in ranks])
    whole = min(120, 8 * (documents > 0).sum() / len(documents))
    assert found[0].groupby("top")["bytes"].first().to_dict() == {2: 16, 30: whole}
    assert found[1][["top", "bytes"]].drop_duplicates().values.tolist() == [[30, 120]]
    assert (found[0]["milliseconds"] > 0).all()


def test_what_a_cut_index_has_nothing_of_is_not_found():
    found = probes.index_cost(np.array([[1.0, 0.0, 0.0]]), np.array([[0.5, 2.0, 0.0], [0.0, 0.0, 1.0]]), (1, None))
    assert found["reciprocal_rank"].tolist() == [50, 100]


def test_cut_above_the_mean_an_index_keeps_what_tells_documents_apart():
    """Every document has the same heaviest cluster, and light ones of its own; raw, a cut keeps what all share."""
    own = np.eye(8)[:, [*range(8), *range(8)]] * 0.3
    documents = np.hstack([own, np.full((8, 4), 0.9)])
    by_raw = probes.index_cost(documents, documents, (2,))["reciprocal_rank"]
    above = above_mean(documents, documents)
    by_mean = probes.index_cost(above, above, (2,))["reciprocal_rank"]
    assert by_raw.tolist() == [100 / 8] * 8  # all documents are alike
    assert by_mean.tolist() == [100] * 8
    assert np.linalg.norm(above, axis=1) == pytest.approx(1)
    assert (above[:, -4:] == 0).all()
    few = documents[[0, 0, 1]]  # above the mean of three, two can still share a cluster
    assert above_mean(few, few)[0] @ above_mean(few, few)[1] == pytest.approx(1)


def test_index_cost_refuses_what_it_cannot_rank():
    with pytest.raises(InvalidValueError, match="a document or more for each query"):
        probes.index_cost(np.ones((3, 4)), np.ones((2, 4)), (1,))
    with pytest.raises(InvalidValueError, match="one width"):
        probes.index_cost(np.ones((2, 4)), np.ones((2, 5)), (1,))
    with pytest.raises(InvalidValueError, match="top"):
        probes.index_cost(np.ones((2, 4)), np.ones((2, 4)), (0,))


def test_index_bytes_are_those_of_the_arrays():
    vectors = np.maximum(np.random.default_rng(0).normal(size=(200, 37)), 0).astype(np.float32)
    found = probes.index_bytes(vectors, tops=(3, 37)).set_index("form")["bytes"].to_dict()
    for form, name in (("float32", "float32"), ("int8", "int8"), ("binary", "ubinary")):
        kept = np.concatenate([vectors, np.zeros((200, 3 if form == "binary" else 0), np.float32)], axis=1)
        assert found[form] == quantize_embeddings(kept, name).nbytes / 200
    assert found["float16"] == vectors.astype(np.float16).nbytes / 200
    by_search = probes.index_cost(vectors[:2], vectors, (3, 37)).groupby("top")["bytes"].first()
    assert [found["top 3"], found["top 37"]] == by_search.tolist() == [24, min(148, 8 * (vectors > 0).sum() / 200)]
    assert [*found] == [*probes.BITS, "top 3", "top 37"]


def test_index_bytes_refuse_what_is_no_lexicon():
    with pytest.raises(InvalidValueError, match=r"vectors: expected numbers \(documents, dim\), got \(3,\)"):
        probes.index_bytes(np.ones(3))
    with pytest.raises(InvalidValueError, match=r"Are they from a lexicon model\?"):
        probes.index_bytes(-np.ones((2, 3)), tops=(1,))
    with pytest.raises(InvalidValueError, match="top"):
        probes.index_bytes(np.ones((2, 3)), tops=(0,))


def test_the_front_against_every_pair():
    draw = np.random.default_rng(0)
    for _ in range(20):
        rows = pd.DataFrame({"cost": draw.integers(6, size=12), "score": draw.integers(6, size=12)}, index=range(5, 17))
        expected = [
            not any(
                (o.cost < r.cost and o.score >= r.score) or (o.cost <= r.cost and o.score > r.score)
                for o in rows.itertuples()
            )
            for r in rows.itertuples()
        ]
        found = probes.pareto(rows, "cost", "score")
        assert found.tolist() == expected
        assert found.index.equals(rows.index)
        ends = rows[found].sort_values("cost")
        assert (ends["cost"].iloc[0], ends["score"].iloc[-1]) == (rows["cost"].min(), rows["score"].max())


def test_the_front_refuses_what_was_not_measured():
    rows = pd.DataFrame({"cost": [1, 2], "score": [1.0, np.nan]})
    with pytest.raises(InvalidValueError, match=r"score: expected finite numbers, .* Leave out"):
        probes.pareto(rows, "cost", "score")
    with pytest.raises(UnknownNameError, match=r"Unknown column 'costs'\. Did you mean 'cost'"):
        probes.pareto(rows, "costs", "score")


def test_how_sure_a_front_is():
    values = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0], [2.0, 2.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5]])
    found = probes.measured_front([1, 2, 2, 3], values, resamples=4000)
    rows = pd.DataFrame({"cost": [1, 2, 2, 3], "score": values.mean(axis=1)})
    assert found["front"].tolist() == probes.pareto(rows, "cost", "score").tolist() == [True, False, False, False]
    # The cheapest always is; the third if items 0 and 1 are most of the four drawn: 5 times of 16.
    assert found["sure"].drop(2).tolist() == [1, 0, 0]
    assert found["sure"][2] == pytest.approx(5 / 16, abs=0.03)
    assert found[["low", "high"]].iloc[[0, 2, 3]].to_numpy().tolist() == [[1, 1], [0, 2], [0.5, 0.5]]
    many = np.random.default_rng(0).normal(size=(1, 400))
    found = probes.measured_front([1], many)
    error = many.std() / 20
    assert found.loc[0, ["low", "high"]].tolist() == pytest.approx(
        [many.mean() - 1.96 * error, many.mean() + 1.96 * error], abs=0.2 * error
    )
    with pytest.raises(InvalidValueError, match=r"\(choices, items\) for 2 choices"):
        probes.measured_front([1, 2], values)
    with pytest.raises(InvalidValueError, match="finite"):
        probes.measured_front([1, 2, 2, np.nan], values)


def test_index_forms_against_a_loop():
    draw = np.random.default_rng(0)
    queries, documents = draw.normal(size=(5, 12)).astype(np.float32), draw.normal(size=(9, 12)).astype(np.float32)
    found = probes.index_forms(queries, documents, (4, 12)).set_index(["form", "width", "query"])
    assert len(found) == 4 * 2 * 5
    for form in probes.BITS:
        for width in (4, 12):
            size = probes.index_bytes(documents[:, :width]).set_index("form").loc[form, "bytes"]
            kept = [probes.stored(one[None], form, width)[0] for one in documents]
            for number, query in enumerate(queries):
                cosines = [query[:width] @ one / np.linalg.norm(query[:width]) / np.linalg.norm(one) for one in kept]
                rank = sum(one >= cosines[number] - 1e-6 for one in cosines)  # equal ones count against it
                row = found.loc[form, width, number]
                assert row["reciprocal_rank"] == pytest.approx(100 / rank)
                assert row["bytes"] == size
    same = probes.index_forms(queries, np.ones((5, 12)), (12,))
    assert (same["reciprocal_rank"] == 20).all()  # equal cosines count against the right one
    with pytest.raises(InvalidValueError, match="a document or more for each query"):
        probes.index_forms(queries, documents[:3], (4,))


def test_stored_vectors_have_the_cosines_of_what_an_index_holds():
    vectors = np.random.default_rng(0).normal(size=(6, 20)).astype(np.float32)
    assert (probes.stored(vectors) == vectors).all()
    assert (probes.stored(vectors, width=7) == vectors[:, :7]).all()
    assert (probes.stored(vectors, "float16", 7) == vectors[:, :7].astype(np.float16)).all()
    whole = probes.stored(vectors, "int8")
    assert (whole == np.round(whole)).all()
    assert np.abs(whole).max(axis=1).tolist() == [127] * 6
    np.testing.assert_allclose(whole * np.abs(vectors).max(axis=1, keepdims=True) / 127, vectors, atol=0.02)
    signs = np.unpackbits(quantize_embeddings(vectors, "ubinary"), axis=1)[:, :20]
    assert (probes.stored(vectors, "binary") == 2.0 * signs - 1).all()
    assert (probes.stored(np.zeros((1, 3)), "int8") == 0).all()
    with pytest.raises(InvalidValueError, match="width: expected a whole number from 1 to 20, got 21"):
        probes.stored(vectors, width=21)
    with pytest.raises(UnknownNameError, match="format"):
        probes.stored(vectors, "int4")
