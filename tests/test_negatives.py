"""False negatives: closed forms against draws, the cancelling of complete sets, and measurements against a loop."""

import itertools
from math import comb

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer

from workbook import probes
from workbook.data.curation import from_classes
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.explore import NegativesExplorer
from workbook.objectives import Contrastive
from workbook.probes import false_negative_counts, false_negatives, label_loss, measured_negatives, pushed_away

UNEVEN = (0.5, 0.3, 0.15, 0.05)

# Closed forms


def simulated(shares, size, hard, documents, task_share, draws, seed=0):
    """Numbers of false negatives of the first row of batches that are drawn one by one."""
    draw, shares = np.random.default_rng(seed), np.asarray(shares)
    found = []
    for _ in range(draws):
        own, *others = draw.choice(len(shares), size, p=shares)
        number = 0
        for other in others:
            if draw.random() >= task_share:
                continue
            if documents == "labels":
                negatives = draw.permutation(np.delete(np.arange(len(shares)), other))[:hard]
            else:
                rest = np.where(np.arange(len(shares)) == other, 0, shares)
                negatives = draw.choice(len(shares), hard, p=rest / rest.sum())
            number += (other == own) + np.sum(negatives == own)
        found.append(number)
    return np.array(found)


@pytest.mark.parametrize("documents", ["examples", "labels"])
@pytest.mark.parametrize(("classes", "size", "hard", "share"), [
    (2, 4, 0, 1), (6, 5, 3, 1), (UNEVEN, 4, 2, 1), (UNEVEN, 6, 1, 0.3), (3, 8, 0, 0.5),
])  # fmt: skip
def test_closed_forms_are_what_many_draws_give(classes, size, hard, share, documents):
    shares = np.full(classes, 1 / classes) if isinstance(classes, int) else classes
    draws = 4000
    seen = simulated(shares, size, hard, documents, share, draws)
    options = {"documents": documents, "task_share": share}
    expected = false_negative_counts(classes, size, hard, **options)
    assert expected.sum() == pytest.approx(1, abs=1e-12)
    for number, chance in enumerate(expected):
        off = abs((seen == number).mean() - chance)
        assert off < 5 * np.sqrt(max(chance * (1 - chance), 1 / draws) / draws), number
    found = false_negatives(classes, size, hard, **options)
    assert found["chance"] == pytest.approx(1 - expected[0], abs=1e-12)
    assert abs(seen.mean() - found["number"]) < 5 * seen.std() / np.sqrt(draws)
    assert found["share"] == pytest.approx(found["number"] / ((size - 1) * (1 + hard) + hard), abs=1e-12)


@pytest.mark.parametrize(("k", "size"), [(2, 8), (77, 128), (5, 1)])
@pytest.mark.parametrize("hard", [0, 1, 3, 7])
def test_of_classes_of_equal_size(k, size, hard):
    plain = 1 - ((1 - 1 / k) * (1 - 1 / (k - 1)) ** hard) ** (size - 1)
    found = false_negatives(k, size, hard)
    assert found["chance"] == pytest.approx(plain, abs=1e-9)
    assert found["number"] == pytest.approx((size - 1) * (1 + hard) / k, abs=1e-9)
    labels = false_negatives(k, size, hard, documents="labels")
    own = min(hard, k - 1)
    assert labels["number"] == pytest.approx((size - 1) * (1 + own) / k, abs=1e-9)
    assert labels["chance"] == pytest.approx(1 - ((1 - 1 / k) * (1 - own / (k - 1))) ** (size - 1), abs=1e-9)


def test_without_other_rows_or_with_them_masked_nothing_is_false():
    for kind in ("off", "masked"):
        found = false_negatives(2, 32, 1, in_batch=kind)
        assert (found["chance"], found["number"], found["share"]) == (0, 0, 0)
    assert np.isnan(false_negatives(2, 32, 0, in_batch="off")["share"])
    assert np.isnan(false_negatives(2, 1)["share"])


def test_a_task_that_is_a_part_of_a_blend_has_as_many_classes_more():
    """Without hard negatives the chance is that of 1 / task_share times the classes."""
    for share in (1, 0.5, 0.1):
        found = false_negatives(4, 16, task_share=share)["chance"]
        assert found == pytest.approx(1 - (1 - share / 4) ** 15, abs=1e-12)


def test_the_push_on_false_negatives():
    """Of equal cosines it is their share; a nearer class takes nearly all of it. The binomial sum by hand."""
    k, size, t = 3, 4, 0.1
    by_hand = sum(
        comb(3, f) * (1 / 3) ** f * (2 / 3) ** (3 - f) * f * np.exp(6) / (f * np.exp(6) + (3 - f) * np.exp(3))
        for f in range(1, 4)
    )
    assert pushed_away(k, size, same=0.6, other=0.3, temperature=t) == pytest.approx(by_hand, abs=1e-12)
    even = pushed_away(k, size, 2, same=0.3, other=0.3)
    assert even == pytest.approx(false_negatives(k, size, 2)["share"], abs=1e-12)
    assert pushed_away(150, 128, same=0.9, other=0.1) == pytest.approx(false_negatives(150, 128)["chance"], abs=1e-6)
    assert pushed_away(3, 8, same=-1, other=1, temperature=0.001) == pytest.approx((1 / 3) ** 7)  # all others are false
    assert pushed_away(3, 1, same=0.9, other=0.1) == 0


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: false_negatives(1, 8), InvalidValueError, "classes"),
    (lambda: false_negatives((0.5, 0.6), 8), InvalidValueError, "sum to 1"),
    (lambda: false_negatives((1.0, 0.0), 8), InvalidValueError, "positive shares"),
    (lambda: false_negatives(2, 0), InvalidValueError, "batch_size"),
    (lambda: false_negatives(2, 8, -1), InvalidValueError, "negatives"),
    (lambda: false_negatives(2, 8, task_share=0), InvalidValueError, "task_share"),
    (lambda: false_negatives(2, 8, documents="label"), UnknownNameError, "Did you mean 'labels'"),
    (lambda: false_negatives(2, 8, in_batch="mask"), UnknownNameError, "Did you mean 'masked'"),
    (lambda: pushed_away(2, 8, same=1, other=0, temperature=0), InvalidValueError, "temperature"),
    (lambda: label_loss([1, 2], 0, [0, 1]), InvalidValueError, "1 or more of the own label"),
    (lambda: label_loss([1, 2], 2), InvalidValueError, "right"),
])  # fmt: skip
def test_impossible_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Labels


@pytest.mark.parametrize("copies", [2, 7, 128])
@pytest.mark.parametrize("labels", [2, 6, 77])
def test_complete_sets_of_labels_cancel(labels, copies):
    scores = np.random.default_rng(labels).normal(size=labels) / 0.05
    once, repeated = label_loss(scores, 1), label_loss(scores, 1, [copies] * labels)
    assert repeated[0] - once[0] == pytest.approx(np.log(copies), abs=1e-12)
    assert abs(repeated[1] - once[1]).max() < 1e-12


def test_incomplete_sets_do_not_cancel_but_only_shorten_the_step():
    """Counts that differ weigh like scores that are higher by their logarithm. The gradient by the query's vector is
    that of the row without its false negatives, shorter: each is the positive again.
    """
    draw = np.random.default_rng(0)
    vectors, query = draw.normal(size=(6, 8)), draw.normal(size=8)
    counts = np.array([4, 1, 2, 3, 0, 5])
    scores = vectors @ query
    loss, gradient = label_loss(scores, 0, counts)
    assert abs(gradient - label_loss(scores, 0)[1]).max() > 0.01
    alone = np.exp(scores) * counts
    assert loss == pytest.approx(-np.log(np.exp(scores[0]) / alone.sum()), abs=1e-12)
    _, masked = label_loss(scores, 0, np.where(np.arange(6) == 0, 1, counts))
    one, other = gradient @ vectors, masked @ vectors
    assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) == pytest.approx(1, abs=1e-12)
    assert np.linalg.norm(one) < np.linalg.norm(other)


def test_the_labels_loss_is_the_objectives():
    """A batch whose rows hold both labels, as `from_classes` makes them, in the loss that trains."""
    rows = from_classes(["a", "b", "c", "d"], ["x", "y", "y", "x"], documents="labels")
    draw = np.random.default_rng(0)
    known = {text: draw.normal(size=5) for text in "abcdxy"}
    unit = {text: torch.tensor(vector / np.linalg.norm(vector)) for text, vector in known.items()}
    loss = Contrastive(SentenceTransformer(modules=[torch.nn.Identity()], device="cpu"), temperature=0.1)
    columns = [torch.stack([unit[text] for text in rows[name]]) for name in rows]
    batch = float(loss.loss.compute_loss_from_embeddings(columns, None))
    scores = [[float(unit[query] @ unit[name]) / 0.1 for name in "xy"] for query in rows["query"]]
    own = ["xy".index(label) for label in rows["positive"]]
    each = [label_loss(row, right, [4, 4])[0] for row, right in zip(scores, own, strict=True)]
    assert batch == pytest.approx(np.mean(each), abs=1e-6)


# Measured

KEYS = ["classes", "batch_size", "negatives", "documents", "in_batch"]


@pytest.fixture(scope="module")
def data():
    """Texts in five classes of uneven size, each about a centre, and the labels' vectors near the centres."""
    draw = np.random.default_rng(3)
    centres = draw.normal(size=(5, 12))
    labels = np.repeat(np.arange(5), [40, 30, 20, 10, 4])
    labels = labels[draw.permutation(len(labels))]
    return centres[labels] + draw.normal(size=(len(labels), 12)), labels, centres + draw.normal(size=(5, 12)) / 4


def naive(pool, queries, own, documents, kinds, temperature):
    """The measurements of a batch, row by row, with the gradients by torch through the normalisation."""
    found = {}
    gradients = {}
    texts = sorted({*documents.ravel()})
    for mode in probes.IN_BATCH:
        q = torch.tensor(queries, requires_grad=True)
        docs = {text: torch.tensor(pool[text], requires_grad=True) for text in texts}
        unit = {text: torch.nn.functional.normalize(docs[text], dim=0) for text in texts}
        numbers, shares, pushes, losses = [], [], [], []
        for row in range(len(queries)):
            candidates, false = [], []
            for other, place in itertools.product(range(len(queries)), range(documents.shape[1])):
                positive = (other, place) == (row, 0)
                lies = kinds[other, place] == own[row] and not positive
                if (mode == "off" and other != row) or (mode == "masked" and lies):
                    continue
                candidates.insert(0, documents[other, place]) if positive else candidates.append(
                    documents[other, place]
                )
                false.insert(0, lies) if positive else false.append(lies)
            cosines = torch.stack([torch.nn.functional.normalize(q[row], dim=0) @ unit[text] for text in candidates])
            logs = (cosines / temperature).log_softmax(0)
            losses.append(-logs[0])
            weights = logs.exp().detach().numpy()[1:]
            numbers.append(sum(false))
            if len(candidates) > 1:
                shares.append(sum(false) / (len(candidates) - 1))
                pushes.append(weights[np.array(false[1:])].sum() / weights.sum())
        torch.stack(losses).sum().backward()
        by_text = torch.cat([docs[text].grad for text in texts])
        gradients[mode] = q.grad.numpy(), torch.cat([q.grad.ravel(), by_text]).numpy()
        found[mode] = {"chance": np.mean([n > 0 for n in numbers]), "number": np.mean(numbers),
                       "share": np.mean(shares), "pushed": np.mean(pushes),
                       "loss": torch.stack(losses).mean().item()}  # fmt: skip

    def cosine(one, other):
        return one @ other / np.linalg.norm(one) / np.linalg.norm(other)

    for mode, (rows, batch) in gradients.items():
        masked, alone = gradients["masked"], gradients["off"]
        found[mode] |= {
            "row_cosine": np.mean([cosine(*pair) for pair in zip(rows, masked[0], strict=True)]),
            "row_length": np.linalg.norm(rows, axis=1).sum() / np.linalg.norm(masked[0], axis=1).sum(),
            "batch_cosine": cosine(batch, masked[1]),
            "own_cosine": np.mean([cosine(*pair) for pair in zip(rows, alone[0], strict=True)]),
        }
    return found


@pytest.mark.parametrize("documents", ["examples", "labels"])
@pytest.mark.parametrize("hard", [1, 3])
def test_measurements_are_those_of_a_naive_loop(data, documents, hard):
    vectors, labels, names = data
    kinds = probes.batches._Classes(vectors, labels, names)
    batch = kinds.batch(np.random.default_rng(hard), 4, 7, hard, documents)
    expected = naive(*batch, 0.1)
    found = probes.batches._measured(*batch, 0.1)
    for mode, kind in itertools.product(probes.IN_BATCH, ("chance", "number")):
        assert found[mode][kind] == expected[mode][kind]
    for mode in probes.IN_BATCH:
        assert found[mode] == pytest.approx(expected[mode], abs=1e-9), mode


def test_batches_are_as_from_classes_makes_them(data):
    """A positive is another text of the class, negatives are of other classes, and every text may be drawn."""
    vectors, labels, names = data
    kinds = probes.batches._Classes(vectors, labels, names)
    class_of = {tuple(vector): label for vector, label in zip(kinds.vectors, np.sort(labels), strict=True)}
    draw, seen = np.random.default_rng(0), set()
    for _ in range(40):
        pool, queries, own, documents, found = kinds.batch(draw, 3, 16, 3, "examples")
        true = np.array([[class_of[tuple(pool[place])] for place in row] for row in documents])
        mine = np.array([class_of[tuple(query)] for query in queries])
        assert (true[:, 0] == mine).all()
        assert (true[:, 1:] != mine[:, None]).all()
        assert ((found == own[:, None]) == (true == mine[:, None])).all()
        assert not (pool[documents[:, 0]] == queries).all(axis=1).any()
        seen |= {*map(tuple, pool[documents.ravel()])}
        pool, _, own, documents, found = kinds.batch(draw, 3, 16, 2, "labels")
        assert (found[:, 0] == own).all()
        assert all(len({*row}) == 3 for row in documents.tolist())
        assert len(pool) == 3
    assert len(seen) == len(labels)


def test_measured_shares_are_those_of_the_closed_forms(data):
    vectors, labels, names = data
    sizes = np.bincount(labels) / len(labels)
    frame = measured_negatives(
        vectors, labels, label_vectors=names, classes=[5], batch_sizes=[6], negatives=[0, 2], batches=400
    )
    assert frame[KEYS].duplicated().sum() == 0
    for row in frame[frame["in_batch"] == "on"].itertuples():
        expected = false_negatives(sizes, 6, row.negatives, documents=row.documents)
        off = abs(row.chance - expected["chance"])
        # The rows of a batch depend on one another, hence the batches and not the rows.
        assert off < 5 * np.sqrt(0.25 / 400)
        assert row.number == pytest.approx(expected["number"], rel=0.1)
    rest = frame[frame["in_batch"] != "on"]
    assert (rest[["chance", "number"]] == 0).all(axis=None)


def test_what_labels_do_to_the_gradient(data):
    """False labels turn no row; complete sets change nothing; false examples turn both row and batch."""
    vectors, labels, names = data
    frame = measured_negatives(
        vectors, labels, label_vectors=names, classes=[2, 4], batch_sizes=[16], negatives=[1, 3], temperature=0.1
    ).set_index(KEYS)
    on = frame.xs("on", level="in_batch")
    by_label = on.xs("labels", level="documents")
    assert by_label["row_cosine"].to_numpy() == pytest.approx(1, abs=1e-9)
    complete = [(2, 16, 1), (2, 16, 3), (4, 16, 3)]
    assert by_label.loc[complete, "own_cosine"].to_numpy() == pytest.approx(1, abs=1e-9)
    assert by_label.loc[(4, 16, 1), "own_cosine"] < 0.999
    assert (by_label["row_length"] < 1).all()
    examples = on.xs("examples", level="documents")
    assert (examples["row_cosine"] < 0.99).all()
    assert (examples["pushed"] > examples["share"]).all()  # texts of a class are nearer
    assert frame.xs("masked", level="in_batch")["batch_cosine"].to_numpy() == pytest.approx(1, abs=1e-9)


def test_labels_of_rows_that_are_all_but_right_turn_no_row_either(data):
    """What is left of such a gradient is far below the digits of its parts."""
    vectors, labels, names = (np.asarray(part, dtype=np.float32) for part in data)
    options = {"label_vectors": names, "classes": [5], "batch_sizes": [64], "negatives": [1]}
    frame = measured_negatives(vectors, labels, temperature=0.02, **options).query("documents == 'labels'")
    assert frame.query("in_batch == 'on'")["row_cosine"].item() == pytest.approx(1, abs=1e-6)


def test_without_negatives_there_is_no_gradient(data):
    frame = measured_negatives(*data[:2], classes=[2, 99], batch_sizes=[8], negatives=[0]).set_index("in_batch")
    assert frame["classes"].unique().tolist() == [2]
    assert frame.loc["off", ["share", "pushed", "row_cosine", "own_cosine"]].isna().all()
    assert frame.loc["on", ["share", "pushed", "row_cosine"]].notna().all()


def test_the_seed_decides(data):
    one, again, other = (measured_negatives(*data[:2], classes=[3], seed=seed, batches=2) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(one, again)
    assert not one.equals(other)


@pytest.mark.parametrize(("changes", "message"), [
    ({"labels": [0, 1]}, "one for each of 104 vectors"),
    ({"vectors": np.zeros((104, 3))}, "finite vectors"),
    ({"labels": np.arange(104)}, "of two texts or more"),
    ({"label_vectors": np.ones((4, 12))}, "one for each of 5 classes"),
    ({"classes": [6]}, "from 2 to the data's 5"),
    ({"batch_sizes": [1]}, "batch_sizes"),
    ({"temperature": -1}, "temperature"),
])  # fmt: skip
def test_data_that_is_refused(data, changes, message):
    given = dict(zip(("vectors", "labels", "label_vectors"), data, strict=True)) | changes
    with pytest.raises(InvalidValueError, match=message):
        measured_negatives(**given)


# The panel


def test_sliders_show_the_closed_form_beside_the_measurement(data, monkeypatch):
    explorer = NegativesExplorer(*data, batches=3)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("VSCODE_PID", raising=False)
    table = explorer.show()
    assert table["closed_form"].between(0, 1).all()
    assert set(table["documents"]) == {"examples", "labels"}
    box = explorer.panel()
    *controls, line = box.children
    before = line.value
    assert "row has a false negative" in before
    by_name = {control.description: control for control in controls}
    by_name["Documents"].value = "labels"
    by_name["Negatives"].value = 7
    by_name["Classes"].value = 5
    assert line.value != before
    assert f"{false_negatives(5, 32, 7, documents='labels')['chance']:.3f}" in line.value
    by_name["In-batch"].value = "off"
    assert "0.000" in line.value
    assert "nan" not in line.value.lower()
    with pytest.raises(InvalidValueError, match="documents: expected examples"):
        NegativesExplorer(*data[:2]).compare(2, 8, 0, "labels")
