"""Exercise checks: they diagnose, and never raise."""

import doctest

import numpy as np
import pytest
import torch

from workbook import checks


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
