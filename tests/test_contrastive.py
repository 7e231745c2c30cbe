import math
import warnings

import numpy as np
import pytest
import torch
from parity import Fixture, assert_relative
from sentence_transformers import SentenceTransformer
from torch import nn
from torch.nn.functional import cross_entropy

import workbook
from workbook import backbones
from workbook.errors import AttentionError, InvalidValueError
from workbook.objectives import Contrastive, SimCSE, set_attention_dropout

TEXTS = ["The first text.", "Another, a little longer.", "A third one here."]
KERNELS = [(name, "eager") for name in backbones.TINY]
KERNELS += [(name, "sdpa") for name in backbones.TINY if name != "tiny-gemma2"]  # caps its logits, which sdpa can't


class Given(nn.Sequential):
    """A model whose vectors are given."""

    def forward(self, features):
        return features


def given():
    return Given(nn.Identity())


def chain(backbone="tiny-llama", **options):
    return workbook.build("mean", backbone, dtype="float32", device="cpu", **options)


def check(fixture, loss, columns, prefix, names, labels=None):
    """Value and gradients of a loss over given vectors."""
    columns = [column.clone().requires_grad_() for column in columns]
    value = loss([{"sentence_embedding": column} for column in columns], labels)
    value.backward()
    fixture.close(value.detach().view(1), f"{prefix}loss", kind="loss")
    return dict(zip(names, (column.grad for column in columns), strict=True))


# Parity


@pytest.mark.parametrize("cached", [None, 2])
@pytest.mark.parametrize(
    ("case", "temperature", "names"),
    [
        ("hard_negative.scale50", 0.02, ("query", "positive", "negative")),
        ("hard_negative.scale20", 0.05, ("query", "positive", "negative")),
        ("hard_negative_uneven.scale50", 0.02, ("query", "positive", "negative")),
        ("in_batch_only.scale20", 0.05, ("query", "positive")),
    ],
)
def test_parity_with_llm2vec(case, temperature, names, cached):
    fixture = Fixture("contrastive/llm2vec_hard_negative")
    loss = Contrastive(given(), temperature=temperature, mini_batch_size=cached)
    tensors = fixture.tensors
    if "uneven" in case:  # 9 hard negatives of 6 queries
        tensors["negative"] = tensors["negative_uneven"]
    gradients = check(fixture, loss, [tensors[name] for name in names], f"{case}.", names)
    for name, gradient in gradients.items():
        fixture.close(gradient, f"{case}.grad.{name}", kind="gradients")
        assert_relative(gradient, fixture.expected[f"{case}.grad.{name}"], 1e-4)


def infonce(query, candidates, temperature=0.02):
    """The loss in float64, one query at a time; of the candidates the first so many are the positives."""
    losses = []
    for row, one in enumerate(query):
        scores = torch.stack([one @ other / (one.norm() * other.norm()) for other in candidates]) / temperature
        losses.append(scores.exp().sum().log() - scores[row])
    return sum(losses) / len(losses)


@pytest.mark.parametrize("lengths", [(3,), (1, 9), (6, 2, 7)])
def test_uneven_hard_negatives_with_and_without_gradcache(lengths):
    """Fewer than queries, more, and columns of different lengths."""
    fixture = Fixture("contrastive/llm2vec_hard_negative")
    pool = fixture.tensors["negative_uneven"]
    columns = [fixture.tensors["query"], fixture.tensors["positive"], *(pool[:length] for length in lengths)]
    exact = [column.double().requires_grad_() for column in columns]
    expected = infonce(exact[0], torch.cat(exact[1:]))
    wanted = torch.autograd.grad(expected, exact)
    for cached in (None, 1, 4, 16):
        own = [column.clone().requires_grad_() for column in columns]
        value = Contrastive(given(), mini_batch_size=cached)([{"sentence_embedding": column} for column in own])
        value.backward()
        assert value.item() == pytest.approx(expected.item(), rel=1e-5)
        for column, gradient in zip(own, wanted, strict=True):
            assert_relative(column.grad, gradient, 1e-4)


@pytest.mark.parametrize(
    ("rows", "options", "teacher", "message"),
    [
        ((3, 2, 3), {}, False, "positives: expected one for each of 3 queries, got '2 rows'"),
        ((3, 4), {"mini_batch_size": 2}, False, "positives: expected one for each of 3 queries, got '4 rows'"),
        ((3, 3, 0), {}, False, "hard negatives: expected a row in every column, got 'none'"),
        ((3, 3, 3, 2), {"in_batch": False}, False, "expected one for each of 3 queries in every column, got 'columns"),
        ((3, 3, 5), {}, True, r"expected one for each of 3 queries .* got 'columns of \[5\] rows'. Only as candidates"),
    ],
)
def test_rows_that_belong_to_no_query(rows, options, teacher, message):
    columns = [{"sentence_embedding": torch.ones(length, 8)} for length in rows]
    labels = torch.zeros(3, len(rows) - 1) if teacher else None
    with pytest.raises(InvalidValueError, match=message):
        Contrastive(given(), **options)(columns, labels)


@pytest.mark.parametrize(("negatives", "in_batch"), [("in_batch", True), ("own_group_only", False)])
@pytest.mark.parametrize("temperature", [0.02, 0.1])
def test_parity_with_lens(temperature, negatives, in_batch):
    fixture = Fixture("contrastive/lens")
    query, passage = fixture.tensors["query"], fixture.tensors["passage"]
    prefix = f"temperature_{temperature}.{negatives}."
    columns = [query, *(passage[place::4] for place in range(4))]
    loss = Contrastive(given(), temperature=temperature, in_batch=in_batch)
    gradients = check(fixture, loss, columns, prefix, ["query", 0, 1, 2, 3])
    assert_relative(gradients["query"], fixture.expected[f"{prefix}grad.query"], 1e-4)
    passages = torch.stack([gradients[place] for place in range(4)], dim=1).flatten(0, 1)
    fixture.close(passages, f"{prefix}grad.passage", kind="gradients")


@pytest.mark.parametrize("cached", [None, 1, 2])
@pytest.mark.parametrize("temperature", [0.02, 0.1])
def test_parity_with_the_distillation_of_lens(temperature, cached):
    fixture = Fixture("contrastive/lens")
    query, passage = fixture.tensors["query"], fixture.tensors["passage"]
    prefix = f"temperature_{temperature}.in_batch_distill."
    columns = [query, *(passage[place::4] for place in range(4))]
    loss = Contrastive(given(), temperature=temperature, mini_batch_size=cached)
    gradients = check(fixture, loss, columns, prefix, ["query", 0, 1, 2, 3], fixture.tensors["teacher_scores"])
    assert_relative(gradients["query"], fixture.expected[f"{prefix}grad.query"], 1e-4)
    passages = torch.stack([gradients[place] for place in range(4)], dim=1).flatten(0, 1)
    fixture.close(passages, f"{prefix}grad.passage", kind="gradients")


@pytest.mark.parametrize("in_batch", [True, False])
def test_distillation_is_added_with_and_without_in_batch_negatives(in_batch):
    fixture = Fixture("contrastive/lens")
    columns = [fixture.tensors["query"], *(fixture.tensors["passage"][place::4] for place in range(4))]
    loss, scores = Contrastive(given(), temperature=0.1, in_batch=in_batch), fixture.tensors["teacher_scores"]
    features = [{"sentence_embedding": column} for column in columns]
    added = loss(features, scores) - loss(features)
    fixture.close(added.view(1), "temperature_0.1.distill_term.loss", kind="loss")
    # A teacher that agrees with the model leaves nothing but its own entropy.
    own = torch.stack([torch.cosine_similarity(columns[0], column) for column in columns[1:]], dim=1) / 0.1
    entropy = -(own.softmax(1) * own.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss(features, own) - loss(features), entropy)


@pytest.mark.parametrize("shape", [(3,), (3, 5), (2, 4)])
def test_scores_that_do_not_fit_the_batch(shape):
    features = [{"sentence_embedding": torch.randn(3, 8)} for _ in range(5)]
    with pytest.raises(InvalidValueError, match=r"labels: expected a teacher's scores \(3, 4\), got"):
        Contrastive(given())(features, torch.zeros(shape))


def test_without_in_batch_negatives_a_row_does_not_see_the_others():
    fixture = Fixture("contrastive/lens")
    columns = [fixture.tensors["query"], *(fixture.tensors["passage"][place::4] for place in range(4))]
    loss = Contrastive(given(), temperature=0.1, in_batch=False)
    whole = loss([{"sentence_embedding": column} for column in columns])
    rows = [loss([{"sentence_embedding": column[row : row + 1]} for column in columns]) for row in range(3)]
    torch.testing.assert_close(torch.stack(rows).mean(), whole)


def test_without_in_batch_negatives_hard_ones_are_needed():
    columns = [{"sentence_embedding": torch.eye(3)}] * 2
    with pytest.raises(InvalidValueError, match="hard negatives in every row"):
        Contrastive(given(), in_batch=False)(columns)


# In a chain


def gradients(model, loss, columns):
    model.zero_grad()
    torch.manual_seed(0)
    value = loss([model.preprocess(texts) for texts in columns])
    value.backward()
    return value.item(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_gradients_reach_the_decoder_with_and_without_gradcache(attention):
    model = chain(attention=attention)
    columns = [TEXTS, [text.upper() for text in TEXTS], ["no", "nothing like it", "else"]]
    value, plain = gradients(model, Contrastive(model, temperature=0.5), columns)
    again, cached = gradients(model, Contrastive(model, temperature=0.5, mini_batch_size=2), columns)
    assert again == pytest.approx(value, rel=1e-5)
    for name, gradient in plain.items():
        assert gradient.abs().sum() > 0, name
        assert_relative(cached[name], gradient, 1e-4)


@pytest.mark.parametrize("cached", [None, 2])
def test_one_row_needs_a_hard_negative(cached):
    model = chain()
    loss = Contrastive(model, mini_batch_size=cached)
    columns = [model.preprocess([text]) for text in TEXTS]
    with pytest.raises(InvalidValueError, match=r"batch: expected at least two rows, or hard negatives.*drop_last"):
        loss(columns[:2])
    assert loss(columns) > 0


def test_columns_that_are_missing():
    model = chain()
    with pytest.raises(InvalidValueError, match=r"training data: expected a query, a positive.*got '1 column'"):
        Contrastive(model)([model.preprocess(TEXTS)])


def test_duplicates_are_said_once_with_their_rows():
    model = chain()
    loss = Contrastive(model)
    columns = [model.preprocess(texts) for texts in (TEXTS, ["same", "other", "same"])]
    with pytest.warns(UserWarning, match=r"Rows 0 and 2 of a batch have the same positive.*NO_DUPLICATES"):
        loss(columns)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(columns)
        Contrastive(model)([columns[0], columns[0]])


@pytest.mark.parametrize("temperature", [0, -1.0, True, None, "0.05", float("nan"), float("inf")])
def test_a_temperature_that_is_none(temperature):
    with pytest.raises(InvalidValueError, match="temperature: expected a positive number"):
        Contrastive(given(), temperature=temperature)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, np.int64(0), np.bool_(True)])
def test_a_mini_batch_that_is_none(size):
    with pytest.raises(InvalidValueError, match="mini_batch_size: expected a positive whole number"):
        Contrastive(given(), mini_batch_size=size)


@pytest.mark.parametrize("size", [2, np.int64(2), np.uint8(2)])
def test_a_mini_batch_is_a_whole_number_of_any_type(size):
    made = Contrastive(given(), mini_batch_size=size).options.mini_batch_size
    assert (made, type(made)) == (2, int)


# Dropout


def two_passes(model):
    return [model(model.preprocess(TEXTS))["sentence_embedding"].detach() for _ in range(2)]


def farthest(one, other):
    """The largest difference; of equal passes a little, where memory's layout decides the order of sums."""
    return (one - other).abs().max().item()


@pytest.mark.parametrize(("backbone", "kernel"), KERNELS)
def test_dropout_reaches_the_decoder_in_training_alone(backbone, kernel):
    model = chain(backbone, attention="bidirectional", attn_implementation=kernel)
    model.train()
    assert farthest(*two_passes(model)) <= 1e-5
    set_attention_dropout(model[0].decoder, 0.3)
    assert farthest(*two_passes(model)) > 1e-2
    model.eval()
    assert farthest(*two_passes(model)) <= 1e-5
    model.train()
    set_attention_dropout(model[0].decoder, 0)
    assert farthest(*two_passes(model)) <= 1e-5


def test_dropout_is_not_saved(tmp_path):
    model = chain()
    SimCSE(model)
    model[0].decoder.save_pretrained(tmp_path)
    again = backbones.load_decoder(str(tmp_path))
    assert {module.attention_dropout for module in again.modules() if hasattr(module, "attention_dropout")} == {0.0}


@pytest.mark.parametrize("probability", [-0.1, 1, 1.5, True, None, "0.3", float("nan")])
def test_a_dropout_that_is_none(probability):
    with pytest.raises(InvalidValueError, match="dropout: expected a share, at least 0 and less than 1"):
        set_attention_dropout(chain()[0].decoder, probability)


# SimCSE


@pytest.mark.parametrize("cached", [None, 2])
def test_simcse_is_contrastive_over_two_passes(cached):
    model = chain(attention="bidirectional").train()
    loss = SimCSE(model, temperature=0.5, mini_batch_size=cached)
    value, simcse = gradients(model, loss, [TEXTS])
    again, pairs = gradients(model, Contrastive(model, temperature=0.5, mini_batch_size=cached), [TEXTS, TEXTS])
    assert value == pytest.approx(again, abs=1e-5)
    assert all(farthest(simcse[name], pairs[name]) <= 1e-5 for name in pairs)
    assert all(gradient.abs().sum() > 0 for gradient in simcse.values())
    torch.manual_seed(1)
    assert abs(loss([model.preprocess(TEXTS)]).item() - value) > 1e-3


class Views(nn.Module):
    """The views of a fixture, one after the other, in place of what the decoder would give."""

    def __init__(self, views):
        super().__init__()
        self.views = views

    def forward(self, features):
        return {**features, "sentence_embedding": torch.cat(self.views)}


READINGS = {
    "as published": lambda one, other: infonce(one, other, 0.05),
    "from the second view to the first": lambda one, other: infonce(other, one, 0.05),
    "in both directions": lambda one, other: (infonce(one, other, 0.05) + infonce(other, one, 0.05)) / 2,
    "against the first view too": lambda one, other: infonce(one, torch.cat([other, one]), 0.05),
    "dot products": lambda one, other: cross_entropy(one @ other.T / 0.05, torch.arange(len(one))),
    "twice as warm": lambda one, other: infonce(one, other, 0.1),
    "without a temperature": lambda one, other: infonce(one, other, 1),
    "a sum": lambda one, other: len(one) * infonce(one, other, 0.05),
    "nothing": lambda one, other: 0 * infonce(one, other, 0.05),
    "chance": lambda one, other: 0 * infonce(one, other, 0.05) + math.log(len(one)),
}


@pytest.mark.parametrize("reading", READINGS)
def test_simcse_is_one_reading_and_no_other(reading):
    """Loss and gradients, at the published temperature.

    The published views of a text have a cosine of 0.98, and so a loss of 3e-7, which a constant 0 meets too. Each first
    view is mixed with that of another text, which takes the loss to 0.9; naive float64 takes the place of the published
    value, which it meets on the views as they are.
    """
    fixture = Fixture("contrastive/llm2vec_simcse")
    view1, view2 = (fixture.tensors[name].double() for name in ("view1", "view2"))
    fixture.close(infonce(view1, view2, 0.05).view(1), "loss", kind="loss")
    views = [(view1 + view1.roll(1, dims=0)).requires_grad_(), view2.requires_grad_()]
    expected = READINGS[reading](*views)
    wanted = torch.autograd.grad(expected, views)

    own = [view.detach().float().requires_grad_() for view in views]
    model = SentenceTransformer(modules=[chain()[0], Views(own)], device="cpu")
    loss = SimCSE(model)([model.preprocess([f"Text {row}." for row in range(6)])])
    loss.backward()
    errors = [abs(loss.item() / expected.item() - 1) if expected else 1.0]
    errors += [((view.grad - one).norm() / view.grad.norm()).item() for view, one in zip(own, wanted, strict=True)]
    assert all(error < 1e-4 for error in errors) if reading == "as published" else min(errors) > 0.05


def test_simcse_leaves_mode_and_generator_alone():
    model = chain().eval()
    before = torch.get_rng_state()
    SimCSE(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())


def test_simcse_refuses_what_teaches_nothing():
    model = chain()
    with pytest.raises(
        AttentionError, match=r"Expected two passes with dropout 0.0 to differ, measured equal .* trivially right"
    ):
        SimCSE(model, dropout=0)
    with pytest.raises(InvalidValueError, match="batch: expected at least two rows"):
        SimCSE(model)([model.preprocess(["alone"])])
    with pytest.raises(InvalidValueError, match="one column of texts, got '2 columns'"):
        SimCSE(model)([model.preprocess(TEXTS)] * 2)
    with pytest.raises(InvalidValueError, match="begins with a Decoder"):
        SimCSE(backbones.load_encoder("minilm", device="cpu"))
