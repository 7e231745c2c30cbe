"""Anchor as a method, what its vectors can write, and the control that tells a trained model."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch.nn import functional as F
from training_tools import differing, tiny, trained

import workbook
from workbook import backbones
from workbook.errors import InvalidValueError, ModelNotFoundError
from workbook.modules import Pooling
from workbook.objectives import Reconstruction
from workbook.probes import anchor_losses, regenerated
from workbook.probes.anchors import DIRECTIONS
from workbook.training import train_into

PAIRS = pd.DataFrame(
    {
        "query": ["red", "blue", "green", "one", "two", "six"],
        "document": ["a fire", "the sea and the sky", "grass", "first", "a pair", "half a dozen"],
    }
)


def head_of(backbone="tiny-llama"):
    return backbones.load_decoder(backbone, dtype="float32", device="cpu", lm_head=True).get_output_embeddings()


@pytest.fixture(scope="module")
def overfit():
    """A tiny model that knows six pairs by heart, with the head that trained beside it."""
    torch.manual_seed(0)
    model, head = tiny("anchor", vector_behind_bos=False), head_of()
    loss = Reconstruction(model, head, alpha=0.5, train_head=True)
    sides = [model.preprocess(PAIRS[name].tolist()) for name in PAIRS]
    optimizer = torch.optim.AdamW(loss.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        value = loss(sides)
        value.backward()
        optimizer.step()
    return model.eval(), head, value.item()


def means(frame):
    """Loss a token by direction, own and shuffled."""
    frame = frame.set_index("direction")
    sums = frame[["own", "shuffled"]].mul(frame["tokens"], axis=0).groupby("direction", sort=False).sum()
    return sums.div(frame["tokens"].groupby("direction", sort=False).sum(), axis=0)


# Method


def test_the_recipe_trains_a_model_that_loads(own, tmp_path):
    """Both stages, on one's own pairs, by the command's function."""
    recipe = workbook.recipe("anchor", "quick", "tiny-llama")
    data = {"reconstruction": own["reconstruction"], "contrastive": own["contrastive"]}
    made = train_into(tmp_path / "model", tiny("anchor"), recipe, plan={}, data=data, progress=False)
    assert made.history.groupby("stage", sort=False)["step"].max().to_dict() == {"reconstruction": 4, "contrastive": 4}
    assert differing(made.model, tiny("anchor")) != []
    again = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    texts = PAIRS["document"].tolist()
    np.testing.assert_allclose(again.encode(texts), made.model.encode(texts), atol=1e-5, rtol=0)


def test_it_embeds_as_last_token_pooling_does():
    """One pass, no more tokens: what is new is the training."""
    one, other = tiny("anchor"), tiny("last-token")
    texts = PAIRS["document"].tolist()
    np.testing.assert_array_equal(one.encode(texts, prompt="Find it"), other.encode(texts, prompt="Find it"))
    assert one[0].encode_texts(texts, "Find it") == other[0].encode_texts(texts, "Find it")


# Writing from a vector


@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_what_is_known_by_heart_is_written(overfit, batch_size):
    model, head, _ = overfit
    longest = max(map(len, PAIRS["document"]))
    written = regenerated(model, PAIRS["query"], tokens=longest, head=head, batch_size=batch_size)
    assert [text[: len(known)] for text, known in zip(written, PAIRS["document"], strict=True)] == [*PAIRS["document"]]
    written = regenerated(model, PAIRS["document"], tokens=longest, head=head, batch_size=batch_size)
    assert [text[: len(known)] for text, known in zip(written, PAIRS["query"], strict=True)] == [*PAIRS["query"]]


@pytest.mark.parametrize("behind_bos", [False, True])
@pytest.mark.parametrize("backbone", ["tiny-llama", "tiny-mistral", "tiny-qwen2"])
def test_each_token_is_the_likeliest_after_all_before(backbone, behind_bos):
    """A second implementation, without a cache, which reads everything again at each step."""
    model = tiny("anchor", backbone, vector_behind_bos=behind_bos)
    whole = backbones.load_decoder(backbone, dtype="float32", device="cpu", lm_head=True)
    texts, expected = PAIRS["document"].tolist(), []
    for text in texts:
        read = torch.from_numpy(model.encode([text], prompt="Find it")).unsqueeze(1)
        if behind_bos and (bos := model.tokenizer.bos_token_id) is not None:
            read = torch.cat([model[0].decoder.get_input_embeddings()(torch.tensor([[bos]])), read], dim=1)
        ids = []
        for _ in range(6):
            states = model[0].decoder(inputs_embeds=read).last_hidden_state
            ids.append(int(whole.get_output_embeddings()(states[:, -1]).argmax()))
            read = torch.cat([read, model[0].decoder.get_input_embeddings()(torch.tensor([ids[-1:]]))], dim=1)
        end = model.tokenizer.eos_token_id
        ids = ids[: ids.index(end)] if end in ids else ids
        expected.append(model.tokenizer.decode(ids, skip_special_tokens=True))
    assert regenerated(model, texts, "Find it", tokens=6) == expected
    assert len(set(expected)) > 1


def test_nothing_but_the_vector_is_read(overfit):
    """Texts that have one vector are written alike, in place of what the model knows of them."""
    model, head, _ = overfit

    class Constant(Pooling):
        def forward(self, features, **_):
            return features | {"sentence_embedding": torch.ones(len(features["input_ids"]), 32)}

    other = SentenceTransformer(modules=[model[0], Constant("last_token", 32)], device="cpu")
    assert len(set(regenerated(other, PAIRS["query"], tokens=8, head=head))) == 1


def test_eos_ends_what_is_written(overfit):
    """With a head that finds EOS the likeliest from the third token on."""
    model, head, _ = overfit
    turned, end = copy.deepcopy(head), model.tokenizer.eos_token_id
    whole = regenerated(model, ["two"], tokens=6, head=head)
    assert whole == ["a pair"]
    with torch.no_grad():
        turned.weight[end] = 2 * head.weight[model.tokenizer("p", add_special_tokens=False)["input_ids"][0]]
    assert regenerated(model, ["two"], tokens=6, head=turned) == ["a "]


# The shuffled control


def test_a_trained_model_heeds_its_anchor(overfit):
    model, head, value = overfit
    frame = anchor_losses(model, PAIRS, head=head)
    assert list(frame["direction"].unique()) == [*DIRECTIONS]
    table = means(frame)
    assert (table["own"] < 0.2).all()
    assert (table["shuffled"] > table["own"] + 2).all()
    assert table["own"].mean() == pytest.approx(value, abs=0.1)


@pytest.mark.parametrize("behind_bos", [False, True])
def test_own_is_the_loss_of_the_objective(overfit, behind_bos, monkeypatch):
    """By direction, whatever the batches, and with an instruction, which only queries have."""
    model, head, _ = overfit
    monkeypatch.setattr(model[0], "vector_behind_bos", behind_bos)
    given = [model.preprocess(PAIRS["query"].tolist(), prompt="Find it"), model.preprocess(PAIRS["document"].tolist())]
    expected = [Reconstruction(model, head, alpha=alpha)(given).item() for alpha in (1, 0)]
    for batch_size in (1, 4, 32):
        table = means(anchor_losses(model, PAIRS, "Find it", head=head, batch_size=batch_size))
        np.testing.assert_allclose(table["own"], expected, atol=1e-4)


def test_own_is_the_loss_of_the_objective_where_a_text_begins_with_a_blank_behind_an_instruction():
    model = workbook.build("anchor", suffix="keywords", max_length=32, device="cpu")
    given = [model.preprocess(PAIRS["query"].tolist(), prompt="Find it"), model.preprocess(PAIRS["document"].tolist())]
    with torch.no_grad():
        expected = [Reconstruction(model, alpha=alpha)(given).item() for alpha in (1, 0)]
    table = means(anchor_losses(model, PAIRS, "Find it"))
    np.testing.assert_allclose(table["own"], expected, rtol=1e-4)


def test_shuffled_is_the_loss_with_the_vector_of_the_pair_half_the_list_away(overfit):
    model, head, _ = overfit
    frame = anchor_losses(model, PAIRS, head=head).set_index(["direction", "pair"])
    for direction, source, target in zip(DIRECTIONS, PAIRS, [*PAIRS][::-1], strict=True):
        for row in range(len(PAIRS)):
            other = PAIRS[source][(row + 3) % 6]
            read = torch.from_numpy(model.encode([other])).unsqueeze(1)
            ids = torch.tensor([model.tokenizer(PAIRS[target][row], add_special_tokens=False)["input_ids"]])
            read = torch.cat([read, model[0].decoder.get_input_embeddings()(ids)], dim=1)
            logits = head(model[0].decoder(inputs_embeds=read).last_hidden_state[:, :-1])
            expected = F.cross_entropy(logits[0], ids[0]).item()
            assert frame.loc[(direction, row), "shuffled"] == pytest.approx(expected, abs=1e-4)
            assert frame.loc[(direction, row), "tokens"] == ids.shape[1]


def test_anchors_that_are_all_alike_are_worth_nothing(overfit):
    """A model that can't tell its queries apart has the same loss with any of their vectors."""
    model, head, _ = overfit
    table = means(anchor_losses(model, PAIRS.assign(query="red"), head=head))
    assert table.loc[DIRECTIONS[0], "own"] == pytest.approx(table.loc[DIRECTIONS[0], "shuffled"], abs=1e-5)


def test_an_odd_number_of_pairs_keeps_none_its_own(overfit):
    model, head, _ = overfit
    for count in (2, 3, 5):
        frame = anchor_losses(model, PAIRS.head(count), head=head)
        assert (frame["shuffled"] > frame["own"] + 0.5).all()


def test_an_untrained_model_hardly_heeds_it():
    table = means(anchor_losses(tiny("anchor"), PAIRS))
    np.testing.assert_allclose(table["own"], table["shuffled"], atol=0.3)


def test_a_stage_that_leaves_the_head_alone_is_measured_with_it(own):
    """What the log says of the last steps is what the probe finds: both read with the backbone's own head."""
    (stage,) = workbook.recipe("anchor", "quick", "tiny-llama").only("reconstruction").stages
    assert "train_head" not in stage.options
    longer = {"steps": 30, "learning_rate": 1e-2, "data": own["reconstruction"], "max_length": 40, "batch_size": 24}
    made = trained(stage.model_copy(update=longer), model=tiny("anchor"))
    pairs = pd.read_json(own["reconstruction"], lines=True).rename(columns={"positive": "document"})
    assert made.history["loss"].iloc[-1] < made.history["loss"].iloc[0] - 2
    expected = means(anchor_losses(made.model, pairs))["own"].to_numpy() @ [0.2, 0.8]
    assert made.history["loss"].iloc[-1] == pytest.approx(expected, abs=0.1)


# Bad input


def test_what_is_refused(overfit, tmp_path):
    model, head, _ = overfit
    with pytest.raises(InvalidValueError, match=r"pairs: expected a frame with the columns query, document, got"):
        anchor_losses(model, PAIRS.rename(columns={"document": "positive"}), head=head)
    with pytest.raises(InvalidValueError, match=r"pairs: expected at least two, .* got 1"):
        anchor_losses(model, PAIRS.head(1), head=head)
    empty = PAIRS.copy()
    empty.loc[5, "document"] = ""
    with pytest.raises(InvalidValueError, match=r"document, from pair 4 on: expected a text .* got 'none in row 1'"):
        anchor_losses(model, empty, head=head, batch_size=4)
    for tokens in (0, -1, True, 2.0, None):
        with pytest.raises(InvalidValueError, match="tokens: expected a positive whole number"):
            regenerated(model, ["a"], tokens=tokens, head=head)
    with pytest.raises(InvalidValueError, match="texts"):
        regenerated(model, [], head=head)
    with pytest.raises(InvalidValueError, match="attention: expected causal"):
        regenerated(tiny("anchor", attention="bidirectional"), ["a"], head=head)
    with pytest.raises(InvalidValueError, match="first module is a Decoder"):
        regenerated(backbones.load_encoder("minilm", device="cpu"), ["a"])


def test_a_backbone_without_its_head(tmp_path):
    """What an embedder was saved as holds the trunk alone."""
    folder = tmp_path / "trunk"
    model = tiny("anchor")
    model[0].save(str(folder))
    loaded = workbook.build("anchor", str(folder), device="cpu")
    for probe in (lambda: regenerated(loaded, ["a"]), lambda: anchor_losses(loaded, PAIRS)):
        with pytest.raises(ModelNotFoundError, match=r"Expected a language-model head in .*, found a decoder without"):
            probe()
    assert len(regenerated(loaded, ["a"], head=head_of())) == 1
