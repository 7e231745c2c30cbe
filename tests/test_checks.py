"""Exercise checks: they diagnose, and never raise."""

import doctest
import re

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from workbook import checks
from workbook.checks import llm2vec


@checks.exercise(2, hint="Look at the mask.")
def exercise_2(answer):
    checks.expect("answer()", answer(), np.array([1.0, 2.0]))


def said(capsys, answer, check=exercise_2):
    assert check(answer) is None
    return capsys.readouterr().out


def test_examples():
    assert doctest.testmod(checks).failed == 0


@pytest.mark.parametrize(
    "right", [[1, 2], np.array([1, 2]), torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([1, 2.0]).bfloat16()]
)
def test_right_answers(capsys, right):
    assert said(capsys, lambda: right) == "Exercise 2: correct.\n"


@pytest.mark.parametrize(
    ("wrong", "diagnosis"),
    [
        (lambda: [1.0, 3.0], "expected [1., 2.], got [1., 3.]"),
        (lambda: [[1.0, 2.0]], "expected shape (2,), got shape (1, 2)"),
        (lambda: None, "Is a `return` missing?"),
        (lambda: [1.0, float("nan")], "not finite"),
        (lambda: "12", "expected numbers of shape (2,), got str"),
        (lambda: [[1.0], [1.0, 2.0]], "expected numbers of shape (2,), got list"),
        (lambda: 1 / 0, "It raised ZeroDivisionError"),
        (lambda x: x, "It raised TypeError"),
    ],
)
def test_wrong_answers_are_diagnosed(capsys, wrong, diagnosis):
    text = said(capsys, wrong)
    assert text.startswith("Exercise 2: not yet. ")
    assert diagnosis in text
    assert text.endswith("Hint: Look at the mask.\n")


def test_stub(capsys):
    def stub():
        raise NotImplementedError

    assert said(capsys, stub) == "Exercise 2: not attempted yet.\n"


@pytest.mark.parametrize(
    ("expected", "wrong"), [("mean", "sum"), (True, 1), (True, np.False_), (["a", "b"], ["a"]), ({"a": 1}, {"a": 2})]
)
def test_words_and_collections(capsys, expected, wrong):
    @checks.exercise(1)
    def exercise_1(answer):
        checks.expect("answer", answer, expected)

    assert said(capsys, expected, exercise_1) == "Exercise 1: correct.\n"
    assert said(capsys, wrong, exercise_1).startswith("Exercise 1: not yet. answer: expected")


# The exercises of notebook 02


def shifted_labels(input_ids, chosen):
    places = chosen.nonzero().squeeze(1)
    places = places[places > 0]
    return places - 1, input_ids[places]


def simcse_loss(first, second, temperature):
    cosines = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
    return F.cross_entropy(cosines / temperature, torch.arange(len(first)))


def word_means(states, spans, shifted):
    return torch.stack([states[start - shifted : end - shifted].mean(0) for start, end in spans])


def at_the_mask(input_ids, chosen):
    positions, labels = shifted_labels(input_ids, chosen)
    return positions + 1, labels


def at_the_label_before(input_ids, chosen):
    positions, _ = shifted_labels(input_ids, chosen)
    return positions, input_ids[positions]


def with_index_0(input_ids, chosen):
    places = chosen.nonzero().squeeze(1)
    return places - 1, input_ids[places]


def plain_products(first, second, temperature):
    return F.cross_entropy(first @ second.T / temperature, torch.arange(len(first)))


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            llm2vec.exercise_1,
            shifted_labels,
            {
                "at i instead of i - 1": at_the_mask,
                "the token before as the label": at_the_label_before,
                "index 0 kept": with_index_0,
                "positions alone": lambda *a: shifted_labels(*a)[0],
                "the other order": lambda *a: shifted_labels(*a)[::-1],
            },
        ),
        (
            llm2vec.exercise_2,
            simcse_loss,
            {
                "symmetric": lambda a, b, t: (simcse_loss(a, b, t) + simcse_loss(b, a, t)) / 2,
                "from second to first": lambda a, b, t: simcse_loss(b, a, t),
                "not normalised": plain_products,
                "one side normalised": lambda a, b, t: plain_products(F.normalize(a, dim=1), b, t),
                "normalised over the batch": lambda a, b, t: plain_products(
                    F.normalize(a, dim=0), F.normalize(b, dim=0), t
                ),
                "temperature as a factor": lambda a, b, t: simcse_loss(a, b, 1 / t),
                "temperature left out": lambda a, b, t: simcse_loss(a, b, 1),
                "summed": lambda a, b, t: simcse_loss(a, b, t) * len(a),
                "no negatives": lambda a, b, t: -F.cosine_similarity(a, b).mean() / t,
            },
        ),
        (
            llm2vec.exercise_3,
            word_means,
            {
                "never shifted": lambda states, spans, shifted: word_means(states, spans, False),
                "always shifted": lambda states, spans, shifted: word_means(states, spans, True),
                "shifted right": lambda states, spans, shifted: word_means(states, spans, -shifted),
                "end counted in": lambda states, spans, shifted: word_means(
                    states, [(a, b + 1) for a, b in spans], shifted
                ),
                "last token": lambda states, spans, shifted: torch.stack([states[b - 1 - shifted] for _, b in spans]),
                "summed": lambda states, spans, shifted: torch.stack(
                    [states[a - shifted : b - shifted].sum(0) for a, b in spans]
                ),
            },
        ),
    ],
    ids=["shifted_labels", "simcse_loss", "word_means"],
)
def test_exercises_of_notebook_02(capsys, check, right, wrong):
    assert said(capsys, right, check).endswith(": correct.\n")
    for mistake, answer in wrong.items():
        text = said(capsys, answer, check)
        assert re.search(r"not yet\. (?!It raised).*\nHint: ", text), (mistake, text)
