import pytest
import torch
from parity import Fixture, assert_relative
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

import workbook
from workbook import attention, backbones
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.modules import Decoder
from workbook.objectives import MNTP, mask_tokens, next_token_loss
from workbook.objectives.head import IGNORED

TEXTS = ["Some tokens are hidden, and each is read one step to its left.", "A short one.", "Third."]


def chain(backbone="tiny-llama", **options):
    return workbook.build("mean", backbone, attention="bidirectional", dtype="float32", device="cpu", **options)


def head_of(backbone="tiny-llama"):
    return backbones.load_decoder(backbone, dtype="float32", device="cpu", lm_head=True).get_output_embeddings()


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def model():
    return chain()


# Masking


def draw(style, rate, shape=(200, 100)):
    ids = torch.randint(10, 50, shape, generator=seeded(1))
    maskable = torch.rand(shape, generator=seeded(2)) < 0.9
    masked, labels = mask_tokens(
        ids, maskable, mask_token_id=7, vocabulary=50, rate=rate, style=style, generator=seeded(3)
    )
    return ids, maskable, masked, labels


@pytest.mark.parametrize("rate", [0.2, 0.8])
@pytest.mark.parametrize(("style", "shares"), [("bert", (0.8, 0.1, 0.1)), ("roberta", (1.0, 0.0, 0.0))])
def test_shares_of_the_styles(style, shares, rate):
    ids, maskable, masked, labels = draw(style, rate)
    chosen = labels != IGNORED
    assert not chosen[~maskable].any()
    assert torch.equal(labels[chosen], ids[chosen])
    assert torch.equal(masked[~chosen], ids[~chosen])
    assert chosen.sum() / maskable.sum() == pytest.approx(rate, abs=0.01)
    hidden, same = masked[chosen] == 7, masked[chosen] == ids[chosen]
    got = [part.float().mean().item() for part in (hidden, ~hidden & ~same, same)]
    assert got == pytest.approx(shares, abs=0.02)


def test_a_seed_is_a_mask():
    first, again, other = (
        mask_tokens(torch.arange(60).view(2, 30), torch.ones(2, 30).bool(), mask_token_id=7, vocabulary=60, generator=g)
        for g in (seeded(0), seeded(0), seeded(1))
    )
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[1], other[1])


def test_the_global_generator_draws_where_none_is_given(model):
    loss, features = MNTP(model, head_of()), model.preprocess(TEXTS)
    values = []
    for _ in range(2):
        torch.manual_seed(5)
        values.append(loss([features]).item())
    assert values[0] == pytest.approx(values[1], abs=1e-5)
    assert abs(values[0] - loss([features]).item()) > 1e-4


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("instruction", [None, "Find it"])
@pytest.mark.parametrize("template", ["plain", "eos"])
def test_only_the_text_is_maskable(template, instruction, side, monkeypatch):
    model = chain(template=template)
    monkeypatch.setattr(model[0].tokenizer, "padding_side", side)  # the tiny tokenizer is shared
    features = model.preprocess(["a text", "", "</s>b"], prompt=instruction)
    where = MNTP(model, head_of()).maskable(features)
    strings = [model[0].tokenizer.decode(row[keep]) for row, keep in zip(features["input_ids"], where, strict=True)]
    assert strings == ["a text", "", "b"]


def test_the_first_token_is_not_maskable_without_bos(smollm2):
    features = smollm2.preprocess(["one two three", "one"])
    assert MNTP(smollm2).maskable(features).tolist() == [[False, True, True], [False, False, False]]


# Loss


@pytest.mark.parametrize("backbone", backbones.TINY)
def test_against_the_whole_language_model(backbone):
    """The definition: logits of the causal LM with its own head, shifted by one, over all positions."""
    model, whole = chain(backbone), backbones.load_decoder(backbone, dtype="float32", device="cpu", lm_head=True)
    model[0].decoder.load_state_dict(getattr(whole, whole.base_model_prefix).state_dict())
    attention.set_mode(whole, "bidirectional")
    loss = MNTP(model, rate=0.5, generator=seeded())
    features = model.preprocess(TEXTS)
    ids, labels = mask_tokens(
        features["input_ids"], loss.maskable(features), mask_token_id=model.tokenizer.convert_tokens_to_ids("_"),
        vocabulary=len(model.tokenizer), rate=0.5, generator=seeded(),
    )  # fmt: skip
    logits = whole(ids, attention_mask=features["attention_mask"]).logits
    expected = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=IGNORED)
    torch.testing.assert_close(loss([features]), expected, atol=1e-5, rtol=1e-5)


def test_only_states_left_of_a_masked_token_matter():
    states = torch.randn(2, 6, 4, generator=seeded(), requires_grad=True)
    labels = torch.full((2, 6), IGNORED)
    labels[0, 0], labels[0, 3], labels[1, 5] = 1, 2, 0
    next_token_loss(states, labels, torch.randn(3, 4, generator=seeded(1))).backward()
    touched = states.grad.abs().sum(dim=-1) > 0
    assert touched.nonzero().tolist() == [[0, 2], [1, 4]]


def test_only_masked_positions_go_through_the_head(model):
    shapes = []
    loss = MNTP(model, head_of(), generator=seeded())
    original = F.linear

    class Evaluator(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if function is original and result.shape[-1] == 259:
                shapes.append(tuple(result.shape))
            return result

    with Evaluator():
        loss([model.preprocess(TEXTS)])
    assert len(shapes) == 1
    assert len(shapes[0]) == 2
    assert 0 < shapes[0][0] < 40


@pytest.mark.parametrize("train_head", [False, True])
def test_gradients_reach_every_layer_and_the_head_if_asked(model, train_head):
    loss = MNTP(model, head_of(), rate=0.5, train_head=train_head, generator=seeded())
    loss([model.preprocess(TEXTS)]).backward()
    for name, weight in model[0].decoder.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name
    assert (loss.head.weight.grad is not None) == train_head
    assert all(name.startswith(("model.", "head.")) for name, _ in loss.named_parameters())


def test_right_context_counts_only_when_bidirectional(model):
    """The state that predicts a masked token sees what follows it, or does not."""
    ids = model.preprocess(["abcdefgh"])["input_ids"]
    labels = torch.full_like(ids, IGNORED)
    labels[0, 4] = ids[0, 4]
    other = ids.clone()
    other[0, 7] += 1
    head = head_of()
    for mode in attention.MODES:
        model[0].attention = mode
        first, second = (
            next_token_loss(model[0].decoder(tokens).last_hidden_state, labels, head.weight) for tokens in (ids, other)
        )
        assert ((first - second).abs() <= 1e-5) == (mode == "causal")


def test_a_few_steps_lower_the_loss(model):
    loss = MNTP(model, head_of(), rate=0.5)
    features = model.preprocess(TEXTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    values = []
    for _ in range(40):
        torch.manual_seed(0)
        optimizer.zero_grad()
        value = loss([features])
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < values[0] / 2


def test_features_stay_as_they_were(model):
    features = model.preprocess(TEXTS)
    before = {key: value.clone() for key, value in features.items()}
    MNTP(model, head_of(), rate=0.9)([features])
    assert features.keys() == before.keys()
    assert all(torch.equal(features[key], before[key]) for key in before)


# Parity


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("variant", ["llama_gqa", "mistral"])
@pytest.mark.parametrize("case", ["unpadded", "left_padded", "unpadded_first_masked"])
def test_parity_with_llm2vec(variant, case, kernel):
    fixture = Fixture(f"mntp/{variant}")
    whole = AutoModelForCausalLM.from_pretrained(fixture.folder, dtype=torch.float32, attn_implementation=kernel)
    module = Decoder(whole.model, backbones.load_tokenizer("tiny-llama"), attention="bidirectional")
    inputs = {key: fixture.tensors[f"{case}.{key}"] for key in ("input_ids", "attention_mask", "labels")}
    states = module({key: inputs[key] for key in ("input_ids", "attention_mask")})["token_embeddings"]
    loss = next_token_loss(states, inputs["labels"], whole.lm_head.weight)
    loss.backward()
    fixture.close(loss.detach().view(1), f"{case}.loss", kind="loss")
    real = inputs["attention_mask"].bool()
    fixture.close(whole.lm_head(states).detach(), f"{case}.logits", where=real, kind="logits")
    weights = dict(whole.named_parameters())
    for name in fixture.about["gradients"]:
        fixture.close(weights[name].grad, f"{case}.grad.{name}", kind="gradients")
        assert_relative(weights[name].grad, fixture.expected[f"{case}.grad.{name}"], 1e-4)


# Bad input


@pytest.mark.parametrize("rate", [0, 1, 0.0, 1.0, -0.1, 1.5, float("nan"), True, None, "0.2"])
def test_a_rate_that_is_none(model, rate):
    with pytest.raises(InvalidValueError, match=r"rate: expected a share of the tokens, more than 0 and less than 1"):
        MNTP(model, head_of(), rate=rate)
    with pytest.raises(InvalidValueError, match="rate"):
        mask_tokens(torch.ones(1, 2).long(), torch.ones(1, 2).bool(), mask_token_id=0, vocabulary=9, rate=rate)


def test_options_that_do_not_exist(model):
    with pytest.raises(UnknownNameError, match=r"Unknown masking style 'Bert'\. Did you mean 'bert'"):
        MNTP(model, head_of(), style="Bert")
    with pytest.raises(InvalidValueError, match=r"mask_token: expected an entry of the vocabulary, got '<mask>'"):
        MNTP(model, head_of(), mask_token="<mask>")
    with pytest.raises(InvalidValueError, match="head: expected a linear layer of 32 inputs"):
        MNTP(model, torch.nn.Linear(16, 259, bias=False))
    with pytest.raises(InvalidValueError, match="begins with a Decoder, got 'Transformer'"):
        MNTP(backbones.load_encoder("minilm", device="cpu"))
    with pytest.raises(InvalidValueError, match="one column of texts, got '2 columns'"):
        MNTP(model, head_of())([model.preprocess(["a"])] * 2)


@pytest.mark.parametrize("texts", [[""], ["", "</s>"]])
def test_a_batch_with_nothing_maskable_has_loss_zero(model, texts):
    loss = MNTP(model, head_of(), rate=0.9)([model.preprocess(texts)])
    loss.backward()
    assert loss.item() == 0
    assert all((weight.grad == 0).all() for weight in model.parameters())


def test_a_row_that_is_all_padding_takes_no_part(model):
    features = model.preprocess(TEXTS[:2])
    padded = {key: torch.cat([value, torch.zeros_like(value[:1])]) for key, value in features.items()}
    masks = [MNTP(model, head_of(), rate=0.5).maskable(batch) for batch in (features, padded)]
    assert torch.equal(masks[1][:2], masks[0])
    assert not masks[1][2].any()
    with pytest.raises(InvalidValueError, match="none in row 2"):
        MNTP(model, head_of(), rate=0.5)([padded])
