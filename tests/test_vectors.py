"""How long vectors are, how they group and where they lie: on vectors whose answer is known."""

import itertools

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, ward

from workbook import build, probes
from workbook.errors import InvalidValueError

TEXTS = ["Rain is due tonight.", "The bakery opens at six.", "Copper conducts heat."]


@pytest.fixture
def groups():
    """Twelve vectors of three directions in eight dimensions, of very different lengths, taken in turn."""
    draw = np.random.default_rng(0)
    directions = np.eye(8)[[0, 1, 2] * 4] + 0.1 * draw.normal(size=(12, 8))
    return directions * draw.uniform(0.01, 100, size=(12, 1))


def test_lengths_of_a_plain_vector():
    model = build("mean", "tiny-llama", dtype="float32", device="cpu")
    vectors = model.encode(TEXTS)
    found = probes.vector_lengths(model, vectors)
    expected = [[n, "whole", pytest.approx(sum(v**2 for v in row) ** 0.5, rel=1e-5)] for n, row in enumerate(vectors)]
    assert found.to_numpy().tolist() == expected
    lens = build("lens", "tiny-llama", dtype="float32", device="cpu")
    assert probes.vector_lengths(lens, lens.encode(TEXTS))["length"].tolist() == pytest.approx([1] * 3)


@pytest.mark.parametrize("representation", ["concat", "bi-eos", "eos"])
def test_lengths_of_causal2vec_and_its_halves(representation):
    options = {"pooling_options": {"representation": representation}, "dtype": "float32", "device": "cpu"}
    model = build("causal2vec", "tiny-llama", **options)
    vectors = model.encode(TEXTS)
    found = probes.vector_lengths(model, vectors).pivot(index="text", columns="part", values="length")
    halves = {"concat": ["context", "eos"], "bi-eos": ["encoder", "eos"], "eos": []}[representation]
    assert set(found) == {"whole", *halves}
    np.testing.assert_allclose(found["whole"], np.linalg.norm(vectors, axis=1), rtol=1e-5)
    if halves:
        np.testing.assert_allclose(found["whole"] ** 2, (found[halves] ** 2).sum(axis=1), rtol=1e-5)
        options["pooling_options"] = {"representation": "eos"}
        alone = build("causal2vec", "tiny-llama", **options).encode(TEXTS)
        np.testing.assert_allclose(found["eos"], np.linalg.norm(alone, axis=1), rtol=1e-4)


def test_clusters_are_wards_and_see_directions_alone(groups):
    found = probes.vector_map(groups, 3)
    assert found["cluster"].tolist() == [1, 2, 3] * 4
    unit = groups / np.linalg.norm(groups, axis=1, keepdims=True)
    for clusters in (2, 5, 12):
        found = probes.vector_map(groups, clusters)["cluster"]
        expected = fcluster(ward(unit), clusters, "maxclust")
        together = [(found[i] == found[j], expected[i] == expected[j]) for i, j in itertools.combinations(range(12), 2)]
        assert all(one == other for one, other in together)
        first = found.drop_duplicates().tolist()
        assert first == list(range(1, clusters + 1))


def test_the_plane_is_that_of_the_largest_variance(groups):
    found = probes.vector_map(groups, 2)
    unit = groups / np.linalg.norm(groups, axis=1, keepdims=True)
    values, axes = np.linalg.eigh(np.cov(unit.T))
    for column, axis in (("x", axes[:, -1]), ("y", axes[:, -2])):
        along = (unit - unit.mean(axis=0)) @ axis
        np.testing.assert_allclose(np.abs(found[column]), np.abs(along), atol=1e-9)
    assert found["shown"].tolist() == pytest.approx([values[-2:].sum() / values.sum()] * 12)


def test_vectors_that_are_all_alike_have_a_map_too():
    found = probes.vector_map(np.ones((4, 3)), 2)
    assert sorted(found["cluster"].unique()) == [1, 2]
    assert found["shown"].isna().all()
    assert (found[["x", "y"]].abs() < 1e-9).all(axis=None)
    assert probes.vector_map(np.zeros((2, 3)), 2)["cluster"].tolist() == [1, 2]


def test_bad_input_is_named(groups):
    model = build("mean", "tiny-llama", dtype="float32", device="cpu")
    broken = groups.copy()
    broken[[1, 4], 0] = np.inf
    for read in (lambda vectors: probes.vector_lengths(model, vectors), lambda vectors: probes.vector_map(vectors, 2)):
        with pytest.raises(InvalidValueError, match="vectors: expected finite numbers, got 'NaN or inf in 2 of 12'"):
            read(broken)
        with pytest.raises(InvalidValueError, match=r"vectors: expected numbers \(texts, dim\), got \(8,\)"):
            read(groups[0])
    with pytest.raises(InvalidValueError, match="vectors: expected at least two"):
        probes.vector_map(groups[:1], 2)
    for clusters in (1, 13, 2.0, True):
        with pytest.raises(InvalidValueError, match="clusters: expected a whole number from 2 to 12"):
            probes.vector_map(groups, clusters)


@pytest.mark.parametrize("representation", ["concat", "eos"])
def test_the_cosine_of_a_concatenation_is_the_sum_of_its_parts(representation):
    rng = np.random.default_rng(0)
    model = build("causal2vec", "tiny-llama", pooling_options={"representation": representation})
    width = model.get_embedding_dimension()
    random = rng.normal(size=(2, 5, width)) * np.linspace(0.1, 3, width)
    real = model.encode(["one text", "a second"]), model.encode(["another, longer text", "third"])
    for first, second in (random, real):
        found = probes.cosine_parts(model, first, second)
        names = ["whole", "context", "eos"] if representation == "concat" else ["whole"]
        assert found["part"].tolist() == names * len(first)
        for pair, (a, b) in enumerate(zip(first, second, strict=True)):
            rows = found[found["pair"] == pair].set_index("part")
            lengths = np.sqrt(a @ a) * np.sqrt(b @ b)
            places = {"whole": slice(None), "context": slice(width // 2), "eos": slice(width // 2, None)}
            for part in names:
                one, other = a[places[part]], b[places[part]]
                own = np.sqrt(one @ one) * np.sqrt(other @ other)
                assert rows.loc[part, ["cosine", "weight"]].tolist() == pytest.approx(
                    [one @ other / own, own / lengths], rel=1e-4
                )
            if halves := names[1:]:
                parts = rows.loc[halves]
                assert (parts["cosine"] * parts["weight"]).sum() == pytest.approx(rows.loc["whole", "cosine"])
                assert parts["weight"].sum() <= 1 + 1e-6


def test_the_spread_between_texts_is_where_they_differ():
    rng = np.random.default_rng(0)
    model = build("causal2vec", "tiny-llama")
    width = model.get_embedding_dimension()
    vectors = rng.normal(size=(6, width))
    vectors[:, width // 2 :] = 100 * np.eye(width // 2)[0]  # long, and the same in all texts
    found = probes.vector_spread(model, vectors).groupby("part")[["weight", "spread"]].mean()
    assert found.loc["eos", "weight"] > 0.99
    assert found.loc["eos", "spread"] < 0.05
    units = vectors / np.sqrt((vectors**2).sum(axis=1))[:, None]
    centred = units - units.mean(axis=0)
    by_hand = (centred[:, : width // 2] ** 2).sum() / (centred**2).sum()
    assert found.loc["context", "spread"] == pytest.approx(by_hand)
    for column in ("weight", "spread"):
        assert found.loc[["context", "eos"], column].sum() == pytest.approx(found.loc["whole", column]) == 1


def test_a_spread_needs_directions():
    model = build("mean", "tiny-llama")
    with pytest.raises(InvalidValueError, match="at least two directions, got 'one'"):
        probes.vector_spread(model, np.ones((3, 4)) * [[1], [2], [3]])
    with pytest.raises(InvalidValueError, match="none of zeros, got '1 of 2'"):
        probes.vector_spread(model, np.eye(4)[:2] * [[0], [1]])


def test_a_cosine_needs_two_of_one_shape():
    model = build("mean", "tiny-llama")
    with pytest.raises(InvalidValueError, match="second: expected one vector for each of the first"):
        probes.cosine_parts(model, np.ones((2, 4)), np.ones((3, 4)))
