import copy
import json

import pytest
import torch
from parity import Fixture, assert_relative
from sentence_transformers import SentenceTransformer
from torch.nn import functional as F
from training_tools import differing, stage, tiny, trained
from transformers import AutoModelForCausalLM

import workbook
from workbook import backbones
from workbook.data import rows as training_data
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.modules import Decoder, Pooling
from workbook.modules.projection import token_losses
from workbook.objectives import LLaMA2Vec, Reconstruction
from workbook.objectives.reconstruction import _once
from workbook.training import Adapter

QUERIES = ["how long", "which one of the three", "a b"]
DOCUMENTS = ["it takes a whole day", "neither", "the first, and then all of the others"]
INSTRUCTION = "Find what is said of it"


def chain(backbone="tiny-llama", method="last-token", **options):
    return tiny(method, backbone, **options)


def head_of(backbone="tiny-llama", dtype="float32"):
    return backbones.load_decoder(backbone, dtype=dtype, device="cpu", lm_head=True).get_output_embeddings()


def sides(model, queries=QUERIES, documents=DOCUMENTS, instruction=INSTRUCTION):
    return [model.preprocess(queries, prompt=instruction), model.preprocess(documents)]


def objective(model, kind=Reconstruction, **options):
    """On a tied head where the backbone has one."""
    tied = model[0].decoder.config.tie_word_embeddings
    return kind(model, None if tied else head_of(), **options)


def gradients(loss, model):
    model.zero_grad()
    loss.backward()
    return {name: value.grad.clone() for name, value in model.named_parameters()}


@pytest.fixture
def model():
    return chain()


# A second implementation: pair by pair, without padding, by the whole language model


def whole_model(model, backbone):
    whole = backbones.load_decoder(backbone, dtype="float32", device="cpu", lm_head=True)
    getattr(whole, whole.base_model_prefix).load_state_dict(model[0].decoder.state_dict())
    return whole


def ids_of(tokenizer, text):
    return torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])


def anchor(whole, ids):
    return getattr(whole, whole.base_model_prefix)(ids).last_hidden_state[:, -1:]


def laid_out(model, text, instruction=None):
    return torch.tensor([model[0].encode_texts([text], instruction)[0].input_ids])


def naive(model, whole, alpha=0.2, shift=0):
    """The loss by equations 1 to 5; ``shift`` takes the anchors of other rows."""
    tokenizer, table = model.tokenizer, whole.get_input_embeddings()
    given = [[(text, INSTRUCTION) for text in QUERIES], [(text, None) for text in DOCUMENTS]]
    losses = []
    for source, target in (given, given[::-1]):
        found = []
        for row in range(len(target)):
            text, instruction = source[(row + shift) % len(source)]
            words = ids_of(tokenizer, target[row][0])
            read = torch.cat([anchor(whole, laid_out(model, text, instruction)), table(words)], dim=1)
            if model[0].vector_behind_bos and tokenizer.bos_token_id is not None:
                read = torch.cat([table(torch.tensor([[tokenizer.bos_token_id]])), read], dim=1)
            logits = whole(inputs_embeds=read).logits[:, -words.shape[1] - 1 : -1]
            found.append(F.cross_entropy(logits[0], words[0], reduction="none"))
        losses.append(torch.cat(found).mean())
    return alpha * losses[0] + (1 - alpha) * losses[1]


@pytest.mark.parametrize(("side", "behind_bos"), [("left", False), ("right", False), ("left", True), ("right", True)])
@pytest.mark.parametrize("backbone", backbones.TINY)
def test_against_pairs_one_by_one(backbone, side, behind_bos):
    model = chain(backbone, vector_behind_bos=behind_bos)
    model[0].tokenizer.padding_side = side
    whole = whole_model(model, backbone)
    head = None if whole.config.tie_word_embeddings else whole.get_output_embeddings()
    loss = Reconstruction(model, head)(sides(model))
    expected = naive(model, whole)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert loss.dtype == torch.float32
    got = gradients(loss, model[0].decoder)
    wanted = gradients(expected, getattr(whole, whole.base_model_prefix))
    assert got.keys() == wanted.keys()
    for name in got:
        assert_relative(got[name], wanted[name], 1e-4)


CLOSINGS = {"eos": "<|im_end|>", "answer": "<|im_start|>assistant\n", "keywords": "\nKeywords:"}


@pytest.mark.parametrize("suffix", CLOSINGS)
def test_closings_on_a_real_tokenizer(suffix, smollm2):
    """The anchor is the state of the last token that closes the text; the words are the text's own in either case."""
    model = workbook.build("last-token", smollm2, attention=smollm2[0].attention, suffix=suffix)
    smollm2[0].attention = "causal"
    loss, (query, document) = Reconstruction(model), sides(model)
    for features, texts, name in ((query, QUERIES, "query"), (document, DOCUMENTS, "positive")):
        ids, own = loss.texts(features, name)
        strings = [model.tokenizer.decode(row[where]) for row, where in zip(ids, own, strict=True)]
        assert [string.strip() for string in strings] == texts
    with torch.no_grad():
        states = model[0]({**document})["token_embeddings"]
        row = states[1][document["attention_mask"][1].bool()]
        torch.testing.assert_close(loss.embedded([document])[0][1], row[-1], atol=1e-4, rtol=1e-4)
        written = model.tokenizer.decode(document["input_ids"][1][document["attention_mask"][1].bool()])
        assert written.endswith(CLOSINGS[suffix])


@pytest.mark.parametrize("method", ["mean", "echo"])
def test_any_vector_as_wide_as_the_states_is_an_anchor(method):
    """Without a suffix every pooled token is a word; of a text that is read twice, the second copy's are."""
    model = chain(method=method)
    ids, own = objective(model).texts(model.preprocess(DOCUMENTS), "positive")
    assert [model.tokenizer.decode(row[where]) for row, where in zip(ids, own, strict=True)] == DOCUMENTS


# Layout


@pytest.mark.parametrize(("kind", "behind_bos"), [(Reconstruction, False), (Reconstruction, True), (LLaMA2Vec, False)])
def test_padding_changes_nothing(kind, behind_bos):
    model = chain(vector_behind_bos=behind_bos)
    loss, given = objective(model, kind), sides(model)
    reference = loss(given)
    wanted = gradients(reference, model)
    for left, right in ((5, 0), (0, 5), (2, 3)):
        padded = [
            {
                key: F.pad(value, (left, right), value=model.tokenizer.pad_token_id if key == "input_ids" else 0)
                for key, value in side.items()
            }
            for side in given
        ]
        again = loss(padded)
        torch.testing.assert_close(again, reference, atol=1e-6, rtol=1e-6)
        for name, gradient in gradients(again, model).items():
            assert_relative(gradient, wanted[name], 1e-4)


def test_a_tokenizer_without_bos_has_nothing_in_front(model):
    loss, given = objective(model), sides(model)
    first = loss(given)
    model[0].vector_behind_bos = True
    assert abs(loss(given) - first) > 1e-4
    model[0].tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.bos_token = None
    torch.testing.assert_close(loss(given), first, atol=0, rtol=0)


def test_words_follow_the_anchor_at_once(model):
    """Whatever the other rows are like, a pair's losses are what they are alone."""
    loss, (query, document) = objective(model), sides(model)
    made, own = loss.losses(loss.embedded([query])[0], document)
    assert own.sum(dim=1).tolist() == [len(ids_of(model.tokenizer, text)[0]) for text in DOCUMENTS]
    assert (made[~own] == 0).all()
    for row in range(len(QUERIES)):
        one, other = sides(model, QUERIES[row : row + 1], DOCUMENTS[row : row + 1])
        alone, where = loss.losses(*loss.embedded([one]), other)
        assert where.all()
        torch.testing.assert_close(made[row][own[row]], alone[0], atol=1e-5, rtol=1e-5)


def test_a_word_is_predicted_from_what_is_before_it(model):
    loss, (query, _) = objective(model), sides(model)
    vectors = loss.embedded([query])[0]
    first = loss.losses(vectors, model.preprocess(["abcdef"] * 3))[0]
    other = loss.losses(vectors, model.preprocess(["abcxef"] * 3))[0]
    changed = (first - other).abs() > 1e-6
    assert not changed[:, :3].any()
    assert changed[:, 3:].all()


def test_instructions_are_read_and_never_predicted(model):
    loss = objective(model, alpha=0)
    document = model.preprocess(DOCUMENTS)
    plain, instructed = (model.preprocess(QUERIES, prompt=prompt) for prompt in (None, INSTRUCTION))
    torch.testing.assert_close(loss([instructed, document]), loss([plain, document]), atol=0, rtol=0)
    loss = objective(model, alpha=1)
    assert abs(loss([instructed, document]) - loss([plain, document])) > 1e-4


def test_a_long_document_is_cut(model):
    model[0].max_length = 12
    loss, (query, document) = objective(model), sides(model, instruction=None)
    own = loss.texts(document, "positive")[1]
    assert own.sum(dim=1).tolist() == [10, 7, 10]  # BOS and EOS are the other two
    short = sides(model, documents=[text[:10] for text in DOCUMENTS], instruction=None)
    torch.testing.assert_close(loss([query, document]), loss(short), atol=0, rtol=0)


def test_a_side_that_is_the_other_is_reconstructed_from_itself(model):
    query, _ = sides(model, instruction=None)
    losses = [objective(model, alpha=alpha)([query, query]) for alpha in (0, 0.5, 1)]
    torch.testing.assert_close(losses[0], losses[2])
    torch.testing.assert_close(losses[1], losses[2])


# Weights of the directions


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.83])
def test_alpha_weighs_the_directions(model, alpha):
    given = sides(model)
    to_query, to_document = (objective(model, alpha=one)(given) for one in (0, 1))
    assert abs(to_query - to_document) > 1e-3
    mixed = objective(model, alpha=alpha)(given)
    torch.testing.assert_close(mixed, alpha * to_document + (1 - alpha) * to_query, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("alpha", "passes"), [(0, 2), (1, 2), (0.2, 3)])
def test_a_direction_without_weight_is_not_computed(model, monkeypatch, alpha, passes):
    """Both sides are read in one pass, and each that is written in one of its own."""
    monkeypatch.setattr("workbook.modules.passes._PASS", {"cpu": 10**6})  # a pass is one group
    read = []
    hook = model[0].decoder.register_forward_hook(lambda *_: read.append(1))
    objective(model, alpha=alpha)(sides(model))
    hook.remove()
    assert len(read) == passes


# Gradients


def test_gradients_reach_the_encoder_through_the_anchor(model):
    """By finite differences of the table's row of a token that only the query says: it acts through the anchor."""
    given = sides(model, queries=["zzz"] * 3)
    row = ids_of(model.tokenizer, "z")[0, 0]
    assert not (given[1]["input_ids"] == row).any()
    loss, table = objective(model, alpha=1), model[0].decoder.get_input_embeddings().weight
    got = gradients(loss(given), model[0].decoder)["embed_tokens.weight"][row]
    assert got.norm() > 1e-4
    direction = got / got.norm()
    with torch.no_grad():
        ends = []
        for step in (1e-2, -2e-2):
            table[row] += step * direction
            ends.append(loss(given))
    torch.testing.assert_close((ends[0] - ends[1]) / 2e-2, got.norm(), atol=0, rtol=2e-2)


@pytest.mark.parametrize("kind", [Reconstruction, LLaMA2Vec])
def test_gradients_reach_every_weight(model, kind):
    loss = objective(model, kind, train_head=True)
    loss(sides(model)).backward()
    for name, weight in loss.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


@pytest.mark.parametrize("train_head", [True, False])
def test_a_head_of_its_own_trains_if_asked(model, train_head):
    loss = Reconstruction(model, head_of(), train_head=train_head)
    loss(sides(model)).backward()
    assert (loss.head.weight.grad is not None) == train_head


def test_a_head_that_trains_is_float32(model):
    assert Reconstruction(model, head_of(dtype="bfloat16"), train_head=True).head.weight.dtype is torch.float32
    assert Reconstruction(model, head_of(dtype="bfloat16")).head.weight.dtype is torch.bfloat16


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("logits", [1, 130, 10**6])
def test_losses_by_parts_are_the_losses(logits, softcap):
    """States one at a time, three at a time, and all at once; three labels of each."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(11, 8, generator=generator, requires_grad=True)
    head = torch.randn(40, 8, generator=generator, requires_grad=True)
    labels = torch.randint(40, (11, 3), generator=generator)
    got = token_losses(states, labels, head, softcap, logits)
    made = states @ head.T if softcap is None else softcap * torch.tanh(states @ head.T / softcap)
    expected = torch.stack([F.cross_entropy(made, label, reduction="none") for label in labels.T], dim=1)
    torch.testing.assert_close(got, expected)
    weights = torch.randn(got.shape, generator=generator)
    wanted = torch.autograd.grad((expected * weights).sum(), (states, head))
    for mine, theirs in zip(torch.autograd.grad((got * weights).sum(), (states, head)), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [Reconstruction, LLaMA2Vec])
def test_no_more_logits_than_may_be_held(model, kind, monkeypatch):
    """Forward and backward, and with the same loss and gradients."""
    loss, given, shapes = objective(model, kind, train_head=True), sides(model), []
    reference = loss(given)
    wanted = gradients(reference, loss)
    vocabulary, original = len(loss.projection()[0]), F.linear
    monkeypatch.setattr("workbook.modules.projection.token_losses.__defaults__", (None, 2 * vocabulary))

    def evaluated(*arguments):
        made = original(*arguments)
        if made.shape[-1] == vocabulary:
            shapes.append(tuple(made.shape))
        return made

    monkeypatch.setattr(F, "linear", evaluated)
    again = loss(given)
    torch.testing.assert_close(again, reference)
    for name, gradient in gradients(again, loss).items():
        assert_relative(gradient, wanted[name], 1e-5)
    assert {rows for rows, _ in shapes} <= {1, 2}
    assert len(shapes) > 3


@pytest.mark.parametrize("kind", [Reconstruction, LLaMA2Vec])
def test_half_precision(kind):
    whole = objective(chain(), kind)(sides(chain()))
    model = chain(dtype="bfloat16")
    half = kind(model, head_of(dtype="bfloat16"))(sides(model))
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(whole.item(), rel=2e-2)
    half.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


# Parity


PARITY = [
    *(("plain", target, version) for target in ("text", "input", "released") for version in ("intended", "released")),
    *(("ragged", target, "intended") for target in ("text", "input")),
    ("ragged", "released", "released"),
    ("instructed", "input", "intended"),
    ("instructed", "released", "released"),
]


def published(case, kernel="sdpa"):
    """The fixture, its model, the chain around it, and both sides of a batch with the masks of the published code."""
    fixture = Fixture("anchor_stage1")
    whole = AutoModelForCausalLM.from_pretrained(fixture.folder, dtype=torch.float32, attn_implementation=kernel)
    module = Decoder(whole.model, backbones.load_tokenizer("tiny-llama"), template="eos")
    names = {"input_ids": "input_ids", "attention_mask": "attention_mask", "pooling_mask": "text_mask"}
    given = [
        {name: fixture.tensors[f"{case}.{side}.{own}"] for name, own in names.items()} for side in ("query", "document")
    ]
    return fixture, whole, SentenceTransformer(modules=[module, Pooling("last_token", 32)], device="cpu"), given


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize(("case", "target", "version"), PARITY)
def test_parity_with_anchor(case, target, version, kernel):
    """As intended, where an instruction is written as if it were of the text, and as released, padding and all.

    Without instruction and padding every target is the same, and so are the two versions.
    """
    fixture, whole, model, given = published(case, kernel)
    for alpha, name in ((1, "loss_q2d"), (0, "loss_d2q"), (0.2, "loss")):
        loss = Reconstruction(model, whole.lm_head, alpha=alpha, target=target, train_head=True)(given)
        fixture.close(loss.detach().view(1), f"{case}.{version}.{name}", kind="loss")
    loss.backward()
    weights = dict(whole.named_parameters())
    for name in fixture.about["gradients"]:
        expected = fixture.expected[f"{case}.{version}.grad.{name}"]
        fixture.close(weights[name].grad, f"{case}.{version}.grad.{name}", kind="gradients")
        assert_relative(weights[name].grad, expected, 1e-4)


@pytest.mark.parametrize("target", ["text", "input", "released"])
def test_targets_of_a_side_with_an_instruction(target):
    """Which tokens are written: those that the template lays out, before their suffix."""
    model = chain()
    query, _ = given = sides(model)
    loss = objective(model, target=target)
    losses, where = loss.losses(*loss.embedded([given[1]]), query, "query")
    instructed = [len(f"<s>{INSTRUCTION} ") - 2 if target != "text" else 0] * 3  # "<s>" is one token
    assert where.sum(dim=1).tolist() == [len(text) + more for text, more in zip(QUERIES, instructed, strict=True)]
    assert (losses[where] > 0).all()
    assert not losses[~where].any()


def test_the_released_target_does_not_ask_where_a_tokenizer_pads():
    model = chain()
    found = []
    for side in ("left", "right"):
        model[0].tokenizer.padding_side = side
        found.append(objective(model, target="released")(sides(model)))
    torch.testing.assert_close(*found)


def test_the_released_target_is_the_same_without_a_gradient():
    """Where a batch is read by groups of like length, which leave padding out."""
    model = chain()
    given = sides(model, QUERIES * 20, DOCUMENTS * 20)
    loss = objective(model, target="released")
    with torch.no_grad():
        read = loss(given)
    torch.testing.assert_close(read, loss(given).detach())


# LLaMA2Vec


def test_llama2vec_against_its_equation(model):
    head, losses = head_of(), []
    texts = [[(text, INSTRUCTION) for text in QUERIES], [(text, None) for text in DOCUMENTS]]
    for source in texts:
        for target in texts:
            for (text, instruction), (other, _) in zip(source, target, strict=True):
                vector = model[0].decoder(laid_out(model, text, instruction)).last_hidden_state[0, -1]
                words = ids_of(model.tokenizer, other)[0].unique()
                losses.append(-head(vector).log_softmax(dim=0)[words].mean())
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(LLaMA2Vec(model, head)(sides(model)), expected, atol=1e-5, rtol=1e-5)


def test_llama2vec_takes_texts_as_sets(model):
    """How often a word is said and in what order is no matter; which words are said is."""
    loss, vector = objective(model, LLaMA2Vec), model.preprocess(["a"])
    same, again, other = (loss([vector, {**model.preprocess([text])}]) for text in ("abc", "abc", "abd"))
    assert same.item() == again.item()
    assert abs(same - other) > 1e-5
    ids, own = loss.texts(model.preprocess(["abcb", "aa"]), "positive")
    assert _once(ids, own)[1].tolist() == [[True, True, True, False], [True, False, False, False]]


# Training


def test_trained_by_a_recipe(own, model):
    """All parameters, from pairs, with a head of its own that the stage keeps and the model does not."""
    before = model.state_dict().keys()
    made = trained(stage(own, "reconstruction", adapter=None, options={"train_head": True}), model=model)
    assert made.history["loss"].iloc[-3:].mean() < 0.8 * made.history["loss"].iloc[0]
    assert sorted(differing(model, chain())) == sorted(before)
    assert model.state_dict().keys() == before


@pytest.mark.parametrize(
    ("objective", "backbone", "changes"),
    [
        ("llama2vec", "tiny-llama", {"adapter": None}),
        ("reconstruction", "tiny-qwen2", {"adapter": None, "gradient_checkpointing": True, "accumulation": 2}),
        ("reconstruction", "tiny-llama", {"adapter": Adapter(rank=4), "options": {"alpha": 1}}),
    ],
    ids=str,
)
def test_trained_otherwise(own, tmp_path, objective, backbone, changes):
    made = trained(stage(own, objective, steps=6, **changes), model=chain(backbone))
    assert made.history["loss"].iloc[-1] < made.history["loss"].iloc[0]
    made.model.save(str(tmp_path / "model"))
    again = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    assert differing(again, made.model, 1e-6) == []
    kept = trained(stage(own, objective, steps=6, **changes), model=chain(backbone))
    assert differing(kept.model, made.model) == []


def test_a_tied_head_trains_with_the_embeddings(own):
    backbone = next(name for name in backbones.TINY if backbones.load_config(name).tie_word_embeddings)
    model = chain(backbone)
    trained(stage(own, "reconstruction", steps=2, adapter=None), model=model)
    assert Reconstruction(model).projection()[0] is model[0].decoder.get_input_embeddings().weight
    assert "0.decoder.embed_tokens.weight" in differing(model, chain(backbone))


# Data


def test_pairs_are_read_without_hard_negatives(tmp_path):
    rows = [{"query": f"q {n}", "positive": f"d {n}", "negative": "no", "instruction": "Find it"} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"tokenizer": backbones.load_tokenizer("tiny-llama"), "max_length": 8}
    for name in ("reconstruction", "llama2vec"):
        (dataset,) = training_data.load(tmp_path / "rows.jsonl", name, **options).datasets.values()
        assert dataset.column_names == ["query", "positive"]
        with pytest.raises(InvalidValueError, match=f"negatives: expected none for {name}.*got 1"):
            training_data.load(tmp_path / "rows.jsonl", name, negatives=1, **options)
    blended = training_data.load(tmp_path / "rows.jsonl", "reconstruction", blend=True, **options)
    assert blended.datasets["blend"][0]["query"].keys() == {"instruction", "text"}


def test_sources_of_pairs(docs):
    options = {"tokenizer": backbones.load_tokenizer("tiny-llama"), "max_length": 8, "limit": 20}
    one, other = (training_data.load("docs", name, **options) for name in ("contrastive", "reconstruction"))
    assert one.fingerprint == other.fingerprint
    with pytest.raises(InvalidValueError, match=r"one that has pairs \(docs, docs-mined"):
        training_data.load("wikitext", "reconstruction", **options)


# Bad input


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan"), float("inf"), True, False, None, "0.2"])
def test_an_alpha_that_is_none(model, alpha):
    with pytest.raises(InvalidValueError, match=r"alpha: expected a weight, at least 0 and at most 1"):
        Reconstruction(model, head_of(), alpha=alpha)


@pytest.mark.parametrize("kind", [Reconstruction, LLaMA2Vec])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": ["a", "", ""]}, "query: expected a text in every row, got 'none in row 1'. Drop the pairs"),
        ({"documents": ["a", "b", ""]}, "positive: expected a text in every row, got 'none in row 2'. Drop"),
        ({"documents": ["</s>", "b", "c"]}, "positive: expected a text in every row, got 'none in row 0'. Drop"),
    ],
)
def test_a_side_without_a_text(model, kind, changes, message):
    with pytest.raises(InvalidValueError, match=message):
        objective(model, kind)(sides(model, **changes))


@pytest.mark.parametrize("kind", [Reconstruction, LLaMA2Vec])
def test_models_and_data_that_do_not_fit(kind):
    model = chain()
    for columns in (1, 3):
        with pytest.raises(InvalidValueError, match=f"expected a query and a positive, got '{columns} columns'"):
            objective(model, kind)([model.preprocess(["a"])] * columns)
    with pytest.raises(InvalidValueError, match=r"attention: expected causal, .*, got 'bidirectional'"):
        kind(chain(attention="bidirectional"), head_of())
    with pytest.raises(InvalidValueError, match="of 32 numbers, made by the decoder alone, got 'vectors of 20'"):
        kind(chain(method="lens", attention="causal", pooling_options={"clusters": 20}), head_of())
    with pytest.raises(InvalidValueError, match="made by the decoder alone, got 'contextual tokens'"):
        kind(chain(method="causal2vec"), head_of())
    with pytest.raises(InvalidValueError, match="begins with a Decoder"):
        kind(backbones.load_encoder("minilm", device="cpu"))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"options": {"alpha": 2}}, InvalidValueError, "Stage reconstruction: alpha: expected a weight"),
        ({"options": {"target": "all"}}, UnknownNameError, "target of reconstruction 'all'.* text, input, released"),
        ({"options": {"alhpa": 0.2}}, UnknownNameError, "option of reconstruction 'alhpa'. Did you mean 'alpha'"),
        ({"options": {"head": 1}}, UnknownNameError, "option of reconstruction 'head'"),
        ({"negatives": 2}, InvalidValueError, "Stage reconstruction: negatives: expected none"),
        ({"teacher": "minilm"}, InvalidValueError, "teacher: expected a contrastive stage"),
    ],
)
def test_a_stage_that_is_refused(own, changes, error, message):
    model = chain()
    with pytest.raises(error, match=message):
        trained(stage(own, "reconstruction", **changes), model=model)
    assert differing(model, chain()) == []


def test_a_bidirectional_model_is_refused_before_it_trains(own):
    with pytest.raises(InvalidValueError, match="Stage reconstruction: attention: expected causal"):
        trained(stage(own, "reconstruction"), model=chain(attention="bidirectional"))
