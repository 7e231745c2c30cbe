"""What users of sentence-transformers do by habit is honoured, or refused by name."""

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SparseEncoder

import workbook
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.modules import LexiconEncoder, load_embedder
from workbook.vocabulary.sparse import decode

TEXTS = ["A kitten is dozing.", "Sort a list of names by date."]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mean")
    workbook.build("mean", "tiny-llama", dtype="float32", device="cpu").save(str(folder))
    return folder


def load(folder, **options):
    return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu", **options)


def test_settings_are_honoured(saved):
    model = load(
        saved,
        model_kwargs={"dtype": "bfloat16", "attn_implementation": "eager", "use_safetensors": True},
        processor_kwargs={"padding_side": "left"},
    )
    assert model[0].decoder.dtype is torch.bfloat16
    assert model[0].decoder.config._attn_implementation == "eager"
    assert model.preprocess(TEXTS)["attention_mask"][0, 0] == 0
    plain = load(saved, model_kwargs={"dtype": "auto"}, processor_kwargs={}, config_kwargs={}, backend="torch")
    assert plain[0].decoder.dtype is torch.float32  # as saved
    assert plain.preprocess(TEXTS)["attention_mask"][0, 0] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "onnx"}, "backend: expected torch.*'onnx'"),
        ({"model_kwargs": {"quantization_config": "4bit"}}, "'quantization_config'.*dtype, attn_implementation"),
        ({"model_kwargs": {"device_map": "auto"}}, "'device_map'.*device= names"),
        ({"model_kwargs": {"torch_dtype": "float16"}}, "Did you mean 'dtype'"),
        ({"model_kwargs": {"use_safetensors": False}}, "use_safetensors: expected True"),
        ({"processor_kwargs": {"model_max_length": 4}}, "'model_max_length'.*max_seq_length"),
        ({"processor_kwargs": {"padding_side": "middle"}}, "padding_side: expected left or right"),
        ({"config_kwargs": {"num_hidden_layers": 1}}, "config_kwargs: expected nothing.*num_hidden_layers"),
    ],
)
def test_other_settings_are_refused_by_name(saved, options, said):
    for loaded in (load, load_embedder):
        with pytest.raises((InvalidValueError, UnknownNameError), match=f"(?s){said}"):
            loaded(saved, **options)


def test_a_keyword_that_does_not_exist_is_refused_by_name(saved):
    with pytest.raises(
        UnknownNameError, match=r"option of load_embedder 'truncate_dims'\. Did you mean 'truncate_dim'"
    ):
        load_embedder(saved, truncate_dims=4)


def test_both_parts_of_a_hybrid_get_the_settings(saved, tmp_path):
    part = load(saved)
    workbook.hybrid(part, part).save(str(tmp_path))
    model = load(tmp_path, model_kwargs={"dtype": "bfloat16"})
    assert model[0].first.dtype is model[0].second.dtype is torch.bfloat16
    with pytest.raises(UnknownNameError, match="device_map"):
        load(tmp_path, model_kwargs={"device_map": "auto"})


MANY = {
    "tuple": tuple(TEXTS),
    "array": np.array(TEXTS),
    "objects": np.array(TEXTS, dtype=object),
    "column": Dataset.from_dict({"text": TEXTS})["text"],
}


@pytest.mark.parametrize("texts", MANY.values(), ids=MANY)
def test_many_texts_come_in_what_sentence_transformers_takes(saved, texts):
    model = load(saved)
    np.testing.assert_array_equal(model.encode(texts), model.encode(TEXTS))


@pytest.mark.parametrize(
    ("texts", "name"),
    [(pd.Series(TEXTS), "pandas.Series"), (pd.Index(TEXTS), "pandas.Index"), ((text for text in TEXTS), "generator")],
    ids=["Series", "Index", "generator"],
)
def test_what_sentence_transformers_takes_for_one_text_is_refused_by_its_kind(saved, texts, name):
    told = f"^texts: expected a string, or a list, tuple or array of strings, got '{name}'. Turn it into a list"
    with pytest.raises(InvalidValueError, match=told):
        load(saved).encode(texts)


@pytest.fixture(scope="module")
def lens():
    return workbook.build("lens", "tiny-llama", dtype="float32", device="cpu")


def test_a_lexicon_model_decodes_its_clusters_as_a_sparse_encoder(lens, tmp_path):
    lens.save(str(tmp_path / "lens"))
    model = LexiconEncoder(str(tmp_path / "lens"), trust_remote_code=True, device="cpu")
    vectors = model.encode(TEXTS)
    assert vectors.is_sparse
    np.testing.assert_allclose(vectors.to_dense().numpy(), lens.encode(TEXTS), atol=1e-6)
    expected = [
        [("|".join(entry.words), entry.weight) for entry in row]
        for row in decode(vectors.to_dense(), lens[1].words(lens.tokenizer), top=3)
    ]
    assert model.decode(vectors, top_k=3) == expected
    assert model.decode(vectors[0], top_k=3) == expected[0]
    assert len(model.decode(vectors)[0]) == int((vectors[0].to_dense() > 0).sum())
    model.save(str(tmp_path / "again"))
    np.testing.assert_array_equal(load(tmp_path / "again").encode(TEXTS), vectors.to_dense().numpy())


def test_other_sparse_encoders_are_refused(lens, saved, tmp_path):
    lens.save(str(tmp_path))
    with pytest.raises(InvalidValueError, match=r"LexiconEncoder.*random weights"):
        SparseEncoder(str(tmp_path), trust_remote_code=True, device="cpu")
    with pytest.raises(InvalidValueError, match="ends with Lexicon pooling, got 'Pooling'"):
        LexiconEncoder(str(saved), trust_remote_code=True, device="cpu")
    with pytest.raises(InvalidValueError, match="embeddings: expected a tensor"):
        LexiconEncoder(modules=[*lens], device="cpu").decode(torch.ones(2, 3))
    # An autoencoder behind a dense model is what one trains there.
    assert len(list(SparseEncoder(str(saved), trust_remote_code=True, device="cpu"))) == 3
