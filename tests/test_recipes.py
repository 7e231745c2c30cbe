"""The recipes of the methods: what each scale trains, and the paper's numbers to the letter."""

import math
from itertools import pairwise

import pytest

from workbook import METHODS, build, objectives, recipe
from workbook.backbones import load_config, load_tokenizer
from workbook.data.rows import SOURCES
from workbook.errors import ModelNotFoundError, UnknownNameError
from workbook.methods import anchor, lens, nv_embed, options
from workbook.modules import make_pooling
from workbook.objectives import OBJECTIVES
from workbook.scale import SCALES
from workbook.vocabulary.clusters import clusters_of

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture
def sized(monkeypatch):
    """A backbone of any architecture and width: recipes read nothing else of it."""

    def sized(architecture, width):
        config = load_config(f"tiny-{architecture}")
        config.hidden_size = width
        monkeypatch.setattr("workbook.backbones.load_config", lambda name: config)

    return sized


def named(method, scale):
    return [stage.name for stage in recipe(method, scale, "tiny-llama").stages]


@pytest.mark.parametrize("scale", SCALES)
def test_every_method_has_a_recipe_at_every_scale(scale):
    for method in METHODS:
        see_recipe(method, scale)


def see_recipe(method, scale):
    stages = recipe(method, scale, "tiny-llama").stages
    assert named(method, scale) == named(method, "quick") != []
    for stage in stages:
        kind = objectives.get(stage.objective)
        kind.validated(stage.options)
        assert kind.reads in SOURCES[stage.data]
        assert stage.batch_size % stage.accumulation == 0
        assert stage.warmup_steps < stage.steps <= (stage.decay_steps or stage.steps)
        assert stage.batch_size % stage.options.get("mini_batch_size", 1) == 0
    assert recipe(method, scale, "tiny-llama").fingerprint() == recipe(method, scale, "tiny-llama").fingerprint()
    assert set(OBJECTIVES) >= {stage.objective for stage in stages}


def test_the_supervised_stage_is_shared():
    """Methods that are compared are trained alike: a last stage of that name is the same in all of them."""
    for scale in SCALES:
        shared = {method for method in METHODS if named(method, scale)[-1] == "contrastive"}
        supervised, *others = [recipe(method, scale, "tiny-llama").stages[-1] for method in shared - {"anchor"}]
        assert all(other == supervised for other in others)
        # Its paper's temperature is all that differs, and at cpu and night the sizes at which a last token learns.
        update = {"options": supervised.options | {"temperature": 0.05}} | anchor.SECOND.get(scale, {})
        assert recipe("anchor", scale, "tiny-llama").stages[-1] == supervised.model_copy(update=update)
        assert len(shared) > 2


def test_a_larger_scale_trains_more():
    for method in METHODS:
        tokens = [
            [stage.steps * stage.batch_size * stage.max_length for stage in recipe(method, scale, "tiny-llama").stages]
            for scale in SCALES
        ]
        for smaller, larger in pairwise(tokens):
            assert all(one < other for one, other in zip(smaller, larger, strict=True)), method


def tokens_of_a_row(chain, stage):
    """Mean tokens that the decoder reads of a row of a stage, over the rows of its data or every 40th of a text."""
    if stage.objective == "mntp":
        return stage.max_length
    template, tokenizer = chain.layout(), load_tokenizer("smollm2-135m")

    def mean(texts, asked=""):
        rows = template.encode(tokenizer, list(texts), asked or None, stage.max_length, contextual_tokens=1)
        return sum(len(row.input_ids) for row in rows) / len(rows)

    if stage.objective == "simcse":
        return 2 * mean(SOURCES[stage.data]["texts"]()[::40])
    total = count = 0
    for rows in SOURCES[stage.data]["pairs"]().values():
        frame = rows.to_pandas()[:: math.ceil(len(rows) / 300)]
        own = sum(name.startswith("negative") for name in frame)  # rows with fewer negatives repeat theirs
        sides = ("query", "positive", *(f"negative_{number % own + 1}" for number in range(stage.negatives or 0)))
        asked, other = (frame[f"{side}_instruction"].iloc[0] for side in ("query", "document"))
        total += len(rows) * sum(mean(frame[side], asked if side == "query" else other) for side in sides)
        count += len(rows)
    return total / count


def test_what_a_night_trains(docs):
    """A million tokens of MNTP, 256,000 of contrastive training (NV-Embed shares them), 16,000 pairs rebuilt."""
    suffixes = {"causal2vec": "answer", "anchor": "keywords"}  # with which they learn on the default backbone
    for method in ("mean", "llm2vec", "lens", "nv-embed", "causal2vec", "anchor"):
        options = {"suffix": suffixes[method]} if method in suffixes else {}
        chain = METHODS[method].chain.with_options(**options)
        read = {}
        for stage in recipe(method, "night", "smollm2-135m").stages:
            if stage.objective == "reconstruction":
                assert (stage.steps, stage.batch_size) == (500, 32)
                continue
            tokens = stage.steps * stage.batch_size * tokens_of_a_row(chain, stage)
            read[stage.objective] = read.get(stage.objective, 0) + tokens
        assert read.pop("mntp", 1_024_000) == 1_024_000
        assert all(abs(tokens - 256_000) < 8_000 for tokens in read.values()), (method, read)


def test_what_a_night_trains_is_warmed_up_as_at_cpu():
    for method in METHODS:
        for one, other in zip(*(recipe(method, scale, "tiny-llama").stages for scale in ("cpu", "night")), strict=True):
            assert other.warmup_steps / other.steps == pytest.approx(one.warmup_steps / one.steps, abs=0.005), method
            assert (other.learning_rate, other.max_length) == (one.learning_rate, one.max_length)
            assert (other.batch_size == one.batch_size) == (one.objective != "reconstruction" and method != "nv-embed")


@pytest.mark.parametrize(("architecture", "masking"), [("llama", (0.2, "bert")), ("mistral", (0.8, "roberta"))])
def test_llm2vec_as_published(sized, architecture, masking):
    """Section 2.2 and appendices D.1 and G.2 of the paper; * marks what only the released configurations say.

    | | MNTP | SimCSE | supervised |
    |---|---|---|---|
    | data | wikitext-103 | Wikipedia sentences | E5, public portion |
    | steps | 1000 | 1000 | 1000 |
    | batch | 32 | 128 | 512 |
    | tokens | 512* | 128* | 512 |
    | learning rate | 5e-5* | 3e-5* | 2e-4 |
    | warm-up | 0* | 0* | 300 |
    | decay to 0 after three epochs* | 21,400 | 23,400 | 8,800 |
    """
    sized(architecture, 4096)
    mntp, simcse, supervised = recipe("llm2vec", "paper", "any").stages
    assert [stage.data for stage in (mntp, simcse, supervised)] == ["wikitext", "wiki1m", "e5"]
    assert [stage.steps for stage in (mntp, simcse, supervised)] == [1000, 1000, 1000]
    assert [stage.batch_size for stage in (mntp, simcse, supervised)] == [32, 128, 512]
    assert [stage.max_length for stage in (mntp, simcse, supervised)] == [512, 128, 512]
    assert [stage.learning_rate for stage in (mntp, simcse, supervised)] == [5e-5, 3e-5, 2e-4]
    assert [stage.warmup_steps for stage in (mntp, simcse, supervised)] == [0, 0, 300]
    rows = (228_000, 1_000_000, 1_500_000)
    for stage, count in zip((mntp, simcse, supervised), rows, strict=True):
        assert stage.decay_steps == pytest.approx(3 * count / stage.batch_size, rel=2e-3)
    assert (mntp.options["rate"], mntp.options["style"]) == masking
    assert mntp.options.get("mask_token", "_") == "_"
    assert (simcse.options["dropout"], 1 / simcse.options["temperature"]) == (0.3, 20)  # scale 20*
    assert 1 / supervised.options["temperature"] == 50  # *
    assert "dropout" not in supervised.options
    for stage in (mntp, simcse, supervised):
        assert (stage.adapter.rank, stage.adapter.alpha, stage.adapter.dropout) == (16, 32, 0.05)
        assert stage.adapter.targets == ALL_LINEAR
        assert stage.gradient_checkpointing
        assert stage.accumulation == 1  # micro-batches would have fewer negatives
        assert (stage.weight_decay, stage.max_grad_norm) == (0, 1)


@pytest.mark.parametrize(("width", "batch"), [(2048, 32), (2049, 128), (4096, 128)])
def test_a_small_backbone_takes_a_smaller_simcse_batch(sized, width, batch):
    """S-LLaMA-1.3B is 2048 wide. The decay is over as many epochs; nothing else of the recipe depends on the width."""
    sized("llama", width)
    stages = recipe("llm2vec", "paper", "any").stages
    assert [stage.batch_size for stage in stages] == [32, batch, 512]
    assert stages[1].decay_steps * batch == 23_400 * 128


def test_nv_embed_as_published():
    """Table 11 and appendix C; sections 3.2 and 3.3."""
    chain, (first, second) = METHODS["nv-embed"].chain, recipe("nv-embed", "paper", "any").stages
    assert (chain.pooling, chain.attention, chain.template) == ("latent_attention", "bidirectional", "nv-embed")
    pooling = make_pooling(chain.pooling, 4, "any", **chain.pooling_options)
    assert (pooling.latents, pooling.heads, pooling.head_dimension, pooling.mlp) == (512, 8, 4, "geglu")
    assert (first.steps, second.steps) == (20_000, 18_000)
    assert (first.learning_rate, second.learning_rate) == (2e-5, 1.5e-5)
    assert (first.blend, second.blend) == (True, True)  # section 2.2
    assert (first.mixed, second.mixed) == (False, True)
    assert (first.options.get("in_batch", True), second.options["in_batch"]) == (True, False)
    for stage in (first, second):
        assert (stage.batch_size, stage.negatives, stage.warmup_steps, stage.max_length) == (128, 7, 50, 512)
        assert (stage.adapter.rank, stage.adapter.alpha, stage.adapter.dropout) == (16, 32, 0.1)
        assert (stage.weight_decay, stage.decay_steps) == (0.03, None)  # linear, to 0 at the last step
        assert stage.gradient_checkpointing
    assert first.accumulation == 1  # micro-batches would have fewer negatives


def test_lens_as_published():
    """Section 4.1; the dropout of the released code."""
    chain, (stage,) = METHODS["lens"].chain, recipe("lens", "paper", "any").stages
    assert (chain.pooling, chain.attention, chain.template) == ("lexicon", "bidirectional", "lens")
    assert (stage.learning_rate, stage.batch_size, stage.negatives, stage.max_length) == (1e-4, 512, 7, 512)
    assert (stage.adapter.rank, stage.adapter.alpha, stage.adapter.dropout) == (32, 64, 0.1)
    assert (stage.options["temperature"], stage.teacher, stage.data) == (0.02, "stored", "bge-full")
    assert stage.options.get("in_batch", True)
    assert (stage.others.batch_size, stage.others.in_batch) == (256, False)
    assert all(
        recipe("lens", scale, "tiny-llama").stages[0].others is None for scale in ("quick", "cpu", "night", "gpu")
    )
    assert not stage.blend  # a batch comes from one data set


def test_the_head_of_lens_as_published():
    """Section 3.2.1: the means of k-means clusters as they are; 8,000 where the vocabulary is as large as Mistral's."""
    published = options("lens", "paper", "tiny-llama")
    assert published == {"pooling_options": {"zero": "paper", "spherical": False}}
    head = build("lens", "tiny-llama", dtype="float32", **published)[1].head
    assert head.equal(clusters_of("tiny-llama", 32, spherical=False).centroids)
    assert head.sum(dim=0).abs().max() > 0.01
    assert options("lens", "paper", "smollm2-135m")["pooling_options"]["clusters"] == 8000
    assert options("lens", "gpu", "smollm2-135m") == {}


@pytest.mark.parametrize(
    ("width", "steps", "rows", "alpha"), [(2048, 2000, 128, 128), (2049, 1000, 64, 32), (4096, 1000, 64, 32)]
)
def test_causal2vec_as_published(sized, width, steps, rows, alpha):
    """Table 7 and appendix A.1; S-LLaMA-1.3B is 2048 wide."""
    sized("llama", width)
    chain, (stage,) = METHODS["causal2vec"].chain, recipe("causal2vec", "paper", "any").stages
    assert (chain.pooling, chain.attention, chain.template) == ("contextual", "causal", "causal2vec")
    assert chain.encoder_options == chain.pooling_options == {}  # one token behind the instruction, concatenated
    assert (stage.data, stage.steps, stage.decay_steps) == ("e5", steps, 2 * steps)
    assert (stage.batch_size, stage.batch_size // stage.accumulation) == (512, rows)
    assert (stage.learning_rate, stage.warmup_steps, stage.max_length) == (1e-4, 300, 512)
    assert (stage.adapter.rank, stage.adapter.alpha) == (64, alpha)
    assert stage.options["temperature"] == 0.05
    assert stage.options.get("in_batch", True)
    assert stage.gradient_checkpointing


def test_anchor_as_published():
    """Section 3.2 and appendix A.2; the adapters' rate, steps and warm-up are LLM2Vec's."""
    chain, (first, second) = METHODS["anchor"].chain, recipe("anchor", "paper", "any").stages
    assert (chain.pooling, chain.attention, chain.template, chain.suffix) == ("last_token", "causal", "eos", "eos")
    assert first.options == {"alpha": 0.2, "target": "text", "train_head": True}
    assert (first.steps, second.steps) == (2000, 1000)
    assert (first.learning_rate, second.learning_rate) == (4e-5, 2e-4)
    assert first.adapter is None
    assert (second.adapter.rank, second.options["temperature"]) == (16, 0.05)
    assert second.options.get("in_batch", True)
    for stage in (first, second):
        assert (stage.data, stage.batch_size, stage.warmup_steps, stage.max_length) == ("e5", 512, 300, 512)
        assert stage.gradient_checkpointing
    assert first.accumulation > 1
    assert second.accumulation == 1  # micro-batches would have fewer negatives


@pytest.mark.parametrize("scale", SCALES)
def test_the_ablations_of_anchor_differ_in_one_thing(scale):
    """Tables 3, 5 and 12."""
    first, second = anchor.recipe(scale, "any").stages
    for alpha in (0, 1):
        assert anchor.recipe(scale, "any", alpha).stages == (
            first.model_copy(update={"options": first.options | {"alpha": alpha}}),
            second,
        )
    (alone,) = anchor.contrastive_alone(scale, "any").stages
    assert alone == second.model_copy(update={"steps": first.steps + second.steps})
    assert alone.steps <= (alone.decay_steps or alone.steps)
    (alone,) = anchor.contrastive_alone(scale, "any", by="pairs").stages
    assert alone == second.model_copy(update={"steps": alone.steps})
    pairs = [sum(stage.steps * stage.batch_size for stage in stages) for stages in ((first, second), (alone,))]
    assert 0 <= pairs[1] - pairs[0] < second.batch_size
    assert alone.steps <= (alone.decay_steps or alone.steps)
    other, same = anchor.with_llama2vec(scale, "any").stages
    options = {name: value for name, value in first.options.items() if name == "train_head"}
    assert (other, same) == (first.model_copy(update={"objective": "llama2vec", "options": options}), second)
    other.resolved()


@pytest.mark.parametrize("scale", SCALES)
def test_the_ablations_of_nv_embed_differ_in_one_thing(scale):
    """Tables 4 and 5 of NV-Embed."""
    first, second = nv_embed.recipe(scale, "any").stages
    assert nv_embed.reversed_order(scale, "any").stages == (second, first)
    (single,) = nv_embed.single_stage(scale, "any").stages
    assert single.steps == first.steps + second.steps
    assert (single.data, single.blend, single.options["in_batch"]) == (second.data, True, False)
    (together,) = nv_embed.single_stage(scale, "any", in_batch=True).stages
    assert (together.data, together.steps, together.options["in_batch"]) == (single.data, single.steps, True)
    assert together.accumulation == 1
    assert nv_embed.retrieval_alone(scale, "any").stages == (first.model_copy(update={"steps": single.steps}),)
    assert nv_embed.with_data(scale, "any", blend="docs-blend-labels").stages == (
        first,
        second.model_copy(update={"data": "docs-blend-labels"}),
    )
    assert nv_embed.with_data(scale, "any", mined="docs-mined-naive").stages == (
        first.model_copy(update={"data": "docs-mined-naive"}),
        second,
    )
    apart, mixed = (nv_embed.with_data(scale, "any", blend="docs-blend-examples", mixed=m) for m in (False, True))
    assert apart.stages == (first, mixed.stages[1].model_copy(update={"blend": False}))
    others = nv_embed.with_in_batch(scale, "any").stages
    assert others[0] == first
    assert (others[1].options["in_batch"], others[1].data, others[1].steps) == (True, second.data, second.steps)
    for stage in (single, together):
        stage.resolved()


@pytest.mark.parametrize("negatives", [1, 3, 7])
def test_other_numbers_of_negatives_at_equal_sequences(negatives):
    stages = nv_embed.recipe("night", "any").stages
    other = nv_embed.with_negatives("night", "any", negatives).stages
    for one, changed in zip(stages, other, strict=True):
        assert changed.batch_size * (2 + changed.negatives) == one.batch_size * (2 + one.negatives)
        assert changed == one.model_copy(update={"negatives": negatives, "batch_size": changed.batch_size})
    first, second = nv_embed.with_negatives("night", "any", negatives, in_batch=True).stages
    assert first == other[0]
    assert second == other[1].model_copy(update={"options": other[1].options | {"in_batch": True}})


def test_lens_with_other_negatives_and_without_its_teacher():
    (own,) = lens.recipe("night", "any").stages
    (other,) = lens.varied("night", "any", mined="docs-mined-random", teacher=False).stages
    assert own.teacher == "minilm"
    assert other == own.model_copy(update={"data": "docs-mined-random", "teacher": None})
    assert lens.varied("night", "any").stages == (own,)
    for negatives in (3, 7):
        (other,) = lens.varied("night", "any", negatives=negatives).stages
        assert other == own.model_copy(update={"negatives": negatives, "batch_size": other.batch_size})
        texts, before = other.batch_size * (2 + negatives), own.batch_size * (2 + own.negatives)
        assert before - (2 + negatives) < texts <= before


@pytest.mark.parametrize(
    ("backbone", "style"),
    [("tiny-llama", "bert"), ("tiny-mistral", "roberta"), ("tiny-qwen3", "bert"), ("tiny-gemma2", "bert")],
)
def test_masking_depends_on_the_architecture_alone(backbone, style):
    assert {recipe("llm2vec", scale, backbone).stages[0].options["style"] for scale in SCALES} == {style}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("llm2vce", "cpu", "tiny-llama"), UnknownNameError, "method 'llm2vce'. Did you mean 'llm2vec'"),
        (("llm2vec", "gup", "tiny-llama"), UnknownNameError, "scale 'gup'. Did you mean 'gpu'"),
        (("mean", "gup", "tiny-llama"), UnknownNameError, "scale 'gup'. Did you mean 'gpu'"),
        (("llm2vec", "cpu", "tiny-lama"), (UnknownNameError, ModelNotFoundError), "tiny-lama"),
    ],
)
def test_names_that_do_not_exist(arguments, error, message):
    with pytest.raises(error, match=message):
        recipe(*arguments)
