"""Lexicon beside dense: all weights from two matrices of cosines, and the best of them without its luck."""

import numpy as np
import pandas as pd
import pytest

import workbook
from workbook import evaluation
from workbook.corpora.authored import instruction_of
from workbook.corpora.docs import load_docs
from workbook.corpora.tables import by_hash
from workbook.errors import InvalidValueError, MissingDataError
from workbook.evaluation.outcomes import Outcomes
from workbook.experiments import mixture
from workbook.experiments.suite import held_out_loss, smaller

BACKBONE = "tiny-llama"
SIZES = smaller("quick").model_copy(update={"max_length": 160})  # the instruction takes a hundred of its tokens


@pytest.fixture(scope="module")
def parts():
    return workbook.build("lens", BACKBONE), workbook.build("mean", BACKBONE, template="lens")


@pytest.fixture(scope="module")
def rows(parts):
    return mixture.measure(workbook.hybrid(*parts, weight=3.0), SIZES)  # which does not matter


def test_half_is_the_hybrid_and_the_ends_are_its_parts(parts, rows):
    pairs = by_hash(load_docs().split("test")).head(SIZES.documents)
    queries, documents = pairs["query"].head(SIZES.queries).tolist(), pairs["document"].tolist()
    models = {0.0: parts[0], 1.0: parts[1], 0.5: workbook.hybrid(*parts), 0.2: workbook.hybrid(*parts, weight=0.25)}
    for share, model in models.items():
        model.max_seq_length = SIZES.max_length
        asked = model.encode(queries, prompt=instruction_of("DocsRetrieval"), normalize_embeddings=True)
        scores = asked @ model.encode(documents, normalize_embeddings=True).T
        naive = [100 / sum(other >= line[place] - 1e-6 for other in line) for place, line in enumerate(scores)]
        [found] = rows[rows["share"] == share]["outcomes"]
        np.testing.assert_allclose(found.values, naive, rtol=1e-5)
    assert rows["share"].dropna().tolist() == [*mixture.SHARES]


def test_the_loss_is_that_of_each_part(parts, rows):
    with evaluation.run.cut_to(parts[0], SIZES.max_length), evaluation.run.cut_to(parts[1], SIZES.max_length):
        naive = [held_out_loss(part).score for part in parts]
    losses = rows[rows["metric"] == "loss"].set_index("task")["score"]
    assert losses.loc[["first", "second"]].tolist() == pytest.approx(naive, rel=1e-5)


def drawn(by_share, seeds=(0, 1, 2), losses=(1.0, 1.0)):
    """Rows of shares with given outcomes, functions of a seed, and the loss of each part."""
    return pd.DataFrame(
        [
            {"seed": seed, "task": f"share {share}", "share": share, "metric": "mrr", "outcomes": values(seed)}
            for seed in seeds
            for share, values in by_share.items()
        ]
        + [
            {"seed": seed, "task": part, "metric": "loss", "score": loss}
            for seed in seeds
            for part, loss in zip(("first", "second"), losses, strict=True)
        ]
    ).assign(source="recorded", trained=True)


def outcomes(values):
    return Outcomes.of_values(values, [*map(str, range(len(values)))])


def test_a_gain_that_is_there_is_found():
    query = np.random.default_rng(0).normal(50, 10, 400)
    shares = {share: lambda seed, share=share: outcomes(query + 6 * share * (1 - share)) for share in mixture.SHARES}
    rows = drawn(shares)
    found = mixture.gain(rows)
    assert found.value == pytest.approx(1.5)  # a half, beside either end
    assert found.low > 0
    live = drawn({share: lambda seed: outcomes(query) for share in mixture.SHARES}, (0,)).assign(source="this run")
    assert mixture.gain(pd.concat([rows, live])) == found  # a record is not mixed with a run
    untaught = mixture.gain(drawn(shares, losses=(1.0, 3.4)))
    assert np.isnan(untaught.low)
    assert "second did not learn" in untaught.why


def test_two_kinds_gain_more_than_a_control_that_gains_less():
    generator = np.random.default_rng(0)
    query = generator.normal(50, 10, 400)

    def pair(height):
        noise = {share: generator.normal(0, 0.5, 400) for share in mixture.SHARES}  # the choice is not certain
        table = {w: outcomes(query + noise[w] + 4 * height * w * (1 - w)) for w in mixture.SHARES}
        return drawn({w: lambda seed, w=w: table[w] for w in mixture.SHARES})

    larger, smaller = pair(3.0), pair(2.0)
    found = mixture.gain(larger, beyond=smaller)
    assert found.value == pytest.approx(1.0, abs=0.2)
    assert 0.02 < found.high - found.value < 0.5
    assert mixture.gain(larger, beyond=larger).value == 0
    with pytest.raises(InvalidValueError, match="those of one variant"):
        mixture.gain(pd.concat([larger, smaller]))


def test_the_curve_is_of_differences_from_the_first_part():
    query, other = np.random.default_rng(0).normal(50, 10, (2, 400))
    rows = drawn(
        {share: lambda seed, share=share: outcomes(query + share * (1 + other / 50)) for share in (0.0, 0.5, 1.0)}
    )
    found = mixture.curve(rows)
    assert found["share"].tolist() == [0.0, 0.5, 1.0]
    assert found["effect"].tolist() == pytest.approx([0.0, 1.0, 2.0], abs=0.05)
    assert (found["high"] - found["low"]).tolist() == pytest.approx([0, 0.0196, 0.0392], rel=0.1)  # of pairs
    with pytest.raises(MissingDataError, match="rows of shares"):
        mixture.curve(drawn({}))


def test_the_luck_of_the_best_is_no_gain():
    generator, found, naive = np.random.default_rng(0), [], []
    for _ in range(200):
        table = {share: generator.normal(50, 10, 100) for share in mixture.SHARES}
        rows = drawn({share: lambda seed, values=values: outcomes(values) for share, values in table.items()}, (0, 1))
        found.append(mixture.gain(rows).value)
        naive.append(max(one.mean() for one in table.values()) - max(table[0.0].mean(), table[1.0].mean()))
    assert np.mean(naive) > 0.8  # what the best of eleven looks like
    assert abs(np.mean(found)) < 3 * np.std(found) / np.sqrt(len(found))


def test_rows_without_shares_have_no_gain(rows):
    with pytest.raises(MissingDataError, match="rows of shares"):
        mixture.gain(rows[rows["metric"] == "loss"].assign(source="recorded", seed=0, trained=False))
    kept_none = rows.assign(
        source="recorded", seed=0, trained=False, outcomes=Outcomes.none(50.0, "No outcomes are kept.")
    )
    assert np.isnan(mixture.gain(kept_none).low)
