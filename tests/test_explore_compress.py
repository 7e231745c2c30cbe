"""The explorer of compression, without a browser."""

import numpy as np
import pytest
from training_tools import tiny

from workbook import compress
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.explore import CompressionExplorer
from workbook.explore.compress import FORMS

DOCUMENTS = [
    "Rain is due tonight.",
    "The bakery opens at six.",
    "Her bicycle has a flat tyre.",
    "Copper conducts heat.",
]
QUERY = "When can I buy bread?"


@pytest.fixture
def explorer():
    return CompressionExplorer(tiny("mean"), [*DOCUMENTS, DOCUMENTS[0]], texts=DOCUMENTS)


def test_vectors_are_those_of_the_compressed_model(explorer):
    model = compress.prune(explorer.model, how="wanda", sparsity="2:4", texts=DOCUMENTS)
    model = compress.quantize(model, how="rtn", form="int8")
    expected = model.encode([QUERY, *DOCUMENTS], normalize_embeddings=True)
    np.testing.assert_allclose(explorer.vectors(QUERY, "wanda", "2:4", "int8"), expected, atol=1e-6)


def test_nothing_done_changes_nothing_and_more_changes_more(explorer):
    before = explorer.model.encode(DOCUMENTS)
    cosine, ranking = explorer.compare(QUERY, "magnitude", 0.0, "as it is")
    assert cosine == pytest.approx(1)
    assert (ranking["rank"] == ranking["rank before"]).all()
    assert sorted(ranking["document"]) == sorted(DOCUMENTS)
    assert ranking["cosine"].is_monotonic_decreasing
    cosines = [explorer.compare(QUERY, "magnitude", sparsity, "as it is")[0] for sparsity in (0.1, 0.5, 0.9)]
    assert cosines == sorted(cosines, reverse=True)
    assert cosines[-1] < 0.9
    np.testing.assert_array_equal(explorer.model.encode(DOCUMENTS), before)


def test_the_table_of_a_batch_run(explorer):
    table = explorer.show(QUERY)
    assert len(table) == 5 + len(FORMS) - 1
    assert table["cosine"].between(-1, 1).all()
    assert table["tau"].between(-1, 1).all()
    assert set(table["form"]) == set(FORMS)


def test_the_panel_answers_what_is_chosen(explorer):
    panel = explorer.panel(QUERY)
    query, criterion, sparsity, form, answer = panel.children
    said = [answer.value]
    assert "<b>1.000</b>" in answer.value
    sparsity.value = "2:4"
    said.append(answer.value)
    criterion.value = "sparsegpt"
    said.append(answer.value)
    form.value = "e5m2"
    said.append(answer.value)
    assert len({*said}) == 4
    query.value = " "
    assert "not blank" in answer.value


def test_what_is_not_there_is_refused(explorer):
    with pytest.raises(InvalidValueError, match="two distinct"):
        CompressionExplorer(explorer.model, ["a", "a"])
    for wrong in (("loudness", 0.5, "int8"), ("wanda", 0.55, "int8"), ("wanda", 0.5, "int7")):
        with pytest.raises(UnknownNameError):
            explorer.vectors(QUERY, *wrong)
