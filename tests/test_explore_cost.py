"""The calculator of costs, without a browser."""

import pytest

from workbook.errors import InvalidValueError, UnknownNameError
from workbook.explore import CostCalculator
from workbook.probes import SIZES, estimate

READ = {"last token": 30.0, "examples": 230.0}


@pytest.fixture
def calculator():
    return CostCalculator(READ, {"examples": 200.0})


def test_rows_are_those_of_the_estimate(calculator):
    found = calculator.compare("Mistral-7B", 1e6, 50, 0.4, 2.0).set_index("method")
    device = {"peak": 5e13, "utilisation": 0.4, "price": 2.0}
    for method, tokens in READ.items():
        bill = estimate(SIZES["Mistral-7B"], tokens, 1e6, **device)
        assert found.loc[method, ["hours", "money"]].tolist() == pytest.approx([bill.seconds / 3600, bill.money])
    kept = estimate(SIZES["Mistral-7B"], 30, 1e6, front=200, **device)
    assert found.loc["examples", "money kept"] == pytest.approx(kept.money)
    assert found.loc["last token", "money kept"] == found.loc["last token", "money"]
    longer = calculator.compare("Mistral-7B", 1e6, 50, 0.4, 2.0, more=70).set_index("method")
    assert longer["tokens"].to_dict() == {"last token": 100, "examples": 300}


def test_the_table_is_of_the_largest_model(calculator):
    table = calculator.show()
    assert table["method"].tolist() == [*READ]
    assert table["money"].tolist() == pytest.approx((2 * table["hours"]).tolist(), abs=0.011)
    expected = estimate(SIZES["Mistral-7B"], 30, 1e6, peak=1e14, utilisation=0.5).seconds / 3600
    assert table["hours"][0] == pytest.approx(expected, abs=0.006)


def test_the_panel_answers_what_is_chosen(calculator):
    panel = calculator.panel()
    model, texts, _, _, utilisation, price, answer = panel.children
    assert "examples" in answer.value
    said = [answer.value]
    for control, value in ((model, "S-LLaMA-1.3B"), (texts, 10**3), (price, 0.0), (utilisation, 0.01)):
        control.value = value
        said.append(answer.value)
    assert len({*said}) == 5


def test_bad_input(calculator):
    with pytest.raises(InvalidValueError, match="read: expected at least one method"):
        CostCalculator({})
    with pytest.raises(InvalidValueError, match=r"front of last token: expected from 0 to 30\.0 tokens, got 31"):
        CostCalculator(READ, {"last token": 31})
    with pytest.raises(UnknownNameError, match="last"):
        CostCalculator(READ, {"last": 1})
    with pytest.raises(UnknownNameError, match="model"):
        calculator.compare("Mistral", 1, 1, 1, 1)
    with pytest.raises(InvalidValueError, match="utilisation"):
        calculator.compare("Mistral-7B", 1, 1, 0, 1)
