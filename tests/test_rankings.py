"""Rankings of several models side by side: against naive second implementations, and on rankings that are known."""

import copy
import itertools
import statistics

import numpy as np
import pytest
from scipy.stats import t

import workbook
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.evaluation import agreement, complement, cosines, neighbours

QUERIES = ["Sort a list of names.", "Open a file.", "Draw a circle."]
DOCUMENTS = ["Names come out in order.", "A handle to read from.", "A round shape on the canvas.", "Nothing of it."]


@pytest.fixture(scope="module")
def models():
    options = {"dtype": "float32", "device": "cpu"}
    return {name: workbook.build(name, "tiny-llama", **options) for name in ("lens", "mean", "echo")}


@pytest.fixture
def scores():
    """Cosines of three models, the second of which half agrees with the first."""
    draw = np.random.default_rng(0)
    one, other, noise = (draw.normal(size=(30, 40)) for _ in range(3))
    return {"one": one, "near": one + noise, "far": other}


def test_cosines_are_those_of_the_models_own_vectors(models):
    found = cosines(models, QUERIES, DOCUMENTS, {"mean": "Find it"})
    for name, model in models.items():
        asked = model.encode(QUERIES, prompt="Find it" if name == "mean" else None)
        for (row, query), (column, document) in itertools.product(enumerate(asked), enumerate(model.encode(DOCUMENTS))):
            expected = query @ document / np.linalg.norm(query) / np.linalg.norm(document)
            assert found[name][row, column] == pytest.approx(expected, abs=1e-5)


def test_neighbours_stand_in_order_side_by_side():
    known = {
        "a": np.array([[0.1, 0.9, 0.5, 0.9], [0.0, -0.5, 0.3, 0.2]]),
        "b": np.array([[4, 3, 2, 1], [1, 2, 3, 4.0]]),
    }
    found = neighbours(known, DOCUMENTS, top=2)
    assert found.columns.tolist() == ["query", "method", "rank", "text", "score"]
    assert found.to_numpy().tolist() == [
        [0, "a", 1, DOCUMENTS[1], 0.9],
        [0, "a", 2, DOCUMENTS[3], 0.9],
        [0, "b", 1, DOCUMENTS[0], 4],
        [0, "b", 2, DOCUMENTS[1], 3],
        [1, "a", 1, DOCUMENTS[2], 0.3],
        [1, "a", 2, DOCUMENTS[3], 0.2],
        [1, "b", 1, DOCUMENTS[3], 4],
        [1, "b", 2, DOCUMENTS[2], 3],
    ]
    assert len(neighbours(known, DOCUMENTS, top=99)) == 2 * 2 * 4


def test_agreement_against_pairs_counted_one_by_one(scores):
    found = agreement(scores, top=5).set_index(["first", "second", "measure"])
    assert len(found) == 3 * 2
    for first, second in itertools.combinations(scores, 2):
        by_query = {"overlap": [], "kendall": []}
        for one, other in zip(scores[first], scores[second], strict=True):
            tops = [set(sorted(range(40), key=lambda d, row=row: -row[d])[:5]) for row in (one, other)]
            by_query["overlap"].append(len(tops[0] & tops[1]) / 5)
            pairs = [np.sign((one[i] - one[j]) * (other[i] - other[j])) for i in range(40) for j in range(i)]
            by_query["kendall"].append(sum(pairs) / len(pairs))
        for measure, values in by_query.items():
            row = found.loc[first, second, measure]
            half = t.ppf(0.975, 29) * statistics.stdev(values) / 30**0.5
            expected = [statistics.mean(values) + shift for shift in (0, -half, half)]
            assert row.tolist() == pytest.approx([*expected, 30])
    assert found.loc[("one", "near", "kendall"), "low"] > 0.2
    assert found.loc[("one", "far", "kendall"), "low"] < 0 < found.loc[("one", "far", "kendall"), "high"]
    chance = found.loc[("near", "far", "overlap")]
    assert chance["low"] < 5 / 40 < chance["high"]


def test_a_model_agrees_with_itself_whatever_its_scale(scores):
    same = agreement({"a": scores["one"], "b": np.exp(3 * scores["one"])})
    assert same["score"].tolist() == pytest.approx([1, 1])
    turned = agreement({"a": scores["one"], "b": -scores["one"]}, top=12).set_index("measure")["score"]
    assert turned.to_dict() == pytest.approx({"overlap": 0, "kendall": -1})


def test_what_can_not_be_told_is_nan(scores):
    one = agreement({name: matrix[:1] for name, matrix in scores.items()})
    assert one["score"].notna().all()
    assert one[["low", "high"]].isna().all(axis=None)
    flat = agreement({"a": scores["one"], "flat": np.ones((30, 40))}).set_index("measure")["score"]
    assert flat.isna().to_dict() == {"overlap": False, "kendall": True}


def test_complement_against_a_ranking_by_hand(scores):
    found = complement(scores, top=3)
    assert found.groupby(["first", "second", "by"]).size().unique().tolist() == [30]
    for (first, second), rows in found.groupby(["first", "second"]):
        ranks = rows.pivot(index="query", columns="by", values="rank")
        for query in range(30):
            one, other = scores[first][query], scores[second][query]
            by_hand = {"first": one, "second": other, "hybrid": (one + other) / 2}
            by_hand = {by: 1 + sum(score > row[query] for score in row) for by, row in by_hand.items()}
            by_hand["either"] = min(by_hand["first"], by_hand["second"])
            assert ranks.loc[query].to_dict() == by_hand
    assert (found["correct"] == (found["rank"] <= 3)).all()


def test_models_that_know_different_queries_complement_each_other():
    know = np.full((4, 6), 0.5)
    first, second = know.copy(), know.copy()
    first[[0, 1], [0, 1]] = second[[2, 3], [2, 3]] = 1
    found = complement({"a": first, "b": second}).groupby("by")["correct"].mean()
    assert found.to_dict() == {"first": 0.5, "second": 0.5, "either": 1, "hybrid": 1}
    same = complement({"a": first, "b": first}).groupby("by")["correct"].mean()
    assert set(same) == {0.5}
    assert set(complement({"a": know, "b": know}, top=5)["correct"]) == {0}, "one score for all finds nothing"


def test_the_hybrid_is_that_of_the_library(models):
    both = workbook.hybrid(models["lens"], models["mean"])
    matrices = cosines({"lens": models["lens"], "mean": models["mean"], "both": both}, QUERIES, DOCUMENTS)
    np.testing.assert_allclose((matrices["lens"] + matrices["mean"]) / 2, matrices["both"], atol=1e-5)
    found = complement(matrices).set_index(["first", "second", "by", "query"])["rank"].sort_index()
    expected = [1 + int((row > row[i]).sum()) for i, row in enumerate(matrices["both"])]
    assert found["lens", "mean", "hybrid"].tolist() == found["lens", "both", "second"].tolist() == expected


def test_bad_input_is_named(models, scores):
    with pytest.raises(InvalidValueError, match="queries: expected at least one, in a list, got 'a'"):
        cosines(models, "a", DOCUMENTS)
    with pytest.raises(InvalidValueError, match="documents: expected at least one"):
        cosines(models, QUERIES, [])
    with pytest.raises(InvalidValueError, match="cosines: expected at least 1, by name of the model"):
        cosines({}, QUERIES, DOCUMENTS)
    with pytest.raises(UnknownNameError, match=r"Unknown model 'menu'\. Did you mean 'mean'"):
        cosines(models, QUERIES, DOCUMENTS, {"menu": "Find it"})
    ill = copy.deepcopy(models["mean"])
    ill[0].decoder.norm.weight.data[0] = float("nan")
    with pytest.raises(InvalidValueError, match="cosines of ill: expected finite numbers, got 'NaN or inf in 3 rows'"):
        cosines(models | {"ill": ill}, QUERIES, DOCUMENTS)
    broken = scores["one"].copy()
    broken[[3, 5], 2] = np.nan
    with pytest.raises(InvalidValueError, match="cosines of bad: expected finite numbers, got 'NaN or inf in 2 rows'"):
        agreement({"good": scores["one"], "bad": broken})
    for rank in (agreement, complement):
        with pytest.raises(InvalidValueError, match="cosines: expected at least 2, by name of the model"):
            rank({"one": scores["one"]})
        with pytest.raises(InvalidValueError, match=r"cosines: expected matrices .* of one shape"):
            rank({"one": scores["one"], "two": scores["one"][:3]})
    with pytest.raises(InvalidValueError, match="of one shape"):
        agreement({"one": np.ones(3), "two": np.ones(3)})
    with pytest.raises(InvalidValueError, match="top: expected a whole number from 1 to 40, got 41"):
        agreement(scores, top=41)
    with pytest.raises(InvalidValueError, match="top: expected a positive whole number, got 0"):
        complement(scores, top=0)
    with pytest.raises(InvalidValueError, match="a document or more for each query"):
        complement({name: matrix.T for name, matrix in scores.items()})
    with pytest.raises(InvalidValueError, match="documents: expected 40, one a column of the cosines, got 4"):
        neighbours(scores, DOCUMENTS)
    with pytest.raises(InvalidValueError, match="top"):
        neighbours({"a": np.ones((1, 4))}, DOCUMENTS, top=0)
