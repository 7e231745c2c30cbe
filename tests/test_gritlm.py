"""GritLM: two losses on one decoder, each what it is alone; and its template, against its released code."""

import pytest
import torch
from parity import Fixture, assert_relative
from torch.nn import functional as F
from training_tools import TEXTS, differing, stage, tiny, trained
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import workbook
from workbook import attention, backbones
from workbook.errors import InvalidValueError
from workbook.experiments import gritlm as experiments
from workbook.methods import gritlm
from workbook.modules import Decoder, Pooling
from workbook.objectives import Contrastive, GritLM, set_attention_dropout
from workbook.objectives.contrastive import by_length
from workbook.scale import get_scale
from workbook.training.prepare import prepared

DOCUMENTS = ["a fire", "the sea and the sky", "grass, of course"]
QUERIES = ["red", "blue", "green"]

# Like flash attention a kernel that takes no mask of its own in each pass, but that runs here: sdpa by another name.
PACKED = "packed"
AttentionInterface.register(PACKED, sdpa_attention_forward)
AttentionMaskInterface.register(PACKED, sdpa_mask)


def head_of(backbone="tiny-llama"):
    return backbones.load_decoder(backbone, dtype="float32", device="cpu", lm_head=True).get_output_embeddings()


def sides(model):
    return [model.preprocess(QUERIES, prompt="Find it"), model.preprocess(DOCUMENTS)]


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: value.grad.clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("pooling", ["mean", "weighted_mean"])
def test_parity_with_gritlm(pooling):
    fixture = Fixture("gritlm_pooling/text_causal")
    decoder = Decoder(fixture.decoder(), fixture.tokenizer("right"), "causal", "gritlm", max_length=512)
    asked = fixture.texts["instruction"].removeprefix("<|user|>\n").removesuffix("\n<|embed|>\n")
    for case, instruction in (("query", asked), ("no_instruction", None)):
        features = decoder.preprocess(fixture.texts[case], prompt=instruction)
        expected = {name: fixture.expected[f"{case}.{name}"] for name in ("input_ids", "attention_mask", "pool_mask")}
        real = expected["attention_mask"].bool()
        assert torch.equal(features["attention_mask"].bool(), real)
        assert torch.equal(features["pooling_mask"], expected["pool_mask"])
        assert torch.equal(features["input_ids"][real], expected["input_ids"][real])
        vectors = Pooling(pooling, 32)(decoder(features))["sentence_embedding"]
        fixture.close(F.normalize(vectors, dim=1), f"{case}.{pooling.replace('_', '')}")


@pytest.mark.parametrize("backbone", ["tiny-llama", "tiny-mistral", "tiny-gemma2"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_generative_loss_is_that_of_a_causal_model_text_by_text(backbone, side):
    model = tiny("gritlm", backbone)
    model.tokenizer.padding_side = side
    whole = backbones.load_decoder(backbone, dtype="float32", device="cpu", lm_head=True)
    head = None if whole.config.tie_word_embeddings else whole.get_output_embeddings()
    losses = []
    for text in DOCUMENTS:
        (row,) = model[0].encode_texts([text])
        ids, own = torch.tensor([row.input_ids]), torch.tensor(row.pooling_mask).bool()
        logits = whole(ids).logits[0]
        losses.append(F.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")[own[1:]])
        assert len(losses[-1]) == len(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    made = GritLM(model, head).generative_loss(model.preprocess(DOCUMENTS))
    torch.testing.assert_close(made, torch.cat(losses).mean(), atol=1e-5, rtol=1e-5)
    assert attention.probe(model[0].decoder) == "bidirectional"


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("cached", [None, 2])
def test_the_loss_and_its_gradient_are_the_sum_of_both(cached, checkpointing):
    model, head = tiny("gritlm").train(), head_of()
    if checkpointing:
        model[0].decoder.activation_checkpointing_enable({"use_reentrant": False})
    options = {"temperature": 0.1, "mini_batch_size": cached}
    joint = GritLM(model, head, generative_weight=0.3, **options)
    made = joint(sides(model))
    got = gradients(model, made)
    alone = Contrastive(model, temperature=0.1)(sides(model))
    written = joint.generative_loss(sides(model)[1])
    torch.testing.assert_close(made, alone + 0.3 * written, atol=1e-5, rtol=1e-5)
    wanted = gradients(model, alone + 0.3 * written)
    for name in got:
        assert_relative(got[name], wanted[name], 1e-4)
    assert all(parameter.grad is None for parameter in head.parameters())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_loss_in_parts_is_the_one_whose_gradient_is_taken(checkpointing):
    """With dropout: both passes through a part drop the same."""
    model, head = tiny("gritlm").train(), head_of()
    if checkpointing:
        model[0].decoder.activation_checkpointing_enable({"use_reentrant": False})
    set_attention_dropout(model[0].decoder, 0.5)
    features = model.preprocess(DOCUMENTS)
    _, order = by_length(features)
    torch.manual_seed(0)
    made = GritLM(model, head, mini_batch_size=1).generative_loss(features)
    got, after = gradients(model, made), torch.rand(1)
    torch.manual_seed(0)
    one, counts, losses = GritLM(model, head), features["pooling_mask"].sum(dim=1), []
    for row in order.tolist():
        losses.append(one.generative_loss({name: value[row : row + 1] for name, value in features.items()}))
    expected = (torch.stack(losses) * counts[order] / counts.sum()).sum()
    assert torch.equal(after, torch.rand(1))  # and nothing else is drawn otherwise
    torch.testing.assert_close(made, expected)
    wanted = gradients(model, expected)
    for name in got:
        assert_relative(got[name], wanted[name], 1e-4)


def test_without_its_second_half_it_is_contrastive_training(own):
    options = {"temperature": 0.1, "generative_weight": 0}
    grit = trained(stage(own, "gritlm", steps=3, options=options), model=tiny("gritlm"))
    plain = trained(stage(own, "contrastive", steps=3, options={"temperature": 0.1}), model=tiny("gritlm"))
    assert differing(grit.model, plain.model) == []
    joint = trained(stage(own, "gritlm", steps=3), model=tiny("gritlm"))
    assert differing(joint.model, plain.model, 1e-3)


def test_a_joint_training_keeps_what_contrastive_training_unlearns(own):
    losses = {}
    for weight in (0, 1):
        options = {"temperature": 0.1, "generative_weight": weight}
        made = trained(stage(own, "gritlm", steps=20, options=options), model=tiny("gritlm")).model
        losses[weight] = GritLM(made, head_of()).generative_loss(made.preprocess(TEXTS)).item()
    assert losses[1] < losses[0] - 0.5


def test_flash_attention_gives_way_where_passes_have_their_own(own, monkeypatch):
    model = tiny("gritlm", attn_implementation=PACKED)
    decoder, used = model[0].decoder, {}
    for objective in ("contrastive", "gritlm"):
        with monkeypatch.context() as patch:
            patch.setattr(type(decoder), "device", torch.device("meta"))  # any but the CPU, which has a kernel anyway
            with prepared(model, stage(own, objective, adapter=None), 0):
                used[objective] = decoder.config._attn_implementation
        assert decoder.config._attn_implementation == PACKED
    assert used == {"contrastive": PACKED, "gritlm": "sdpa"}


def test_what_is_refused():
    with pytest.raises(InvalidValueError, match=r"attention: expected bidirectional, which the objective gritlm needs"):
        GritLM(tiny("gritlm", attention="causal"), head_of())
    with pytest.raises(InvalidValueError, match=r"generative_weight: expected a number, at least 0"):
        GritLM(tiny("gritlm"), head_of(), generative_weight=-1)
    with pytest.raises(InvalidValueError, match="a query, a positive and any hard negatives"):
        GritLM(tiny("gritlm"), head_of()).check_batch(4, 1)


def test_the_variants_differ_in_the_weight_alone():
    alone, joint = (one.trained_by("cpu", "smollm2-135m").stages[0] for one in experiments.GRITLM.variants)
    assert joint == gritlm.recipe("cpu", "smollm2-135m").stages[0]
    assert alone.options == joint.options | {"generative_weight": 0.0}
    assert alone.model_copy(update={"options": joint.options}) == joint


@pytest.mark.parametrize("kernel", ["sdpa", PACKED])
def test_the_experiment_measures_both(docs, kernel):
    sizes = get_scale("quick").model_copy(update={"max_length": 200, "queries": 8, "documents": 12, "texts": 12})
    model = workbook.build("gritlm", "tiny-llama", max_length=200, attn_implementation=kernel)
    rows = experiments.evaluate_variant(model, sizes).set_index(["metric", "task"])
    assert rows.loc["score", "score"].abs().max() <= 100
    assert rows.loc["generative", "items"].tolist() == [experiments.WRITTEN]
    assert 4 < rows.loc[("generative", "documents"), "score"] < 8  # a random head over 259 tokens: log 259 is 5.6
