"""The experiments of notebook 01: models that other notebooks measure too, so that no cell is computed twice."""

import pytest

from workbook.experiments import get

SHARED = {
    ("01_untrained", "07_methods"): {
        "causal mean": "mean, untrained",
        "causal weighted mean": "weighted-mean, untrained",
        "bidirectional mean": "llm2vec, untrained",
        "echo": "echo, untrained",
    },
    ("01_prefix", "02_inside"): {"causal mean": "Uni", "bidirectional mean": "Bi"},
}


@pytest.mark.parametrize(("mine", "other"), SHARED)
def test_models_that_another_notebook_measures_alike_are_taken_from_there(mine, other):
    first, second = get(mine), get(other)
    assert first.measures_like(second)
    ours = {one.name: first.fingerprint(one, 0, "quick", "smollm2-135m") for one in first.variants}
    theirs = {second.fingerprint(one, 0, "quick", "smollm2-135m"): one.name for one in second.variants}
    assert {name: theirs[made] for name, made in ours.items() if made in theirs} == SHARED[mine, other]


def test_three_poolings_stand_under_both_masks_and_nothing_trains():
    variants = get("01_untrained").variants
    chains = {one.name: one.chain("quick", "tiny-llama") for one in variants}
    assert not any(one.seeded for one in variants)
    crossed = {(chain.attention, chain.pooling, one) for one, chain in chains.items() if one != "echo"}
    assert len({(attention, pooling) for attention, pooling, _ in crossed}) == len(crossed) == 6
    assert all(name == f"{attention} {pooling.replace('_', ' ')}" for attention, pooling, name in crossed)
    assert chains["echo"].template != chains["causal mean"].template


def test_the_yardstick_is_an_encoder_that_no_decoder_changes():
    experiment = get("01_encoder")
    (only,), sizes = experiment.variants, experiment.sizes("quick")
    found = [
        experiment.measure(only.chain("quick", one).build(one, 0), sizes) for one in ("tiny-llama", "tiny-mistral")
    ]
    assert found[0]["score"].tolist() == pytest.approx(found[1]["score"].tolist())
    assert found[0].set_index("task")["score"]["DocsRetrieval"] > 60  # an untrained decoder has some 40
