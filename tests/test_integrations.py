"""LangChain and LlamaIndex get a model's own vectors, and Seismic finds by them, by the lines that the guide prints.

They take ``pip install -e ".[integrations]"``, and langchain-huggingface without its requirements (``.ci/run``).
"""

import importlib.util
import re

import numpy as np
import pytest
from extras import absent

import workbook
from workbook.files import ROOT
from workbook.vocabulary.sparse import postings

TEXTS = ["A kitten is dozing.", "Sort a list of names by date.", "Open a file."]
INSTRUCTION = "Retrieve sentences that mean the same"
WAYS = {
    "langchain_huggingface": ("HuggingFaceEmbeddings", lambda made: (made.embed_documents, made.embed_query)),
    "llama_index.embeddings.huggingface": (
        "HuggingFaceEmbedding",
        lambda made: (made.get_text_embedding_batch, made.get_query_embedding),
    ),
}


def line(name):
    """The line of the guide that makes an object of this class."""
    (found,) = re.findall(rf"`({name}\([^`]+\))`", (ROOT / "book" / "guide.md").read_text(encoding="utf-8"))
    return found


@pytest.fixture(params=WAYS)
def way(request):
    """A class, its line, and function of an object that gives its functions of documents and of a query."""
    top = request.param.split(".")[0]
    if importlib.util.find_spec(top) is None:
        absent(top, "LangChain and LlamaIndex were not tried")
    name, functions = WAYS[request.param]
    return getattr(importlib.import_module(request.param), name), line(name), functions


def check(model, documents, query):
    np.testing.assert_allclose(documents(TEXTS), model.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(query(TEXTS[0]), model.encode(TEXTS[0], prompt=INSTRUCTION), atol=1e-6)
    assert not np.allclose(query(TEXTS[0]), documents(TEXTS)[0], atol=1e-3)


@pytest.mark.parametrize("method", ["nv-embed", "lens", "causal2vec", "echo"])
def test_a_saved_model(way, method, tmp_path):
    kind, written, functions = way
    model = workbook.build(method, "tiny-llama", dtype="float32", device="cpu")
    model.save(str(tmp_path))
    made = eval(written, {kind.__name__: kind, "folder": str(tmp_path), "instruction": INSTRUCTION})
    check(model, *functions(made))


def test_a_model_in_memory(way):
    kind, written, functions = way
    model = workbook.build("mean", "tiny-llama", dtype="float32", device="cpu")
    written = written.replace("folder", '""')
    written = re.sub(r'("?)trust_remote_code("?)(: |=)True', r"\1modules\2\3[*model]", written)
    made = eval(written, {kind.__name__: kind, "model": model, "instruction": INSTRUCTION})
    check(model, *functions(made))


def test_an_inverted_index_finds_what_all_scores_rank_first():
    """Seismic, an approximate index, beside the product of all vectors; weights are halves there."""
    if importlib.util.find_spec("seismic") is None:
        absent("pyseismic-lsr", "search in an inverted index was not tried")
    from sentence_transformers.sparse_encoder.search_engines import semantic_search_seismic

    generator = np.random.default_rng(0)
    documents = np.where(generator.random((300, 500)) < 0.05, generator.random((300, 500)), 0)
    queries = documents[:20] * generator.uniform(0.5, 1, (20, 500))
    names = {"semantic_search_seismic": semantic_search_seismic, "postings": postings}
    found, _ = eval(line("semantic_search_seismic"), names | {"queries": queries, "documents": documents})
    exact = queries @ documents.T
    for place, hits in enumerate(found):
        assert hits[0]["corpus_id"] == place == exact[place].argmax()
        ids, scores = zip(*((hit["corpus_id"], hit["score"]) for hit in hits), strict=True)
        np.testing.assert_allclose(scores, exact[place, ids], rtol=0.01)
