"""Data curation: what mining must never return, and classes and graded pairs as contrastive examples."""

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.module import Module

from workbook.data.curation import from_classes, from_graded, mine
from workbook.errors import InvalidValueError, UnknownNameError


class Given(Module):
    """A teacher whose vectors are given by text."""

    config_keys = ()

    def __init__(self, vectors):
        super().__init__()
        self.vectors = vectors
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def preprocess(self, texts, prompt=None, **kwargs):
        return {"sentence_embedding": torch.tensor(np.array([self.vectors[text] for text in texts]))}

    tokenize = preprocess

    def forward(self, features, **kwargs):
        return features

    def get_embedding_dimension(self):
        return len(next(iter(self.vectors.values())))

    def save(self, output_path, *args, **kwargs):
        raise NotImplementedError


def teacher(vectors):
    return SentenceTransformer(modules=[Given(vectors)], device="cpu", similarity_fn_name="cosine")


def unit(*angles):
    """Vectors in the plane at these degrees from the query, which is at 0."""
    return [np.float32([np.cos(np.radians(angle)), np.sin(np.radians(angle))]) for angle in angles]


@pytest.mark.parametrize("seed", range(6))
def test_no_positive_and_nothing_above_the_margin(seed):
    """Random scores on a coarse grid, so that there are ties; some queries have several positives, or poor ones."""
    draw = np.random.default_rng(seed)
    vectors = {f"{kind}{n}": draw.integers(-2, 3, 4).astype(np.float32) + 0.1 for kind in "qd" for n in range(30)}
    rows = {(f"q{draw.integers(12)}", f"d{draw.integers(30)}") for _ in range(25)}
    pairs = pd.DataFrame(sorted(rows), columns=["query", "positive"])
    corpus = [f"d{n}" for n in range(30)] + [f"q{n}" for n in range(12)]
    with pytest.warns(UserWarning, match="candidates below the margin"):
        mined = mine(pairs, teacher(vectors), negatives=3, corpus=corpus)
    norm = {text: vector / np.linalg.norm(vector) for text, vector in vectors.items()}
    positives = pairs.groupby("query")["positive"].agg(set)
    assert set(zip(mined["query"], mined["positive"], strict=True)) <= set(zip(*pairs.to_numpy().T, strict=True))
    least = {q: min(float(norm[q] @ norm[p]) for p in own) for q, own in positives.items()}
    for row in mined.itertuples():
        scores = [float(norm[row.query] @ norm[text]) for text in row[3:]]
        assert scores == sorted(scores, reverse=True)
        assert max(scores) <= least[row.query] - 0.05 * abs(least[row.query]) + 1e-6
        assert not positives[row.query] & set(row[3:])
        assert row.query not in row[3:]
        assert len({*row[3:]}) == 3


def test_the_hardest_below_the_margin():
    names = ["q", "positive", "false negative", "tie", "hard", "easy"]
    vectors = dict(zip(names, unit(0, 40, 30, 40, 60, 100), strict=True))
    pairs = pd.DataFrame({"query": ["q"], "positive": ["positive"]})
    mined = mine(pairs, teacher(vectors), corpus=names[1:])
    assert mined.to_dict("records") == [{"query": "q", "positive": "positive", "negative_1": "hard"}]
    at = mine(pairs, teacher(vectors), corpus=names[1:], margin=1.0, negatives=2)
    assert list(at.iloc[0])[2:] == ["tie", "hard"]  # as near as the positive is not above it


@pytest.mark.parametrize(("progress", "shown"), [(None, False), (False, False), (True, True)])
def test_a_bar_is_shown_where_it_is_wanted(progress, shown, capsys):
    """None shows it in a terminal, which this is not."""
    pairs = pd.DataFrame({"query": ["q"], "positive": ["p"]})
    model = teacher(dict(zip("qpn", unit(0, 10, 60), strict=True)))
    encode = model.encode
    mine(pairs, model, corpus=["n"], progress=progress)
    assert ("it/s]" in capsys.readouterr().err) is shown
    assert model.encode == encode


def test_a_query_without_negatives_is_left_out_and_said():
    vectors = dict(zip(["q", "p", "near", "r", "s"], unit(0, 40, 30, 100, 42), strict=True))
    pairs = pd.DataFrame({"query": ["q", "r"], "positive": ["p", "s"]})
    with pytest.warns(UserWarning, match=r"1 queries have fewer than 1 candidates.*'q'"):
        mined = mine(pairs, teacher(vectors), corpus=["near"])
    assert list(mined["query"]) == ["r"]
    with pytest.raises(InvalidValueError, match="candidates below the margin"):
        mine(pairs.iloc[:1], teacher(vectors), corpus=["near"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": 0}, "margin"),
        ({"margin": 1.5}, "margin"),
        ({"negatives": 0}, "negatives"),
        ({"negatives": 5}, "more than 5 documents"),
    ],
)
def test_impossible_mining(options, message):
    vectors = dict(zip(["q", "p", "n"], unit(0, 40, 80), strict=True))
    with pytest.raises(InvalidValueError, match=message):
        mine(pd.DataFrame({"query": ["q"], "positive": ["p"]}), teacher(vectors), **{"corpus": ["n"], **options})


TEXTS = [f"text {n}" for n in range(12)]
LABELS = ["joy", "rage", "calm"] * 4


@pytest.mark.parametrize("negatives", [1, 4])
def test_classes_by_examples(negatives):
    of = dict(zip(TEXTS, LABELS, strict=True))
    frame = from_classes(TEXTS, LABELS, negatives=negatives)
    assert list(frame.columns) == ["query", "positive", *(f"negative_{n + 1}" for n in range(negatives))]
    assert list(frame["query"]) == TEXTS
    for query, positive, *others in frame.itertuples(index=False):
        assert (of[query], query != positive) == (of[positive], True)
        assert of[query] not in {of[other] for other in others}
    assert frame.equals(from_classes(TEXTS, LABELS, negatives=negatives))
    assert not frame.equals(from_classes(TEXTS, LABELS, negatives=negatives, seed=1))


def test_classes_by_labels():
    frame = from_classes(TEXTS, LABELS, documents="labels", negatives=5)
    assert list(frame["positive"]) == LABELS
    assert [{*row[1:]} for row in frame.itertuples(index=False)] == [{"joy", "rage", "calm"}] * 12
    assert len(set(map(tuple, frame[["negative_1", "negative_2"]].to_numpy()))) > 3  # in random order


def test_a_class_of_one_text_gives_no_query():
    with pytest.warns(UserWarning, match=r"1 classes have a single text.*'alone'"):
        frame = from_classes([*TEXTS, "odd"], [*LABELS, "alone"], negatives=8)
    assert "odd" not in set(frame["query"]) | set(frame["positive"])
    assert "odd" in set(frame.filter(like="negative").to_numpy().ravel())


def test_repeated_texts_and_numbers_as_labels():
    with pytest.warns(UserWarning, match=r"1 classes have a single text.*'1'"):
        frame = from_classes(["a", "a", "b", "c"], [1, 1, 2, 2])  # of the first class there is one text, twice
    assert set(frame["query"]) == {"b", "c"}
    frame = from_classes(["a", "b", "a", "c"], ["x", "x", "y", "y"], negatives=20)  # a text of two classes
    for row in frame.to_dict("records"):
        assert row["query"] not in {text for name, text in row.items() if name != "query"}


def test_negatives_beyond_many_false_ones():
    """Thirty documents above the margin don't hide the one below it."""
    names = ["q", "p", *(f"false {number}" for number in range(30)), "hard"]
    vectors = dict(zip(names, unit(0, 40, *range(1, 31), 70), strict=True))
    pairs = pd.DataFrame({"query": ["q"], "positive": ["p"]})
    assert mine(pairs, teacher(vectors), corpus=names[1:])["negative_1"].tolist() == ["hard"]


@pytest.mark.parametrize(
    ("texts", "labels", "options", "error", "message"),
    [
        (["a", "b"], ["x", "x"], {}, InvalidValueError, "at least two classes"),
        (["a", "b"], ["x", "y"], {}, InvalidValueError, "a class with two texts"),
        (["a", "b"], ["x"], {}, InvalidValueError, "one for each of 2 texts"),
        (["a", "b"], ["x", "y"], {"documents": "label"}, UnknownNameError, "Did you mean 'labels'"),
        (["a", "b"], ["x", "y"], {"negatives": 0}, InvalidValueError, "negatives"),
    ],
)
def test_impossible_classes(texts, labels, options, error, message):
    with pytest.raises(error, match=message):
        from_classes(texts, labels, **options)


def test_graded_pairs_both_ways():
    pairs = pd.DataFrame(
        [("a", "A", 5.0), ("b", "B", 4.0), ("c", "C", 3.9), ("d", "d", 5.0)],
        columns=["sentence1", "sentence2", "score"],
    )
    assert from_graded(pairs).to_numpy().tolist() == [["a", "A"], ["A", "a"], ["b", "B"], ["B", "b"]]
    with pytest.raises(InvalidValueError, match="graded 5 or more"):
        from_graded(pairs[1:3], 5)


PARTNERS = pd.DataFrame(
    [("a", "A", 5.0), ("a", "a1", 1.0), ("a", "a3", 3.0), ("a", "a4", 4.0), ("a", "a2", 2.0), ("A", "a9", 2.5),
     ("b", "B", 2.0), ("c", "C", 0.0)],
    columns=["sentence1", "sentence2", "score"],
)  # fmt: skip


def test_negatives_of_graded_pairs():
    """Lower grades of either text, the highest first; then texts of other pairs, none twice and none that is alike."""
    rows = from_graded(PARTNERS, negatives=6)
    assert rows[["query", "positive"]].equals(from_graded(PARTNERS))
    assert rows[["query", "positive"]].to_numpy().tolist() == [["a", "A"], ["A", "a"], ["a", "a4"], ["a4", "a"]]
    negatives = rows.filter(like="negative").to_numpy().tolist()
    for own, drawn in zip([["a3", "a9", "a2", "a1"]] * 2 + [["a3", "a2", "a1"]] * 2, negatives, strict=True):
        assert drawn[: len(own)] == own
        assert len({*drawn}) == 6
        assert {*drawn[len(own) :]} <= {"b", "B", "c", "C"} | ({"a9"} - {*own})
    first = from_graded(PARTNERS, negatives=2)
    assert first["negative_1"].eq("a3").all()
    assert first["negative_2"].tolist() == ["a9", "a9", "a2", "a2"]


def test_negatives_of_graded_pairs_are_drawn_by_the_seed():
    drawn = [from_graded(PARTNERS, negatives=6, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0].equals(drawn[1])
    assert not drawn[0].equals(drawn[2])


def test_impossible_negatives_of_graded_pairs():
    with pytest.raises(InvalidValueError, match="9 texts besides those alike, got 8"):
        from_graded(PARTNERS, negatives=9)
    with pytest.raises(InvalidValueError, match="negatives"):
        from_graded(PARTNERS, negatives=-1)
