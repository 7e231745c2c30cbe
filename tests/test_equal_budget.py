"""The experiments of notebook 07 on a tiny backbone: budgets that are equal, and decoders that are handed on."""

from collections import Counter

import numpy as np
import pytest
import torch

import workbook
from workbook import attention, evaluation, methods, training
from workbook.corpora.authored import instruction_of
from workbook.corpora.docs import load_docs
from workbook.experiments import equal_budget, get
from workbook.experiments.grid import Variant
from workbook.experiments.suite import held_out_loss
from workbook.files import cache_path
from workbook.objectives import Reconstruction
from workbook.scale import get_scale
from workbook.training.recipe import Recipe

SIZES = get_scale("quick").model_copy(update={"max_length": 200, "queries": 8, "documents": 12, "texts": 12})
TRAINED = [one for one in equal_budget.METHODS.variants if one.stages]


@pytest.fixture
def cache(tmp_path, docs, monkeypatch):
    """A cache of its own for what is trained, with the corpus, which takes long to build."""
    (tmp_path / "docs").symlink_to(cache_path("docs"), target_is_directory=True)
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))


def test_every_method_is_there_untrained_and_trained():
    names = [one.name for one in equal_budget.METHODS.variants]
    assert {name.removesuffix(equal_budget.UNTRAINED) for name in names} == {*equal_budget.COMPARED}
    assert len(names) == 2 * len(equal_budget.COMPARED)


def tokens_to_write(model, pairs):
    """Tokens that the decoder reads a pair to write it, counted where it reads them."""
    objective, counted = Reconstruction(model), []
    for source, target in (("query", "document"), ("document", "query")):
        sides = [model.preprocess(pairs[side].tolist()[:8]) for side in (source, target)]
        with torch.no_grad():
            vectors = objective.embedded(sides[:1])[0]
            hook = model[0].register_forward_pre_hook(lambda _, given: counted.append(given[0]["attention_mask"].sum()))
            objective.losses(vectors, sides[1])
            hook.remove()
    return float(sum(counted)) / 8


@pytest.mark.parametrize(
    ("variant", "share"),
    [*((one, 1) for one in TRAINED), *((one, 0.5) for one in equal_budget.HALF.variants)],
    ids=lambda one: getattr(one, "name", one),
)
def test_budgets_are_equal(variant, share, smollm2):
    """Tokens of the batches as the model lays them out, over all stages, to within the rounding of two steps."""
    recipe = variant.trained_by("cpu", "smollm2-135m")
    mode = workbook.methods.get(variant.method).chain.attention
    smollm2[0].attention = mode
    pairs = load_docs().split("train").sample(64, random_state=1)
    read = step = 0
    for stage in recipe.stages:
        model = workbook.build(variant.method, smollm2, max_length=stage.max_length, **variant.options)
        of_pair = sum(
            int(model.preprocess(texts.tolist(), prompt=asked)["attention_mask"].sum()) / len(texts)
            for texts, asked in ((pairs["query"], instruction_of("DocsRetrieval")), (pairs["document"], None))
        )
        if stage.objective == "reconstruction":
            of_pair += tokens_to_write(model, pairs)
        row = stage.max_length if stage.objective == "mntp" else of_pair
        read, step = read + stage.steps * stage.batch_size * row, max(step, stage.batch_size * row)
    assert abs(read - share * equal_budget.TOKENS["cpu"]) < step * len(recipe.stages) / 2 + 0.05 * read


def test_stages_differ_in_what_the_budget_asks_for_alone():
    variants = (*TRAINED, *equal_budget.HALF.variants, *equal_budget.PARTS.variants)
    ends = [one.trained_by("cpu", "smollm2-135m").stages[-1] for one in variants]
    temperatures = {one.method: end.options["temperature"] for one, end in zip(variants, ends, strict=True)}
    assert {method for method, value in temperatures.items() if value != 0.05} == {"lens"}
    assert temperatures["lens"] == methods.recipe("lens", "cpu").stages[0].options["temperature"]
    # Checkpointing costs time and changes no gradient.
    rest = [one.model_dump(exclude={"steps", "learning_rate", "gradient_checkpointing", "options"}) for one in ends]
    assert all(one == rest[0] for one in rest)
    assert {one.method for one, end in zip(TRAINED, ends, strict=False) if end.gradient_checkpointing} == {"icl"}
    rates = {one.method: end.learning_rate for one, end in zip(TRAINED, ends, strict=False)}
    assert {method for method, rate in rates.items() if rate != 1e-3} == {"causal2vec"}
    mean, echo = (
        get("07_methods").variant(name).trained_by("cpu", "smollm2-135m").stages[0] for name in ("mean", "echo")
    )
    assert mean.steps > 1.5 * echo.steps


def test_a_variant_begins_with_the_decoder_of_the_one_before(cache):
    before = Variant("MNTP", "llm2vec", ("mntp",))
    after = Variant("then", "last-token", (), {"attention": "causal"}, start_from=before)
    trained = before.train(3, "quick", "tiny-llama").model
    begun = after.train(3, "quick", "tiny-llama").model
    assert attention.probe(begun[0].decoder) == "causal"
    theirs, plain = trained[0].decoder.state_dict(), workbook.build("mean", "tiny-llama")[0].decoder.state_dict()
    for name, tensor in begun[0].decoder.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name
    assert any(not torch.equal(tensor, plain[name]) for name, tensor in theirs.items())


def test_what_went_before_counts_for_the_fingerprint():
    stages = {"method": "last-token", "stages": ("contrastive",)}
    chains = [None, Variant("a", "llm2vec", ("mntp",)), Variant("a", "anchor", ("reconstruction",))]
    prints = [
        equal_budget.PARTS.fingerprint(Variant("x", start_from=one, **stages), 0, "quick", "tiny-llama")
        for one in chains
    ]
    assert len({*prints}) == 3


def test_measured_beside_its_parts():
    model = workbook.build("mean", "tiny-llama", max_length=200)
    read, preprocess = Counter(), model[0].preprocess
    with pytest.MonkeyPatch.context() as patch:

        def spy(texts, prompt=None, **kwargs):
            read.update((text, prompt) for text in texts)
            return preprocess(texts, prompt=prompt, **kwargs)

        patch.setattr(model[0], "preprocess", spy)
        rows = equal_budget.evaluate_variant(model, SIZES)
    assert max(read.values()) <= 2, "once for scores and ranks, once for the loss, which asks for tensors"
    assert "encode" not in vars(model)
    assert not model[0].prefix_cache
    alone = evaluation.evaluate(model, scale=SIZES, instructions="docs", progress=False).set_index("task")
    scores = rows[rows["metric"] == "score"].set_index("task")["score"]
    assert scores[alone.index].tolist() == pytest.approx(alone["score"].tolist(), abs=1e-3)
    assert rows[rows["metric"] == "loss"]["score"].item() == pytest.approx(held_out_loss(model).score, abs=1e-4)
    pairs = load_docs().split("test").head(12)
    asked = instruction_of("DocsRetrieval")
    documents = [vector / np.linalg.norm(vector) for vector in model.encode(pairs["document"].tolist())]
    [rank] = rows[rows["metric"] == "rank"]["outcomes"]
    for number, query in enumerate(pairs["query"].head(8)):
        vector = model.encode(query, prompt=asked)
        order = sorted(range(12), key=lambda place: -float(vector @ documents[place]))
        assert rank.values[number] == 1 / (1 + order.index(number))


@pytest.mark.parametrize("variant", equal_budget.PARTS.variants, ids=lambda one: one.name)
def test_parts_can_be_trained(variant, cache):
    """One step of each stage: that decoder, chain and stages fit together."""
    chain = workbook.methods.get(variant.method).chain
    start = "tiny-llama"
    if variant.start_from:
        start = workbook.build(variant.start_from.method, start)
        start[0].attention = variant.options.get("attention", chain.attention)
    options = {name: value for name, value in variant.options.items() if name != "suffix"}  # it has no chat template
    model = workbook.build(variant.method, start, **options)
    shorter = {"steps": 1, "warmup_steps": 0, "decay_steps": None, "max_length": 200}  # its tokens are characters
    stages = [stage.model_copy(update=shorter) for stage in variant.trained_by("quick", "smollm2-135m").stages]
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = training.train(model, Recipe(stages=tuple(stages)), progress=False)
    assert made.history["stage"].tolist() == [stage.name for stage in stages]
    assert np.isfinite(made.history["loss"]).all()
    assert any(not torch.equal(tensor, weights[name]) for name, tensor in made.model.state_dict().items())
