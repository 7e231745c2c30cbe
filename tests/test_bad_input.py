"""Bad input that crosses modules: what is not text, folders that can't be written, files that were damaged."""

import contextlib
import json
import re
import shutil
from functools import partial

import numpy as np
import pandas as pd
import pytest
from places import full, read_only
from sentence_transformers import SentenceTransformer

import workbook
from workbook import backbones, cli, evaluation, figures
from workbook.data import rows as data
from workbook.errors import DamagedFileError, InvalidValueError, OutputError, UnknownNameError, whole
from workbook.files import atomic_folder
from workbook.methods import METHODS
from workbook.modules import load_embedder
from workbook.papers import claims
from workbook.papers.verdicts import judge
from workbook.runs import notebook
from workbook.scale import get_scale
from workbook.texts import LONGEST


@pytest.fixture(scope="module")
def tiny():
    return workbook.build("mean", "tiny-llama", dtype="float32", device="cpu")


# What is not text


@pytest.mark.parametrize(
    "bad",
    [None, 3, b"bytes", [None], ["a", 3], [["a", "b"]], ["a", float("nan")], [{"a": 1}], ["a", *["b"] * 40, None]],
    ids=lambda bad: repr(bad)[:20],
)
@pytest.mark.parametrize("encode", ["encode", "encode_query", "encode_document"])
def test_what_is_not_text_is_refused(tiny, encode, bad):
    with pytest.raises(InvalidValueError, match=r"^texts: expected strings, got .*\. Drop it, or turn it into text"):
        getattr(tiny, encode)(bad)


def test_a_chat_is_refused_by_sentence_transformers(tiny):
    with pytest.raises(ValueError, match="Supported modalities: text"):
        tiny.encode([{"role": "user", "content": "a"}])


def test_an_instruction_that_is_not_text_is_refused(tiny):
    with pytest.raises(InvalidValueError, match=r"instruction \(prompt\): expected a string, or None for none, got 3"):
        tiny.encode(["a"], prompt=3)


@pytest.mark.parametrize("method", ["mean", "echo", "causal2vec"])
def test_half_a_surrogate_pair_is_refused_by_its_place(method):
    model = workbook.build(method, "tiny-llama", dtype="float32", device="cpu")
    told = r"expected strings that UTF-8 can hold, got '\\ud83d!'\. Drop that half of a surrogate pair, character 6"
    with pytest.raises(InvalidValueError, match=f"^texts: {told}"):
        model.encode(["fine", "half \ud83d!"])
    with pytest.raises(InvalidValueError, match=rf"^instruction \(prompt\): {told}"):
        model.encode(["fine"], prompt="half \ud83d!")


def test_a_text_of_absurd_length_is_refused_before_it_is_tokenized(tiny):
    long = "a" * (LONGEST + 1)
    told = r"expected at most 5,000,000 characters in a text, got '5,000,001 characters: aaaa.*Cut it"
    with pytest.raises(InvalidValueError, match=f"^texts: {told}"):
        tiny.encode(["fine", long])
    with pytest.raises(InvalidValueError, match=rf"^instruction \(prompt\): {told}"):
        tiny.encode(["fine"], prompt=long)


@pytest.mark.parametrize("ids", [[], [3, -1], [3, 259], [10**12]])
def test_token_ids_that_are_none(tiny, ids):
    with pytest.raises(
        InvalidValueError, match=r"inputs: expected rows of token ids, one or more from 0 to 258, got \["
    ):
        tiny.preprocess([[3, 4], ids])


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A backbone whose tokenizer has neither EOS nor PAD."""
    folder = str(tmp_path_factory.mktemp("endless"))
    tokenizer = backbones.load_tokenizer("tiny-llama")
    tokenizer.eos_token = tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    backbones.load_decoder("tiny-llama", dtype="float32", lm_head=True).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_a_tokenizer_without_eos_and_pad(method, endless):
    model = workbook.build(method, endless, dtype="float32", device="cpu")
    texts = ["short", "a text that is longer", "one that is a little longer still"]
    alone = np.concatenate([model.encode([text]) for text in texts])
    np.testing.assert_allclose(model.encode(texts), alone, atol=1e-5)
    with pytest.raises(InvalidValueError, match=r"^texts: expected words, since this tokenizer has no EOS .* got ''\."):
        model.encode(["short", ""])


@pytest.mark.parametrize("length", [-1, 0, 2.5, True, None, "64"])
def test_a_length_that_is_none(tiny, length):
    before = tiny.max_seq_length
    for change in (lambda: setattr(tiny, "max_seq_length", length), lambda: setattr(tiny[0], "max_length", length)):
        with pytest.raises(InvalidValueError, match="max_length: expected a positive whole number of tokens, got"):
            change()
    assert tiny.max_seq_length == before


def test_odd_texts_on_the_real_backbone(smollm2):
    texts = ["", " \n", "\x00\x1b\ufffd", "👩‍👩‍👧‍👦 終わり", "word " * 100_000]
    for attention in ("bidirectional", "causal"):
        smollm2[0].attention = attention
        vectors = smollm2.encode(texts, prompt="Find the same")
        assert np.isfinite(vectors).all()
        assert (np.abs(vectors).max(axis=1) > 0).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: workbook.build([]), UnknownNameError, r"Unknown method \[\]"),
        (lambda: workbook.build("mean", "x" * 5000), UnknownNameError, "Unknown backbone 'xxx"),
        (lambda: workbook.build("mean", "a\0b"), UnknownNameError, "Unknown backbone"),
        (lambda: workbook.build("mean", "tiny-llama", attn_implementation=3), InvalidValueError, "got 3"),
        (lambda: workbook.build("mean", "tiny-llama", attention="both"), UnknownNameError, "causal, bidirectional"),
        (lambda: workbook.build("mean", "tiny-llama", template="x"), UnknownNameError, "plain, eos"),
        (lambda: workbook.build("mean", "tiny-llama", template=None), InvalidValueError, "got None"),
        (lambda: workbook.build("mean", "tiny-llama", template={"plain": 1}), InvalidValueError, "instructed: Field"),
        (lambda: get_scale([]), UnknownNameError, "quick, cpu, night, gpu, paper"),
        (lambda: get_scale("qick"), UnknownNameError, "Did you mean 'quick'"),
        (lambda: evaluation.tasks([], "quick"), InvalidValueError, "suite: expected one of docs"),
        (lambda: evaluation.tasks("dosc", "quick"), UnknownNameError, "Did you mean 'docs'"),
    ],
)
def test_unknown_names_and_values(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("number", [7, np.int64(7), np.uint8(7)])
def test_a_whole_number_of_any_type(number):
    found = whole("n", number, most=7)
    assert (found, type(found)) == (7, int)


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (0, {}, "n: expected a positive whole number, got 0."),
        (True, {}, "n: expected a positive whole number, got True."),
        (2.0, {"of": "steps"}, "n: expected a positive whole number of steps, got 2.0."),
        ("2", {"least": 0}, "n: expected a whole number from 0, got '2'."),
        (None, {"most": 4}, "n: expected a whole number from 1 to 4, got None."),
        (5, {"least": 2, "most": 4, "of": "rows", "hint": "Or drop it."},
         "n: expected a whole number of rows from 2 to 4, got 5. Or drop it."),
    ],
)  # fmt: skip
def test_what_is_no_whole_number(value, bounds, message):
    with pytest.raises(InvalidValueError, match=f"^{re.escape(message)}$"):
        whole("n", value, **bounds)


def test_a_negative_seed(tiny):
    with pytest.raises(InvalidValueError, match="seed: expected a whole number from 0, got -1"):
        evaluation.evaluate(tiny, seed=-1)


# Folders that can't be written


def write_claims(model, folder):
    claim = next(iter(claims.load().values())).model_copy(update={"note": "n" * 200})
    verdict = judge(claim, {}, scale="quick")
    claims.write([verdict], folder / "claims.json")


def write_figure(model, folder):
    frame = pd.DataFrame({"x": ["a", "b"], "y": [1.0, 2.0]})
    figures.save(figures.bars(frame, "x", "y"), "scores", frame, folder)


def write_manifest(model, folder):
    notebook.start("00_start", scale="quick", backbone="tiny-llama", seed=0, rerun=False, output_dir=folder)


def write_backbone(model, folder):
    """As the cache is filled: safetensors, which reports a full disk in its own way."""
    with atomic_folder(folder / "backbone") as scratch:
        model[0].decoder.save_pretrained(scratch)


WRITERS = [write_claims, write_figure, write_manifest, write_backbone]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
@pytest.mark.parametrize("broken", [full, read_only], ids=lambda broken: broken.__name__)
def test_nothing_half_written_where_nothing_can_be_written(tiny, place, broken, write, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CACHE", str(place / "cache"))
    locks = place / "cache" / "locks"
    locks.mkdir(parents=True)
    locks.chmod(0o777)  # where the output can't be written, locks can
    write(tiny, place)  # whatever is imported or built at first use is there, and it works where it can
    folder = place / "output"
    with broken(folder), pytest.raises(OutputError, match=r"^Could not write .*output.* Choose a folder"):
        write(tiny, folder)
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_claims_name_the_cache_where_it_is_the_cache_that_cannot_be_written(tiny, place, monkeypatch):
    (place / "output").mkdir()
    monkeypatch.setenv("WORKBOOK_CACHE", str(place / "cache"))
    with read_only(place / "cache"), pytest.raises(OutputError, match=r"^Could not write .*cache/locks: "):
        write_claims(tiny, place / "output")


def test_a_cache_that_can_only_be_read_serves_what_it_holds(place, monkeypatch):
    """As one that several people share."""
    pairs = place / "pairs.jsonl"
    pairs.write_text("".join(f'{{"query": "q{number}", "positive": "p{number}"}}\n' for number in range(3)))
    pairs.chmod(0o644)
    monkeypatch.setenv("WORKBOOK_CACHE", str(place / "cache"))
    read = partial(data.load, pairs, "contrastive", tokenizer=backbones.load_tokenizer("tiny-llama"), max_length=8)
    made = read()
    for entry in (place / "cache").rglob("*"):
        entry.chmod(0o555 if entry.is_dir() else 0o444)
    with read_only(place / "cache"):
        assert read().fingerprint == made.fingerprint
    monkeypatch.setenv("WORKBOOK_CACHE", str(place / "empty"))
    with read_only(place / "empty"), pytest.raises(OutputError, match=r"^Could not write .*empty/locks"):
        read()


@pytest.mark.parametrize("broken", [full, read_only], ids=lambda broken: broken.__name__)
def test_a_model_is_not_saved_where_nothing_can_be_written(tiny, place, broken):
    folder = place / "output"
    with (
        broken(folder),
        pytest.raises(OutputError, match="Could not write"),
        atomic_folder(folder / "model") as scratch,
    ):
        tiny[0].save(str(scratch))
    assert not any(folder.iterdir())


# Damaged files

GUARDED = ["model.safetensors", "config.json", "decoder_config.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def saved(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    tiny.save(str(folder))
    return folder


@contextlib.contextmanager
def flipped(path, place):
    """One bit of a file the other way round, inside this block."""
    data = path.read_bytes()
    changed = bytearray(data)
    changed[place] ^= 1
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize("place", [0, 40, -5])
@pytest.mark.parametrize("name", [*GUARDED, "checksums.json"])
def test_a_flipped_bit_anywhere_in_a_saved_decoder_is_found(saved, name, place):
    with flipped(saved / name, place), pytest.raises(DamagedFileError, match=r"Save the model again"):
        SentenceTransformer(str(saved), trust_remote_code=True, device="cpu")


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"])
def test_evaluate_explains_what_sentence_transformers_can_not_read(saved, name, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["workbook", "evaluate", str(saved), "--scale", "quick"])
    with flipped(saved / name, 0), pytest.raises(SystemExit) as exit:
        cli.main()
    assert exit.value.code == 2
    assert "Error: Expected a model that sentence-transformers can load in" in capsys.readouterr().err


def test_a_damaged_model_beside_a_sound_one(saved, tiny):
    """Once the file is mended the model loads, though its checksum was taken while it was damaged."""
    with flipped(saved / "model.safetensors", -5), pytest.raises(DamagedFileError):
        backbones.resolve(str(saved))
    again = SentenceTransformer(str(saved), trust_remote_code=True, device="cpu", model_kwargs={"dtype": "float32"})
    np.testing.assert_array_equal(again.encode(["a"]), tiny.encode(["a"]))


# Folders that bring code of their own


@pytest.fixture
def hostile(saved, tmp_path):
    """A copy of a saved model, and code that must not be run."""
    folder = shutil.copytree(saved, tmp_path / "model")
    for file in (folder / "evil.py", folder / "workbook.py"):
        file.write_text("open(__file__ + '.ran', 'w')\nfrom workbook.modules import Decoder as Evil\n")
    return folder


def rewritten(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def first_type(name):
    return lambda modules: modules[0].update(type=name)


ROUTER = "sentence_transformers.base.modules.router.Router"
DENSE = "sentence_transformers.base.modules.dense.Dense"


def routed(folder):
    """Foreign code one level down, where sentence-transformers' router looks for its modules."""
    (folder / "0_Router").mkdir()
    kinds = {"types": {"query_0": "evil.Evil"}, "structure": {"query": ["query_0"]}, "parameters": {}}
    (folder / "0_Router" / "router_config.json").write_text(json.dumps(kinds))
    rewritten(folder / "modules.json", lambda modules: modules[0].update(type=ROUTER, path="0_Router"))


def activated(folder):
    (folder / "2_Dense").mkdir()
    config = {"in_features": 32, "out_features": 4, "activation_function": "evil.Evil"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": DENSE}
    rewritten(folder / "modules.json", lambda modules: modules.append(dense))


BRINGING = {
    "its own module": lambda folder: rewritten(folder / "modules.json", first_type("evil.Evil")),
    "a module that goes by our name": lambda folder: rewritten(folder / "modules.json", first_type("workbook.Evil")),
    "something of another package": lambda folder: rewritten(folder / "modules.json", first_type("os.system")),
    "a function of ours": lambda folder: rewritten(folder / "modules.json", first_type("workbook.cli.main")),
    "a router's module": routed,
    "an activation": activated,
}


@pytest.mark.parametrize("bring", BRINGING.values(), ids=BRINGING)
def test_evaluate_runs_no_code_of_a_folder(bring, hostile, monkeypatch, capsys):
    bring(hostile)
    monkeypatch.setattr("sys.argv", ["workbook", "evaluate", str(hostile), "--scale", "quick"])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    told = capsys.readouterr().err
    assert exit.value.code == 2
    assert re.search(r"got '(evil\.Evil|workbook\.Evil|os\.system|workbook\.cli\.main)'\. Read that code", told)
    assert "--trust-remote-code" in told
    assert len(told.splitlines()) == 1
    assert not [*hostile.rglob("*.ran")]


def test_a_model_without_checksums_is_read_as_carefully(saved, tmp_path):
    """As one that somebody else made."""
    folder = shutil.copytree(saved, tmp_path / "model")
    (folder / "checksums.json").unlink()
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DamagedFileError, match=rf"Expected a model .* in {weights}, got SafetensorError"):
        load_embedder(folder, device="cpu")


def test_weights_of_a_pooling_that_are_cut(tmp_path):
    workbook.build("nv-embed", "tiny-llama", device="cpu").save(str(tmp_path))
    (folder,) = tmp_path.glob("1_*")
    (folder / "checksums.json").unlink()
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DamagedFileError, match=rf"Expected a saved LatentAttention in {weights}, got SafetensorError"):
        SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")


def test_code_of_a_folder_runs_where_it_is_allowed(hostile, tiny):
    rewritten(hostile / "modules.json", first_type("evil.Evil"))
    model = load_embedder(hostile, trust_remote_code=True, device="cpu", model_kwargs={"dtype": "float32"})
    np.testing.assert_array_equal(model.encode(["a"]), tiny.encode(["a"]))


def test_code_of_a_folder_inside_a_hybrid_is_not_run(hostile, tiny, tmp_path):
    workbook.hybrid(tiny, tiny).save(str(tmp_path / "both"))
    load_embedder(tmp_path / "both", device="cpu")
    shutil.rmtree(tmp_path / "both" / "second")
    rewritten(hostile / "modules.json", first_type("evil.Evil"))
    shutil.copytree(hostile, tmp_path / "both" / "second")
    with pytest.raises(InvalidValueError, match=r"both/second: expected .* got 'evil\.Evil'"):
        load_embedder(tmp_path / "both", device="cpu")
    assert not [*tmp_path.rglob("*.ran")]
