"""Bad input that crosses modules: what is not text, folders that can't be written, files that were damaged."""

import contextlib
import os
import re
import resource
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

import workbook
from workbook import backbones, cli, evaluation, figures
from workbook.errors import DamagedFileError, InvalidValueError, OutputError, UnknownNameError, whole
from workbook.files import atomic_folder
from workbook.papers import claims
from workbook.runs import notebook
from workbook.scale import get_scale


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
        (lambda: get_scale([]), UnknownNameError, "quick, cpu, gpu, paper"),
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
        (5, {"least": 2, "most": 4, "of": "rows", "way_out": "Or drop it."},
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


@pytest.fixture
def place():
    """A folder that everybody may enter; pytest's own is closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@contextlib.contextmanager
def full(folder):
    """A limit on the size of files stands in for a disk without room."""
    folder.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def read_only(folder):
    """A folder without write permission; root, whom permissions don't bind, is somebody else meanwhile."""
    folder.mkdir()
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


def write_claims(model, folder):
    claim = next(iter(claims.load().values()))
    verdict = claims.Verdict(
        id=claim.id,
        paper="p" * 200,
        place="table 1",
        statement="A statement.",
        verdict="partly",
        scale="quick",
        clauses={},
        published={},
        measured={},
    )
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
