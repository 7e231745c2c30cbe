"""Compressed embedders: every method, calibration block by block, what is stored and loaded, the command."""

import json
import re
import sys

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from training_tools import tiny, weights
from transformers import AutoModel

import workbook
from workbook import cli, compress
from workbook.compress import calibration
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.modules import load_embedder
from workbook.quantized import check_form

TEXTS = ["A bee lives for six weeks.", "The cat fell asleep.", "Water boils at a hundred degrees.", "No.", "Why not?"]
OTHERS = ["Rain falls on the hills tonight.", "One more text to read."]


@pytest.fixture(scope="module")
def model():
    return tiny("mean")


def layers(model):
    return {name: layer for one in calibration.layers_of(model[0]) for name, layer in one.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def seen(model, texts, instruction=None):
    """By layer, what goes into it in a pass of the whole model over single texts, so without padding."""
    found = {name: [] for name in layers(model)}
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, name=name: found[name].append(args[0][0]))
        for name, layer in layers(model).items()
    ]
    for text in texts:
        model.encode([text], prompt=instruction)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


@pytest.mark.parametrize("method", workbook.METHODS)
def test_every_method_compresses_and_stays_as_it_was(method, tmp_path):
    whole = tiny(method)
    before, vectors = weights(whole), whole.encode(OTHERS)
    small = compress.quantize(compress.prune(whole, "sparsegpt", "2:4", TEXTS), "gptq", "int8", TEXTS)
    small.save(str(tmp_path / "small"))
    loaded = load_embedder(tmp_path / "small", device="cpu")
    assert same(weights(whole), before)
    assert (whole.encode(OTHERS) == vectors).all()
    assert (loaded.encode(OTHERS) == small.encode(OTHERS)).all()
    assert not (small.encode(OTHERS) == vectors).all()
    for layer in layers(loaded).values():
        zeros = (layer.weight == 0).view(len(layer.weight), -1, 4).sum(dim=2)
        assert zeros.min() == 2  # a weight that rounds to 0 is one more
        assert zeros.float().mean() < 2.1
    compressed = {
        name for name, value in weights(small).items() if name not in before or not torch.equal(value, before[name])
    }
    own = {f"0.decoder.{name}.{kind}" for name in layers(small) for kind in ("weight", "weight_scale")}
    assert compressed == own  # nothing but the blocks' linear layers


@pytest.mark.parametrize("backbone", ["tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma2", "tiny-gemma3"])
def test_other_architectures_compress(backbone, tmp_path):
    small = compress.quantize(compress.prune(tiny("mean", backbone), "wanda", "4:8", TEXTS), "gptq", "e4m3", TEXTS)
    small.save(str(tmp_path))
    assert (load_embedder(tmp_path, device="cpu").encode(OTHERS) == small.encode(OTHERS)).all()
    assert compress.report(small)["zeros"].eq(0.5).all()


@pytest.mark.parametrize("how", compress.CRITERIA)
@pytest.mark.parametrize("sparsity", [*compress.PATTERNS, 0.25])
def test_zeros_after_saving(model, how, sparsity, tmp_path):
    small = compress.prune(model, how, sparsity, TEXTS)
    small.save(str(tmp_path))
    loaded = load_embedder(tmp_path, device="cpu")
    assert same(weights(loaded), weights(small))
    for layer in layers(loaded).values():
        zeros = layer.weight == 0
        if sparsity == 0.25:
            assert zeros.float().mean() == 0.25
            assert how != "wanda" or (zeros.float().mean(dim=1) == 0.25).all()
        else:
            of = int(sparsity[-1])
            assert (zeros.view(len(zeros), -1, of).sum(dim=2) == of // 2).all()


@pytest.mark.parametrize("instruction", [None, "Find it"])
def test_calibration_reads_no_padding_and_the_template(model, instruction):
    block = next(calibration.blocks(model[0], TEXTS, instruction, needs="hessian"))
    norms = next(calibration.blocks(model[0], TEXTS, instruction, needs="norms")).inputs
    for name, inputs in seen(model, TEXTS, instruction).items():
        if name in block.layers:
            assert torch.allclose(block.inputs[name], inputs.T @ inputs, rtol=1e-3, atol=1e-3)
            assert torch.allclose(norms[name], inputs.square().sum(dim=0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["mean", "causal2vec", "llm2vec"])
def test_a_block_is_calibrated_behind_the_compressed_ones(method):
    whole = tiny(method)
    small = compress.prune(whole, "sparsegpt", "2:4", TEXTS)
    first = compress.prune(whole, "sparsegpt", "2:4", TEXTS)
    for name, layer in layers(first).items():
        if name.startswith("layers.1."):
            layer.weight.data.copy_(layers(whole)[name].weight)
    for name, inputs in seen(first, TEXTS).items():
        if name.startswith("layers.1."):
            expected = compress.sparsegpt(layers(whole)[name].weight.detach(), inputs.T @ inputs, "2:4")
            assert torch.allclose(layers(small)[name].weight, expected, atol=1e-3)


@pytest.mark.parametrize("form", compress.FORMATS)
def test_weights_are_stored_in_a_quarter_of_the_bytes(model, form, tmp_path):
    small = compress.quantize(model, "rtn", form)
    small.save(str(tmp_path / "small"))
    stored = load_file(tmp_path / "small" / "model.safetensors")
    for name, layer in layers(model).items():
        kept = stored[f"{name}.weight"]
        assert (kept.dtype, kept.nbytes * 4) == (compress.FORMATS[form], layer.weight.nbytes)
        assert stored[f"{name}.weight_scale"].nbytes == 4 * len(kept)
    before, after = compress.report(model), compress.report(small)
    assert (after["bytes"] == before["bytes"] / 4 + 4 * before["rows"]).all()
    assert after["dtype"].unique().tolist() == [str(compress.FORMATS[form]).removeprefix("torch.")]
    described = json.loads((tmp_path / "small" / "config.json").read_text())["quantization_config"]
    assert described == {"form": form, "quant_method": "workbook_rows"}


def test_quantized_weights_keep_their_form_in_other_dtypes_and_hands(model, tmp_path):
    small = compress.quantize(model, "rtn", "e5m2")
    small.save(str(tmp_path))
    half = load_embedder(tmp_path, device="cpu", model_kwargs={"dtype": "bfloat16"})
    plain = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    decoder = AutoModel.from_pretrained(tmp_path)
    for one in (half[0].decoder, plain[0].decoder, decoder, small.bfloat16()[0].decoder):
        layer = one.layers[1].mlp.up_proj
        assert (layer.weight.dtype, layer.weight_scale.dtype) == (torch.float8_e5m2, torch.float32)
        assert torch.equal(layer.weight_scale, decoder.layers[1].mlp.up_proj.weight_scale)
    assert half[0].decoder.norm.weight.dtype == torch.bfloat16
    assert (
        torch.nn.functional.cosine_similarity(*map(torch.tensor, (half.encode(OTHERS), plain.encode(OTHERS)))).min()
        > 0.99
    )
    half.save(str(tmp_path / "again"))
    assert (load_embedder(tmp_path / "again", device="cpu").encode(OTHERS) == half.encode(OTHERS)).all()


def test_fewer_blocks(model, tmp_path):
    for kept in (1, 0.5):
        small = compress.smaller(model, layers=kept)
        small.save(str(tmp_path / str(kept)))
        assert len(small[0].decoder.layers) == small[0].decoder.config.num_hidden_layers == 1
        assert (load_embedder(tmp_path / str(kept), device="cpu").encode(OTHERS) == small.encode(OTHERS)).all()
    assert len(model[0].decoder.layers) == 2
    gemma = compress.smaller(tiny("mean", "tiny-gemma3"), 1)
    assert len(gemma[0].decoder.config.layer_types) == 1
    assert gemma.encode(OTHERS).shape == (2, 32)


@pytest.mark.parametrize(
    ("how", "options"), [("magnitude", {"sparsity": 0.5}), ("sparsegpt", {}), ("gptq", {"form": "e4m3"})]
)
def test_sensitivity_compresses_one_block_alone(model, how, options):
    before = weights(model)
    rows = compress.sensitivity(model, how, texts=TEXTS, held_out=OTHERS, **options)
    assert same(weights(model), before)
    assert rows["block"].tolist() == [0, 1]
    vectors = torch.nn.functional.normalize(model.encode(OTHERS, convert_to_tensor=True))
    function = compress.quantize if how == "gptq" else compress.prune
    all_of_it = function(model, how, texts=TEXTS, **options)
    one = compress.prune(model, "magnitude", 0.5)  # a copy
    for name, layer in layers(all_of_it).items():
        # the first block sees the same inputs, whether or not the second is compressed too
        source = layer.dequantized() if how == "gptq" else layer.weight
        layers(one)[name].weight.data.copy_(source if name.startswith("layers.0.") else layers(model)[name].weight)
    moved = torch.nn.functional.normalize(one.encode(OTHERS, convert_to_tensor=True))
    assert rows["drift"][0] == pytest.approx(1 - float((vectors * moved).sum(dim=1).mean()), abs=1e-5)
    assert (rows["drift"] > 1e-6).all()


def test_drift_and_bytes_on_disk(model):
    assert compress.drift(model, model, OTHERS) == pytest.approx(0, abs=1e-6)
    little, much = (compress.drift(model, compress.prune(model, "magnitude", share), OTHERS) for share in (0.1, 0.9))
    assert 0 < little < much < 2
    stored = {name: compress.disk_bytes(one) for name, one in (("whole", model), ("int8", compress.quantize(model)))}
    saved = compress.report(model)["bytes"].sum() - compress.report(compress.quantize(model))["bytes"].sum()
    assert stored["whole"] - stored["int8"] == pytest.approx(saved, rel=0.05)


def test_default_texts_are_of_the_training_split(docs):
    train = {*docs.split("train")["document"]}
    assert len(calibration.default_texts(64)) == 128
    assert len(calibration.default_texts(4096)) == 341
    assert {*calibration.default_texts(64)} <= train


def test_the_card_says_how(model, tmp_path):
    compress.quantize(compress.prune(model, "magnitude", 0.5), "rtn", "int8").save(str(tmp_path))
    assert (
        "- **Compression:** pruned by magnitude, 50%; stored as int8, rounded by rtn\n"
        in (tmp_path / "README.md").read_text()
    )
    assert not model.model_card_data.compression


def changed_layer(model, rows, columns):
    model = compress.smaller(model, 1)
    model[0].decoder.layers[0].self_attn.q_proj = torch.nn.Linear(columns, rows, bias=False)
    return model


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: compress.prune(m, "wand"), UnknownNameError, "Unknown criterion 'wand'. Did you mean 'wanda'"),
        (lambda m: compress.prune(m, "rtn"), UnknownNameError, "Unknown criterion 'rtn'"),
        (lambda m: compress.prune(m, "magnitude", "3:4"), UnknownNameError, "Unknown sparsity '3:4'"),
        (lambda m: compress.prune(m, "magnitude", 1.5), InvalidValueError, "share between 0 and 1, got 1.5"),
        (lambda m: compress.prune(changed_layer(m, 32, 30), "magnitude"), InvalidValueError,
         "divides the columns of layers.0.self_attn.q_proj, got 30. 2:4 needs a multiple of 4"),
        (lambda m: compress.prune(m, "sparsegpt", texts=["No."]), InvalidValueError, "at least 64 tokens.*'4 tok"),
        (lambda m: compress.quantize(m, "gptq", texts=["No."]), InvalidValueError, "Give more calibration texts"),
        (lambda m: compress.prune(m, "wanda", texts=[]), InvalidValueError, r"a list of calibration texts, got \[\]"),
        (lambda m: compress.prune(m, "wanda", texts="one text"), InvalidValueError, "a list of calibration texts"),
        (lambda m: compress.prune(m, "wanda", texts=["a", 3]), InvalidValueError, "texts.*got 3"),
        (lambda m: compress.quantize(m, "nearest"), UnknownNameError, "Unknown rounding 'nearest'.*rtn, gptq"),
        (lambda m: compress.quantize(m, "rtn", "int4"), UnknownNameError, "Unknown form 'int4'. Did you mean 'int8'"),
        (lambda m: compress.prune(compress.quantize(m)), InvalidValueError, "16 or 32 bits, got .*int8.* Prune first"),
        (lambda m: compress.quantize(compress.quantize(m)), InvalidValueError, "weights in 16 or 32 bits"),
        (lambda m: compress.smaller(m, 3), InvalidValueError, "from 1 to 2, got 3. A share"),
        (lambda m: compress.smaller(m, 0), InvalidValueError, "from 1 to 2, got 0"),
        (lambda m: compress.smaller(m, 1.0), InvalidValueError, "from 1 to 2, got 1.0"),
        (lambda m: compress.sensitivity(m, "rtn", sparsity="2:4"), InvalidValueError, "since rtn has none"),
        (lambda m: compress.sensitivity(m, "wanda", form="int8"), InvalidValueError, "since wanda has none"),
        (lambda m: compress.sensitivity(m, "sgpt"), UnknownNameError, "Unknown criterion or rounding 'sgpt'"),
        (lambda m: compress.report(m[0]), InvalidValueError, "begins with this library's Decoder, got 'Decoder'"),
        (lambda m: compress.prune(SentenceTransformer(modules=[m[1]])), InvalidValueError, "that begins with Pooling"),
        (lambda m: check_form("e4m3", "mps"), InvalidValueError, "one that the device mps has, got 'e4m3'"),
    ],
)  # fmt: skip
def test_bad_input(model, call, error, message):
    before = weights(model)
    with pytest.raises(error, match=message):
        call(model)
    assert same(weights(model), before)


def test_a_decoder_with_other_layers_is_refused(model):
    other = compress.smaller(model, 1)
    del other[0].decoder.layers[0].mlp.gate_proj
    with pytest.raises(InvalidValueError, match=r"a decoder whose blocks have the layers q_proj, .* got 'LlamaModel'"):
        compress.prune(other)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process; returns exit code, output, errors."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["workbook", "compress", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code, *capsys.readouterr()

    return command


def test_the_command(command, model, tmp_path):
    model.save(str(tmp_path / "whole"))
    code, out, _ = command(
        tmp_path / "whole", "--how", "sparsegpt", "--sparsity", "2:4", "--form", "int8", "-o", tmp_path / "a"
    )
    before, after, place = out.splitlines()
    assert (code, place) == (0, f"Model: {tmp_path / 'a'}")
    assert re.fullmatch("before +73,728 bytes in 14 linear layers of 2 blocks, 0.0% zeros, float32", before)
    assert re.fullmatch("after +20,480 bytes in 14 linear layers of 2 blocks, 50.[0-9]% zeros, int8", after)
    assert load_embedder(tmp_path / "a", device="cpu").encode(OTHERS).shape == (2, 32)
    code, out, _ = command(
        "mean", "--backbone", "tiny-llama", "--how", "magnitude", "--sparsity", "0.25", "-o", tmp_path / "b"
    )
    assert (code, "25.0% zeros" in out) == (0, True)
    code, out, _ = command(tmp_path / "whole", "--how", "rtn", "-o", tmp_path / "c")
    assert (code, "% zeros, int8" in out) == (0, True)
    code, out, err = command(tmp_path / "whole", "--how", "rtn", "-o", tmp_path / "c")
    assert (code, out) == (2, "")
    assert err.startswith("Error: Expected an absent or empty folder")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--how", "wnda"), "Error: Unknown criterion 'wnda'. Did you mean 'wanda'? Expected one of"),
        (("--how", "gptq", "--sparsity", "2:4"), "Error: --sparsity: expected a criterion with --how, one of"),
        (("--how", "wanda", "--sparsity", "2:5"), "Error: Unknown sparsity '2:5'."),
        (("--how", "rtn", "--form", "int9"), "Error: Unknown form 'int9'."),
    ],
)
def test_the_command_refuses_in_a_line(command, arguments, message, tmp_path):
    code, out, err = command("mean", "--backbone", "tiny-llama", "-o", tmp_path / "out", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()
