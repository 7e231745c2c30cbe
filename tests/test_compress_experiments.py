"""The grid of notebook 09 on a tiny backbone: what starts from what, and what its records are known by."""

from copy import deepcopy
from dataclasses import replace

import pandas as pd
import pytest
from sentence_transformers import util
from torch import nn
from training_tools import differing

from workbook import compress, methods
from workbook.corpora import authored
from workbook.corpora.docs import load_docs
from workbook.evaluation import OFFLINE_SUITES, SUITES
from workbook.evaluation.outcomes import Outcomes
from workbook.experiments import Experiment, get
from workbook.experiments.compress import (
    BLOCK,
    CONTROL,
    CRITERIA,
    FORMS,
    GRID,
    HALF,
    LABELS,
    PATTERNS,
    PRUNED_ALONE,
    SCALED,
    STATES,
    UNTRAINED,
    WHOLE,
    by_block,
    gains_beyond,
    judged_quantities,
    lost_by_block,
    name,
)  # fmt: skip
from workbook.papers import claims
from workbook.scale import SCALES
from workbook.training import Recipe

PLACE = {"seed": 0, "scale": "quick", "backbone": "tiny-llama"}


def roomy(variant):
    """The variant and what it starts from with longer texts: a token a byte, the instruction alone is 88."""
    made = variant.recipe or methods.get(variant.method).recipe

    def longer(scale, backbone):
        return Recipe(stages=tuple(one.model_copy(update={"max_length": 160}) for one in made(scale, backbone).stages))

    return replace(variant, recipe=longer, start_from=variant.start_from and roomy(variant.start_from))


def zeros(model):
    layers = {place: one for place, one in model[0].decoder.named_modules() if isinstance(one, nn.Linear)}
    return {place: one.weight == 0 for place, one in layers.items()}


def test_the_grid_has_what_the_tables_have():
    names = [variant.name for variant in GRID.variants]
    assert len(names) == len({*names}) == 1 + 9 + 1 + 9 + 3 + 2 + 9 + 3 + 3 + 3 + 1 + 3
    for pattern in PATTERNS:
        assert name(CONTROL, pattern) in names
        for how in CRITERIA:
            assert {name(how, pattern), name(how, pattern, LABELS)} <= {*names}
        assert {name("sparsegpt", pattern, by, form) for by in (STATES,) for form in ("", *FORMS)} <= {*names}
    assert get("09_compress") is GRID
    assert [variant.name for variant in GRID.variants if not variant.seeded] == [UNTRAINED]
    assert len(GRID.cells([0, 1])) == 2 * len(names) - 1


def test_a_pruned_variant_is_the_pruned_model_and_retraining_keeps_its_zeros():
    whole, pruned, states = (
        roomy(GRID.variant(one)).train(progress=False, **PLACE).model
        for one in (WHOLE, name("magnitude", "2:4"), name("magnitude", "2:4", LABELS))
    )
    assert differing(whole, pruned)
    before = zeros(pruned)
    assert all(float(one.float().mean()) >= 0.5 for one in before.values())
    assert all(bool((one | ~before[place]).all()) for place, one in zeros(states).items())
    assert differing(states, pruned)


def test_half_of_the_layers_and_eight_bits():
    half = roomy(GRID.variant(name(HALF, retrained=LABELS))).train(progress=False, **PLACE).model
    whole = roomy(GRID.variant(name(WHOLE, form="INT8")))
    whole = replace(whole, compressed={"quantize": {"how": "rtn", "form": "int8"}}).train(progress=False, **PLACE).model
    assert 2 * len(half[0].decoder.layers) == len(whole[0].decoder.layers)
    assert {str(one.dtype) for key, one in whole.state_dict().items() if "q_proj.weight" in key} == {"torch.int8"}


def test_states_are_learnt_from_the_model_before_pruning(monkeypatch):
    from workbook import training

    seen, train = [], training.train

    def spied(model, recipe, **options):
        seen.append((len(recipe.stages), options.get("teacher")))
        return train(model, recipe, **options)

    monkeypatch.setattr(training, "train", spied)
    variant = roomy(GRID.variant(name("sparsegpt", "2:4", STATES)))
    start = replace(variant.start_from, compressed={"prune": {"how": "magnitude", "sparsity": "2:4"}})
    replace(variant, start_from=start).train(progress=False, **PLACE)
    (teacher,) = [one for _, one in seen if one is not None]
    assert not any(one.any() for one in zeros(teacher).values())


def test_a_record_is_known_by_how_it_was_compressed():
    variant = GRID.variant(name("wanda", "2:4"))
    others = [
        replace(variant, compressed={"prune": {"how": "wanda", "sparsity": "4:8"}}),
        replace(variant, compressed={}),
        replace(variant, start_from=replace(variant.start_from, stages=())),
    ]
    draft = Experiment("draft", "A draft", (variant,))
    found = {draft.fingerprint(one, 0, "quick", "tiny-llama") for one in (variant, *others)}
    assert len(found) == 4


def test_every_claim_has_its_quantities():
    """By their names, from rows of every variant; without some, only what they are about is absent."""
    from workbook.evaluation.effects import effect
    from workbook.evaluation.outcomes import Outcomes

    rows = pd.DataFrame(
        [
            {"source": "recorded", "variant": variant.name, "seed": seed, "metric": metric, "task": task,
             "trained": True, "score": 1.0, "outcomes": Outcomes.of_values([1.0, 2.0, 3.0], "abc")}
            for variant in GRID.variants for seed in (0, 1)
            for metric, task in (("loss", "held-out pairs"), ("score", "DocsRetrieval"))
        ]
    )  # fmt: skip
    ours = [claim for claim in claims.load().values() if claim.notebook == "09_compress"]
    named = {one for claim in ours for one in claim.names()} - {"blockless_states", "block_labels"}  # pooled by mean
    assert named <= {*judged_quantities(rows)}
    assert not any(one.why for one in judged_quantities(rows).values())
    worse = rows.assign(score=rows["score"] + 9 * ((rows["metric"] == "loss") & (rows["variant"] == WHOLE)))
    assert all(one.why for key, one in judged_quantities(worse).items() if not key.startswith("smaller"))
    for idle, untested in ((HALF, set()), (name(HALF, retrained=LABELS), {"smaller"})):  # each by its own loss
        worse = rows.assign(score=rows["score"] + 9 * ((rows["metric"] == "loss") & (rows["variant"] == idle)))
        assert {key for key, one in judged_quantities(worse).items() if one.why} == untested
    made = judged_quantities(rows)
    for other in ("compressed_int8", "smaller"):
        assert effect({"smaller_int8": 1, other: -1}, made).error is not None, "over the same tasks"
    fewer = rows[rows["variant"] != name("wanda", "4:8")]
    assert named - {*judged_quantities(fewer)} == {"wanda", "pruned_48"}


def test_a_gain_is_what_labels_give_a_pruned_model_beyond_what_they_give_the_whole_one():
    levels = {WHOLE: 70.0, name(WHOLE, retrained=LABELS): 73.0}
    levels |= {name("wanda", "2:4"): 60.0, name("wanda", "2:4", LABELS): 68.0}
    tasks = {task: suite for suite in OFFLINE_SUITES for task in SUITES[suite].tasks}
    rows = pd.DataFrame(
        {"source": "recorded", "variant": variant, "seed": seed, "task": task, "trained": True,
         "outcomes": Outcomes.of_values([level - 1.0, level + 1.0, level], range(3))}
        for variant, level in levels.items() for seed in range(2) for task in tasks
    )  # fmt: skip
    found = gains_beyond(rows)
    assert found["points"].tolist() == pytest.approx([5.0, 5.0])
    assert found[["criterion", "pattern", "suite"]].to_numpy().tolist() == [["wanda", "2:4", s] for s in OFFLINE_SUITES]


@pytest.mark.parametrize("by", [LABELS, STATES, SCALED])
def test_every_recipe_of_the_grid_holds_at_every_scale(by):
    for scale in ("quick", "cpu", "night", "gpu", "paper"):
        (stage,) = GRID.variant(name("sparsegpt", "2:4", by)).trained_by(scale, "tiny-llama").stages
        assert stage.adapter.keep_zeros


def test_blocks_pruned_alone_against_copies():
    """The first block's numbers, and a layer's, against copies in which the library has pruned them."""
    model, sizes = (
        GRID.variant(UNTRAINED).train(**PLACE).model,
        SCALES["quick"].model_copy(update={"queries": 6, "max_length": 160}),
    )
    rows = by_block(model, sizes)
    blocks = len(model[0].decoder.layers)
    assert rows.query("metric == 'mrr'")["task"].tolist() == [
        WHOLE, *(f"{pruning}, block {block}" for pruning in PRUNED_ALONE for block in range(blocks))
    ]  # fmt: skip
    pairs = load_docs().split("test").head(6)
    [asked] = authored.instructions("docs").query("task == 'DocsRetrieval'")["instruction"]
    first, few = 0, pairs["document"].tolist()  # what it reads does not depend on other blocks
    model.max_seq_length = sizes.max_length
    before, found = model.encode(few), {}
    for pruning, how in PRUNED_ALONE.items():
        one, pruned = deepcopy(model), compress.prune(model, **how)
        one[0].decoder.layers[first] = pruned[0].decoder.layers[first]
        queries, documents = one.encode(pairs["query"].tolist(), prompt=asked), one.encode(few)
        cosines = util.cos_sim(queries, documents).numpy()
        found[pruning] = (100 / (cosines >= cosines.diagonal()[:, None]).sum(axis=1)).mean()
        [outcomes] = rows[rows["task"] == f"{pruning}, block {first}"]["outcomes"]
        assert outcomes.score == pytest.approx(found[pruning])
    pruning, how = next(iter(PRUNED_ALONE.items()))
    one, layer = deepcopy(model), deepcopy(model)
    pruned = compress.prune(model, **how)
    one[0].decoder.layers[first] = pruned[0].decoder.layers[first]
    layer[0].decoder.layers[first].mlp.down_proj = pruned[0].decoder.layers[first].mlp.down_proj
    turned = rows.query("metric == 'turned'")
    assert len(turned) == blocks * (1 + 7)
    for part, changed in ((BLOCK, one), ("down_proj", layer)):
        [moved] = turned[(turned["block"] == first) & (turned["layer"] == part)]["score"]
        same = util.pairwise_cos_sim(before, changed.encode(few)).numpy()
        assert moved == pytest.approx(100 * (1 - same).mean(), abs=1e-3)
    lost = lost_by_block(rows.assign(variant=UNTRAINED, seed=0, trained=False, source="recorded"))
    assert len(lost) == blocks * len(PRUNED_ALONE)
    [whole] = rows[rows["task"] == WHOLE]["score"]
    gap = lost[(lost["pruning"] == pruning) & (lost["block"] == first)]["points"].item()
    assert gap == pytest.approx(found[pruning] - whole, abs=1e-6)
