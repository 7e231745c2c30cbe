"""The contextual token: by hand, what sees what, what trains, and the encoder's odd inputs."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.util import batch_to_device
from training_tools import StoppedError, differing, stage, steps_counted, tiny, trained, weights, write_encoder
from transformers import BertModel

import workbook
from workbook import backbones, probes
from workbook.corpora.docs import load_docs
from workbook.errors import AttentionError, DamagedFileError, InvalidValueError, MissingDataError, UnknownNameError
from workbook.files import ROOT
from workbook.modules import ContextualPooling, ContextualTokens, Decoder, Pooling, load_embedder
from workbook.modules.context_length import context_length
from workbook.templates import CONTEXT, TEMPLATES
from workbook.tiny import tiny_tokenizer
from workbook.training import Adapter
from workbook.training.trainer import StageTrainer

NOTES = ["Basil likes warm soil.", "a", "naïve café, 3½ limes 😀", "Compost turned weekly is ready in twelve weeks."]
INSTRUCTION = "Find the note"
LIMIT = 64  # of the encoder, in its tokens: bytes and two more


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"), LIMIT)


@pytest.fixture
def build(encoder):
    def build(backbone="tiny-llama", **options):
        return tiny("causal2vec", backbone, **{"encoder": encoder} | options)

    return build


def close(one, other, atol=1e-5):
    np.testing.assert_allclose(one, other, atol=atol, rtol=0)


def pieces(model, instruction, text):
    """Ids in front of the contextual token and behind it, of the byte tokenizer."""
    tokenizer = model.tokenizer
    front = [tokenizer.bos_token_id, *tokenizer(instruction, add_special_tokens=False).input_ids]
    return front, [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]


def states(model, features):
    return model[0](dict(features))["token_embeddings"]


# The computation


@pytest.mark.parametrize("backbone", ["tiny-llama", "tiny-mistral", "tiny-gemma2", "tiny-gemma3"])
@pytest.mark.parametrize("instruction", ["", INSTRUCTION])
@torch.no_grad()
def test_by_hand(build, encoder, backbone, instruction):
    """Equations 1 and 2 and section 3.2, one text at a time."""
    model = build(backbone)
    bert, decoder = BertModel.from_pretrained(encoder).eval(), backbones.load_decoder(backbone, dtype="float32")
    first, _, second = model[0].context.mlp
    table = decoder.get_input_embeddings()
    scale = 32**0.5 if "gemma" in backbone else 1
    rows = []
    for text in NOTES:
        front, back = pieces(model, instruction, text)
        ids = [1, *back[:-1], 2]  # the encoder's tokenizer is of bytes too
        h = sum(bert(torch.tensor([ids])).last_hidden_state[0]) / len(ids)
        inner = first.weight @ h
        c = second.weight @ (0.5 * inner * (1 + torch.erf(inner / 2**0.5)))
        read = torch.cat([table(torch.tensor(front)), scale * c.unsqueeze(0), table(torch.tensor(back))])
        last = decoder(inputs_embeds=read.unsqueeze(0)).last_hidden_state[0]
        rows.append(torch.cat([last[len(front)], last[-1]]).numpy())
    close(model.encode(NOTES, prompt=instruction), np.stack(rows), atol=1e-4)
    assert model.get_embedding_dimension() == rows[0].size == 64


@pytest.mark.parametrize("backbone", ["tiny-llama", "tiny-qwen3", "tiny-gemma2", "tiny-gemma3"])
@torch.no_grad()
def test_it_is_read_as_a_word_is(build, backbone):
    """Where it is the row of a word in the table, the decoder gives what it gives for that word."""
    model, word = build(backbone), 77
    row = model[0].decoder.get_input_embeddings().weight[word]
    model[0].context.forward = lambda features: {"context": row.expand(len(NOTES), 1, -1)}
    features = model.preprocess(NOTES, prompt=INSTRUCTION)
    ids = features["input_ids"].masked_fill(features["input_ids"] == CONTEXT, word)
    expected = Decoder.forward(
        Decoder(model[0].decoder, model.tokenizer, template="eos"), {**features, "input_ids": ids}
    )
    real = features["attention_mask"].bool()
    close(states(model, features)[real], expected["token_embeddings"][real])


@torch.no_grad()
def test_several_tokens_are_read_by_queries(build):
    """Cross-attention written out: each query reads the encoder's real tokens, the MLP each reading."""
    model = build(encoder_options={"tokens": 3})
    context, generator = model[0].context, torch.Generator().manual_seed(0)
    words, mask = torch.randn(2, 5, 16, generator=generator), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    made = context({"token_embeddings": words, "attention_mask": mask})["context"]
    assert made.shape == (2, 3, 32)
    weight, bias = context.attention.in_proj_weight, context.attention.in_proj_bias
    for row, length in enumerate(mask.sum(dim=1)):
        given = context.queries, words[row, :length], words[row, :length]
        q, k, v = (
            (one @ w.T + b).view(-1, 2, 8).transpose(0, 1)
            for one, w, b in zip(given, weight.chunk(3), bias.chunk(3), strict=True)
        )
        read = ((q @ k.transpose(1, 2) / 8**0.5).softmax(dim=-1) @ v).transpose(0, 1).flatten(1)
        close(made[row], context.mlp(context.attention.out_proj(read)))
    place = model.preprocess(NOTES)["context_mask"]
    assert place.sum(dim=1).tolist() == [3] * len(NOTES)
    assert model.encode(NOTES).shape == (len(NOTES), 64)


@pytest.mark.parametrize("tokens", [1, 2])
@torch.no_grad()
def test_representations(build, tokens):
    model = build(encoder_options={"tokens": tokens})
    features = model[0](model.preprocess(NOTES, prompt=INSTRUCTION))
    place = features["context_mask"].bool()
    context = features["token_embeddings"][place].view(len(NOTES), tokens, -1).mean(dim=1)
    eos = features["token_embeddings"][range(len(NOTES)), features["attention_mask"].sum(dim=1) - 1]
    expected = {
        "concat": [context, eos],
        "eos": [eos],
        "context": [context],
        "bi-eos": [features["context"].mean(dim=1), eos],
    }
    for representation, parts in expected.items():
        pooling = ContextualPooling(32, representation=representation)
        made = pooling(dict(features))["sentence_embedding"]
        close(made, torch.cat(parts, dim=1))
        assert made.shape[1] == pooling.get_embedding_dimension()
        again = build(encoder_options={"tokens": tokens}, pooling_options={"representation": representation})
        close(again.encode(NOTES, prompt=INSTRUCTION), made)
    equal = ContextualPooling(32, representation="bi-eos", equal_lengths=True)(dict(features))["sentence_embedding"]
    close(equal, torch.cat([part / part.norm(dim=1, keepdim=True) for part in expected["bi-eos"]], dim=1))
    last = workbook.modules.make_pooling("last_token", 32, "")
    close(last(dict(features))["sentence_embedding"], eos)  # table 2, without Concat


@torch.no_grad()
def test_as_it_comes_from_the_mlp_the_token_is_too_short_to_count_beside_eos():
    """On the default models, at torch's length: Bi-EOS ranks as EOS alone does, unless both halves have one length."""
    texts = load_docs().split("dev")["document"].head(6).tolist()
    poolings = {
        "raw": {"representation": "bi-eos"},
        "equal": {"representation": "bi-eos", "equal_lengths": True},
        "eos": {"representation": "eos"},
    }
    short = {"length": "torch"}
    model = workbook.build("causal2vec", "smollm2-135m", suffix="answer", max_length=64, encoder_options=short)
    features = model[0](batch_to_device(model.preprocess(texts), model.device))
    vectors = {
        name: ContextualPooling(576, **options)(dict(features))["sentence_embedding"]
        for name, options in poolings.items()
    }
    token, eos = vectors["raw"].split(576, dim=1)
    assert (eos.norm(dim=1) > 20 * token.norm(dim=1)).all()
    cosines = {name: model.similarity(one, one) for name, one in vectors.items()}
    assert (cosines["raw"] - cosines["eos"]).abs().max() < 0.01
    assert (cosines["equal"] - cosines["eos"]).abs().max() > 0.05


def test_templates():
    """Where the token stands; it counts for the length; instruction and it are not pooled; a plain decoder has none."""
    tokenizer = tiny_tokenizer()
    say, space, (a,) = (tokenizer(text, add_special_tokens=False).input_ids for text in ("say", " ", "a"))
    bos, eos = 1, 2
    expected = {"causal2vec": [bos, *say, -1, -1, a, eos], "causal2vec-before": [bos, -1, -1, *say, *space, a, eos]}
    for name, ids in expected.items():
        template = TEMPLATES[name]
        (row,) = template.encode(tokenizer, ["a"], "say", 32, contextual_tokens=2)
        assert row.input_ids == ids
        assert row.pooling_mask == [0] * (len(ids) - 2) + [1, 1]
        (row,) = template.encode(tokenizer, ["a"], None, 32, contextual_tokens=2)
        assert row.input_ids == [bos, -1, -1, a, eos]
        (row,) = template.encode(tokenizer, ["a" * 99], None, 9, contextual_tokens=2)
        assert row.input_ids == [bos, -1, -1, *[a] * 5, eos]
        (row,) = template.encode(tokenizer, ["a"], None, 32)
        assert row.input_ids == [bos, a, eos]


def test_examples_stand_before_the_contextual_token(build):
    """As icl lays them out, in front of the query; its token stands where the query's words begin."""
    model = build(template="causal2vec-icl", examples={"Say": [("one", "two")]})
    plain = tiny("icl", "tiny-llama", examples={"Say": [("one", "two")]})
    (row,), (other,) = (one[0].encode_texts(["text"], "Say") for one in (model, plain))
    place = row.input_ids.index(CONTEXT)
    words = [token for token in row.input_ids if token != CONTEXT]
    decode = model.tokenizer.decode
    assert decode(words) == decode(other.input_ids)
    assert decode(row.input_ids[:place]).endswith("two\n\n<instruct>Say\n<query>")
    assert decode(row.input_ids[place + 1 :]).startswith("text\n<response>")
    assert model.encode(["text"], prompt="Say").shape == (1, 64)
    alone = build(template="causal2vec-icl")
    assert not np.allclose(alone.encode(["text"], prompt="Say"), model.encode(["text"], prompt="Say"))
    close(alone.encode(["text"]), model.encode(["text"]))  # documents have no examples


@torch.no_grad()
def test_layer_cosine_counts_contextual_tokens_too(build):
    """Against passes of the decoder over word embeddings, with the token put in their place by hand."""
    model = build()
    frame = probes.layer_cosine(model, [NOTES[1], NOTES[3]]).query("text == 1")
    features = model.preprocess([NOTES[3]])
    ids, decoder = features["input_ids"][0], model[0].decoder
    read = decoder.get_input_embeddings().weight[ids.clamp(min=0)].clone()
    read[ids == CONTEXT] = model[0].context_of(features)[0]
    found = {}
    for mode in ("causal", "bidirectional"):
        with probes.reading(model[0], mode):
            made = decoder(inputs_embeds=read.unsqueeze(0), output_hidden_states=True).hidden_states
        found[mode] = torch.cat(made)
    expected = torch.cosine_similarity(*found.values(), dim=-1)
    close(frame["cosine"].to_numpy().reshape(expected.shape), expected)
    assert frame["token"].head(2).tolist() == [model.tokenizer.bos_token, "{context}"]
    assert len(frame) == expected.numel()


def test_a_beginning_moves_causally_by_its_contextual_token_alone(build):
    model = build()
    first, second = "Basil likes warm soil.", "Basil likes cold rain."
    moved = probes.prefix_movement(model, first, second)
    assert moved["token"].tolist()[:3] == [model.tokenizer.bos_token, "{context}", "B"]
    assert moved["causal"].iloc[0] == 0
    assert (moved["causal"].iloc[1:] > 1e-4).all()
    assert (moved["bidirectional"] > 1e-4).all()
    with probes.given_context(model[0], torch.ones(1, 1, 32)):
        held = probes.prefix_movement(model, first, second)
    close(held["causal"], 0, atol=1e-6)
    assert (held["bidirectional"] > 1e-4).all()


def test_probes_switch_the_dropout_of_a_trained_encoder_off(build):
    model = build(encoder_options={"trainable": True}).train()
    one, other = (probes.layer_cosine(model, NOTES[:1])["cosine"] for _ in range(2))
    close(one, other, atol=0)
    assert model[0].encoder.training
    assert model[0].decoder.training


@pytest.mark.parametrize(
    ("options", "prompt", "expected"),
    [
        ({}, "Say", "text"),
        ({"prefix": "query: "}, "Say", "query: text"),
        ({"sees_instruction": True}, "Say", "Say text"),
        ({"sees_instruction": True}, " ", "text"),
        ({"sees_instruction": True, "prefix": "query: "}, "Say", "query: Say text"),
    ],
)
def test_what_the_encoder_reads(build, options, prompt, expected):
    model = build(encoder_options=options)
    for given, said in ((["text"], prompt), ([{"instruction": prompt, "text": "text"}], None)):
        ids = model.preprocess(given, prompt=said)["encoder.input_ids"]
        assert model[0].encoder_tokenizer.decode(ids[0, 1:-1]) == expected


# What sees what


@torch.no_grad()
def test_what_stands_in_front_of_the_token_does_not_see_the_text(build):
    one, other = (build().preprocess([text], prompt=INSTRUCTION) for text in ("the red cat", "the old dog"))
    model, front = build(), 1 + len(INSTRUCTION)
    one, other = states(model, one), states(model, other)
    close(one[:, :front], other[:, :front])
    assert (one[:, front:] - other[:, front:]).abs().amax(dim=-1).min() > 1e-3  # and all that follows does


@pytest.mark.parametrize("tokens", [1, 2])
def test_every_token_behind_it_knows_every_token_of_the_text(build, tokens):
    """By gradients with respect to the embeddings of the encoder, which are behind the contextual token alone."""
    model, text = build(encoder_options={"tokens": tokens}), "the red cat"
    read = []

    def keep(module, given, words):
        read.append(words.requires_grad_())
        return words

    model[0].encoder.get_input_embeddings().register_forward_hook(keep)
    last = states(model, model.preprocess([text], prompt=INSTRUCTION))[0]
    place = 1 + len(INSTRUCTION)
    reach = torch.stack(
        [torch.autograd.grad(state[0], read[0], retain_graph=True)[0][0].abs().sum(dim=1) for state in last]
    )
    assert reach.shape == (place + tokens + len(text) + 1, len(text) + 2)
    assert (reach[:place] == 0).all()
    assert (reach[place:] > 0).all()


@torch.no_grad()
def test_its_state_does_not_depend_on_what_follows(build):
    model = build()
    features, other = (model.preprocess([text]) for text in ("the red cat", "an old dog!"))
    changed = features | {"input_ids": other["input_ids"]}
    before, after = (model(dict(given))["sentence_embedding"][0] for given in (features, changed))
    close(before[:32], after[:32])
    assert (before[32:] - after[32:]).abs().max() > 1e-3


@torch.no_grad()
def test_the_decoder_is_no_other_for_it(build):
    model = build()
    start = weights(model)
    model.encode(NOTES, prompt=INSTRUCTION)
    assert differing(start, model) == []
    shared = workbook.build("last-token", model)
    assert shared[0].decoder is model[0].decoder
    close(shared.encode(NOTES), tiny("last-token").encode(NOTES), atol=0)
    again = workbook.build("causal2vec", shared, encoder=model[0].encoder.config.name_or_path)
    close(again.encode(NOTES), model.encode(NOTES), atol=0)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("backbone", ["tiny-llama", "tiny-gemma3"])
def test_padding_batch_size_and_order_change_nothing(build, monkeypatch, tokens, backbone):
    model = build(backbone, encoder_options={"tokens": tokens})
    expected = model.encode(NOTES, prompt=INSTRUCTION)
    close(model.encode(NOTES, prompt=INSTRUCTION, batch_size=1), expected)
    close(model.encode(NOTES[::-1], prompt=INSTRUCTION, batch_size=3)[::-1], expected)
    read = {"encoder": [], "decoder": []}
    for name, seen in read.items():
        getattr(model[0], name).register_forward_hook(lambda *_, seen=seen: seen.append(1))
    monkeypatch.setattr("workbook.modules.passes._PASS", {"cpu": 1})
    for side in ("right", "left"):
        model.tokenizer.padding_side = side
        close(model.encode(NOTES, prompt=INSTRUCTION), expected)
    assert {name: len(seen) > 2 for name, seen in read.items()} == {"encoder": True, "decoder": True}


# What trains


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("tokens", [1, 2])
def test_gradients_reach_what_trains(build, trainable, tokens):
    model = build(encoder_options={"trainable": trainable, "tokens": tokens}).train()
    model(model.preprocess(NOTES))["sentence_embedding"].pow(2).sum().backward()
    reached = {name: p.grad is not None and bool(p.grad.any()) for name, p in model[0].named_parameters()}
    assert all(found for name, found in reached.items() if name.startswith(("context.", "decoder.layers.")))
    # Keys have no bias that a softmax would notice, and nobody asks BERT's pooler.
    encoder = {
        n: f for n, f in reached.items() if n.startswith("encoder.") and "pooler" not in n and "key.bias" not in n
    }
    assert set(encoder.values()) == {trainable}


def test_the_dropout_of_a_frozen_encoder_is_off(build):
    for trainable in (False, True):
        model = build(encoder_options={"trainable": trainable}).train()
        features = model.preprocess(NOTES)
        one, other = (model[0](dict(features))["context"] for _ in range(2))
        assert one.equal(other) is not trainable
        assert model[0].context.training
        assert not model.eval()[0].encoder.training


@pytest.mark.parametrize("adapter", [Adapter(), None], ids=["adapters", "whole"])
@pytest.mark.parametrize("trainable", [False, True], ids=["frozen", "trainable"])
@pytest.mark.parametrize("tokens", [1, 2])
def test_training(own, build, monkeypatch, adapter, trainable, tokens):
    names = []
    step = StageTrainer.training_step

    def spied(trainer, *arguments, **options):
        names.append(set(trainer.trainable()))
        return step(trainer, *arguments, **options)

    monkeypatch.setattr(StageTrainer, "training_step", spied)
    model = build(encoder_options={"trainable": trainable, "tokens": tokens})
    start, free = weights(model), {name: p.requires_grad for name, p in model.named_parameters()}
    parts = model[0].decoder, model[0].encoder
    one = stage(own, "contrastive", steps=3, adapter=adapter, gradient_checkpointing=True)
    done = trained(one, model=model)
    changed = {name.split(".")[1] for name in differing(start, done.model)}
    assert changed == {"decoder", "context", *["encoder"] * trainable}
    assert {name for name in start if name.startswith("0.context.")} <= {*differing(start, done.model)}
    assert any("encoder." in name for name in names[0]) is trainable
    if adapter and trainable:
        adapted = {name.split(".lora_")[0].rpartition(".")[2] for name in names[0] if "encoder." in name}
        assert adapted == {"query", "key", "value", "dense"}
    assert (model[0].decoder, model[0].encoder) == parts
    assert {name: p.requires_grad for name, p in model.named_parameters()} == free
    assert not any(module.training for module in model.modules())
    assert np.isfinite(done.model.encode(NOTES)).all()


def test_it_learns(own, build):
    losses = trained(stage(own, "contrastive", steps=30, batch_size=8), model=build()).history["loss"]
    assert losses[-6:].mean() < 0.7 * losses[:6].mean()


def test_half_precision(own, build):
    """Encoder and decoder in it, what makes contextual tokens in float32, and vectors too."""
    model = build(dtype="bfloat16", encoder_options={"trainable": True})
    exact = build().encode(NOTES)
    assert {model[0].encoder.dtype, model[0].decoder.dtype} == {torch.bfloat16}
    made = model.encode(NOTES)
    assert made.dtype == np.float32
    assert (torch.nn.functional.cosine_similarity(*map(torch.tensor, (made, exact))) > 0.98).all()
    start = weights(model)
    for adapter in (Adapter(), None):
        done = trained(stage(own, "contrastive", steps=2, adapter=adapter), model=model)
        assert {p.dtype for p in done.model[0].context.parameters()} == {torch.float32}
        assert {p.dtype for part in ("encoder", "decoder") for p in getattr(done.model[0], part).parameters()} == {
            torch.bfloat16
        }
    assert {"0.context.mlp.0.weight", "0.context.mlp.2.weight"} <= {*differing(start, model)}


def test_grad_cache_changes_nothing(own, build):
    one = stage(own, "contrastive", steps=3, learning_rate=1e-3)
    cached = one.model_copy(update={"options": one.options | {"mini_batch_size": 2}})
    assert differing(trained(one, model=build()).model, trained(cached, model=build()).model, 1e-5) == []


def test_a_stopped_training_resumes_and_a_stage_is_kept(own, build, monkeypatch, tmp_path):
    one = stage(own, "contrastive", learning_rate=1e-3)
    options = {"encoder_options": {"trainable": True}}
    with monkeypatch.context() as patch:
        patch.setenv("WORKBOOK_CACHE", str(tmp_path / "whole"))
        whole = trained(one, model=build(**options))
    with steps_counted(monkeypatch, stop_at=6), pytest.raises(StoppedError):
        trained(one, model=build(**options), save_every=3)
    for expected in ([4, 5, 6, 7, 8, 9, 10], []):
        with steps_counted(monkeypatch) as steps:
            done = trained(one, model=build(**options), save_every=3)
        assert steps == expected
        assert differing(done.model, whole.model, 1e-5) == []
    with steps_counted(monkeypatch) as steps:  # with a frozen encoder it is another training
        trained(one, model=build(), save_every=3)
    assert len(steps) == 10


def test_mntp_is_refused_before_its_first_batch(build, own):
    with pytest.raises(InvalidValueError, match="objective: expected one that reads texts, where an encoder reads"):
        trained(stage(own, "mntp"), model=build())


# Saved, loaded, built


@pytest.mark.parametrize("tokens", [1, 2])
def test_saved_and_loaded(build, tmp_path, tokens):
    options = {"tokens": tokens, "prefix": "query: ", "sees_instruction": True, "trainable": True}
    model = build(encoder_options=options, template="causal2vec-before", max_length=50)
    folder = tmp_path / "model"
    model.save(str(folder))
    assert not list(folder.rglob("*.bin"))
    loaded = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert loaded[0].get_config_dict() == model[0].get_config_dict()
    assert {p.requires_grad for p in loaded[0].encoder.parameters()} == {True}
    assert differing(loaded, model) == []
    close(loaded.encode([*NOTES, "a" * 99], prompt="Say"), model.encode([*NOTES, "a" * 99], prompt="Say"), atol=1e-6)
    half = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu", model_kwargs={"dtype": "bfloat16"})
    assert {half[0].encoder.dtype, half[0].decoder.dtype} == {torch.bfloat16}
    assert half[0].context.mlp[0].weight.dtype == torch.float32


@pytest.mark.parametrize(
    "name", ["encoder/model.safetensors", "encoder/tokenizer.json", "context/model.safetensors", "model.safetensors"]
)
def test_a_damaged_file(build, tmp_path, name):
    build().save(str(tmp_path))
    content = bytearray((tmp_path / name).read_bytes())
    content[-5] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFileError, match=f"{name}: expected sha256"):
        SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")


def test_a_frozen_encoder_is_frozen_after_loading(build, tmp_path):
    build().save(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    assert {p.requires_grad for p in loaded[0].encoder.parameters()} == {False}
    assert all(p.requires_grad for p in loaded[0].context.parameters())


def test_two_builds_are_the_same_and_two_seeds_are_not(build):
    one, same, other = (weights(build(seed=seed)[0].context) for seed in (3, 3, 4))
    assert differing(one, same) == []
    assert differing(one, other) == [*one]


def test_other_poolings_and_hybrids(build, encoder):
    """The token is read whatever is pooled, and never pooled as text."""
    model = tiny("mean", encoder=encoder, template="causal2vec")
    features = model[0](model.preprocess(NOTES[:1]))
    text = features["token_embeddings"][0, 2:]  # behind <s> and the token
    close(model.encode(NOTES[:1])[0], text.mean(dim=0).detach())
    both = workbook.hybrid(model, build())
    assert both.encode(NOTES, prompt=INSTRUCTION).shape == (len(NOTES), 32 + 64)


def test_in_a_chat_the_token_stands_behind_the_opener():
    """With an instruction and without; the suffix mark is not pooled, EOS behind it is."""
    tokenizer = tiny_tokenizer()
    opener, asked, (a,), closer = (
        tokenizer(text, add_special_tokens=False).input_ids for text in ("[INST]", "[INST] say", "a", " [/INST]")
    )
    for instruction, front in ((None, opener), ("say", asked)):
        (row,) = TEMPLATES["causal2vec-chat"].encode(tokenizer, ["a"], instruction, 64, contextual_tokens=1)
        assert row.input_ids == [1, *front, CONTEXT, a, *closer, 2]
        assert row.pooling_mask == [0] * (len(front) + 2) + [1] + [0] * len(closer) + [1]


CHAT = "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}"
"""The chat of Mistral's and Llama 2's tokenizers, in short."""


@pytest.mark.parametrize("instruction", [None, INSTRUCTION])
@torch.no_grad()
def test_a_chat_model_is_built_with_the_chat_form(build, instruction):
    """Of a tokenizer with a chat template too the marks are laid out once, and C stands between opener and text."""
    model = build("tiny-mistral", template="causal2vec-chat")
    model.tokenizer.chat_template = CHAT  # sentence-transformers would lay texts out by it once more
    tokenizer, table = model.tokenizer, model[0].decoder.get_input_embeddings()

    def ids(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    front = [tokenizer.bos_token_id, *ids(f"[INST] {instruction}" if instruction else "[INST]")]
    expected, means = [], []
    for text in NOTES:
        back = [*ids(text), *ids(" [/INST]"), tokenizer.eos_token_id]
        features = model.preprocess([text], prompt=instruction)
        assert features["input_ids"].tolist() == [[*front, CONTEXT, *back]]
        assert features["context_mask"].tolist() == [[0] * len(front) + [1] + [0] * len(back)]
        read = model[0](features)
        token = read["context"][0]
        inputs = torch.cat([table(torch.tensor(front)), token, table(torch.tensor(back))])
        states = model[0].decoder(inputs_embeds=inputs.unsqueeze(0)).last_hidden_state[0]
        expected.append(torch.cat([states[len(front)], states[-1]]).numpy())
        of_text = [*range(len(front) + 1, len(front) + 1 + len(ids(text))), len(states) - 1]
        means.append(states[of_text].mean(dim=0).numpy())  # neither marks nor instruction nor C: the text and EOS
    close(model.encode(NOTES, prompt=instruction), np.stack(expected), atol=1e-4)
    pooled = type(model)(modules=[model[0], Pooling("mean", 32)], device="cpu")
    close(pooled.encode(NOTES, prompt=instruction), np.stack(means), atol=1e-4)
    with pytest.raises(InvalidValueError, match="bare instruction, which the template lays out"):
        model.encode(NOTES, prompt=f"Instruct: {instruction}\nQuery: ")


# Odd inputs


def test_a_text_longer_than_the_encoder_reads_is_said_once(build):
    model = build()
    with pytest.warns(UserWarning, match="The encoder reads the first 64 of its tokens, the decoder 512") as said:
        model.encode(["a" * 62, "a" * 63, "a" * 99])
    assert len(said) == 1
    with warnings.catch_warnings(action="error"):
        assert np.isfinite(model.encode(["a" * 5000])).all()
    with warnings.catch_warnings(action="error"):
        build().encode(["a" * 62])  # just fits, with its two special tokens
        short = build(max_length=40)
        short.encode(["a" * 99])  # as short as was asked for
    assert short.preprocess(["a" * 99])["encoder.input_ids"].shape == (1, 40)


def test_a_length_that_the_encoder_does_not_read_is_an_error(build):
    said = "max_length: expected at most 512 tokens, got 8192. The encoder reads 64: .* Name an encoder that reads more"
    with pytest.raises(InvalidValueError, match=said):
        build(max_length=8192)
    with warnings.catch_warnings(action="error"):
        build()
        build(max_length=48)
        tiny("causal2vec", "tiny-llama", max_length=512)


def test_a_text_that_the_encoder_alone_cuts_is_said_too():
    """MiniLM has more tokens for this than the decoder, which reads all of it within the same length."""
    model, text = workbook.build("causal2vec", max_length=48), "numpy.ndarray " * 8
    assert len(model[0].encode_texts([text])[0].input_ids) < 48
    with pytest.warns(UserWarning, match="The encoder reads the first 48 of its tokens, the decoder 48 of its own"):
        assert model.preprocess([text])["encoder.input_ids"].shape == (1, 48)


@torch.no_grad()
def test_a_text_that_is_empty_to_the_encoder_alone():
    """MiniLM's tokenizer drops control characters and blanks of no width; the decoder's reads them."""
    model = workbook.build("causal2vec")
    features = model.preprocess(["", "\u200b", "\x00\x01", "\ufeff"])
    assert features["encoder.attention_mask"].sum(dim=1).tolist() == [2] * 4
    tokens = model[0](features)["context"]
    close(tokens, tokens[:1].expand_as(tokens), atol=1e-4)
    assert len({tuple(row) for row in features["input_ids"].tolist()}) == 4


def test_an_empty_text_has_a_token(build):
    for tokens in (1, 2):
        model = build(encoder_options={"tokens": tokens})
        vectors = model.encode(["", " ", "a"])
        assert np.isfinite(vectors).all()
        assert np.abs(vectors).max(axis=1).min() > 0
        assert len(model.encode([])) == 0


def test_a_causal_encoder_is_measured(tmp_path):
    tiny("mean")[0].save(str(tmp_path))
    with pytest.raises(AttentionError, match=r"encoder: expected bidirectional attention, measured causal in .*minilm"):
        tiny("causal2vec", encoder=str(tmp_path))


def test_an_encoder_without_states(tmp_path):
    module = StaticEmbedding(tiny_tokenizer().backend_tokenizer, embedding_dim=8)
    SentenceTransformer(modules=[module]).save_pretrained(str(tmp_path), create_model_card=False)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidValueError, match="encoder: expected a transformer, which has states to read"):
        tiny("causal2vec", encoder=str(tmp_path))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"encoder_options": {"tokens": 0}}, InvalidValueError, "tokens: expected a positive whole number .*, got 0"),
        ({"encoder_options": {"tokens": True}}, InvalidValueError, "tokens: expected a positive whole number"),
        ({"encoder_options": {"tokens": 1.5}}, InvalidValueError, "tokens: expected a positive whole number"),
        ({"encoder_options": {"token": 2}}, UnknownNameError, "option of encoder 'token'. Did you mean 'tokens'"),
        ({"encoder": "minilmm"}, UnknownNameError, "Did you mean 'minilm'"),
        ({"encoder": None, "encoder_options": {"tokens": 2}}, UnknownNameError, "option of encoder 'tokens'"),
        ({"template": "eos"}, InvalidValueError, r"template: expected \{context\} as one of its pieces.*causal2vec-be"),
        ({"template": "causal2vec-befor"}, UnknownNameError, "Did you mean 'causal2vec-before'"),
        ({"pooling_options": {"representation": "bos"}}, UnknownNameError, "Did you mean 'eos'|concat, eos"),
        ({"pooling": "mean", "pooling_options": {"representation": "eos"}}, UnknownNameError, "option of mean pooling"),
    ],
)
def test_mistakes(build, options, error, message):
    with pytest.raises(error, match=message):
        build(**options)


def test_a_place_in_one_form_alone(build):
    template = TEMPLATES["causal2vec"].model_copy(update={"plain": TEMPLATES["eos"].plain})
    with pytest.raises(InvalidValueError, match="once, in its plain form"):
        build(template=template)


def test_without_an_encoder_there_is_nothing_to_pool(build):
    with pytest.raises(InvalidValueError, match="contextual pooling: expected a decoder that reads contextual tokens"):
        tiny("mean", pooling="contextual").encode(NOTES)
    with pytest.raises(InvalidValueError, match="inputs: expected texts, since an encoder of its own reads them too"):
        build().preprocess([[5, 6], [7, 8]])


def test_the_sizes_of_the_paper():
    """Equation 1: W1 is (d, k), W2 (d, d), without biases."""
    context = ContextualTokens(768, 2048)
    assert {name: tuple(value.shape) for name, value in context.state_dict().items()} == {
        "mlp.0.weight": (2048, 768),
        "mlp.2.weight": (2048, 2048),
    }


# How long it begins


def of_words(model):
    """Mean length of C over the 64 paragraphs, one by one, by the mean length of the rows of the decoder's table."""
    paragraphs = {}
    for pair in pd.read_csv(ROOT / "data" / "texts" / "graded.csv").itertuples():
        paragraphs.setdefault(pair.sentence1, [pair.sentence1]).append(pair.sentence2)
    assert [len(one) for one in paragraphs.values()] == [6] * 64
    texts = map(" ".join, paragraphs.values())
    lengths = [float(model[0](model.preprocess([text]))["context"][0].norm(dim=1).mean()) for text in texts]
    rows = [float(row.norm()) for row in model[0].decoder.get_input_embeddings().weight]
    return np.mean(lengths) / np.mean(rows)


@pytest.mark.parametrize("backbone", ["tiny-llama", "tiny-gemma3"])
@pytest.mark.parametrize("options", [{}, {"tokens": 3}, {"pretrained": False}, {"trainable": True}], ids=str)
@torch.no_grad()
def test_it_begins_as_long_as_a_word(build, backbone, options):
    assert of_words(build(backbone, encoder_options=options, max_length=200)) == pytest.approx(1, abs=1e-4)


@torch.no_grad()
def test_its_length_is_one_factor_of_w2(build):
    torchs, words, double = (build(encoder_options={"length": one}) for one in ("torch", "word", 2))
    differ = differing(torchs, words)
    assert differ == ["0.context.mlp.2.weight"] == differing(words, double)
    ratio = words[0].context.mlp[2].weight / torchs[0].context.mlp[2].weight
    close(ratio, ratio[0, 0].expand_as(ratio), atol=1e-4)
    assert float(ratio[0, 0]) == pytest.approx(1 / context_length(torchs[0]), rel=1e-4)
    close(double[0].context.mlp[2].weight, 2 * words[0].context.mlp[2].weight)
    bound = 32**-0.5  # torch's, of a linear layer that reads 32 numbers
    assert float(torchs[0].context.mlp[2].weight.abs().max()) == pytest.approx(bound, rel=0.01)


def test_a_trained_length_is_kept(build, tmp_path):
    model = build()
    with torch.no_grad():
        model[0].context.mlp[2].weight *= 7
    model.save(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    assert differing(model, again) == []


@pytest.mark.parametrize(("length", "far"), [(0.4, True), (0.6, False), ("word", False), (2.9, False), (4, True)])
def test_a_length_far_from_a_words_is_told(build, length, far):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        build(encoder_options={"length": length})
    told = [str(one.message) for one in told if "times as long as a word" in str(one.message)]
    assert len(told) == far
    assert not far or f"begins {length:.2f} times" in told[0]


@pytest.mark.parametrize(("factor", "far"), [(1, False), (0.2, True), (7, True)])
def test_a_saved_model_whose_token_is_far_from_a_word_is_told_of_when_it_is_loaded(build, tmp_path, factor, far):
    """Whether it was built so or trained so; its weights stay as they were saved."""
    model = build()
    with torch.no_grad():
        model[0].context.mlp[2].weight *= factor
    model.save(str(tmp_path))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        again = load_embedder(tmp_path, device="cpu")
    assert differing(model, again) == []
    told = [str(one.message) for one in told if "times as long as a word" in str(one.message)]
    assert len(told) == far
    if far:
        said = re.search(r"of this model is ([\d.]+) times", told[0])[1]
        assert float(said) == pytest.approx(factor, rel=0.1)
    load_embedder(tmp_path, device="meta")  # where nothing can be measured


def test_a_saved_model_loads_where_the_texts_that_measure_it_are_not(build, tmp_path, monkeypatch):
    def absent():
        raise MissingDataError("Expected texts, found none.")

    model = build()
    model.save(str(tmp_path))
    monkeypatch.setattr("workbook.modules.context_length.graded", absent)
    assert differing(model, load_embedder(tmp_path, device="cpu")) == []


@pytest.mark.parametrize("length", ["words", 0, -1.0, float("nan"), float("inf"), True, None, [1]])
def test_no_length(build, length):
    with pytest.raises(InvalidValueError, match="length: expected word, torch, or a positive number of word lengths"):
        build(encoder_options={"length": length})


# How much of the encoder runs


@pytest.mark.parametrize("layers", [0, 1, 2])
@torch.no_grad()
def test_some_of_the_encoders_layers(build, encoder, layers, tmp_path):
    """Its states are the hidden states of the whole encoder at that layer, also when it is loaded again."""
    model = build(encoder_options={"layers": layers, "length": "torch"})
    bert = BertModel.from_pretrained(encoder).eval()
    model.save(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    for text in NOTES:
        inputs = model.preprocess([text])
        given = {name: inputs[f"encoder.{name}"] for name in ("input_ids", "attention_mask")}
        states = bert(**given, output_hidden_states=True).hidden_states[layers]
        expected = model[0].context.mlp(states.mean(dim=1))
        for one in (model, again):
            close(one[0](one.preprocess([text]))["context"][:, 0], expected)


@pytest.mark.parametrize("layers", [-1, 3, 1.5, "1"])
def test_layers_that_the_encoder_does_not_have(build, layers):
    with pytest.raises(InvalidValueError, match="layers"):
        build(encoder_options={"layers": layers})
