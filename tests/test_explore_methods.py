"""The panel of several methods, without a browser: its numbers against naive ones, its widgets moved by code."""

import base64
import copy
import html
import io
import re

import ipywidgets as widgets
import numpy as np
import pytest
from PIL import Image

from workbook import build, probes
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.explore import LatentExplorer, LexiconExplorer, MethodExplorer

TEXTS = ["Rain is due tonight.", "The bakery opens at six.", "Her bicycle has a flat tyre.", "Copper conducts heat."]
ONE = "A storm is on its way."
PROMPTS = {"lens": "Find the note", "latents": "Praise or blame"}
METHODS = ["mean", "causal2vec", "lens", "latents"]
VIEWS = ["similarities", "neighbours", "clusters", "lengths", "latents", "words"]


@pytest.fixture(scope="module")
def models():
    options = {"dtype": "float32", "device": "cpu"}
    latents = {"pooling": "latent_attention", "pooling_options": {"latents": 16}, "template": "nv-embed"}
    return {
        "mean": build("mean", "tiny-llama", **options),
        "causal2vec": build("causal2vec", "tiny-llama", **options),
        "lens": build("lens", "tiny-llama", pooling_options={"clusters": 40}, **options),
        "latents": build("mean", "tiny-llama", attention="bidirectional", **latents, **options),
    }


@pytest.fixture
def explorer(models):
    return MethodExplorer(models, TEXTS, PROMPTS)


@pytest.fixture
def panel(explorer):
    """The widgets by name, the answer last."""
    names = ("methods", "picked", "own", "text", "view", "clusters", "answer")
    return dict(zip(names, explorer.panel(ONE).children, strict=True))


@pytest.fixture
def ill(models):
    """A model whose training ran away."""
    model = copy.deepcopy(models["lens"])
    model[0].decoder.norm.weight.data[0] = float("nan")
    return model


def unit(model, texts, prompt=None):
    vectors = model.encode(texts, prompt=prompt)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# What it computes


def test_a_model_reads_a_text_once(models, explorer):
    read = []
    hook = models["mean"][0].register_forward_pre_hook(lambda _, args: read.append(len(args[0]["input_ids"])))
    explorer.similarities(["mean"], TEXTS)
    explorer.clusters(["mean", "lens"], TEXTS[::-1], 2)
    explorer.neighbours(["mean"], ONE, TEXTS)
    explorer.lengths(["mean"], [ONE, *TEXTS])
    hook.remove()
    assert sum(read) == len(TEXTS) + 1
    np.testing.assert_allclose(explorer.vectors("mean", TEXTS[::-1]), models["mean"].encode(TEXTS[::-1]), atol=1e-5)


def test_similarities_are_cosines_under_each_models_own_prompt(models, explorer):
    found = explorer.similarities(["mean", "lens"], [ONE, *TEXTS, ONE])
    assert [*found] == ["mean", "lens"]
    for name, matrix in found.items():
        vectors = unit(models[name], [ONE, *TEXTS], PROMPTS.get(name))
        np.testing.assert_allclose(matrix, vectors @ vectors.T, atol=1e-5)
        assert [*matrix.index] == [*matrix.columns] == [1, 2, 3, 4, 5]
    bare = MethodExplorer(models, TEXTS).similarities(["mean", "lens"], [ONE, *TEXTS])
    assert not np.allclose(bare["lens"], found["lens"], atol=1e-3)
    np.testing.assert_allclose(bare["mean"], found["mean"], atol=1e-5)


def test_neighbours_are_the_others_nearest_first(models, explorer):
    found = explorer.neighbours(METHODS, TEXTS[2], TEXTS, top=2)
    assert found.columns.tolist() == ["method", "rank", "text", "score"]
    others = TEXTS[:2] + TEXTS[3:]
    for name, rows in found.groupby("method"):
        vectors = unit(models[name], [TEXTS[2], *others], PROMPTS.get(name))
        cosines = dict(zip(others, (vectors[1:] @ vectors[0]).tolist(), strict=True))
        assert rows["text"].tolist() == sorted(others, key=lambda text, cosines=cosines: -cosines[text])[:2]
        assert rows["score"].tolist() == pytest.approx(sorted(cosines.values(), reverse=True)[:2], abs=1e-5)
    wide = explorer.table(TEXTS[2], top=2)
    assert [*wide.columns] == METHODS
    assert [*wide.index] == [1, 2]
    first = found[(found["method"] == "lens") & (found["rank"] == 1)].iloc[0]
    assert wide.loc[1, "lens"] == f"{first['score']:.2f} {first['text']}"


def test_clusters_and_lengths_are_those_of_the_probes(models, explorer):
    clusters = explorer.clusters(METHODS, TEXTS, 3)
    assert clusters.columns.tolist() == ["method", "number", "text", "cluster", "x", "y", "shown"]
    lengths = explorer.lengths(METHODS, TEXTS)
    assert lengths.columns.tolist() == ["method", "number", "text", "part", "length"]
    for name, model in models.items():
        vectors = explorer.vectors(name, TEXTS)
        rows = clusters[clusters["method"] == name]
        assert rows["text"].tolist() == TEXTS
        assert rows["number"].tolist() == [1, 2, 3, 4]
        assert rows["cluster"].tolist() == probes.vector_map(vectors, 3)["cluster"].tolist()
        rows = lengths[lengths["method"] == name]
        assert rows["length"].tolist() == probes.vector_lengths(model, vectors)["length"].tolist()
        assert set(rows["part"]) == ({"whole", "context", "eos"} if name == "causal2vec" else {"whole"})
        assert set(zip(rows["number"], rows["text"], strict=True)) == set(enumerate(TEXTS, start=1))


def test_inside_are_the_explorers_of_one_model(models, explorer):
    words, latents = explorer.inside("words", METHODS, ONE), explorer.inside("latents", METHODS, ONE)
    assert ([*words], [*latents]) == (["lens"], ["latents"])
    assert words["lens"].equals(LexiconExplorer(models["lens"], PROMPTS["lens"]).table(ONE))
    own = LatentExplorer(models["latents"], TEXTS, instruction=PROMPTS["latents"])
    assert latents["latents"].equals(own.table(ONE))


# What is seen


def test_widgets_only_where_someone_looks_on(explorer, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("VSCODE_PID", raising=False)
    assert explorer.show(ONE).equals(explorer.table(ONE))
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/07_compare.ipynb")
    assert isinstance(explorer.show(ONE), widgets.VBox)


def test_every_view_answers(explorer, panel):
    assert [*panel["view"].options] == VIEWS
    said = {}
    for view in VIEWS:
        panel["view"].value = view
        said[view] = panel["answer"].value
    assert len({*said.values()}) == len(VIEWS)
    for view in ("similarities", "clusters"):
        (image,) = re.findall('src="data:image/png;base64,([^"]+)"', said[view])
        assert Image.open(io.BytesIO(base64.b64decode(image))).format == "PNG"
        assert all(text in said[view] for text in (ONE, *TEXTS))
    for row in explorer.neighbours(METHODS, ONE, TEXTS).itertuples():
        assert f"<td>{row.score:.2f} {row.text}</td>" in said["neighbours"]
    assert ONE not in said["neighbours"]
    for heading in (*METHODS, "causal2vec: context", "causal2vec: eos"):
        assert f"<th>{heading}</th>" in said["lengths"]
    length = explorer.lengths(["mean"], [ONE, *TEXTS])["length"][0]
    assert f"<td>{length:.2f}".rstrip("0") in said["lengths"]
    assert "<b>lens</b>" in said["words"]
    assert f"<td>{explorer.inside('words', ['lens'], ONE)['lens']['cluster'][0]}</td>" in said["words"]
    assert "<b>latents</b>" in said["latents"]


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_follows_the_text(panel, view):
    panel["view"].value = view
    before = panel["answer"].value
    panel["text"].value = "Bees dance."
    assert panel["answer"].value != before
    panel["text"].value = ONE
    assert panel["answer"].value == before


@pytest.mark.parametrize("view", ["similarities", "neighbours", "clusters", "lengths"])
def test_methods_and_texts_can_be_chosen_and_typed(panel, view):
    panel["view"].value = view
    said = [panel["answer"].value]
    for control, value in (
        ("methods", ("mean", "lens")),
        ("picked", tuple(TEXTS[:3])),
        ("own", f"Bees dance.\n\n  {ONE} \nCats sleep & purr."),
    ):
        panel[control].value = value
        said.append(panel["answer"].value)
    assert len({*said}) == 4
    assert "Bees dance." in said[-1]
    assert "Cats sleep &amp; purr." in said[-1]
    assert TEXTS[3] not in said[-1]
    if view != "neighbours":
        assert said[-1].count(html.escape(ONE)) == 1, "what is typed twice is one text"


def test_the_number_of_clusters_is_that_of_the_slider(panel):
    panel["view"].value = "clusters"
    panel["methods"].value = ("mean",)
    for clusters in (2, 5):
        panel["clusters"].value = clusters
        rows = re.findall(r"<td>\d+</td>\s*<td>[^<]+</td>\s*<td>(\d+)</td>", panel["answer"].value)
        assert len(rows) == 5
        assert {*map(int, rows)} == {*range(1, clusters + 1)}


def test_what_is_typed_is_no_markup(panel):
    for view in VIEWS:
        panel["view"].value = view
        panel["text"].value = "<i>$x_$ & $y"
        assert "<i>" not in panel["answer"].value
        assert "expected" not in panel["answer"].value


def test_what_is_wrong_stands_in_the_panel(panel):
    panel["view"].value = "lengths"
    said = panel["answer"].value
    panel["text"].value = "  "
    assert panel["answer"].value == "text: expected a string that is not blank, got &#x27;  &#x27;."
    panel["text"].value = ONE
    panel["picked"].value = ()
    expected = (
        "texts: expected at least two that differ, got [&#x27;A storm is on its way.&#x27;]. Pick or type another."
    )
    assert panel["answer"].value == expected
    panel["own"].value = ONE
    assert panel["answer"].value == expected
    panel["own"].value, panel["picked"].value = "", TEXTS
    panel["methods"].value = ()
    assert panel["answer"].value == "methods: expected at least one, in a list, got ()."
    panel["methods"].value = ("mean", "causal2vec")
    panel["view"].value = "words"
    assert "methods: expected one with words, of [&#x27;lens&#x27;], got" in panel["answer"].value
    panel["view"].value = "clusters"
    panel["clusters"].value = 9
    assert "clusters: expected a whole number from 2 to 5" in panel["answer"].value
    panel["view"].value, panel["methods"].value = "lengths", METHODS
    assert panel["answer"].value == said


def test_a_model_that_is_ill_is_named_in_every_view_and_the_others_go_on(models, ill):
    explorer = MethodExplorer(models | {"ill": ill}, TEXTS)
    methods, *_, view, _, answer = explorer.panel(ONE).children
    for name in VIEWS:
        view.value, methods.value = name, ("lens", "latents", "ill")
        assert answer.value.startswith("vectors of ill: expected finite numbers, got &#x27;NaN or inf in ")
        methods.value = ("lens", "latents")
        assert "expected" not in answer.value


def test_views_that_no_method_has_are_not_offered(models):
    view = MethodExplorer({"mean": models["mean"]}, TEXTS).panel(ONE).children[4]
    assert [*view.options] == VIEWS[:4]


def test_bad_input_is_named(models, explorer):
    with pytest.raises(InvalidValueError, match=r"models: expected at least one SentenceTransformer, by name, got {}"):
        MethodExplorer({}, TEXTS)
    with pytest.raises(InvalidValueError, match=r"models: expected .*, got {'mean': 'str'}"):
        MethodExplorer({"mean": "mean"}, TEXTS)
    with pytest.raises(UnknownNameError, match=r"Unknown method 'menu'\. Did you mean 'mean'"):
        MethodExplorer(models, TEXTS, {"menu": "Find it"})
    with pytest.raises(InvalidValueError, match="texts: expected at least two that differ"):
        MethodExplorer(models, [ONE, ONE])
    with pytest.raises(InvalidValueError, match="texts: expected a list of strings"):
        MethodExplorer(models, ONE)
    for text in (" ", None, 3):
        with pytest.raises(InvalidValueError, match="text: expected a string that is not blank"):
            MethodExplorer(models, [ONE, text])
        with pytest.raises(InvalidValueError, match="text: expected a string that is not blank"):
            explorer.table(text)
        with pytest.raises(InvalidValueError, match="text: expected a string that is not blank"):
            explorer.inside("words", METHODS, text)
    with pytest.raises(InvalidValueError, match="text: expected a string, got 3"):
        explorer.panel(3)
    for read in (
        lambda methods: explorer.similarities(methods, TEXTS),
        lambda methods: explorer.neighbours(methods, ONE, TEXTS),
        lambda methods: explorer.clusters(methods, TEXTS, 2),
        lambda methods: explorer.lengths(methods, TEXTS),
        lambda methods: explorer.inside("words", methods, ONE),
    ):
        with pytest.raises(UnknownNameError, match=r"Unknown method 'lense'\. Did you mean 'lens'"):
            read(["mean", "lense"])
        with pytest.raises(InvalidValueError, match="methods: expected at least one, in a list"):
            read([])
    with pytest.raises(UnknownNameError, match=r"Unknown view 'word'\. Did you mean 'words'"):
        explorer.inside("word", METHODS, ONE)
    with pytest.raises(InvalidValueError, match="top: expected a positive whole number, got 0"):
        explorer.neighbours(METHODS, ONE, TEXTS, top=0)
