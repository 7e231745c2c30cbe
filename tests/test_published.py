"""Published checkpoints: their vectors, their names and shapes at full size, and what is refused."""

import json
import math
import os
import shutil
import subprocess
import sys

import mteb
import numpy as np
import pytest
import torch
from parity import Fixture
from published_tools import nv_embed_config, nv_embed_shapes, trunk_config, write, write_lens, write_nv_embed
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, normalizers, processors
from torch.nn.functional import gelu, layer_norm, normalize, silu
from transformers import AutoTokenizer, MistralConfig, PreTrainedTokenizerFast

from workbook import cli, explore, probes, published
from workbook.errors import DamagedFileError, InvalidValueError, ModelNotFoundError, OutputError, UnknownNameError
from workbook.modules import Decoder, LatentAttention, Lexicon
from workbook.published.layouts import shapes_of
from workbook.published.tensors import Tensor

TEXTS = ["why do my tomato leaves curl at noon", "Basil likes warm soil.", "hi"]
TASK = "Find notes on gardening"
WRITE = {"nv-embed": write_nv_embed, "lens": write_lens}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One random checkpoint of each layout, and their tensors."""
    made = tmp_path_factory.mktemp("published")
    return {name: (made / name, write(made / name, seed=3)) for name, write in WRITE.items()}


@pytest.fixture
def copy(folders, tmp_path):
    """A copy of a checkpoint, to be damaged."""
    return lambda name: shutil.copytree(folders[name][0], tmp_path / name)


# Against the published code


@pytest.mark.parametrize("side", ["query", "passage"])
def test_nv_embed_gives_the_vectors_of_the_published_code(side, tmp_path):
    write_nv_embed(tmp_path / "model")
    fixture, model = Fixture("nv_embed_latent/text_end_to_end"), published.load(str(tmp_path / "model"))
    given = fixture.texts[side]
    task = given["instruction"].removeprefix("Instruct: ").removesuffix("\nQuery: ")
    vectors = model.encode(given["texts"], prompt=task or None, convert_to_tensor=True)
    fixture.close(vectors, f"{side}.released.vector")


@pytest.mark.parametrize("side", ["query", "document"])
def test_lens_gives_the_vectors_of_the_published_code(side, tmp_path):
    write_lens(tmp_path / "model")
    fixture, model = Fixture("lens_pooling/text_end_to_end"), published.load(str(tmp_path / "model"))
    given = fixture.texts[side]
    vectors = model.encode(given["texts"], prompt=given.get("instruction"), convert_to_tensor=True)
    fixture.close(vectors, f"{side}.max_normalised")


# Against a second implementation: one text at a time, no padding, one head at a time


def rms(states, weight):
    return states * (states.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def turned(states):
    """Rotary positions: the first half of a head's numbers against the second."""
    half = states.shape[1] // 2
    angles = torch.arange(len(states))[:, None] * 10000.0 ** (-torch.arange(half) / half)
    first, second = states[:, :half], states[:, half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], 1)


def trunk_states(ids, weights):
    """Last states of the tiny Mistral, (tokens, 32): 4 heads of 8 on 2 of keys, every token sees every other."""
    states = weights["embed_tokens.weight"][ids]
    for layer in range(2):
        own = {n.removeprefix(f"layers.{layer}."): w for n, w in weights.items() if n.startswith(f"layers.{layer}.")}
        inner = rms(states, own["input_layernorm.weight"])
        q, k, v = (inner @ own[f"self_attn.{kind}_proj.weight"].T for kind in "qkv")
        heads = []
        for head in range(4):
            a, b = slice(8 * head, 8 * head + 8), slice(8 * (head // 2), 8 * (head // 2) + 8)
            scores = turned(q[:, a]) @ turned(k[:, b]).T / math.sqrt(8)
            heads.append(scores.softmax(1) @ v[:, b])
        states = states + torch.cat(heads, 1) @ own["self_attn.o_proj.weight"].T
        inner = rms(states, own["post_attention_layernorm.weight"])
        gate, up = (inner @ own[f"mlp.{kind}_proj.weight"].T for kind in ("gate", "up"))
        states = states + (silu(gate) * up) @ own["mlp.down_proj.weight"].T
    return rms(states, weights["norm.weight"])


def part(tensors, prefix):
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def nv_embed_vector(text, instruction, tensors, tokenizer):
    ids = tokenizer(instruction + text + "</s>")["input_ids"]
    block = part(tensors, "latent_attention_model.")
    states = trunk_states(torch.tensor(ids), part(tensors, "embedding_model."))

    def norm(x, name):
        return layer_norm(x, (32,), block[f"{name}.weight"], block[f"{name}.bias"])

    cross, mlp = "cross_attend_blocks.0", "cross_attend_blocks.1"
    context = norm(block["latents"], f"{cross}.norm_context")
    queries = norm(states, f"{cross}.norm") @ block[f"{cross}.fn.to_q.weight"].T
    keys, values = (context @ block[f"{cross}.fn.to_kv.weight"].T).chunk(2, dim=1)
    rows = [slice(32 * head, 32 * head + 32) for head in range(queries.shape[1] // 32)]
    read = [(queries[:, r] @ keys[:, r].T / math.sqrt(32)).softmax(1) @ values[:, r] for r in rows]
    states = states + torch.cat(read, 1) @ block[f"{cross}.fn.to_out.weight"].T
    inner = norm(states, f"{mlp}.norm") @ block[f"{mlp}.fn.net.0.weight"].T + block[f"{mlp}.fn.net.0.bias"]
    inner = inner[:, :128] * gelu(inner[:, 128:])
    states = states + inner @ block[f"{mlp}.fn.net.2.weight"].T + block[f"{mlp}.fn.net.2.bias"]
    skipped = len(tokenizer.tokenize(instruction))
    return normalize(states[skipped:].mean(0), dim=0)


def lens_vector(text, instruction, tensors, tokenizer):
    ids = tokenizer(f"<instruct>{instruction}\n<query>{text}" if instruction else text)["input_ids"]
    states = trunk_states(torch.tensor(ids), part(tensors, "model."))
    first = ids.index(tokenizer.convert_tokens_to_ids("<query>")) if instruction else 0
    logits = states[first:-2] @ tensors["lm_head.weight"].T
    return normalize((1 + logits.relu()).log().amax(0), dim=0)


@pytest.mark.parametrize("instruction", ["", TASK])
@pytest.mark.parametrize("name", WRITE)
def test_against_a_second_implementation(name, instruction, folders):
    """Random weights in the published proportions: 8 heads, each as wide as the states."""
    folder, tensors = folders[name]
    tokenizer = AutoTokenizer.from_pretrained(folder.parent / "lens" if name == "lens" else Fixture(
        "nv_embed_latent/text_end_to_end").folder / "../../_shared/tiny_bos_tokenizer")  # fmt: skip
    written = f"Instruct: {instruction}\nQuery: " if instruction and name == "nv-embed" else instruction
    naive = {"nv-embed": nv_embed_vector, "lens": lens_vector}[name]
    expected = torch.stack([naive(text, written, tensors, tokenizer) for text in TEXTS])
    got = published.load(str(folder)).encode(TEXTS, prompt=instruction or None, convert_to_tensor=True)
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)
    assert (expected[0] - expected[1]).abs().max() > 1e-2  # the texts differ, so that agreement says something


def sentencepiece_like():
    """A tokenizer built as Mistral's file is: words are cut at spaces, which a sign stands for, and one is put in front
    of each stretch between special tokens."""
    letters = ["<unk>", "<s>", "</s>", "▁", *map(chr, range(33, 127)), "\n"]
    tokenizer = Tokenizer(models.BPE({**{one: place for place, one in enumerate(letters)}, "▁a": 99}, [("▁", "a")]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    known = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    known.add_special_tokens({"additional_special_tokens": ["<instruct>", "<query>", "<response>"]})
    return known


def test_lens_reads_the_ids_of_the_published_tokenizer_and_pools_their_positions(folders, tmp_path):
    folder = shutil.copytree(folders["lens"][0], tmp_path / "model")
    tokenizer = sentencepiece_like()
    tokenizer.save_pretrained(folder)
    decoder = published.load(str(folder))[0]
    for text in ("a cat sat", " a cat", "what is an aa?"):
        for instruction, given in ((TASK, f"<instruct>{TASK}\n<query>{text}"), (None, text)):
            ids = tokenizer(given)["input_ids"]
            (read,) = decoder.encode_texts([text], instruction)
            assert read.input_ids == ids
            first = ids.index(tokenizer.convert_tokens_to_ids("<query>")) + 1 if instruction else 1
            # One to the left of these is pooled: from <query>, or BOS, up to the last but two.
            assert read.pooling_mask[1:] == [int(first <= place < len(ids) - 1) for place in range(1, len(ids))]


# What comes out


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_what_came_in(prefix, folders, tmp_path):
    found = published.find(str(folders["nv-embed"][0]))
    assert found.described().splitlines() == [
        "NV-Embed: 2 layers, 32 wide, 6 latents, 8 heads of 32",
        "Used: 34 tensors, 77,856 weights in float32",
        "Left unused: none",
    ]
    tensors = write_lens(tmp_path / "lens", seed=1, clusters=40, prefix=prefix, dtype=torch.float16)
    inv_freq = {f"{prefix}layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    shutil.rmtree(tmp_path / "lens")
    write(tmp_path / "lens", trunk_config(), tensors | inv_freq, "tiny_bos_eos_tokenizer", torch.float16)
    assert published.find(str(tmp_path / "lens")).described().splitlines() == [
        "LENS: 2 layers, 32 wide, 40 clusters",
        "Used: 21 tensors, 33,408 weights in float16",
        f"Left unused: {prefix}layers.0.self_attn.rotary_emb.inv_freq",
    ]
    assert published.load(str(tmp_path / "lens")).encode("one text").shape == (40,)


@pytest.mark.parametrize("name", WRITE)
def test_the_folder_loads_and_keeps_the_vectors(name, folders, tmp_path):
    expected = published.load(str(folders[name][0]))
    published.convert(str(folders[name][0]), tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(model.encode(TEXTS, prompt=TASK), expected.encode(TEXTS, prompt=TASK), atol=1e-6)
    assert [type(one) for one in model] == [Decoder, {"nv-embed": LatentAttention, "lens": Lexicon}[name]]
    assert model[0].attention == "bidirectional"
    assert model[0].template == expected[0].template
    assert [*tmp_path.iterdir()] == [tmp_path / "model"]
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"the published embedder {name}" in card
    assert "not trained" not in card
    assert {"nv-embed": "cc-by-nc-4.0", "lens": "apache-2.0"}[name] in card


@pytest.mark.parametrize("name", WRITE)
def test_the_dtype_is_the_checkpoints_or_the_one_that_is_asked_for(name, tmp_path):
    WRITE[name](tmp_path / "half", seed=3, dtype=torch.float16)
    exact = published.load(str(tmp_path / "half"), torch.float32).encode(TEXTS, prompt=TASK, convert_to_tensor=True)
    for dtype, expected in ((None, torch.float16), ("bfloat16", torch.bfloat16), (torch.float32, torch.float32)):
        model = published.load(str(tmp_path / "half"), dtype)
        assert {one.dtype for one in model.state_dict().values() if one.is_floating_point()} == {expected}
        vectors = model.encode(TEXTS, prompt=TASK, convert_to_tensor=True).float()
        assert (vectors * exact).sum(1).min() > 0.99
    with pytest.raises(InvalidValueError, match=r"dtype: expected .*float32"):
        published.convert(str(tmp_path / "half"), tmp_path / "model", "int8")
    published.convert(str(tmp_path / "half"), tmp_path / "model")
    files = [load_file(file) for file in tmp_path.glob("model/**/*.safetensors")]
    floats = {value.dtype for file in files for value in file.values() if value.is_floating_point()}
    assert floats == {torch.float16}


def test_the_dictionary_opens_in_the_laboratory(folders):
    model = published.load(str(folders["nv-embed"][0]))
    attention = probes.latent_attention(model, TEXTS, TASK)
    assert attention.shape == (3, 8, 6)
    np.testing.assert_allclose(attention.sum(-1), 1, rtol=1e-5)
    explorer = explore.LatentExplorer(model, [*TEXTS, "Rates rose."], ["garden", "garden", "other", "other"])
    assert {*explorer.latents["head"]} <= {*range(8)}
    assert len(explorer.table("A dull spade.", top=2)) == 16
    lab = explore.DictionaryLab(model, TEXTS, TASK, latents=4)
    assert len(lab.table("A dull spade.")) == 4
    assert lab.ranking("A dull spade.", [*lab.latents])["change"].abs().max() > 1e-4  # silenced, the ranking moves


# At full size, without weights


def mistral(width=4096, layers=32, inner=14336, keys=1024, rows=32000):
    names = {"embed_tokens.weight": (rows, width), "norm.weight": (width,)}
    for layer in range(layers):
        attention, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        names |= {
            **{f"{attention}.{kind}_proj.weight": (width, width) for kind in "qo"},
            **{f"{attention}.{kind}_proj.weight": (keys, width) for kind in "kv"},
            **{f"{mlp}.{kind}_proj.weight": (inner, width) for kind in ("gate", "up")},
            f"{mlp}.down_proj.weight": (width, inner),
            f"layers.{layer}.input_layernorm.weight": (width,),
            f"layers.{layer}.post_attention_layernorm.weight": (width,),
        }
    return names


def megabytes(shapes, each):
    return round(sum(math.prod(shape) for shape in shapes.values()) * each / 2**20)


FULL = {"rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "torch_dtype": "float32"}


@pytest.mark.parametrize("stated", [True, False], ids=["settings stated", "settings left out"])
def test_names_and_shapes_of_nv_embed_at_full_size(stated):
    """Those of the published configuration, whose defaults may be left out; mteb counts the same bytes of float16."""
    (layout,) = (one for one in published.LAYOUTS if one.title == "NV-Embed")
    config = nv_embed_config(512, 8, 4096)
    config["latent_attention_config"] |= {"hidden_dim": 4096, "latent_dim": 4096}
    config["text_config"] = FULL | {"vocab_size": 32000, "hidden_size": 4096}
    if not stated:
        config = {"model_type": "nvembed", "latent_attention_config": {"model_type": "latent_attention"},
                  "text_config": FULL}  # fmt: skip
    parts = layout.parts(config, {})
    shapes = shapes_of(parts, MistralConfig(**parts.trunk))
    assert shapes == {f"embedding_model.{name}": shape for name, shape in mistral().items()} | {
        f"latent_attention_model.{name}": shape for name, shape in nv_embed_shapes(4096, 512, 32768).items()
    }
    assert megabytes(shapes, 2) == mteb.get_model_meta("nvidia/NV-Embed-v2").memory_usage_mb
    assert parts.pooled == "512 latents, 8 heads of 4096"


@pytest.mark.parametrize("clusters", [4000, 8000])
def test_names_and_shapes_of_lens_at_full_size(clusters, tmp_path):
    """With embeddings for three more tokens; mteb counts the bytes of float32 without the head, a file of its own."""
    (layout,) = (one for one in published.LAYOUTS if one.title == "LENS")
    found = {
        "model.embed_tokens.weight": Tensor((32003, 4096), torch.float32, tmp_path),
        "lm_head.weight": Tensor((clusters, 4096), torch.float32, tmp_path),
    }
    parts = layout.parts(FULL | {"model_type": "mistral", "vocab_size": 32000}, found)
    shapes = shapes_of(parts, MistralConfig(**parts.trunk))
    trunk = {f"model.{name}": shape for name, shape in mistral(rows=32003).items()}
    assert shapes == trunk | {"lm_head.weight": (clusters, 4096)}
    assert megabytes(trunk, 4) == mteb.get_model_meta(f"yibinlei/LENS-d{clusters}").memory_usage_mb


# What is refused


def configured(**fields):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        for name, value in fields.items():
            part = config if name in config else config["latent_attention_config"]
            part[name] = value
        (folder / "config.json").write_text(json.dumps(config))

    return change


def changed(name, value, file="model-00001-of-00003.safetensors"):
    """Another value of a tensor, or none."""

    def change(folder):
        for path in folder.glob("*.safetensors"):
            tensors = load_file(path)
            if name in tensors or (value is not None and path.name == file and not known(folder, name)):
                save_file({k: v for k, v in (tensors | {name: value}).items() if v is not None}, path)

    return change


def known(folder, name):
    return any(name in load_file(path) for path in folder.glob("*.safetensors"))


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def pickled(folder):
    for path in folder.glob("model*"):
        path.unlink()
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")


def unlisted(folder):
    """Without a tensor in a shard and in the index."""
    changed("embedding_model.norm.weight", None)(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    del index["weight_map"]["embedding_model.norm.weight"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def cut(folder):
    file = folder / "model-00002-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def other_tokenizer(folder):
    shutil.copy(Fixture("lens_pooling/text_end_to_end").folder / "about.json", folder / "tokenizer.json")


def without_marks(folder):
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("<query>", "<quest>"))


Q, NORM = "latent_attention_model.cross_attend_blocks.0.fn.to_q.weight", "embedding_model.norm.weight"
INDEX, SECOND, HEAD = "model.safetensors.index.json", "model-00002-of-00003.safetensors", "lm_head.weight"


@pytest.mark.parametrize(
    ("name", "damage", "error", "message"),
    [
        ("nv-embed", configured(model_type="bert"), InvalidValueError, r"layout of NV-Embed .* LENS .*, got 'bert'"),
        ("nv-embed", without("config.json"), ModelNotFoundError, r"Expected config\.json"),
        ("nv-embed", pickled, ModelNotFoundError, r"found pytorch_model\.bin: a pickle can run code, and is not read"),
        ("nv-embed", without(SECOND), DamagedFileError, r"shard .*00002.* found no file"),
        ("nv-embed", without(INDEX), ModelNotFoundError, r"shards with their index.*neither"),
        ("nv-embed", cut, DamagedFileError, r"tensors in .*00002.*Restore"),
        ("nv-embed", changed(NORM, None), DamagedFileError, r"norm\.weight .*as model\.saf.*none"),
        ("nv-embed", unlisted, DamagedFileError, r"Expected 34 tensors .*none for 1, the first embedding_model\.norm"),
        ("nv-embed", changed(Q, torch.ones(64, 32)), DamagedFileError, r"shape \(256, 32\) .*got \(64, 32\)"),
        ("nv-embed", changed(NORM, torch.ones(32).char()), DamagedFileError, r"as one of .* of a quantized model"),
        ("nv-embed", changed("embedding_model.more", torch.ones(2)), DamagedFileError, r"1 more, .*_model\.more: left"),
        ("nv-embed", configured(num_cross_heads=3), DamagedFileError, r"shape \(96, 32\) .*got \(256, 32\)"),
        ("nv-embed", configured(num_cross_heads=0), InvalidValueError, r"heads: expected a positive whole .*, got 0"),
        ("nv-embed", configured(latent_dim=16), InvalidValueError, r"as wide as the decoder, 32, .*latent_dim 16"),
        ("nv-embed", configured(output_normalize=False), InvalidValueError, "output_normalize: expected True"),
        ("nv-embed", configured(is_mask_instruction=False), InvalidValueError, "is_mask_instruction: expected True"),
        ("nv-embed", other_tokenizer, DamagedFileError, r"Expected a tokenizer .*tokenizer\.json"),
        ("lens", configured(num_attention_heads=5), DamagedFileError, r"hidden size .* multiple|q_proj.* of shape"),
        ("lens", configured(hidden_size=64), DamagedFileError, r"of shape \(423, 64\) .*got \(423, 32\)"),
        ("lens", without("lm_head.safetensors"), InvalidValueError, r"head of clusters.*a Mistral without one"),
        ("lens", changed(HEAD, torch.ones(423, 32)), InvalidValueError, "one row for each of 423 tokens"),
        ("lens", changed(HEAD, torch.ones(24, 16)), DamagedFileError, r"shape \(24, 32\) .*got \(24, 16\)"),
        ("lens", changed(HEAD, torch.full((24, 32), torch.nan)), InvalidValueError, "head: expected finite numbers"),
        ("lens", without_marks, DamagedFileError, r"knows <instruct> and <query> .* 423 tokens without <query>"),
    ],
)  # fmt: skip
def test_a_folder_that_is_none_is_one_error_and_leaves_nothing(name, damage, error, message, copy, tmp_path, capfd):
    folder, output = copy(name), tmp_path / "output"
    output.mkdir()
    damage(folder)
    with pytest.raises(error, match=message) as raised:
        published.convert(str(folder), output)
    assert str(folder) in str(raised.value) or error is InvalidValueError
    assert len(str(raised.value).splitlines()) == 1
    assert [*output.iterdir()] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "output"])


def test_names_that_are_none(tmp_path):
    with pytest.raises(UnknownNameError, match=r"Did you mean 'nvidia/NV-Embed-v2'\? .*A local folder works too"):
        published.find("nvidia/NV-Embed-2")
    with pytest.raises(UnknownNameError, match="Unknown published checkpoint"):
        published.find(str(tmp_path / "nothing"))


@pytest.mark.journey
def test_a_head_in_a_pickle_is_not_read_and_the_command_of_the_message_converts_it(copy):
    folder = copy("lens")
    expected = published.load(str(folder)).encode(TEXTS)
    head = torch.nn.Linear(32, 24, bias=False)
    head.weight.data = load_file(folder / "lm_head.safetensors")["lm_head.weight"]
    torch.save(head, folder / "lm_head.pth")
    (folder / "lm_head.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"lm_head\.pth: a pickle can run code, and is not read") as raised:
        published.find(str(folder))
    command = str(raised.value).partition("then import the folder: ")[2].replace("python", sys.executable, 1)
    subprocess.run(command, shell=True, check=True)
    np.testing.assert_array_equal(published.load(str(folder)).encode(TEXTS), expected)


def test_an_output_that_holds_something_stays_as_it_is(folders, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(OutputError, match="Expected an absent or empty folder"):
        published.convert(str(folders["lens"][0]), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def snapshot(cache, name, folder=None):
    """A checkpoint in a Hub's cache; without a folder one of which only small files were fetched."""
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0123abc")
    ignored = None if name.startswith("nvidia") else shutil.ignore_patterns("*.safetensors")
    shutil.copytree(folder, place / "snapshots" / "0123abc", ignore=ignored)


@pytest.mark.journey
def test_hub_ids_are_read_from_the_cache_and_a_pickled_head_is_refused_before_the_download(folders, tmp_path):
    """In a process of its own: where the cache lies is read once."""
    snapshot(tmp_path, "nvidia/NV-Embed-v2", folders["nv-embed"][0])
    snapshot(tmp_path, "yibinlei/LENS-d8000", folders["lens"][0])
    program = "from workbook import published\n"
    program += "print(published.load('nvidia/NV-Embed-v2').encode('a text').shape)\n"
    program += "try: published.find('yibinlei/LENS-d8000')\n"
    program += "except published.checkpoint.ModelNotFoundError as error: print(error)"
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    first, second = ran.stdout.splitlines()
    assert first == "(32,)"
    assert "as safetensors in yibinlei/LENS-d8000, found none" in second
    assert "hf download yibinlei/LENS-d8000 --local-dir FOLDER; cd FOLDER; python -c" in second


# The command


@pytest.fixture
def workbook(monkeypatch, capfd):
    def workbook(*arguments):
        monkeypatch.setattr(sys, "argv", ["workbook", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code, *capfd.readouterr()

    return workbook


def test_the_command(workbook, folders, tmp_path):
    code, out, err = workbook("import", folders["nv-embed"][0], "--output", tmp_path / "model", "--dtype", "bfloat16")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "NV-Embed: 2 layers, 32 wide, 6 latents, 8 heads of 32",
        "Used: 34 tensors, 77,856 weights in float32",
        "Left unused: none",
        f"Model: {tmp_path / 'model'}",
    ]
    asked = ("--scale", "quick", "--suite", "ParaphraseLadder", "--no-cache")
    code, out, err = workbook("evaluate", tmp_path / "model", *asked)
    assert (code, err) == (0, "")
    assert "ParaphraseLadder" in out
    code, out, err = workbook("import", folders["nv-embed"][0], "--output", tmp_path / "model")
    assert (code, out) == (2, "")
    assert err.startswith("Error: Expected an absent or empty folder")
    code, out, err = workbook("import", "--help")
    assert (code, err) == (0, "")
    assert "--dtype" in out
