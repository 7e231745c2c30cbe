"""Hybrid vectors: the two embedders' own, weighted and put one behind the other."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import workbook
from workbook import backbones
from workbook.errors import DamagedFileError, InvalidValueError
from workbook.evaluation import evaluate
from workbook.evaluation.encoder import Encoder
from workbook.scale import get_scale

TEXTS = ["Basil likes warm soil.", "why do my tomato leaves curl at noon", "a", "naïve café, 3½ limes 😀 終わり"]
INSTRUCTION = "Find the note that answers"


def parts(dtype="float32"):
    options = {"dtype": dtype, "device": "cpu"}
    return workbook.build("lens", "tiny-llama", **options), workbook.build("echo", "tiny-mistral", **options)


@pytest.mark.parametrize("weight", [1.0, 0.25, 4])
@pytest.mark.parametrize("prompt", [None, INSTRUCTION])
def test_cosines_are_the_weighted_mean_of_both(weight, prompt):
    models = parts()
    both = workbook.hybrid(*models, weight=weight)
    cosines = [model.similarity(vectors, vectors) for model in (*models, both)
               for vectors in [model.encode(TEXTS, prompt=prompt)]]  # fmt: skip
    torch.testing.assert_close(cosines[2], (cosines[0] + weight * cosines[1]) / (1 + weight))


def test_the_default_is_plain_concatenation():
    models = parts()
    expected = np.concatenate([model.encode(TEXTS, normalize_embeddings=True) for model in models], axis=1)
    both = workbook.hybrid(*models)
    np.testing.assert_allclose(both.encode(TEXTS), expected, atol=1e-6)
    assert both.get_embedding_dimension() == expected.shape[1]
    assert both.max_seq_length == 512


def test_batch_size_and_order_change_nothing():
    both = workbook.hybrid(*parts())
    expected = both.encode(TEXTS, prompt=INSTRUCTION, batch_size=4)
    np.testing.assert_allclose(both.encode(TEXTS, prompt=INSTRUCTION, batch_size=1), expected, atol=1e-5)
    np.testing.assert_allclose(both.encode(TEXTS[::-1], prompt=INSTRUCTION)[::-1], expected, atol=1e-5)


def test_half_precision_gives_float32():
    assert workbook.hybrid(*parts("bfloat16")).encode(TEXTS).dtype == np.float32


def test_saved_and_loaded(tmp_path):
    both = workbook.hybrid(*parts(), weight=0.5)
    both.save_pretrained(str(tmp_path / "both"))
    assert not list(tmp_path.rglob("*.bin"))
    again = SentenceTransformer(str(tmp_path / "both"), trust_remote_code=True, device="cpu")
    assert again[0].weight == 0.5
    np.testing.assert_allclose(
        again.encode(TEXTS, prompt=INSTRUCTION), both.encode(TEXTS, prompt=INSTRUCTION), atol=1e-6
    )
    (file,) = (tmp_path / "both").glob("**/first/**/1_Lexicon/model.safetensors")
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(DamagedFileError, match="sha256"):
        SentenceTransformer(str(tmp_path / "both"), trust_remote_code=True, device="cpu")


def test_one_decoder_may_serve_both(tmp_path):
    lens = workbook.build("lens", "tiny-llama", device="cpu")
    mean = workbook.build("mean", lens, attention="bidirectional")
    both = workbook.hybrid(lens, mean)
    assert both[0].first[0].decoder is both[0].second[0].decoder
    both.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    assert again[0].first[0].decoder is not again[0].second[0].decoder
    np.testing.assert_allclose(again.encode(TEXTS), both.encode(TEXTS), atol=1e-6)
    assert both.encode(TEXTS).shape == (4, 64)


def test_an_ordinary_encoder_may_be_one_of_them():
    """Without instructions: what a prompt means to it is its own affair."""
    lens, encoder = workbook.build("lens", "tiny-llama", device="cpu"), backbones.load_encoder(device="cpu")
    both = workbook.hybrid(lens, encoder)
    expected = [model.encode(TEXTS, normalize_embeddings=True) for model in (lens, encoder)]
    np.testing.assert_allclose(both.encode(TEXTS), np.concatenate(expected, axis=1), atol=1e-5)
    assert both.max_seq_length == min(512, encoder.max_seq_length)
    assert Encoder(both).similarity(both.encode(TEXTS), both.encode(TEXTS)).shape == (4, 4)


def test_the_longest_input_is_set_for_both():
    models = parts()
    both = workbook.hybrid(*models)
    both.max_seq_length = 9
    assert [model.max_seq_length for model in (*models, both)] == [9, 9, 9]
    expected = [model.encode(TEXTS, normalize_embeddings=True) for model in models]
    np.testing.assert_allclose(both.encode(TEXTS), np.concatenate(expected, axis=1), atol=1e-6)
    mixed = workbook.hybrid(backbones.load_encoder(device="cpu"), models[0])
    for value in (0, 8.0, True, "8", None):
        with pytest.raises(InvalidValueError, match=f"max_seq_length: expected a positive whole .*, got {value!r}"):
            mixed.max_seq_length = value
    assert [part.max_seq_length for part in (mixed[0].first, mixed[0].second)] == [256, 9]


def test_evaluated_with_instructions_at_the_scale_of_both():
    """Each part reads the instruction, is cut to the scale's length, and is left as it was."""
    models = parts()
    models[1][0].max_length = 300
    both = workbook.hybrid(*models)
    sizes = get_scale("quick").model_copy(update={"pairs": 12, "max_length": 200, "resamples": 10})
    frame = evaluate(both, ["ParaphraseLadder"], scale=sizes, instructions="docs", progress=False)
    assert frame["score"].notna().all()
    assert [model.max_seq_length for model in models] == [512, 300]
    mixed = workbook.hybrid(models[0], backbones.load_encoder(device="cpu"))
    with pytest.raises(InvalidValueError, match="begins with Hybrid instead of a Decoder"):
        evaluate(mixed, ["ParaphraseLadder"], scale=sizes, instructions="docs")


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "1", True])
def test_a_weight_that_is_none(weight):
    with pytest.raises(InvalidValueError, match="weight: expected a positive number"):
        workbook.hybrid(*parts(), weight=weight)


def test_what_is_no_embedder():
    with pytest.raises(InvalidValueError, match="hybrid: expected two SentenceTransformers, got 'str'"):
        workbook.hybrid(parts()[0], "mean")
