"""Scales: each holds at least what the one before it does, and those of a night are recorded, not run."""

from itertools import pairwise

import pytest

from workbook.errors import InvalidValueError, UnknownNameError
from workbook.experiments import anchor, equal_budget, ladder, llm2vec
from workbook.scale import RECORDED, SCALES, get_scale, live_scale


def test_a_larger_scale_has_at_least_as_much_of_everything():
    assert [*SCALES] == ["quick", "cpu", "night", "gpu", "paper"]
    for smaller, larger in pairwise(SCALES.values()):
        sizes = (scale.model_dump(exclude={"name"}).values() for scale in (smaller, larger))
        assert all(one <= other for one, other in zip(*sizes, strict=True)), larger.name


@pytest.mark.parametrize(
    "table", [anchor._EVERY, ladder._EVERY, llm2vec._EVERY, equal_budget.TOKENS, equal_budget.SIZES]
)
def test_an_experiment_has_sizes_at_every_scale(table):
    """Those of recipes are built at each scale in test_recipes.py."""
    assert [*table] == [*SCALES]


def test_a_night_reads_whole_what_the_project_wrote():
    """256 reviews to train on and as many to test, 288 topics, 252 pairs; see data/README.md."""
    night = get_scale("night")
    assert (night.queries, night.documents, night.max_length) == (1000, 2000, 128)
    assert 2 * night.texts // 3 >= 128, "reviews of a label and a split"
    assert night.texts >= 288
    assert night.pairs >= 252


@pytest.mark.parametrize("name", SCALES)
def test_what_is_recorded_does_not_run_live(name):
    if name not in RECORDED:
        assert live_scale(name) is get_scale(name)
        return
    told = (
        r"scale: expected one that runs live \(quick, cpu, gpu, paper\), got 'night'\. It is recorded with "
        r'`workbook record --scale night`, and shown in notebooks through recorded="night"\.'
    )
    with pytest.raises(InvalidValueError, match=told):
        live_scale(name)


@pytest.mark.parametrize("name", ["nihgt", None, ["night"]])
def test_no_such_scale(name):
    with pytest.raises(UnknownNameError, match="quick, cpu, night, gpu, paper"):
        live_scale(name)
