"""The explorer, without a browser: the same widgets, moved by code."""

import ipywidgets as widgets
import numpy as np
import pytest

from workbook import build
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.explore import Explorer

BACKGROUND = [
    "Rain is due tonight.",
    "The bakery opens at six.",
    "Her bicycle has a flat tyre.",
    "Copper conducts heat.",
]
ONE, OTHER = "The cat sleeps on the mat.", "A cat is asleep on a rug."


@pytest.fixture
def explorer():
    return Explorer(build("mean", "tiny-llama", dtype="float32", device="cpu"), BACKGROUND)


def test_compare_is_what_the_built_model_says(explorer):
    cosine, above = explorer.compare(ONE, OTHER, "weighted_mean", "bidirectional")
    model = build("weighted-mean", "tiny-llama", attention="bidirectional", dtype="float32", device="cpu")
    vectors = model.encode([ONE, OTHER, *BACKGROUND], normalize_embeddings=True)
    assert cosine == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)
    background = (vectors[2:] @ vectors[2:].T)[np.triu_indices(4, k=1)]
    assert above == np.mean(background < cosine)


def test_the_model_is_left_as_it_was(explorer):
    before = explorer.model.encode([ONE])
    table = explorer.table(ONE, OTHER)
    assert table.shape == (6, 4)
    assert table["cosine"].nunique() > 1
    np.testing.assert_array_equal(explorer.model.encode([ONE]), before)
    with pytest.raises(UnknownNameError):
        explorer.compare(ONE, OTHER, "max", "causal")
    np.testing.assert_array_equal(explorer.model.encode([ONE]), before)


def test_the_panel_answers_what_is_typed_and_chosen(explorer):
    panel = explorer.panel(ONE, OTHER)
    _, second, pooling, attention, answer = panel.children
    said = [answer.value]
    second.value = ONE
    said.append(answer.value)
    assert "<b>1.000</b>, more alike than 100%" in answer.value
    second.value, pooling.value = OTHER, "last_token"
    said.append(answer.value)
    attention.value = "bidirectional"
    said.append(answer.value)
    assert len(set(said)) == 4


def test_widgets_only_where_someone_looks_on(explorer, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("VSCODE_PID", raising=False)
    assert explorer.show(ONE, OTHER).columns.tolist() == ["attention", "pooling", "cosine", "above"]
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/00_start.ipynb")
    assert isinstance(explorer.show(ONE, OTHER), widgets.VBox)


def test_bad_input(explorer):
    with pytest.raises(InvalidValueError, match="model: expected a Decoder and a Pooling"):
        Explorer([explorer.model[0]], BACKGROUND)
    with pytest.raises(InvalidValueError, match="background: expected at least three"):
        Explorer(explorer.model, BACKGROUND[:2])
    with pytest.raises(InvalidValueError, match="expected strings, got None"):
        explorer.compare(ONE, None, "mean", "causal")
