import numpy as np
import pytest
import torch
from parity import Fixture
from sentence_transformers import SentenceTransformer

import workbook
from workbook import attention, backbones
from workbook.errors import AttentionError, UnknownNameError

SDPA = [name for name in backbones.TINY if name != "tiny-gemma2"]  # Gemma 2 caps its logits, which sdpa can't
DECODERS = [(name, "eager") for name in backbones.TINY] + [(name, "sdpa") for name in SDPA]


def load(name, kernel="sdpa", **options):
    return backbones.load_decoder(name, dtype="float32", attn_implementation=kernel, **options)


@pytest.mark.parametrize(("name", "kernel"), DECODERS)
@pytest.mark.parametrize("lm_head", [False, True])
def test_mode_is_what_was_set_and_back_again(name, kernel, lm_head):
    decoder = load(name, kernel, lm_head=lm_head)
    assert attention.probe(decoder) == "causal"
    attention.set_mode(decoder, "bidirectional")
    assert attention.probe(decoder) == "bidirectional"
    attention.set_mode(decoder, "causal")
    assert attention.probe(decoder) == "causal"


@pytest.mark.parametrize(("name", "kernel"), DECODERS)
def test_mode_survives_saving(name, kernel, tmp_path):
    decoder = load(name, kernel)
    attention.set_mode(decoder, "bidirectional")
    decoder.save_pretrained(tmp_path)
    again = backbones.load_decoder(str(tmp_path), dtype="float32", attn_implementation=kernel)
    assert attention.probe(again) == "bidirectional"
    ids = torch.tensor([[5, 9, 40, 77, 21, 8]])
    torch.testing.assert_close(again(ids).last_hidden_state, decoder(ids).last_hidden_state)


def test_causal_is_unchanged_by_a_round_trip():
    """A window that bidirectional attention drops comes back: Mistral's is 4 tokens here, and the text is longer."""
    decoder, untouched = load("tiny-mistral"), load("tiny-mistral")
    ids = torch.randint(3, 200, (2, 12), generator=torch.Generator().manual_seed(1))
    attention.set_mode(decoder, "bidirectional")
    attention.set_mode(decoder, "bidirectional")
    attention.set_mode(decoder, "causal")
    torch.testing.assert_close(decoder(ids).last_hidden_state, untouched(ids).last_hidden_state)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral", "tiny-qwen3"])
def test_every_token_sees_every_real_token_and_no_padding(name):
    """By gradient, a second way of measuring: d state[i] / d input[j] is non-zero exactly where i may see j."""
    decoder = load(name)
    ids = torch.randint(3, 200, (1, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 0]])
    real = mask[0].bool()
    for mode in attention.MODES:
        attention.set_mode(decoder, mode)
        inputs = decoder.get_input_embeddings()(ids).detach().requires_grad_()
        states = decoder(inputs_embeds=inputs, attention_mask=mask).last_hidden_state
        sees = torch.stack(
            [torch.autograd.grad(s.sum(), inputs, retain_graph=True)[0][0].norm(dim=-1) for s in states[0]]
        )
        expected = torch.ones(9, 9, dtype=torch.bool)
        if mode == "causal":
            expected = expected.tril()
            if name == "tiny-mistral":  # two layers of window 4 reach 6 tokens back
                expected = expected.triu(-6)
        assert ((sees > 0) == expected)[real][:, real].all()
        assert not (sees > 0)[real][:, ~real].any()


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("variant", ["llama_gqa", "mistral_full_window", "mistral_sliding_window"])
@pytest.mark.parametrize("padding", ["no_padding", "left_padding", "right_padding"])
def test_parity_with_llm2vec(variant, kernel, padding):
    fixture = Fixture(f"bidirectional_trunk/{variant}")
    decoder = fixture.decoder(kernel)
    attention.set_mode(decoder, "bidirectional")
    inputs = {key: fixture.tensors[f"{padding}.{key}"] for key in ("input_ids", "attention_mask")}
    states = decoder(**inputs, use_cache=False).last_hidden_state
    fixture.close(states, f"{padding}.last_hidden_state", where=inputs["attention_mask"].bool())


def test_probe_notices_attention_that_depends_on_the_case():
    """The reported defect: only the modules' flags are switched, so padding brings the causal mask back."""
    decoder = load("tiny-llama")
    for module in decoder.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    with pytest.raises(AttentionError, match=r"padded left: causal"):
        attention.probe(decoder)


def test_what_cannot_differ_is_measured_once(monkeypatch):
    """Other weights change nothing, everything else does; what failed, or could do anything, is measured again."""
    measured = []
    monkeypatch.setattr(attention, "_MEASURED", {})
    monkeypatch.setattr(attention, "probe", lambda decoder, probe=attention.probe: measured.append(0) or probe(decoder))

    def measures(decoder):
        before = len(measured)
        return attention.measured_mode(decoder), len(measured) - before

    decoder, other = load("tiny-llama"), load("tiny-llama")
    torch.nn.init.normal_(other.layers[0].mlp.up_proj.weight)
    assert [measures(one) for one in (decoder, other, decoder)] == [("causal", 1), ("causal", 0), ("causal", 0)]
    attention.set_mode(other, "bidirectional")
    assert measures(other) == ("bidirectional", 1)
    assert measures(decoder) == ("causal", 0)
    assert measures(load("tiny-llama", "eager")) == ("causal", 1)
    assert measures(other.to(torch.bfloat16)) == ("bidirectional", 1)
    other.config.rope_parameters["rope_theta"] = 9.0
    assert measures(other) == ("bidirectional", 1)
    hook = decoder.register_forward_hook(lambda *_: None)
    assert [measures(decoder), measures(decoder)] == [("causal", 1)] * 2
    hook.remove()
    assert measures(decoder) == ("causal", 0)
    decoder.layers[1].self_attn.sliding_window = 4
    assert measures(decoder) == ("causal", 1)
    decoder.layers[1].mlp = torch.nn.Identity()
    assert measures(decoder) == ("causal", 1)
    for module in decoder.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    for _ in range(2):
        with pytest.raises(AttentionError, match=r"padded left: causal"):
            measures(decoder)
    assert len(measured) == 11


def test_build_refuses_a_model_that_stays_causal(monkeypatch):
    monkeypatch.setattr(attention, "set_mode", lambda decoder, mode: None)
    with pytest.raises(AttentionError, match="Asked for bidirectional attention, measured causal"):
        workbook.build("mean", "tiny-llama", attention="bidirectional", dtype="float32")


def test_unknown_mode():
    with pytest.raises(UnknownNameError, match=r"'bidirectionnal'. Did you mean 'bidirectional'\?"):
        attention.set_mode(load("tiny-llama"), "bidirectionnal")


@pytest.mark.parametrize("leak", ["one ahead", "one row", "not finite"])
def test_probe_is_not_satisfied_with_less(leak):
    """A peek of one token, a batch in which one row sees ahead, states that are no numbers: each is neither mode."""
    decoder = load("tiny-llama")

    def spoil(module, args, output):
        states = output.last_hidden_state
        if leak == "one ahead":
            states[:, :-1] = states[:, :-1] + states[:, 1:]
            states[:, 0] = 1.0
        elif leak == "one row":
            states[: len(states) // 2, 0] += states[: len(states) // 2, -1]
        else:
            states[0] = float("nan")
        return output

    decoder.register_forward_hook(spoil)
    with pytest.raises(AttentionError, match=r"partly causal|not finite|bidirectional.*causal"):
        attention.probe(decoder)


def test_attention_that_could_not_be_set_is_what_it_was(monkeypatch):
    """Else another model could build on a decoder that claims what it is not."""
    model = workbook.build("mean", "tiny-llama", dtype="float32", device="cpu")
    with monkeypatch.context() as patched:
        patched.setattr(attention, "measured_mode", lambda decoder: "causal")
        with pytest.raises(AttentionError, match="Asked for bidirectional attention, measured causal"):
            model[0].attention = "bidirectional"
    assert model[0].attention == attention.probe(model[0].decoder) == "causal"


def test_the_switch_is_told_where_it_is_kept(tmp_path):
    """Models that share a decoder share its attention, and a saved model says what its decoder does."""
    first = workbook.build("mean", "tiny-llama", dtype="float32", device="cpu")
    second = workbook.build("last-token", first)
    attention.set_mode(first[0].decoder, "bidirectional")
    assert first[0].attention == second[0].attention == "bidirectional"
    first.save(str(tmp_path / "model"))
    again = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    assert again[0].attention == "bidirectional"
    np.testing.assert_allclose(again.encode(["a text"]), first.encode(["a text"]), atol=1e-6)


# One forward pass alone


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("name", "kernel"), DECODERS)
def test_one_pass_has_the_attention_that_it_was_given(name, kernel, side):
    """Local layers and windows included; with and without padding; the decoder's own attention stays what it was."""
    texts = ["a text of some words, longer than any window", "short"]
    for own, other in (attention.MODES, attention.MODES[::-1]):
        model, switched = (
            workbook.build("mean", name, attention=mode, dtype="float32", device="cpu", attn_implementation=kernel)
            for mode in (own, other)
        )
        for one in (model, switched):
            one.tokenizer.padding_side = side
        for batch in (texts, texts[:1]):
            features = model.preprocess(batch)
            vectors = model(features | {"attention": other})["sentence_embedding"]
            torch.testing.assert_close(vectors, switched(dict(features))["sentence_embedding"], atol=1e-5, rtol=1e-5)
            assert (vectors - model(dict(features))["sentence_embedding"]).abs().max() > 1e-4
        assert attention.probe(model[0].decoder) == own


def test_one_pass_has_its_attention_where_checkpointing_computes_it_again():
    """Both passes are computed again when the gradient is taken, long after either of them."""
    gradients = []
    for checkpointing in (False, True):
        model = workbook.build("mean", "tiny-llama", attention="bidirectional", dtype="float32", device="cpu").train()
        if checkpointing:
            model[0].decoder.activation_checkpointing_enable({"use_reentrant": False})
        features = model.preprocess(["one text", "another one"])
        passes = [model(features | {"attention": mode})["sentence_embedding"] for mode in attention.MODES]
        (passes[0] * passes[1]).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_a_pass_with_an_attention_of_its_own_is_refused_where_it_would_not_have_it(monkeypatch):
    model = workbook.build("mean", "tiny-llama", dtype="float32", device="cpu")
    features = model.preprocess(["a text"])
    with pytest.raises(UnknownNameError, match=r"attention mode 'both'"):
        model(features | {"attention": "both"})
    monkeypatch.setattr(model[0].decoder.config, "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(AttentionError, match=r"'eager' or 'sdpa', .* got 'flash_attention_2'"):
        model(features | {"attention": "bidirectional"})
