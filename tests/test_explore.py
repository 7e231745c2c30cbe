"""The explorers, without a browser: the same widgets, moved by code."""

import ipywidgets as widgets
import numpy as np
import pandas as pd
import pytest

from workbook import build, probes
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.explore import AnchorExplorer, Explorer, LatentExplorer, LexiconExplorer, PrefixExplorer
from workbook.explore.panel import answered, as_html

BACKGROUND = [
    "Rain is due tonight.",
    "The bakery opens at six.",
    "Her bicycle has a flat tyre.",
    "Copper conducts heat.",
]
REVIEWS = ["A joy to use.", "It broke at once.", "I would buy it again.", "Dull, and far too loud."]
LABELS = ["positive", "negative"] * 2
ONE, OTHER = "The cat sleeps on the mat.", "A cat is asleep on a rug."


@pytest.fixture
def explorer():
    return Explorer(build("mean", "tiny-llama", dtype="float32", device="cpu"), BACKGROUND)


@pytest.fixture
def reviewed():
    options = {"attention": "bidirectional", "template": "nv-embed", "dtype": "float32", "device": "cpu"}
    model = build("mean", "tiny-llama", pooling="latent_attention", pooling_options={"latents": 16}, **options)
    return LatentExplorer(model, REVIEWS, LABELS, instruction="Praise or blame")


@pytest.fixture
def lexicon():
    options = {"pooling_options": {"clusters": 40}, "dtype": "float32", "device": "cpu"}
    return LexiconExplorer(build("lens", "tiny-llama", **options), instruction="Find the note")


def test_compare_is_what_the_built_model_says(explorer):
    cosine, above = explorer.compare(ONE, OTHER, "weighted_mean", "bidirectional")
    model = build("weighted-mean", "tiny-llama", attention="bidirectional", dtype="float32", device="cpu")
    vectors = model.encode([ONE, OTHER, *BACKGROUND], normalize_embeddings=True)
    assert cosine == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)
    background = (vectors[2:] @ vectors[2:].T)[np.triu_indices(4, k=1)]
    assert above == np.mean(background < cosine)


def test_the_model_is_left_as_it_was(explorer):
    before = explorer.model.encode([ONE])
    table = explorer.table(ONE, OTHER)
    assert table.shape == (6, 4)
    assert table["cosine"].nunique() > 1
    np.testing.assert_array_equal(explorer.model.encode([ONE]), before)
    with pytest.raises(UnknownNameError):
        explorer.compare(ONE, OTHER, "max", "causal")
    np.testing.assert_array_equal(explorer.model.encode([ONE]), before)


def test_the_panel_answers_what_is_typed_and_chosen(explorer):
    panel = explorer.panel(ONE, OTHER)
    _, second, pooling, attention, answer = panel.children
    said = [answer.value]
    second.value = ONE
    said.append(answer.value)
    assert "<b>1.000</b>, more alike than 100%" in answer.value
    second.value, pooling.value = OTHER, "last_token"
    said.append(answer.value)
    attention.value = "bidirectional"
    said.append(answer.value)
    assert len(set(said)) == 4
    second.value = " "
    assert answer.value == "text: expected a string that is not blank, got &#x27; &#x27;."


def test_the_background_is_read_once_under_each_pooling_and_attention(explorer):
    read = []
    hook = explorer.model[0].register_forward_pre_hook(lambda _, args: read.append(len(args[0]["input_ids"])))
    for second in (OTHER, ONE, OTHER):
        explorer.table(ONE, second)
    hook.remove()
    assert sum(read) == 6 * len(BACKGROUND) + 3 * 6 * 2


def test_a_panel_says_that_it_computes_and_waits():
    seen = []

    def answer(text):
        seen.append((field.disabled, panel.children[-1].value) if panel else None)
        if text == "broken":
            raise ZeroDivisionError
        return f"<b>{text}</b>"

    field, panel = widgets.Text("one"), None
    panel = answered({"text": field}, answer)
    assert panel.children[-1].value == "<b>one</b>"
    field.value = "two"
    assert seen[-1] == (True, '<i>computing ...</i><div style="opacity: 0.4"><b>one</b></div>')
    with pytest.raises(ZeroDivisionError):
        field.value = "broken"
    assert (field.disabled, panel.children[-1].value) == (False, "")
    field.value = "three"
    assert (field.disabled, panel.children[-1].value) == (False, "<b>three</b>")


def test_a_table_has_the_style_of_jupyterlab():
    said = as_html(pd.DataFrame({"score": [1.5], "text": ["<i>" + "x" * 99]}))
    assert said.startswith('<div class="jp-RenderedHTMLCommon" style="text-align: right"><table class="dataframe">')
    assert f"<td>&lt;i&gt;{'x' * 99}</td>" in said


def test_widgets_only_where_someone_looks_on(explorer, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("VSCODE_PID", raising=False)
    assert explorer.show(ONE, OTHER).columns.tolist() == ["attention", "pooling", "cosine", "above"]
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/00_start.ipynb")
    assert isinstance(explorer.show(ONE, OTHER), widgets.VBox)


def test_a_state_moves_only_where_it_can_see_the_end(explorer):
    first, second = "The bank was wet.", "The bank was shut."
    before = explorer.model.encode([ONE])
    table = PrefixExplorer(explorer.model).table(first, second)
    assert "".join(table["token"]).replace("␣", " ").endswith("The bank was ")
    assert (table["causal"] == 0).all()
    assert (table["bidirectional"] > 0).all()
    np.testing.assert_array_equal(explorer.model.encode([ONE]), before)
    states = {}
    for mode in ("causal", "bidirectional"):
        model = build("mean", "tiny-llama", attention=mode, dtype="float32", device="cpu")
        states[mode] = model.encode([first, second], output_value="token_embeddings")
        one, other = (rows[len(table) - 1].numpy() for rows in states[mode])
        moved = np.linalg.norm(one - other) / np.linalg.norm(one)
        assert table[mode].iloc[-1] == pytest.approx(moved, abs=0.006)


def test_the_panel_of_prefixes_answers_what_is_typed(explorer):
    _, second, answer = PrefixExplorer(explorer.model).panel(ONE, ONE).children
    said = answer.value
    second.value = "The dog sleeps."
    assert answer.value != said
    assert answer.value.count("<tr") < said.count("<tr")
    second.value = " "
    assert answer.value == "text: expected a string that is not blank, got &#x27; &#x27;."


def test_what_a_vector_writes_beside_others():
    model = build("anchor", "tiny-llama", dtype="float32", device="cpu")
    explorer = AnchorExplorer(model, [ONE, OTHER], "Find the note")
    table = explorer.table(BACKGROUND[0], tokens=5)
    assert table["vector of"].tolist() == [BACKGROUND[0], ONE, OTHER]
    expected = probes.regenerated(model, [BACKGROUND[0], ONE, OTHER], "Find the note", tokens=5)
    assert table["written"].tolist() == [repr(one)[1:-1] for one in expected]
    text, answer = explorer.panel(ONE).children
    said = answer.value
    text.value = BACKGROUND[1]
    assert said != answer.value
    assert f"<td>{BACKGROUND[1]}</td>" in answer.value


def test_the_table_names_the_latents_farthest_from_the_background(reviewed):
    table = reviewed.table(ONE, top=2)
    assert table.columns.tolist() == ["head", "latent", "attention", "background", "positive - negative"]
    attention = probes.latent_attention(reviewed.model, [*REVIEWS, ONE], "Praise or blame")
    for head, rows in table.groupby("head"):
        typed, mean = attention[4, head], attention[:4, head].mean(axis=0)
        assert rows["latent"].tolist() == np.argsort(-np.abs(typed - mean))[:2].tolist()
        for row in rows.to_numpy():
            latent = int(row[1])
            difference = attention[0:4:2, head, latent].mean() - attention[1:4:2, head, latent].mean()
            np.testing.assert_allclose(row[2:], [typed[latent], mean[latent], difference], atol=6e-5)
    assert table["head"].tolist() == [head for head in range(8) for _ in range(2)]
    assert reviewed.table(ONE, top=99).shape == (8 * 16, 5)
    assert reviewed.table(ONE).shape == (8 * 3, 5)


def test_texts_without_classes_are_a_background_too(reviewed):
    plain = LatentExplorer(reviewed.model, REVIEWS, instruction="Praise or blame")
    assert plain.latents is None
    expected = reviewed.table(ONE).drop(columns="positive - negative")
    assert plain.table(ONE).equals(expected)


def test_the_latents_can_be_read_and_the_model_is_left_as_it_was(reviewed):
    attention = probes.latent_attention(reviewed.model, REVIEWS, "Praise or blame")
    assert reviewed.latents.equals(probes.discriminating_latents(attention, LABELS, "positive"))
    np.testing.assert_allclose(reviewed.background, attention.mean(axis=0), atol=1e-6)
    reviewed.model.train()
    reviewed.table(ONE)
    assert reviewed.model[0].decoder.training


def test_the_panel_of_latents_answers_what_is_typed(reviewed, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("VSCODE_PID", raising=False)
    assert reviewed.show(ONE).equals(reviewed.table(ONE))
    monkeypatch.setenv("VSCODE_PID", "1")
    text, answer = reviewed.show(ONE).children
    said = answer.value
    assert f"<td>{reviewed.table(ONE)['latent'][0]}</td>" in said
    text.value = OTHER
    assert said != answer.value
    text.value = " "
    assert answer.value == "text: expected a string that is not blank, got &#x27; &#x27;."
    text.value = ONE
    assert answer.value == said


def test_the_table_names_the_heaviest_clusters_in_words_that_can_be_read(lexicon):
    table = lexicon.table(ONE)
    assert table.columns.tolist() == ["cluster", "weight", "words", "token"]
    assert lexicon.table(ONE, top=3).equals(table[:3])
    table = lexicon.table(ONE, top=40)
    found = probes.top_clusters(lexicon.model, [ONE], "Find the note", top=40)
    assert table["cluster"].tolist() == found["cluster"].tolist()
    assert table["weight"].tolist() == [round(weight, 3) for weight in found["weight"]]
    assert (found["words"].str.len() > 4).any()
    assert table["words"].tolist() == probes.cluster_names(lexicon.model, table["cluster"].tolist(), top=4)
    shown = {" ": "␣", "\n": "\\n", "\t": "\\t", "\\": "\\\\", "\x00": "\\x00", "'": "'", '"': '"', "a": "a", "�": "�"}
    seen = set()
    for words, tokens in zip(table["words"], found["words"], strict=True):
        assert words.isprintable()
        parts = words.split(", ")
        assert len(parts) == min(4, len({*tokens}))
        assert all(" " not in part for part in parts)
        named = {token for token in tokens if shown.get(token) in parts}
        assert len(named) <= len(parts)
        seen |= named
    assert "�" in seen
    assert not {" ", "\n", "\t"}.isdisjoint(seen)
    assert set(table["token"]) <= {*ONE.replace(" ", "␣")}
    assert "␣" in set(table["token"])


def test_the_panel_of_words_answers_what_is_typed(lexicon, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("VSCODE_PID", raising=False)
    assert lexicon.show(ONE).equals(lexicon.table(ONE))
    monkeypatch.setenv("VSCODE_PID", "1")
    text, answer = lexicon.show(ONE).children
    said = answer.value
    assert f"<td>{lexicon.table(ONE)['cluster'][0]}</td>" in said
    text.value = OTHER
    assert said != answer.value
    text.value = "</s>"
    assert answer.value.startswith("texts: expected words, not special tokens alone, got &#x27;&lt;/s&gt;&#x27;.")
    text.value = " "
    assert answer.value == "text: expected a string that is not blank, got &#x27; &#x27;."
    text.value = ONE
    assert answer.value == said


def test_bad_input_to_the_lexicon(explorer, lexicon):
    with pytest.raises(InvalidValueError, match=r"a Lexicon, got \['Decoder', 'Pooling'\]"):
        LexiconExplorer(explorer.model)
    with pytest.raises(InvalidValueError, match=r"instruction \(prompt\): expected a string"):
        LexiconExplorer(lexicon.model, 3)
    for text in (None, " ", ["a"]):
        with pytest.raises(InvalidValueError, match="text: expected a string that is not blank"):
            lexicon.table(text)
    with pytest.raises(InvalidValueError, match="text: expected a string, got 3"):
        lexicon.panel(3)
    with pytest.raises(InvalidValueError, match="top: expected a positive whole number, got 0"):
        lexicon.table(ONE, top=0)


def test_bad_input(explorer):
    with pytest.raises(InvalidValueError, match="model: expected a Decoder and a Pooling"):
        Explorer([explorer.model[0]], BACKGROUND)
    with pytest.raises(InvalidValueError, match="background: expected at least three"):
        Explorer(explorer.model, BACKGROUND[:2])
    for text in (None, " "):
        with pytest.raises(InvalidValueError, match="text: expected a string that is not blank"):
            explorer.compare(ONE, text, "mean", "causal")
    with pytest.raises(InvalidValueError, match="second: expected a string, got None"):
        explorer.panel(ONE, None)


def test_prefixes_of_a_model_with_a_contextual_token():
    """The token tells what follows; BOS in front of it is as blind as ever."""
    rows = PrefixExplorer(build("causal2vec", "tiny-llama", device="cpu")).table(ONE, OTHER)
    assert rows["token"].iloc[1] == "{context}"
    assert rows["causal"].iloc[0] == 0 < rows["causal"].iloc[1]


def test_bad_input_to_prefixes_and_anchors(explorer):
    for text in (None, " "):
        with pytest.raises(InvalidValueError, match="text: expected a string that is not blank"):
            PrefixExplorer(explorer.model).table(ONE, text)
    with pytest.raises(InvalidValueError, match="others: expected at least one text"):
        AnchorExplorer(explorer.model, [])
    with pytest.raises(InvalidValueError, match="text: expected a string that is not blank"):
        AnchorExplorer(explorer.model, [ONE]).table(" ")


def test_bad_input_to_latents(explorer, reviewed):
    with pytest.raises(InvalidValueError, match="model: expected a Decoder and a LatentAttention"):
        LatentExplorer(explorer.model, REVIEWS, LABELS)
    with pytest.raises(InvalidValueError, match="texts: expected at least one"):
        LatentExplorer(reviewed.model, [], [])
    with pytest.raises(InvalidValueError, match="labels: expected 4, one a text, got 0"):
        LatentExplorer(reviewed.model, REVIEWS, [])
    with pytest.raises(InvalidValueError, match="labels: expected two classes of at least two texts each"):
        LatentExplorer(reviewed.model, REVIEWS[:3], LABELS[:3])
    for text in (None, " ", ["a"]):
        with pytest.raises(InvalidValueError, match="text: expected a string"):
            reviewed.table(text)
    with pytest.raises(InvalidValueError, match="text: expected a string, got 3"):
        reviewed.panel(3)
    with pytest.raises(InvalidValueError, match="top: expected a positive whole number, got 0"):
        reviewed.table(ONE, top=0)
