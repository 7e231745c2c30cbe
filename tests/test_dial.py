"""The dial: heads, search by zero, idf and cut against naive second computations, its experiment, its panel."""

from itertools import pairwise

import ipywidgets as widgets
import numpy as np
import pandas as pd
import pytest
import torch
from training_tools import tiny

from workbook import experiments, figures, probes
from workbook.backbones import load_head, load_tokenizer
from workbook.errors import InvalidValueError, MissingDataError, UnknownNameError
from workbook.evaluation.outcomes import Outcomes
from workbook.experiments import Record, dial, faithful
from workbook.explore import Dial
from workbook.modules import Lexicon
from workbook.probes import HEADS, Head, Pooled
from workbook.probes.dial import READ
from workbook.scale import get_scale
from workbook.vocabulary.clusters import clusters_of
from workbook.vocabulary.tokens import token_text

BACKBONE = "tiny-llama"
NAMES = ["rain", "bread", "a bicycle", "copper", "the old library", "glass", "a tram", "spring", "moss", "a kite"]
QUERIES = [f"where is {name}?" for name in NAMES]
DOCUMENTS = [*(f"Notes on {name}, kept for later." for name in NAMES), "Something else entirely.", "a"]
INSTRUCTION = "Find the note"


@pytest.fixture(scope="module")
def model():
    return tiny("lens", BACKBONE)


@pytest.fixture(scope="module")
def texts(model):
    return probes.collect(model, QUERIES, DOCUMENTS, INSTRUCTION, batch_size=5)


def numbers(seed=0, width=40):
    generator = np.random.default_rng(seed)
    return Pooled(*(generator.normal(size=(count, width)).astype(np.float32) for count in (11, 17)))


# Heads


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("centred", [True, False])
def test_zero_is_that_of_the_lexicon(model, texts, kind, centred):
    head = probes.head_of(BACKBONE, kind, 24 if kind in probes.SIZED else None, 1, centred=centred)
    assert float(head.rows.mean(dim=0).norm()) < 1e-5 or not centred
    found = probes.lexicon_vectors(probes.pooled_logits(texts, head))
    model[1] = Lexicon(head.rows, "max", head.assignment)
    np.testing.assert_allclose(found.queries, model.encode(QUERIES, prompt=INSTRUCTION), atol=1e-5)
    np.testing.assert_allclose(found.documents, model.encode(DOCUMENTS), atol=1e-5)
    assert found.documents.any()


def test_heads_of_k_means_are_those_of_the_clusters():
    weight = load_head(BACKBONE).weight.detach()
    for kind, spherical in (("k-means", True), ("k-means plain", False)):
        made = clusters_of(BACKBONE, 24, spherical=spherical, seed=2)
        head = probes.head_of(BACKBONE, kind, 24, 2, centred=False)
        assert head.rows.equal(made.centroids)
        assert head.assignment.equal(made.assignment)
    assert len(probes.head_of(BACKBONE, "k-means")) == len(weight) // 8


def test_controls_differ_from_k_means_in_direction_alone():
    weight = load_head(BACKBONE).weight.detach()
    kept = probes.head_of(BACKBONE, "k-means", 24, 1)
    drawn = {kind: probes.head_of(BACKBONE, kind, 24, 1) for kind in ("random clusters", "gaussian")}
    for kind, head in drawn.items():
        # But for the mean row, which is subtracted once more.
        np.testing.assert_allclose(head.rows.norm(dim=1), kept.rows.norm(dim=1), rtol=0.3)
        cosines = torch.cosine_similarity(head.rows, kept.rows)
        assert float(cosines.abs().mean()) < 0.5
        assert not head.rows.equal(probes.head_of(BACKBONE, kind, 24, 2).rows)
        assert head.rows.equal(probes.head_of(BACKBONE, kind, 24, 1).rows)
    clusters = drawn["random clusters"]
    assert clusters.assignment.bincount().equal(kept.assignment.bincount())
    assert not clusters.assignment.equal(kept.assignment)
    means = torch.stack([weight[clusters.assignment == cluster].mean(dim=0) for cluster in range(24)])
    means -= means.mean(dim=0)
    assert float(torch.cosine_similarity(means, clusters.rows).min()) > 0.9
    assert drawn["gaussian"].assignment is None


def test_spellings_are_merged():
    tokenizer, head = load_tokenizer(BACKBONE), probes.head_of(BACKBONE, "merged")
    keys = {}
    for token in range(len(head.assignment)):
        text = token_text(tokenizer, token)
        bare = text.removeprefix(" ").lower()
        if token in tokenizer.all_special_ids or not bare or "\N{REPLACEMENT CHARACTER}" in text:
            bare = token
        keys.setdefault(bare, set()).add(int(head.assignment[token]))
    assert all(len(clusters) == 1 for clusters in keys.values())
    assert len(keys) == len(head) < len(head.assignment)
    assert len(probes.head_of(BACKBONE, "vocabulary")) == len(head.assignment)


def test_heads_that_can_not_be():
    with pytest.raises(UnknownNameError, match="k-means"):
        probes.head_of(BACKBONE, "kmeans")
    with pytest.raises(InvalidValueError, match="tokens"):
        probes.head_of(BACKBONE, "random clusters", 10_000)
    with pytest.raises(InvalidValueError, match="None for 'vocabulary'"):
        probes.head_of(BACKBONE, "vocabulary", 24)
    with pytest.raises(InvalidValueError, match="centred: expected True or False"):
        probes.head_of(BACKBONE, "merged", centred="no")
    weight = torch.randn(4, 3)
    assert probes.clustered(weight, torch.tensor([1, 0, 1, 0])).rows.shape == (2, 3)
    for bad, said in (
        (torch.tensor([0, 2, 2, 0]), "none in cluster 1"),
        (torch.tensor([0, -1, 0, 0]), "numbered from 0, got -1"),
        (torch.tensor([0, 1]), r"int64 \(4,\)"),
        (torch.zeros(4), r"int64 \(4,\)"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            probes.clustered(weight, bad)


# States and logits


@torch.no_grad()
def test_pooled_logits_against_a_naive_loop(model, texts, monkeypatch):
    head = Head(torch.randn(7, 32, generator=torch.Generator().manual_seed(3)) - 0.2)
    monkeypatch.setattr("workbook.probes.dial._LOGITS", 7 * 60)  # a few texts at a time, and sometimes one
    found = probes.pooled_logits(texts, head)
    assert (found.documents < 0).any()
    for given, read, asked, pooled in ((QUERIES, texts.queries, INSTRUCTION, found.queries),
                                       (DOCUMENTS, texts.documents, None, found.documents)):  # fmt: skip
        for index, text in enumerate(given):
            features = model[0](model[0].preprocess([text], asked))
            marked = features["pooling_mask"][0].tolist()
            places = [place for place in range(len(marked) - 1) if marked[place + 1]]
            states = features["token_embeddings"][0]
            expected = [max(float(states[place] @ row) for place in places) for row in head.rows]
            np.testing.assert_allclose(pooled[index], expected, atol=1e-4)
            ids = features["input_ids"][0].tolist()
            assert read.tokens[index] == [id_ for id_, mark in zip(ids, marked, strict=True) if mark]
            assert read.lengths[index] == len(places)


def test_texts_and_heads_that_can_not_be(model, texts):
    with pytest.raises(InvalidValueError, match="12 or more, one for each query"):
        probes.collect(model, DOCUMENTS, QUERIES)
    with pytest.raises(InvalidValueError, match="documents: expected at least one"):
        probes.collect(model, QUERIES, [])
    with pytest.raises(InvalidValueError, match=r"head: expected 32 columns.*this decoder's own"):
        probes.pooled_logits(texts, Head(torch.randn(4, 31)))


# Search


@pytest.mark.parametrize("share", [0.03, 0.25, 0.5, 1.0])
def test_the_zero_of_a_share(share):
    pooled = numbers()
    above = probes.weights(pooled.documents, probes.zero_at(pooled, share)) > 0
    assert above.sum() == round(share * pooled.documents.size)
    for wrong in (0, 1.5, -0.1):
        with pytest.raises(InvalidValueError, match="share"):
            probes.zero_at(pooled, wrong)


def naive(pooled, zero, idf, top):
    """Reciprocal ranks, bytes, share active, and mean cosine, one document and one cluster at a time."""
    vectors = []
    for texts in pooled:
        rows = [[np.log1p(max(0.0, float(logit) - zero)) for logit in text] for text in texts]
        vectors.append([np.array(row) / (np.linalg.norm(row) or 1) for row in rows])
    mean = np.mean(vectors[1], axis=0)
    change = {
        "off": lambda row: row,
        "subtracted": lambda row: np.array([max(0, w - m) for w, m in zip(row, mean, strict=True)]),
        "divided": lambda row: np.array([w / m if m else 0 for w, m in zip(row, mean, strict=True)]),
    }[idf]
    queries, documents = ([change(row) / (np.linalg.norm(change(row)) or 1) for row in rows] for rows in vectors)
    cut = []
    for row in documents:
        heaviest = sorted(range(len(row)), key=lambda place: -row[place])[: top or len(row)]
        cut.append({place: row[place] for place in heaviest if row[place] > 0})
    ranks = []
    for index, query in enumerate(queries):
        scores = [sum(query[place] * weight for place, weight in row.items()) for row in cut]
        ranks.append(1 + sum(s >= scores[index] - 1e-7 for n, s in enumerate(scores) if n != index))
    pairs = [float(a @ b) for n, a in enumerate(documents) for m, b in enumerate(documents) if n != m]
    size = min(4 * len(mean), 8 * np.mean([len(row) for row in cut]))
    return 100 / np.array(ranks), size, np.mean([row > 0 for row in documents]), np.mean(pairs)


@pytest.mark.parametrize("idf", probes.IDF)
@pytest.mark.parametrize("zero", [0.0, 0.7])
def test_search_against_a_naive_loop(idf, zero):
    pooled = numbers()
    pooled.queries[:] += 0.5 * pooled.documents[:11]
    pooled.documents[:, 3] = -1  # of no document
    found = probes.lexicon_search(pooled, zero, idf, (None, 5, 1, 39))
    assert found["top"].unique().tolist() == [40, 5, 1, 39]
    for top, rows in found.groupby("top"):
        ranks, size, active, cosine = naive(pooled, zero, idf, top)
        np.testing.assert_allclose(rows["reciprocal_rank"], ranks)
        np.testing.assert_allclose(rows["bytes"], size)
        np.testing.assert_allclose(rows["active"], active)
        np.testing.assert_allclose(rows["cosine"], cosine, atol=1e-6)
        assert rows["readable"].isna().all()


def test_search_costs_what_an_index_costs():
    pooled = numbers(1)
    vectors = probes.lexicon_vectors(pooled, 0.3)
    found, expected = probes.lexicon_search(pooled, 0.3, tops=(4, 40)), probes.index_cost(*vectors, (4, 40))
    for column in ("top", "query", "reciprocal_rank", "bytes"):
        np.testing.assert_allclose(found[column], expected[column])


def test_texts_without_weights_find_nothing():
    found = probes.lexicon_search(numbers(), 100.0, "subtracted", (None, 3))
    assert (found["reciprocal_rank"] == 100 / 17).all()
    assert (found[["bytes", "active", "cosine"]] == 0).all(axis=None)


def test_mistakes_in_search():
    pooled = numbers()
    with pytest.raises(InvalidValueError, match=r"documents: expected 10 at least.*idf='off'"):
        probes.lexicon_search(Pooled(pooled.queries[:3], pooled.documents[:9]), idf="subtracted")
    assert len(probes.lexicon_search(Pooled(pooled.queries[:3], pooled.documents[:9]))) == 3
    with pytest.raises(UnknownNameError, match="idf"):
        probes.lexicon_search(pooled, idf="tf")
    with pytest.raises(InvalidValueError, match="top"):
        probes.lexicon_search(pooled, tops=(0,))
    with pytest.raises(InvalidValueError, match="own: expected clusters of each of 17"):
        probes.lexicon_search(pooled, own=[np.arange(3)])


def test_readable_weights_are_of_clusters_that_hold_a_content_word():
    texts = probes.States(torch.zeros(1, 1), [1], [[0, 1, 2, 3], [4, 1]])

    class Words:
        """As much of a tokenizer as is asked."""

        def decode(self, ids):
            return ["copper", " the", " Of", " 12", " glass"][ids[0]]

        def convert_ids_to_tokens(self, id_):
            return "x"

    head = Head(torch.zeros(6, 1), torch.tensor([5, 1, 2, 3, 0]))
    own = probes.content_clusters(texts, head, Words())
    assert [one.tolist() for one in own] == [[5], [0]]
    assert probes.content_clusters(texts, Head(torch.zeros(6, 1)), Words()) is None
    pooled = numbers(2)
    own = [np.arange(index, 40, 3) for index in range(16)] + [np.zeros(0, int)]
    vectors = probes.lexicon_vectors(pooled, 0.5).documents
    held = []
    for row, mine in zip(vectors, own, strict=True):
        heaviest = [c for c in np.argsort(-row)[:READ].tolist() if row[c] > 0]
        held += [c in mine.tolist() for c in heaviest]
    found = probes.lexicon_search(pooled, 0.5, tops=(2, None), own=own)
    np.testing.assert_allclose(found["readable"], np.mean(held))


def test_baselines_against_naive_loops(texts):
    found = probes.baseline_search(texts).set_index(["baseline", "query"])

    def mean(read):
        starts = np.cumsum([0, *read.lengths])
        rows = [read.states[a:b].numpy().mean(axis=0) for a, b in pairwise(starts)]
        return np.array([row / np.linalg.norm(row) for row in rows])

    queries, documents = mean(texts.queries), mean(texts.documents)
    scores = queries @ documents.T
    ranks = [sum(scores[n] >= scores[n, n] - 1e-7) for n in range(len(scores))]
    np.testing.assert_allclose(found.loc["dense", "reciprocal_rank"], 100 / np.array(ranks))
    assert found.loc["dense", "bytes"].unique().tolist() == [128]
    assert found.loc["dense int8", "bytes"].unique().tolist() == [32]
    assert np.abs(found.loc["dense int8", "reciprocal_rank"] - found.loc["dense", "reciprocal_rank"]).mean() < 10
    sizes = [8 * len({*ids}) for ids in texts.documents.tokens]
    np.testing.assert_allclose(found.loc["BM25", "bytes"], np.mean(sizes))
    bm25 = found.loc["BM25", "reciprocal_rank"]
    assert bm25.mean() > found.loc["dense", "reciprocal_rank"].mean()  # the names are in both, letter by letter


# The experiment


@pytest.fixture(scope="module")
def rows(model):
    sizes = get_scale("quick").model_copy(update={"queries": 6, "documents": 12, "max_length": 120})
    made = dial.measure(model, sizes)
    return made.assign(source="it", variant="untrained", seed=0, trained=False)


def test_the_experiment_is_declared():
    found = experiments.get("04_dial")
    assert [variant.name for variant in found.variants] == ["untrained", "trained"]
    assert found.variant("trained").stages == ("distilled",)
    assert (found.sizes("night").queries, found.sizes("night").documents) == (1000, 2000)
    assert (found.sizes("cpu").queries, found.sizes("quick").queries) == (200, 8)


def test_the_grid(rows):
    assert not rows["task"].duplicated().any()
    assert {*rows["head"]} == {*HEADS, *probes.BASELINES}
    crossing = dial.crossing(rows)
    per_head = crossing.groupby("head")[["idf", "top"]].value_counts()
    assert len(per_head) == sum(3 * sum((top or 0) < k for top in dial.TOPS)
                                for k in crossing.groupby("head")["k"].first())  # fmt: skip
    shares = rows[rows["zero"].astype(str).str.startswith("share") & (rows["idf"] == "off")]
    for row in shares.itertuples():
        assert row.active == pytest.approx(float(row.zero.split()[1]), abs=0.02)
    assert {*rows["zero"].dropna()} == {"mean", "paper", *(f"share {share}" for share in dial.SHARES)}
    assert rows["outcomes"].map(lambda one: one.reproduces_score()).all()
    assert (rows["items"] == 6).all()


def test_a_row_is_the_search_that_it_names(rows, model):
    pairs = dial.by_hash(dial.load_docs().split("test")).head(12)
    length, model.max_seq_length = model.max_seq_length, 120
    asked = dial.instruction_of("DocsRetrieval")
    texts = probes.collect(model, pairs["query"].tolist()[:6], pairs["document"].tolist(), asked)
    model.max_seq_length = length
    for zero, centred in (("paper", False), ("share 0.1", True), ("mean", True)):
        pooled = probes.pooled_logits(texts, probes.head_of(BACKBONE, "random clusters", centred=centred))
        level = probes.zero_at(pooled, 0.1) if "share" in zero else 0.0
        expected = probes.lexicon_search(pooled, level, "subtracted", (8,))
        setting = {"head": "random clusters", "k": 32, "zero": zero, "idf": "subtracted", "top": "8"}
        [found] = dial.chosen(rows, **setting).to_dict("records")
        np.testing.assert_allclose(found["outcomes"].values, expected["reciprocal_rank"])
        assert found["bytes"] == pytest.approx(expected["bytes"].iloc[0])


def outcomes(values):
    return Outcomes.of_values(values, range(len(values)))


def of_seeds(head, values, trained):
    """Rows by (seed of training, seed of the head)."""
    numbers = {"bytes": 64.0, "active": 0.5, "cosine": 0.5, "readable": 0.5}
    setting = {"head": head, "k": 8, "zero": "mean", "idf": "off", "top": "8", "task": head, "trained": trained}
    return pd.DataFrame([setting | numbers | {"seed": seed, "head_seed": of_head, "outcomes": outcomes(one)}
                         for (seed, of_head), one in values.items()])  # fmt: skip


def test_seeds_of_heads_and_of_training():
    random = np.random.default_rng(0)
    values = {(seed, of_head): random.normal(size=30) for seed in (0, 1, 2) for of_head in (0, 1)}
    trained = of_seeds("a", values, trained=True)
    made = dial.measured(trained)
    assert made.trained
    assert [*made.by_seed] == [0, 1, 2]
    np.testing.assert_allclose(made.by_seed[1][""].values, (values[1, 0] + values[1, 1]) / 2)
    assert made.by_seed[1][""].reproduces_score()
    untrained = dial.measured(trained[trained["seed"] == 0].assign(trained=False))
    assert untrained.trained  # by the seeds of its heads
    assert [one[""].score for one in untrained.by_seed.values()] == pytest.approx([values[0, n].mean() for n in (0, 1)])
    assert not dial.measured(trained.iloc[:1].assign(trained=False)).trained
    with pytest.raises(InvalidValueError, match="those of one setting"):
        dial.measured(pd.concat([trained, trained]))


def test_gaps_are_paired_by_query():
    random = np.random.default_rng(0)
    hard = 30 * random.normal(size=200)
    first = {(0, n): hard + 2 + random.normal(size=200) for n in range(3)}
    rows = pd.concat([of_seeds("a", first, False), of_seeds("b", {(0, 0): hard}, False)], ignore_index=True)
    gap = dial.gap(rows, {"head": "a"}, {"head": "b"})
    assert gap.low < 2 < gap.high
    assert gap.high - gap.low < 1
    levels = dial.curves(rows)
    assert levels["head"].tolist() == ["a", "b"]
    assert (levels["high"] - levels["low"]).min() > 5
    with pytest.raises(MissingDataError, match="head"):
        dial.gap(rows, {"head": "a"}, {"head": "c"})
    with pytest.raises(InvalidValueError, match="one setting"):
        dial.curves(rows, by=("idf",))


def test_what_other_heads_and_zeros_are_worth_at_one_setting(rows):
    setting = {"idf": "subtracted", "top": "8"}
    found = dial.against_centre(rows, **setting)
    sizes = sorted({*rows.loc[rows["head"] == "k-means", "k"]} - {32})
    zeros = [*(f"share {share}" for share in dial.SHARES), "paper"]
    labels = [*HEADS[1:], *(f"k-means, {size:,.0f}" for size in sizes), *(f"zero: {zero}" for zero in zeros)]
    labels += ["idf: off", "idf: divided"]
    assert found["label"].tolist() == labels
    by_hand = {
        (row.head, row.k): row.outcomes.values.mean() for row in dial.chosen(rows, zero="mean", **setting).itertuples()
    }
    effects = found.set_index("label")["effect"]
    assert effects["gaussian"] == pytest.approx(by_hand["gaussian", 32] - by_hand["k-means", 32])
    for size in sizes:
        assert effects[f"k-means, {size:,.0f}"] == pytest.approx(by_hand["k-means", size] - by_hand["k-means", 32])
    of_centre = dial.chosen(rows, head="k-means", k=32, **setting)
    for zero in zeros:
        [other] = dial.chosen(of_centre, zero=zero)["outcomes"]
        difference = other.values.mean() - by_hand["k-means", 32]
        assert effects[f"zero: {zero}"] == pytest.approx(difference)
    for idf in ("off", "divided"):
        [other] = dial.chosen(rows, head="k-means", k=32, zero="mean", idf=idf, top="8")["outcomes"]
        assert effects[f"idf: {idf}"] == pytest.approx(other.values.mean() - by_hand["k-means", 32])
    with pytest.raises(MissingDataError, match="top"):
        dial.against_centre(rows, idf="off", top="7")


def test_how_far_a_rank_falls_without_some_clusters(model):
    sizes = get_scale("quick").model_copy(update={"queries": 8, "documents": 12, "max_length": 120})
    rows = faithful.faithful(model, sizes).assign(variant="untrained", seed=0, trained=False)
    assert len(rows) == len(dial.CLUSTERED) * 2 * len(faithful.DELETED)
    assert not rows["task"].duplicated().any()
    assert (rows["items"] == 8).all()
    assert rows["outcomes"].map(lambda one: one.reproduces_score()).all()
    score = rows.set_index(["head", "order", "deleted"])["score"]
    for head in dial.CLUSTERED:  # without none of them nothing changes, whatever their order
        assert score[head, "matched", 0] == score[head, "random", 0]
    matched, drawn = ({"head": "k-means", "order": order, "deleted": 4} for order in ("matched", "random"))
    of_matched = score["k-means", "matched", 0] - score["k-means", "matched", 4]
    of_drawn = score["k-means", "random", 0] - score["k-means", "random", 4]
    assert of_matched > 0
    assert faithful.fall(rows, matched).value == pytest.approx(of_matched)
    assert faithful.fall(rows, matched, drawn).value == pytest.approx(of_matched - of_drawn)
    assert faithful.fall(rows, matched, matched).value == pytest.approx(0)
    with pytest.raises(MissingDataError, match="deleted"):
        faithful.fall(rows, {**matched, "deleted": 5})
    found = faithful.falls(rows).set_index(["deleted", "clusters"])["points"]
    assert len(found) == 5 * (len(faithful.DELETED) - 1)
    assert found["matched, k-means", 4] == pytest.approx(of_matched)
    of_random = score["random clusters", "matched", 0] - score["random clusters", "matched", 4]
    assert found[faithful.BEYOND, 4] == pytest.approx(of_matched - of_random)


@pytest.mark.parametrize(("name", "variant"), [("04_faithfulness", "trained"), ("04_faithfulness", "untrained")])
def test_falls_of_the_record_are_differences_of_its_means(name, variant):
    """Over several seeds of training and of heads: of one training each head's fall, then their mean."""
    rows = Record(experiments.get(name), "night").load()
    found = faithful.falls(rows).set_index(["model", "deleted", "clusters"]).loc[variant]
    means = rows[rows["variant"] == variant].groupby(["head", "order", "deleted"])["score"].mean()
    k_means, random = (means[head, "matched", 0] - means[head, "matched", 16] for head in dial.CLUSTERED)
    assert found.loc[("matched, k-means", 16), "points"] == pytest.approx(k_means, abs=1e-3)
    assert found.loc[(faithful.BEYOND, 16), "points"] == pytest.approx(k_means - random, abs=1e-3)
    assert (found["low"] < found["points"]).all()


def test_meaning_in_the_record_is_a_difference_of_its_means():
    rows = Record(dial.DIAL, "night").load()
    rows = rows[rows["variant"] == "trained"]
    found = dial.meaning(rows).set_index(["zero", "idf", "top"])["effect"]
    assert len(found) == 4 * 2 * 2 + 2 * 2
    setting = {"k": 576, "zero": "mean", "idf": "subtracted", "top": "whole"}
    few = [dial.chosen(rows, head=head, **setting)["score"].mean() for head in dial.CLUSTERED]
    assert found["mean, k 576", "subtracted", "whole"] == pytest.approx(few[0] - few[1], abs=1e-3)
    for zero, top, seeds in (("mean", "32", (0, 1, 2)), ("share 0.1", "whole", (0,))):
        setting = {"k": 4000, "zero": zero, "idf": "off", "top": top, "head_seed": [*seeds]}
        both = [dial.chosen(rows, head=head, **setting)["score"].mean() for head in dial.CLUSTERED]
        assert found[zero, "off", top] == pytest.approx(both[0] - both[1], abs=1e-3)


def test_what_the_meaning_of_clusters_is_worth(rows):
    found = dial.meaning(rows)
    assert len(found) == 4 * 2  # whole vectors alone, of 32 rows
    one = found.query("zero == 'share 0.25' and idf == 'subtracted' and top == 'whole'")["effect"].item()
    setting = {"k": 32, "zero": "share 0.25", "idf": "subtracted", "top": "whole", "head_seed": 0}
    both = [dial.chosen(rows, head=head, **setting)["score"].item() for head in dial.CLUSTERED]
    assert one == pytest.approx(both[0] - both[1])


def test_weights_and_search_by_zero_are_the_records_means():
    rows = Record(dial.DIAL, "night").load()
    drawn = dial.by_zero(rows)
    assert len(drawn) == 3 * 2 * 2 * 6
    assert drawn["zero"].unique().tolist() == ["0", "mean", "50%", "25%", "10%", "3%"]
    found = drawn.set_index(["quantity", "model", "zero"])
    whole = rows[(rows["top"] == "whole") & (rows["k"] == 4000) & (rows["head"] == "k-means")]
    for zero, label, seeds in (("mean", "mean", 3), ("share 0.1", "10%", 1)):
        own = whole[(whole["variant"] == "trained") & (whole["zero"] == zero)].set_index("idf")
        assert len(own.loc["off"]) == 3 * seeds
        for quantity, idf, column in (
            ("weights above zero", "off", 100 * own["active"]),
            ("content words", "subtracted", 100 * own["readable"].astype(float)),
            ("search", "subtracted", own["score"]),
        ):
            one = found.loc[(quantity, "trained, k-means", label)]
            assert one["level"] == pytest.approx(column.loc[idf].mean(), abs=1e-3)
            assert (one["low"] < one["level"] < one["high"]) == (quantity == "search")
    # At the paper's zero relu does nothing before training, and something after it.
    for head in dial.CLUSTERED:
        assert found.loc[("weights above zero", f"untrained, {head}", "0"), "level"] > 99.9
        assert found.loc[("weights above zero", f"trained, {head}", "0"), "level"] < 80


def test_what_stands_by_zero_was_measured(rows):
    assert dial.by_zero(rows)["level"].between(0, 100).all()
    with pytest.raises(MissingDataError, match="paper"):
        dial.by_zero(rows[rows["zero"] != "paper"])


def test_curves_are_drawn(rows):
    curves = dial.curves(dial.crossing(rows))
    fig = figures.lines(curves, "bytes", "score", hue="head", low="low", high="high", panel="idf", logx=True)
    assert [axes.get_title(loc="left") for axes in fig.axes] == ["off", "subtracted", "divided"]
    assert len(fig.axes[0].lines) >= len(HEADS)
    few = curves[curves["head"] == "gaussian"]
    [axes] = figures.lines(few, "bytes", "score", hue="idf", logx=True).axes
    assert axes.get_xscale() == "log"
    sizes = sorted(few["bytes"].unique())
    assert sizes[1] * 1.05 > sizes[2]  # their numbers would touch
    assert [*axes.get_xticks()] == sizes[:2]
    assert not axes.get_xticks(minor=True).size


# The panel


def test_a_head_read_with_its_mean_and_without(texts):
    heads = probes.Heads(BACKBONE)
    for kind in HEADS:
        head = heads.head(kind)
        centred, as_it_is = probes.pooled_by_zero(texts, head)
        for found, centre in ((centred, True), (as_it_is, False)):
            expected = probes.pooled_logits(texts, probes.head_of(BACKBONE, kind, centred=centre))
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)
    with pytest.raises(InvalidValueError, match="head: expected one whose mean row is subtracted"):
        probes.pooled_by_zero(texts, heads.head("k-means", centred=False))


def test_heads_load_and_cluster_once(monkeypatch):
    loaded, clustered = [], []
    spied = {"load_head": loaded, "clusters_of": clustered}
    for name, calls in spied.items():
        made = getattr(probes.heads, name)
        monkeypatch.setattr(
            probes.heads, name, lambda *a, made=made, calls=calls, **k: calls.append(a) or made(*a, **k)
        )
    heads = probes.Heads(BACKBONE)
    for kind in HEADS:
        heads.head(kind)
    assert len(loaded) == 1
    assert len(clustered) == 2  # scaled, and plain


@pytest.fixture(scope="module")
def panel(model):
    return Dial(model, QUERIES, DOCUMENTS, INSTRUCTION)


def test_the_table_is_the_search(panel, texts):
    table = panel.table("k-means plain", 16, 0.25, "divided", 8).set_index("head")
    assert table.index.tolist() == ["k-means plain", "random clusters", "gaussian", *probes.BASELINES]
    for kind in table.index[:3]:
        pooled = probes.pooled_logits(texts, probes.head_of(BACKBONE, kind, 16))
        found = probes.lexicon_search(pooled, probes.zero_at(pooled, 0.25), "divided", (8,))
        assert table.loc[kind, "MRR"] == pytest.approx(found["reciprocal_rank"].mean())
        assert table.loc[kind, "low"] < table.loc[kind, "MRR"] < table.loc[kind, "high"]
        assert table.loc[kind, ["bytes", "active"]].tolist() == pytest.approx(found[["bytes", "active"]].iloc[0])
    assert table.loc["dense", "bytes"] == 128
    # Cuts that are longer than a head's vectors leave them whole.
    assert panel.table(top=512).equals(panel.table(top=None))
    assert not panel.table(zero="paper").equals(panel.table(zero="mean"))


def test_the_panel(panel, monkeypatch):
    for name in ("JPY_SESSION_NAME", "VSCODE_PID"):
        monkeypatch.delenv(name, raising=False)
    assert panel.show().equals(panel.table())
    monkeypatch.setenv("VSCODE_PID", "1")
    shown = panel.show()
    assert isinstance(shown, widgets.VBox)
    zero, idf, head, k, top, answer = shown.children
    assert answer.value.count("<img") == 1
    for control, value in ((zero, 0.1), (idf, "off"), (head, "vocabulary"), (k, 8), (top, 0), (zero, "paper")):
        before = answer.value
        control.value = value
        assert answer.value != before
        table = panel.table(head.value, k.value, zero.value, idf.value, top.value or None)
        assert str(round(table["MRR"][0], 3)) in answer.value


def test_sliders_read_nothing_anew(model, monkeypatch):
    """Nor is a picture laid out again where its lines and cuts are the same."""
    clusters_of(BACKBONE, 16)
    dial = Dial(model, QUERIES, DOCUMENTS, INSTRUCTION, rows=(16, 32))
    zero, idf, _, k, _, answer = dial.panel().children
    monkeypatch.setattr(probes, "pooled_by_zero", None)
    said = [answer.value]
    for control, value in ((zero, "paper"), (zero, 0.05), (idf, "divided"), (k, 16), (zero, "mean")):
        control.value = value
        said.append(answer.value)
    assert len({*said}) == len(said)
    assert all(one.count("<img") == 1 for one in said)
    assert len(dial._places) == 2


def test_more_rows_to_choose_where_their_clusters_are_kept(model, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    monkeypatch.setattr("workbook.explore.dial.WIDTHS", (24, 100, 250))
    before = Dial(model, QUERIES, DOCUMENTS)
    assert before.rows == [8, 16, 32]
    for k in (100, 250):
        clusters_of(BACKBONE, k)
    after = Dial(model, QUERIES, DOCUMENTS)
    assert after.rows == [8, 16, 32, 100]  # 250 are more than half of the vocabulary
    assert after.table().equals(before.table())
    assert Dial(model, QUERIES, DOCUMENTS, rows=(9, 12)).rows == [9, 12]
    assert after.at_hand("k-means", 100)
    assert not after.at_hand("k-means plain", 100)
    assert after.at_hand("vocabulary", 32)


def test_mistakes_in_the_panel(panel, model):
    with pytest.raises(InvalidValueError, match="zero: expected 'mean', 'paper', or a share"):
        panel.search("k-means", 16, zero="none")
    with pytest.raises(InvalidValueError, match="top"):
        panel.table(top=9)
    with pytest.raises(UnknownNameError, match="head"):
        panel.table(head="means")
    with pytest.raises(InvalidValueError, match="blank"):
        Dial(model, [" "], DOCUMENTS)
    with pytest.raises(InvalidValueError, match=r"documents: expected 10 at least, .* got 9\. Give more documents"):
        Dial(model, QUERIES[:2], DOCUMENTS[:9])


def test_an_unknown_kind_of_head_is_not_at_hand():
    with pytest.raises(UnknownNameError, match="head"):
        probes.Heads(BACKBONE).at_hand("nearest", 32)
