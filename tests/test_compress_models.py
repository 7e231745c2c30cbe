"""Compression of whole embedders: what is saved, loaded, calibrated on, refused."""

import copy
import hashlib
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import workbook as package
from workbook import backbones, cli, compress, quantized
from workbook.compress import calibration
from workbook.compress.calibration import Calibration, linears
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.modules import load_embedder
from workbook.quantized import is_quantized
from workbook.tiny import tiny_config, tiny_tokenizer

TEXTS = [f"text {n}: bees of hive {n * n} fly over {'many ' * n}fields" for n in range(8)]


def built(method="mean", backbone="tiny-llama", **options):
    return package.build(method, backbone, dtype="float32", device="cpu", **options)


@pytest.fixture(scope="module")
def model():
    return built()


def state(model):
    """Hash of all that a model holds; a save notes in its configuration where it lies, which does not count."""
    found = hashlib.sha256(str(model[0].resolved()).encode())
    for name, value in model.state_dict().items():
        found.update(name.encode() + value.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def weights(model):
    return [part.weight for block in model[0].decoder.layers for part in linears(block).values()]


def loaded(model, folder):
    model.save(str(folder))
    return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")


@pytest.mark.parametrize("how", compress.CRITERIA)
@pytest.mark.parametrize(("sparsity", "stays", "of"), [("2:4", 2, 4), ("4:8", 4, 8)])
def test_pattern_outlives_a_save_and_a_quantization(model, tmp_path, how, sparsity, stays, of):
    before = state(model)
    small = compress.prune(model, how, sparsity, TEXTS)
    again = loaded(small, tmp_path / "pruned")
    for weight in weights(again):
        assert weight.dtype is torch.float32
        assert (weight.view(-1, of) != 0).sum(dim=1).unique().tolist() == [stays]
    assert (again.encode(TEXTS) == small.encode(TEXTS)).all()
    quantized = loaded(compress.quantize(again, "gptq", "int8", TEXTS), tmp_path / "quantized")
    for sparse, codes in zip(weights(again), weights(quantized), strict=True):
        assert bool((codes[sparse == 0] == 0).all())
    assert state(model) == before


def test_shares_are_of_rows_or_matrices(model):
    zeros = [(weight == 0).float().mean(dim=1) for weight in weights(compress.prune(model, "wanda", 0.25, TEXTS))]
    assert {float(one) for rows in zeros for one in rows} == {0.25}
    for how in ("magnitude", "sparsegpt"):
        found = compress.report(compress.prune(model, how, 0.25, TEXTS))
        assert found["zeros"].tolist() == [0.25] * 14


def test_the_control_drops_the_same_weights_each_time_and_others_in_each_layer(model):
    kept = [weight != 0 for weight in weights(compress.prune(model, compress.CONTROL, "2:4"))]
    again = [weight != 0 for weight in weights(compress.prune(model, compress.CONTROL, "2:4"))]
    assert all(one.equal(other) for one, other in zip(kept, again, strict=True))
    assert all((one.view(-1, 4).sum(dim=1) == 2).all() for one in kept)
    of_shape = [one for one in kept if one.shape == kept[0].shape]
    assert len(of_shape) > 1
    assert not of_shape[0].equal(of_shape[1])
    magnitude = [weight != 0 for weight in weights(compress.prune(model, "magnitude", "2:4"))]
    shared = [float((one & other).sum() / one.sum()) for one, other in zip(kept, magnitude, strict=True)]
    assert 0.4 < sum(shared) / len(shared) < 0.6  # as by chance


@pytest.mark.parametrize("how", compress.ROUNDINGS)
@pytest.mark.parametrize("form", compress.FORMATS)
def test_quantized_is_stored_in_a_quarter(model, tmp_path, how, form):
    before = state(model)
    small = compress.quantize(model, how, form, TEXTS)
    again = loaded(small, tmp_path / "one")
    assert (again.encode(TEXTS) == small.encode(TEXTS)).all()
    found, whole = compress.report(again), compress.report(model)
    scales = 4 * found["rows"].sum()
    assert found["bytes"].sum() - scales == whole["bytes"].sum() / 4
    assert set(found["dtype"]) == {str(compress.FORMATS[form]).removeprefix("torch.")}
    saved = compress.disk_bytes(model) - compress.disk_bytes(tmp_path / "one")
    assert saved == pytest.approx(whole["bytes"].sum() * 3 / 4 - scales, abs=3000)  # names of tensors differ
    assert compress.drift(model, again, TEXTS) < {"int8": 0.01, "e4m3": 0.03, "e5m2": 0.1}[form]
    assert (loaded(again, tmp_path / "two").encode(TEXTS) == small.encode(TEXTS)).all()
    assert (load_embedder(tmp_path / "two", device="cpu").encode(TEXTS) == small.encode(TEXTS)).all()
    assert state(model) == before


@pytest.mark.parametrize("form", compress.FORMATS)
def test_a_cast_leaves_the_codes(model, form, tmp_path):
    small = compress.quantize(model, "rtn", form)
    small.save(str(tmp_path))
    half = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu", model_kwargs={"dtype": "bfloat16"})
    cast = compress.quantize(model, "rtn", form)
    cast[0].decoder.model_parallel = False
    torch.nn.Module.to(cast, torch.bfloat16)
    for one in (half, cast):
        assert one[0].decoder.get_input_embeddings().weight.dtype is torch.bfloat16
        for first, second in zip(weights(small), weights(one), strict=True):
            assert second.dtype is first.dtype
            assert bool((first.view(torch.int8) == second.view(torch.int8)).all())
        assert one[0].decoder.layers[0].mlp.up_proj.scale.dtype is torch.float32
        assert compress.drift(small, one, TEXTS) < 0.01


@pytest.mark.parametrize("method", package.METHODS)
def test_every_method(method, tmp_path):
    tiny = built(method)
    before = state(tiny)
    pruned = compress.prune(tiny, "sparsegpt", "2:4", TEXTS, "Retrieve")
    small = compress.quantize(pruned, "gptq", "e4m3", TEXTS, "Retrieve")
    again = loaded(small, tmp_path)
    assert (again.encode(TEXTS, prompt="Retrieve") == small.encode(TEXTS, prompt="Retrieve")).all()
    assert min(compress.report(again)["zeros"]) >= 0.5
    assert again[0].resolved()["attention"] == tiny[0].attention
    others = [name for name in tiny.state_dict() if not any(part in name for part in ("_proj.",))]
    assert others
    for name in others:
        assert bool((tiny.state_dict()[name] == again.state_dict()[name]).all())
    assert state(tiny) == before


@pytest.mark.parametrize("backbone", backbones.TINY)
def test_every_architecture(backbone, tmp_path):
    tiny = built(backbone=backbone)
    pruned = compress.prune(tiny, "wanda", "2:4", TEXTS)
    small = compress.quantize(pruned, "gptq", "int8", TEXTS)
    assert (loaded(small, tmp_path).encode(TEXTS) == small.encode(TEXTS)).all()
    assert len(compress.report(small)) == 14


def test_fused_layers_are_compressed_too(tmp_path):
    """Phi-3 has one layer for queries, keys and values, and one for gate and up."""
    sizes = tiny_config("tiny-llama").to_dict() | {"model_type": "phi3", "architectures": None}
    config = CONFIG_MAPPING["phi3"](**{name: value for name, value in sizes.items() if not name.startswith("rope")})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "phi3")
    tiny_tokenizer().save_pretrained(tmp_path / "phi3")
    fused = built(backbone=str(tmp_path / "phi3"))
    pruned = compress.prune(fused, "sparsegpt", "2:4", TEXTS)
    assert [*compress.report(pruned)["layer"][:4]] == [
        "self_attn.o_proj",
        "self_attn.qkv_proj",
        "mlp.gate_up_proj",
        "mlp.down_proj",
    ]
    assert compress.report(pruned)["zeros"].tolist() == [0.5] * 8
    for form in compress.FORMATS:
        small = compress.quantize(pruned, "gptq", form, TEXTS)
        assert (loaded(small, tmp_path / form).encode(TEXTS) == small.encode(TEXTS)).all()


def test_experts_in_one_tensor_are_refused():
    """As Mixtral stores them: most of its weights would stay as they are, without a word."""
    model = built()
    model[0].decoder.layers[1].mlp.experts = torch.nn.Module()
    model[0].decoder.layers[1].mlp.experts.down_proj = torch.nn.Parameter(torch.ones(2, 32, 64))
    for refused in (lambda: compress.prune(model, "magnitude"), lambda: compress.quantize(model, "rtn")):
        with pytest.raises(InvalidValueError, match=r"linear layers, got \['mlp.experts.down_proj'\]"):
            refused()
    assert len(compress.smaller(model, 1)[0].decoder.layers) == 1


def test_a_layer_that_no_text_reaches_is_an_error():
    model = built()
    model[0].decoder.layers[1].mlp.expert = torch.nn.Linear(32, 32)
    for refused in (
        lambda: compress.prune(model, "wanda", texts=TEXTS),
        lambda: compress.quantize(model, "gptq", texts=TEXTS),
    ):
        with pytest.raises(InvalidValueError, match=r"every linear layer of block 1, got \['mlp.expert'\]"):
            refused()


@pytest.mark.parametrize("value", [0.0, float("nan"), 1e30])
def test_inputs_that_say_nothing_are_an_error(value):
    """Before the second block's layers all states are zero, not numbers, or too large for their squares."""
    model = built()
    model[0].decoder.layers[1].input_layernorm.weight.data.fill_(value)
    before = state(model)
    for refused in (
        lambda: compress.prune(model, "wanda", texts=TEXTS),
        lambda: compress.prune(model, "sparsegpt", texts=TEXTS),
        lambda: compress.quantize(model, "gptq", texts=TEXTS),
        lambda: compress.sensitivity(model, "sparsegpt", texts=TEXTS, held_out=TEXTS),
    ):
        with pytest.raises(InvalidValueError, match=r"linear layer of block 1, got \['self_attn.q_proj'"):
            refused()
        assert state(model) == before


def read(model, texts, changed=lambda block: None):
    """Norms that each layer reads, block by block."""
    found = []
    for _, block, inputs in Calibration(model, texts).blocks(hessian=False):
        found += [(one.norms, one.tokens) for one in inputs.values()]
        changed(block)
    return found


def test_calibration_reads_what_the_layers_read(model):
    """Against one forward pass a text with hooks, counted without the calibration's replay of single blocks."""
    sums, counted = {}, {}

    def noting(name):
        def note(_, given, __):
            sums[name] = sums.get(name, 0) + given[0].square().sum(dim=(0, 1))
            counted[name] = counted.get(name, 0) + given[0].shape[0] * given[0].shape[1]

        return note

    parts = [(n, part) for n, block in enumerate(model[0].decoder.layers) for part in linears(block).items()]
    handles = [part.register_forward_hook(noting((n, name))) for n, (name, part) in parts]
    with torch.no_grad():
        for text in TEXTS:
            model(model.preprocess([text]))
    for handle in handles:
        handle.remove()
    tokens = sum(len(row.input_ids) for row in model[0].encode_texts(TEXTS))
    assert set(counted.values()) == {tokens}
    for (norms, seen), expected in zip(read(model, TEXTS), sums.values(), strict=True):
        assert seen == tokens
        assert torch.allclose(norms, expected.sqrt(), rtol=1e-4)


@pytest.mark.parametrize("form", [tuple, torch.Tensor])
def test_blocks_that_return_tuples(form):
    """As some architectures' do, of which the decoder takes the first."""

    class Block(torch.nn.Module):
        def forward(self, hidden_states, place):
            made = hidden_states + 1
            return (made, None) if form is tuple else made

    blocks, states = [Block(), Block(), Block()], torch.zeros(1, 2, 4)
    with calibration._called(blocks) as calls:
        for place, block in enumerate(blocks):
            made = block(states, place=place)
            states = made[0] if form is tuple else made
        with pytest.raises(InvalidValueError, match="all but the states by name, got '2 values'"):
            blocks[0](states, 0)
    assert [options for _, options in calls] == [{"place": 0}, {"place": 1}, {"place": 2}]
    assert all(bool((seen == 0).all()) and seen.shape == (1, 2, 4) for seen, _ in calls)
    assert torch.equal(blocks[0](states, 0)[0] if form is tuple else blocks[0](states, 0), states + 1)  # as before


def test_padding_does_not_enter(model):
    """Long and short texts together give what they give apart: X X^T adds up."""
    together, apart = read(model, ["a", "b " * 60]), [read(model, ["a"]), read(model, ["b " * 60])]
    for (norms, tokens), (one, few), (other, many) in zip(together, *apart, strict=True):
        assert torch.allclose(norms.square(), one.square() + other.square(), rtol=1e-4)
        assert tokens == few + many


def test_later_blocks_read_what_compressed_ones_wrote(model):
    import copy

    def silence(block):
        for part in linears(block).values():
            part.weight.data.zero_()

    whole, silenced = read(model, TEXTS), read(copy.deepcopy(model), TEXTS, silence)
    assert torch.equal(whole[0][0], silenced[0][0])
    assert not torch.allclose(whole[7][0], silenced[7][0])


def test_instruction_and_template_enter(model):
    kinds = [Calibration(model, TEXTS), Calibration(model, TEXTS, "Retrieve"), Calibration(built("last-token"), TEXTS)]
    assert len({kind.tokens for kind in kinds}) == 3


def test_default_texts_are_of_the_train_split_and_cover_the_widest_layer(docs, model):
    def tokens(texts):
        return sum(len(row.input_ids) for row in model[0].encode_texts(texts, "Retrieve"))

    texts = calibration.default_texts(model, 64, "Retrieve")
    assert len(texts) == 128
    more = calibration.default_texts(model, tokens(texts) + 1, "Retrieve")
    assert (len(more), more[:128]) == (256, texts)
    assert tokens(more) > tokens(texts)
    every = calibration.default_texts(model, 10**9)
    assert len(every) == len(docs.split("train"))
    assert {*every} == {*docs.split("train")["document"]}
    assert not {*every} & {*docs.split("test")["document"]}


def test_report_and_change(model):
    small = compress.prune(model, "magnitude", "2:4")
    found = compress.report(small, model)
    assert found.columns.tolist() == ["block", "layer", "rows", "columns", "zeros", "dtype", "bytes", "change"]
    first, second = weights(model)[0].detach(), weights(small)[0].detach()
    assert found["change"][0] == pytest.approx(float((first - second).norm() / first.norm()))
    with pytest.raises(InvalidValueError, match="before: expected a model with the same layers"):
        compress.report(compress.smaller(model, 1), model)


@pytest.mark.parametrize("how", [*compress.CRITERIA, *compress.ROUNDINGS])
def test_sensitivity(model, how):
    before = state(model)
    found = compress.sensitivity(model, how, texts=TEXTS, held_out=TEXTS[:3])
    assert found["block"].tolist() == [0, 1]
    assert bool((found["drift"] > 0).all())
    assert state(model) == before
    if how == "magnitude":
        one = copy.deepcopy(model)
        both = compress.prune(model, how)
        one[0].decoder.layers[1] = both[0].decoder.layers[1]
        assert found["drift"][1] == pytest.approx(compress.drift(model, one, TEXTS[:3]), abs=1e-6)


def test_one_layer_alone_against_a_copy_in_which_it_is_pruned(model):
    before = state(model)
    found = compress.alone(model, lambda work: work.encode(TEXTS[:2]), "magnitude", 0.5, layers=True)
    names = [name for name, part in model[0].decoder.layers[0].named_modules() if isinstance(part, nn.Linear)]
    assert [(block, name) for block, name, _ in found] == [(block, name) for block in (0, 1) for name in names]
    for block, name, vectors in found[:: len(names) - 1]:
        one = copy.deepcopy(model)
        linear = one[0].decoder.layers[block].get_submodule(name)
        linear.weight.data *= compress.mask(linear.weight.abs(), 0.5, "matrix")
        np.testing.assert_array_equal(vectors, one.encode(TEXTS[:2]))
        assert not np.allclose(vectors, model.encode(TEXTS[:2]), atol=1e-6)
    assert state(model) == before


@pytest.mark.parametrize("backbone", ["tiny-llama", "tiny-gemma3"])
def test_smaller(backbone, tmp_path):
    tiny = built(backbone=backbone)
    before = state(tiny)
    small = compress.smaller(tiny, 1)
    again = loaded(small, tmp_path)
    assert len(again[0].decoder.layers) == again[0].decoder.config.num_hidden_layers == 1
    assert (again.encode(TEXTS) == small.encode(TEXTS)).all()
    assert compress.disk_bytes(small) < compress.disk_bytes(tiny)
    assert (compress.smaller(tiny, 2, "evenly").encode(TEXTS) == tiny.encode(TEXTS)).all()
    assert state(tiny) == before


def test_the_card_says_how(model, tmp_path):
    small = compress.quantize(compress.prune(model, "wanda", "2:4", TEXTS), "rtn", "e5m2")
    small.save(str(tmp_path))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    tokens = sum(len(row.input_ids) for row in model[0].encode_texts(TEXTS))
    assert f"1. pruned by wanda, sparsity 2:4, calibrated on 8 texts of {tokens} tokens\n" in card
    assert "2. quantized by rtn to e5m2\n" in card
    model.save(str(tmp_path / "whole"))
    assert "Compression" not in (tmp_path / "whole" / "README.md").read_text(encoding="utf-8")


REFUSED = {
    "criterion": (lambda m: compress.prune(m, "wand"), UnknownNameError, "Did you mean 'wanda'"),
    "rounding as criterion": (lambda m: compress.prune(m, "gptq"), UnknownNameError, "Unknown criterion 'gptq'"),
    "rounding": (lambda m: compress.quantize(m, "wanda"), UnknownNameError, "To prune, name one of"),
    "format": (lambda m: compress.quantize(m, "rtn", "int4"), UnknownNameError, "Unknown format 'int4'"),
    "share": (lambda m: compress.prune(m, "wanda", 1.0), InvalidValueError, "a share between 0 and 1"),
    "pattern": (
        lambda m: compress.prune(m, "magnitude", "3:5"),
        InvalidValueError,
        "divides the 32 columns of self_attn.q_proj in block 0",
    ),
    "few tokens": (
        lambda m: compress.prune(m, "sparsegpt", "2:4", ["a"]),
        InvalidValueError,
        r"at least 64 tokens for sparsegpt.*got '2 tokens'",
    ),
    "few tokens for Wanda": (
        lambda m: compress.prune(m, "wanda", "2:4", ["a"]),
        InvalidValueError,
        r"at least 64 tokens for wanda, one a column of the widest layer, got '2 tokens'\. Give more or longer texts",
    ),
    "few tokens for sensitivity": (
        lambda m: compress.sensitivity(m, "wanda", texts=["a"], held_out=TEXTS),
        InvalidValueError,
        "for wanda",
    ),
    "one text many times": (
        lambda m: compress.prune(m, "sparsegpt", "2:4", ["one text"] * 60),
        InvalidValueError,
        r"at least 64 tokens in distinct texts for sparsegpt.*got '\d tokens'",
    ),
    "few tokens for GPTQ": (lambda m: compress.quantize(m, "gptq", "int8", ["a"]), InvalidValueError, "for gptq"),
    "no texts": (lambda m: compress.prune(m, "wanda", "2:4", []), InvalidValueError, "texts: expected at least one"),
    "a text": (lambda m: compress.prune(m, "wanda", "2:4", "a"), InvalidValueError, "texts: expected at least one"),
    "no string": (lambda m: compress.prune(m, "wanda", "2:4", [3]), InvalidValueError, "strings"),
    "blocks": (lambda m: compress.smaller(m, 3), InvalidValueError, "layers: expected a whole number of blocks"),
    "keep": (lambda m: compress.smaller(m, 1, "last"), UnknownNameError, "Unknown choice of blocks"),
    "form of criterion": (lambda m: compress.sensitivity(m, form="int8"), InvalidValueError, "nothing with wanda"),
    "sparsity of rounding": (
        lambda m: compress.sensitivity(m, "rtn", sparsity="2:4"),
        InvalidValueError,
        "nothing with rtn",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(model, case):
    act, kind, message = REFUSED[case]
    before = state(model)
    with pytest.raises(kind, match=message):
        act(model)
    assert state(model) == before


def test_norms_of_a_wide_layer_need_no_token_for_each_column(model, monkeypatch):
    """The documents that are read by default have fewer tokens than a layer of 7B has columns."""
    texts = TEXTS[:1]
    tokens = sum(len(row.input_ids) for row in model[0].encode_texts(texts))
    assert tokens < 64
    monkeypatch.setattr("workbook.compress.models.NORMS", tokens)
    compress.prune(model, "wanda", "2:4", texts)
    monkeypatch.setattr("workbook.compress.models.NORMS", tokens + 1)
    with pytest.raises(InvalidValueError, match=f"at least {tokens + 1} tokens for wanda, since norms of fewer"):
        compress.prune(model, "wanda", "2:4", texts)
    with pytest.raises(InvalidValueError, match="at least 64 tokens for sparsegpt"):
        compress.prune(model, "sparsegpt", "2:4", texts)


def test_models_that_are_refused(model):
    quantized = compress.quantize(model)
    assert is_quantized(quantized[0].decoder)
    assert not is_quantized(model[0].decoder)
    for act in (compress.prune, compress.quantize, lambda one: compress.smaller(one, 1), compress.sensitivity):
        with pytest.raises(InvalidValueError, match="one that is not quantized"):
            act(quantized)
    for act in (compress.prune, compress.quantize, compress.report, compress.sensitivity):
        with pytest.raises(InvalidValueError, match="first module is a Decoder, got 'Hybrid'"):
            act(package.hybrid(model, model))
        with pytest.raises(InvalidValueError, match="first module is a Decoder, got 'str'"):
            act("mean")


def test_a_device_without_the_format(model, monkeypatch):
    monkeypatch.setitem(compress.FORMATS, "e4m3", "no dtype")  # as a device does: the cast raises a TypeError
    before = state(model)
    with pytest.raises(InvalidValueError, match="form: expected a format that cpu holds, got 'e4m3'"):
        compress.quantize(model, "rtn", "e4m3")
    assert state(model) == before


@pytest.fixture
def command(monkeypatch, capsys):
    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["workbook", "compress", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code, *capsys.readouterr()

    return command


@pytest.mark.parametrize(
    ("options", "zeros", "steps"),
    [
        (("--how", "wanda", "--sparsity", "2:4"), "50.0%", ["pruned by wanda, sparsity 2:4"]),
        (("--how", "gptq", "--form", "int8"), "", ["quantized by gptq to int8"]),
        (("--form", "e4m3", "--how", "rtn"), "", ["quantized by rtn to e4m3"]),
        (
            ("--sparsity", "2:4", "--how", "sparsegpt", "--form", "int8"),
            "50.",
            ["pruned by sparsegpt, sparsity 2:4", "quantized by gptq to int8"],
        ),
    ],
)
def test_command(command, docs, tmp_path, options, zeros, steps):
    code, out, _ = command("mean", "--backbone", "tiny-llama", *options, "-o", tmp_path / "small")
    assert code == 0
    assert zeros in next(line for line in out.splitlines() if line.startswith("zeros"))
    assert f"{compress.disk_bytes(tmp_path / 'small'):,} bytes" in out
    assert "Layers that changed most" in out
    card = (tmp_path / "small" / "README.md").read_text(encoding="utf-8")
    assert [step in card for step in steps] == [True] * len(steps)
    assert load_embedder(tmp_path / "small", device="cpu").encode(TEXTS).shape == (8, 32)


@pytest.mark.parametrize("method", ["llm2vec", "nv-embed", "lens", "causal2vec", "anchor"])
@pytest.mark.filterwarnings("ignore:The contextual token")
def test_command_on_the_methods_of_the_papers(command, docs, tmp_path, method):
    """What is written gives the vectors of the library's own model, and keeps its zeros and integers."""
    asked = ("--how", "magnitude", "--sparsity", "2:4", "--form", "int8")
    code, _, err = command(method, "--backbone", "tiny-llama", *asked, "-o", tmp_path / "small")
    assert code == 0, err
    written = load_embedder(tmp_path / "small", device="cpu")
    built = package.build(method, "tiny-llama", device="cpu")
    ours = compress.quantize(compress.prune(built, "magnitude", "2:4"), "gptq", "int8")
    pd.testing.assert_frame_equal(compress.report(written), compress.report(ours))
    assert compress.report(written)["zeros"].ge(0.5).all()
    np.testing.assert_allclose(written.encode(TEXTS[:3]), ours.encode(TEXTS[:3]), atol=1e-6)
    assert not np.allclose(ours.encode(TEXTS[:3]), built.encode(TEXTS[:3]), atol=1e-3)


def test_command_on_a_folder(command, model, tmp_path):
    model.save(str(tmp_path / "model"))
    code, *_ = command(tmp_path / "model", "--form", "e5m2", "--how", "rtn", "-o", tmp_path / "small")
    assert code == 0
    expected = compress.quantize(model, "rtn", "e5m2").encode(TEXTS)
    assert load_embedder(tmp_path / "small", device="cpu").encode(TEXTS) == pytest.approx(expected, abs=1e-6)
    code, _, err = command(tmp_path / "small", "--sparsity", "2:4", "-o", tmp_path / "again")
    assert (code, "one that is not quantized" in err) == (2, True)
    assert not (tmp_path / "again").exists()


def test_command_refuses(command, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    for arguments, message in (
        (("mean", "-o", tmp_path / "new"), "--sparsity, --form or both"),
        (("mean", "--form", "int8", "-o", tmp_path / "full"), "Expected an absent or empty folder"),
        (("minilm", "--form", "int8", "-o", tmp_path / "new"), "first module is a Decoder"),
        (("meen", "--form", "int8", "-o", tmp_path / "new"), "Unknown model 'meen'"),
    ):
        code, _, err = command(*arguments)
        assert (code, message in err) == (2, True), err
    assert [one.name for one in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("instructions", [True, False])
def test_dynamic_layers_round_each_token_by_itself(monkeypatch, instructions):
    monkeypatch.setattr(quantized, "multiplies_bytes", lambda: instructions)
    """Against loops over tokens and rows; a token that is large leaves the others as fine as they were."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(24, 5)
    made = compress.round_to_nearest(linear.weight.data, "int8")
    layer = compress.QuantizedLinear.of(linear, made, "int8", dynamic=True)
    states = torch.randn(2, 3, 24)
    states[0, 0] *= 500
    states[1, 2] = 0
    expected = torch.zeros(2, 3, 5)
    for text in range(2):
        for token in range(3):
            step = max(states[text, token].abs().max().item() / 127, 1e-30)
            codes = (states[text, token] / step).round().int()
            for row in range(5):
                product = int((codes * made.codes[row].int()).sum())
                expected[text, token, row] = product * step * made.scale[row, 0] + linear.bias[row]
    with torch.no_grad():
        found = layer(states)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        near = (found - linear(states))[:, 1:].abs().max()
        assert near < 0.03
        assert layer(states.bfloat16()).dtype is torch.bfloat16


def test_dynamic_is_saved_and_copied_with_the_model(model, tmp_path):
    stored, dynamic = compress.quantize(model), compress.quantize(model, dynamic=True)
    for one, other in zip(weights(stored), weights(dynamic), strict=True):
        assert torch.equal(one, other)
    vectors = [one.encode(TEXTS) for one in (model, stored, dynamic)]
    assert not np.array_equal(vectors[1], vectors[2])
    assert compress.drift(model, dynamic, TEXTS) < 0.01
    again = loaded(dynamic, tmp_path)
    np.testing.assert_array_equal(again.encode(TEXTS), vectors[2])
    assert all(part.dynamic for block in again[0].decoder.layers for part in linears(block).values())
    with pytest.raises(InvalidValueError, match="dynamic: expected int8, whose products are of integers, got 'e4m3'"):
        compress.quantize(model, form="e4m3", dynamic=True)
