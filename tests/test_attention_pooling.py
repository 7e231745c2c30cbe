"""Latent attention and the self-attention pooler: against the published numbers, by hand, and by what must hold."""

import math

import numpy as np
import pytest
import torch
from parity import Fixture
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch.nn.functional import gelu, layer_norm, normalize

import workbook
from workbook.errors import DamagedFileError, InvalidValueError, UnknownNameError
from workbook.modules import Decoder, LatentAttention, SelfAttention
from workbook.modules.attention_pooling import PUBLISHED, from_published
from workbook.modules.saving import WEIGHTS
from workbook.templates import TEMPLATES

KINDS = {
    "latent": lambda **options: LatentAttention(16, latents=5, **options),
    "self": lambda **o: SelfAttention(16, **o),
}
FIXTURE_NAMES = {"latents": "dictionary", "ff_norm": "mlp_norm", "ff.in": "mlp_in", "ff.out": "mlp_out"}


def filled(module, seed=0):
    """The module with every weight random, those that start at 0 too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return module


def batch(seed=1, width=16):
    states = torch.randn(3, 7, width, generator=torch.Generator().manual_seed(seed))
    real = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1]])
    pooled = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1]])
    return {"token_embeddings": states, "attention_mask": real, "pooling_mask": pooled}


def from_fixture(fixture):
    dims = fixture.about["dims"]
    module = LatentAttention(dims["d"], latents=dims["latents"], heads=dims["heads"], head_dimension=dims["dim_head"])
    own = {}
    for name, value in load_file(fixture.folder / "extra.safetensors").items():
        layer, _, kind = name.rpartition(".")
        own[FIXTURE_NAMES[name] if name in FIXTURE_NAMES else f"{FIXTURE_NAMES.get(layer, layer)}.{kind}"] = value
    module.load_weights(own, str(fixture.folder))
    return module


@pytest.mark.parametrize("variant", ["block", "block_narrow_heads"])
def test_parity_with_nv_embed(variant):
    fixture = Fixture(f"nv_embed_latent/{variant}")
    module, inputs = from_fixture(fixture), fixture.tensors
    states, mask = inputs["token_states"].requires_grad_(), inputs["pool_mask"]
    fixture.close(module.read(states, mask), "block_output", kind="forward")
    features = {"token_embeddings": states, "attention_mask": torch.ones_like(mask), "pooling_mask": mask}
    vectors = module(features)["sentence_embedding"]
    fixture.close(vectors, "pooled_normalised", kind="forward")
    (vectors * inputs["probe"]).sum().backward()
    gradients = {
        "token_states": states.grad,
        "latents": module.dictionary.grad,
        "to_kv.weight": module.to_kv.weight.grad,
        "ff.in.weight": module.mlp_in.weight.grad,
    }
    for name, gradient in gradients.items():
        fixture.close(gradient, f"grad.{name}", kind="gradients")


LEAD = TEMPLATES["nv-embed"].model_copy(update={"mask": "lead"})


@pytest.mark.parametrize("side", ["query", "passage"])
@pytest.mark.parametrize(("form", "template"), [("intended", LEAD), ("released", "nv-embed-released")])
def test_parity_with_nv_embed_from_text_to_vector(form, template, side):
    """With the published ways to count the instruction's tokens, the beginning of text among them or not."""
    fixture = Fixture("nv_embed_latent/text_end_to_end")
    decoder = Decoder(fixture.decoder(), fixture.tokenizer("right"), attention="bidirectional", template=template)
    texts = fixture.texts[side]
    instruction = texts["instruction"].removeprefix("Instruct: ").removesuffix("\nQuery: ")
    with torch.no_grad():
        features = decoder(decoder.preprocess(texts["texts"], prompt=instruction))
        assert features["input_ids"].equal(fixture.expected[f"{side}.input_ids"])
        assert features["pooling_mask"].equal(fixture.expected[f"{side}.{form}.pool_mask"])
        real = features["attention_mask"].bool()
        fixture.close(features["token_embeddings"], f"{side}.token_states", real, kind="token_states")
        vectors = from_fixture(fixture)(features)["sentence_embedding"]
    fixture.close(vectors, f"{side}.{form}.vector")


def test_the_released_mask_of_nv_embed_by_name():
    """It differs from the paper's in the instruction's last token, where the tokenizer adds a BOS, and is saved."""
    paper, released = (
        workbook.build("nv-embed", "tiny-llama", template=name, dtype="float32", device="cpu")
        for name in ("nv-embed", "nv-embed-released")
    )
    one, other = (model.preprocess(["soil"], prompt="Find") for model in (paper, released))
    assert one["input_ids"].equal(other["input_ids"])
    (differs,) = (one["pooling_mask"] != other["pooling_mask"])[0].nonzero().flatten().tolist()
    assert paper.tokenizer.decode(one["input_ids"][0, : differs + 1]) == "<s>Instruct: Find\nQuery: "
    assert paper.preprocess(["soil"])["pooling_mask"].equal(released.preprocess(["soil"])["pooling_mask"])
    assert released[0].get_config_dict()["template"]["mask"] == "columns"


@pytest.mark.parametrize("mlp", ["geglu", "gelu"])
@pytest.mark.parametrize("kind", KINDS)
def test_against_the_definition(kind, mlp):
    """One text, one head, one token at a time."""
    module, given = filled(KINDS[kind](heads=3, head_dimension=4, mlp=mlp)), batch()
    vectors = module(dict(given))["sentence_embedding"]

    def norm(x, layer):
        return layer_norm(x, (16,), layer.weight, layer.bias)

    for row, states in enumerate(given["token_embeddings"]):
        real, pooled = given["attention_mask"][row].bool(), given["pooling_mask"][row].bool()
        context = norm(module.dictionary if kind == "latent" else states[real], module.context_norm)
        read = []
        for state in states[pooled]:
            heads = []
            for head in range(3):
                rows = slice(4 * head, 4 * head + 4)
                query = module.to_q.weight[rows] @ norm(state, module.query_norm)
                keys = context @ module.to_kv.weight[:12][rows].T
                values = context @ module.to_kv.weight[12:][rows].T
                heads.append((keys @ query / math.sqrt(4)).softmax(0) @ values)
            y = state + module.to_out.weight @ torch.cat(heads)
            inner = module.mlp_in.weight @ norm(y, module.mlp_norm) + module.mlp_in.bias
            inner = inner[:64] * gelu(inner[64:]) if mlp == "geglu" else gelu(inner)
            read.append(y + module.mlp_out.weight @ inner + module.mlp_out.bias)
        expected = normalize(torch.stack(read).mean(0), dim=0)
        torch.testing.assert_close(vectors[row], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_begins_as_mean_pooling(kind):
    given = batch()
    mask = given["pooling_mask"].unsqueeze(-1)
    mean = (given["token_embeddings"] * mask).sum(1) / mask.sum(1)
    vectors = KINDS[kind]()(dict(given))["sentence_embedding"]
    torch.testing.assert_close(vectors, normalize(mean, dim=1))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind):
    module, given = filled(KINDS[kind]()), batch()
    vectors = module(dict(given))["sentence_embedding"]
    spoiled = given["token_embeddings"].masked_fill(given["attention_mask"].unsqueeze(-1) == 0, 7.0)
    torch.testing.assert_close(module(given | {"token_embeddings": spoiled})["sentence_embedding"], vectors)
    alone = {name: value[1:2, :4] for name, value in given.items()}
    torch.testing.assert_close(module(alone)["sentence_embedding"], vectors[1:2])


@pytest.mark.parametrize(("kind", "steers"), [("latent", False), ("self", True)])
def test_whether_an_instruction_token_steers_in_the_block(kind, steers):
    """It is not pooled; with latents it steers in the decoder alone."""
    module, given = filled(KINDS[kind]()), batch()
    before = module(dict(given))["sentence_embedding"]
    states = given["token_embeddings"].clone()
    states[0, 0] += torch.linspace(-1, 1, 16)  # a real token, not pooled
    after = module(given | {"token_embeddings": states})["sentence_embedding"]
    assert torch.allclose(before[0], after[0], atol=1e-5) is not steers
    torch.testing.assert_close(before[1:], after[1:])


def test_attention_over_latents():
    module, states = filled(KINDS["latent"](heads=2)), batch()["token_embeddings"]
    attention = module.attention(states.bfloat16())
    assert attention.shape == (3, 2, 7, 5)
    assert attention.dtype == torch.float32
    torch.testing.assert_close(attention.sum(-1), torch.ones(3, 2, 7))
    half = filled(KINDS["latent"](heads=2)).bfloat16().attention(states.bfloat16())  # as sentence-transformers casts
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, attention, rtol=0.05, atol=0.01)
    order = torch.tensor([3, 1, 4, 0, 2])
    before = module.read(states, None)
    with torch.no_grad():
        module.dictionary.copy_(module.dictionary[order])
    torch.testing.assert_close(module.read(states, None), before, rtol=1e-4, atol=1e-5)  # a dictionary has no order
    torch.testing.assert_close(
        module.attention(states), filled(KINDS["latent"](heads=2)).attention(states)[..., order], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_computes_in_it(kind):
    module, given = filled(KINDS[kind]()), batch()
    exact = module(dict(given))["sentence_embedding"]
    half = module(given | {"token_embeddings": given["token_embeddings"].bfloat16()})["sentence_embedding"]
    assert half.dtype == torch.float32
    assert module.read(given["token_embeddings"].bfloat16(), given["attention_mask"]).dtype == torch.bfloat16
    assert (exact * half).sum(1).min() > 0.999


@pytest.mark.parametrize("kind", KINDS)
def test_two_steps_reach_every_weight(kind):
    """The first moves what starts at 0, the second everything in front of it."""
    module, given = KINDS[kind](), batch()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    target = torch.randn(3, 16, generator=torch.Generator().manual_seed(5))
    for _ in range(2):
        optimizer.zero_grad()
        (module(dict(given))["sentence_embedding"] * target).sum().backward()
        optimizer.step()
    still = [name for name, value in module.state_dict().items() if value.equal(before[name])]
    assert still == []


@pytest.mark.parametrize("pooling", ["latent_attention", "self_attention"])
def test_saved_and_loaded(pooling, tmp_path):
    options = {"latents": 6} if pooling == "latent_attention" else {}
    model = workbook.build(
        "mean", "tiny-llama", pooling=pooling, pooling_options={"heads": 2, "mlp": "gelu", **options}, dtype="float32"
    )
    filled(model[1])
    model.save(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    assert loaded[1].get_config_dict() == model[1].get_config_dict()
    texts = ["one text", "another, longer one"]
    np.testing.assert_allclose(loaded.encode(texts), model.encode(texts), rtol=0, atol=1e-5)
    (file,) = tmp_path.glob(f"1_*/{WEIGHTS}")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFileError, match=WEIGHTS):
        SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")


def test_from_published_names():
    module = filled(LatentAttention(16, latents=5, heads=3, head_dimension=4))
    ours = {name: layer for layer, name in PUBLISHED.items()}
    checkpoint = {"embedding_model.norm.weight": torch.ones(16)}
    for name, value in module.state_dict().items():
        layer, _, kind = name.rpartition(".")
        checkpoint[f"latent_attention_model.{ours[layer]}.{kind}" if layer else "latent_attention_model.latents"] = (
            value
        )
    assert "latent_attention_model.cross_attend_blocks.1.fn.net.2.bias" in checkpoint
    converted = from_published(checkpoint, heads=3)
    given = batch()
    torch.testing.assert_close(converted(dict(given))["sentence_embedding"], module(dict(given))["sentence_embedding"])
    with pytest.raises(InvalidValueError, match="divisor of 12"):
        from_published(checkpoint, heads=5)
    del checkpoint["latent_attention_model.cross_attend_blocks.1.norm.bias"]
    with pytest.raises(DamagedFileError, match=r"mlp_norm\.bias"):
        from_published(checkpoint, heads=3)
    with pytest.raises(DamagedFileError, match="latent_attention_model"):
        from_published({"a": torch.ones(1)})


def test_defaults_of_the_paper():
    module = LatentAttention(24)
    assert (module.latents, module.heads, module.head_dimension, module.mlp) == (512, 8, 24, "geglu")
    assert module.to_kv.weight.shape == (2 * 8 * 24, 24)
    assert module.mlp_in.weight.shape == (8 * 24, 24)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"latents": -1}, InvalidValueError, "latents: expected a whole number from 0"),
        ({"heads": 2.5}, InvalidValueError, "heads"),
        ({"head_dimension": -1}, InvalidValueError, "head_dimension"),
        ({"mlp": "gegul"}, UnknownNameError, "Did you mean 'geglu'"),
        ({"latent": 4}, UnknownNameError, "Did you mean 'latents'"),
        ({"embedding_dimension": 4}, UnknownNameError, "option of latent_attention pooling"),
    ],
)
def test_mistakes(options, error, message):
    with pytest.raises(error, match=message):
        workbook.build("mean", "tiny-llama", pooling="latent_attention", pooling_options=options)


# Arms that differ in one thing

ARMS = {
    "whole": {"latents": 5},
    "fixed": {"latents": 5, "train_dictionary": False},
    "attention alone": {"latents": 5, "mlp": "none"},
    "mlp alone": {"latents": 0},
    "wider": {"latents": 0, "mlp_ratio": 6},
    "linear": {"latents": 0, "mlp": "linear"},
}


def arm(name, heads=2, head_dimension=4):
    torch.manual_seed(0)
    return LatentAttention(16, heads=heads, head_dimension=head_dimension, **ARMS[name])


def test_arms_have_the_parameters_of_what_is_in_them():
    norms, attention, dictionary = 2 * 2 * 16, 4 * 16 * 8, 5 * 16
    mlp = {ratio: 2 * 16 + 16 * 2 * ratio * 16 + 2 * ratio * 16 + ratio * 16 * 16 + 16 for ratio in (4, 6)}
    expected = {
        "whole": norms + attention + dictionary + mlp[4],
        "fixed": norms + attention + dictionary + mlp[4],
        "attention alone": norms + attention + dictionary,
        "mlp alone": mlp[4],
        "wider": mlp[6],
        "linear": 2 * 16 + 16 * 16 + 16,
    }
    assert {name: sum(p.numel() for p in arm(name).parameters()) for name in ARMS} == expected
    still = {name: [n for n, p in arm(name).named_parameters() if not p.requires_grad] for name in ARMS}
    assert still == {name: [] for name in ARMS} | {"fixed": ["dictionary"]}


@pytest.mark.parametrize("name", ARMS)
def test_arms_begin_as_mean_pooling_with_the_same_weights_where_they_have_them(name):
    given, module, full = batch(), arm(name), arm("whole").state_dict()
    mask = given["pooling_mask"].unsqueeze(-1)
    mean = (given["token_embeddings"] * mask).sum(1) / mask.sum(1)
    torch.testing.assert_close(module(dict(given))["sentence_embedding"], normalize(mean, dim=1))
    if name not in ("wider", "linear"):
        assert all(value.equal(full[key]) for key, value in module.state_dict().items())


def test_arms_compute_the_block_without_what_they_leave_out():
    states = batch()["token_embeddings"]
    whole = filled(arm("whole"))
    alone, mlp = arm("attention alone"), arm("mlp alone")
    for part in (alone, mlp):
        part.load_state_dict({name: value for name, value in whole.state_dict().items() if name in part.state_dict()})
    torch.testing.assert_close(whole.read(states, None), mlp.read(alone.read(states, None), None))
    linear = filled(arm("linear"))
    torch.testing.assert_close(linear.read(states, None), states + linear.mlp_out(linear.mlp_norm(states)))


@pytest.mark.parametrize("name", ARMS)
def test_arms_are_saved_and_loaded(name, tmp_path):
    model = workbook.build("nv-embed", "tiny-llama", pooling_options=ARMS[name], dtype="float32", device="cpu")
    filled(model[1])
    model.save(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    assert [p.requires_grad for p in loaded[1].parameters()] == [p.requires_grad for p in model[1].parameters()]
    np.testing.assert_allclose(loaded.encode(["one text"]), model.encode(["one text"]), rtol=0, atol=1e-5)


def test_silencing():
    module, states = filled(arm("whole")), batch()["token_embeddings"]
    before = module.read(states, None)
    with torch.no_grad():  # a latent that no token of head 1 reads
        module.to_q.weight[4:] = 0
        module.to_kv.weight[4:8] = 0
    everything = [(head, latent) for head in range(2) for latent in range(5)]
    mlp = arm("mlp alone")
    mlp.load_state_dict({name: value for name, value in module.state_dict().items() if name in mlp.state_dict()})
    with module.silenced(everything):
        torch.testing.assert_close(module.read(states, None), mlp.read(states, None))
        with module.silenced([]):  # the inner block says what is silent in it
            assert not torch.allclose(module.read(states, None), mlp.read(states, None))
    added = module.added()
    attention = module.attention(states)
    with module.silenced([(0, 3), (1, 2)]):
        silent = module.read(states, None)
    lost = sum(attention[:, head, :, latent, None] * added[head, latent] for head, latent in ((0, 3), (1, 2)))
    apart = arm("attention alone")
    apart.load_state_dict({name: value for name, value in module.state_dict().items() if name in apart.state_dict()})
    torch.testing.assert_close(silent, mlp.read(apart.read(states, None) - lost, None), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before, silent)
    for place in ((2, 0), (0, 5), (0, -1)):
        with pytest.raises(InvalidValueError), module.silenced([place]):
            pass


def test_a_latent_without_weight_can_be_silenced_without_a_trace():
    module, states = filled(arm("whole", heads=1)), batch()["token_embeddings"]
    with torch.no_grad():
        module.query_norm.weight.zero_()
        module.query_norm.bias.fill_(1.0)  # every token asks alike
        query = module.to_q.weight.sum(dim=1)
        module.context_norm.weight.fill_(1.0)
        module.context_norm.bias.zero_()
        module.to_kv.weight[:4] = 0
        module.to_kv.weight[:4, :4] = 1e4 * torch.outer(query, torch.ones(4)) / query.norm() ** 2
        module.dictionary[:, :4] = 1.0
        module.dictionary[2, :4] = -9.0
    assert module.attention(states)[..., 2].max() == 0
    before = module.read(states, None)
    with module.silenced([(0, 2)]):
        torch.testing.assert_close(module.read(states, None), before, rtol=0, atol=0)


def test_two_builds_are_the_same_and_two_seeds_are_not():
    one, same, other = (
        workbook.build("mean", "tiny-llama", pooling="latent_attention", seed=seed)[1].dictionary for seed in (3, 3, 4)
    )
    assert one.equal(same)
    assert not one.equal(other)


def test_plain_poolings_have_no_options():
    with pytest.raises(UnknownNameError, match="option of mean pooling"):
        workbook.build("mean", "tiny-llama", pooling_options={"latents": 4})


def test_a_row_without_a_pooled_token_is_refused():
    given = batch()
    given["pooling_mask"][1] = 0
    with pytest.raises(InvalidValueError, match="row 1"):
        KINDS["latent"]()(given)


def test_what_is_kept_between_batches_follows_the_weights():
    """Without gradients the multiplied projections are kept: until a step, a loaded state or a change of dtype."""
    torch.manual_seed(0)
    module, states, mask = LatentAttention(16, latents=6, heads=2), torch.randn(2, 5, 16), torch.ones(2, 5)
    for weight in (module.to_out.weight, module.mlp_out.weight):
        torch.nn.init.normal_(weight)

    def both():
        """Kept, and made anew as training makes it."""
        with torch.no_grad():
            kept = module.read(states, mask)
        return kept, module.read(states, mask).detach()

    first, expected = both()
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(both()[0], first)
    for change in (
        lambda: torch.nn.init.normal_(module.dictionary),
        lambda: torch.optim.SGD([module.to_q.weight], 1.0).step(lambda: _loss(module, states, mask)),
        lambda: module.load_state_dict({name: value + 0.1 for name, value in module.state_dict().items()}),
        lambda: setattr(module.to_kv, "weight", torch.nn.Parameter(torch.randn_like(module.to_kv.weight))),
    ):
        before = both()[0]
        change()
        kept, expected = both()
        torch.testing.assert_close(kept, expected)
        assert not torch.allclose(kept, before)


def _loss(module, states, mask):
    with torch.enable_grad():
        loss = module.read(states, mask).square().sum()
        loss.backward()
    return loss
