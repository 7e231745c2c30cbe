"""The panel of the second sink, without a browser."""

import numpy as np
import pandas as pd
import pytest
from training_tools import differing, tiny, weights, write_encoder

from workbook import probes
from workbook.errors import InvalidValueError, UnknownNameError
from workbook.explore import SinkExplorer

TEXT = "Basil likes  warm soil and rain."
PAIRS = (["Basil", "Compost turned weekly", "a"], ["Warm soil suits it.", "Twelve weeks make compost.", "b c"])
INSTRUCTION = "Find the note"
BOS, INSTRUCTED, LAST = "behind BOS", "behind the instruction", "last"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"), 200)


@pytest.fixture
def build(encoder):
    return lambda backbone="tiny-llama": tiny("causal2vec", backbone, encoder=encoder, max_length=200)


def word(model):
    return model[0].decoder.get_input_embeddings().weight.norm(dim=1).mean().item()


def test_a_length_is_set_and_nothing_else(build):
    model = build()
    before, vectors = weights(model), model.encode([TEXT])
    panel = SinkExplorer(model, INSTRUCTION)
    own = probes.contextual_norms(model, [TEXT], INSTRUCTION)
    length = own["context"][0] / word(model)
    pd.testing.assert_frame_equal(panel.norms(TEXT, length, INSTRUCTED), own, rtol=1e-4)
    assert panel.norms(TEXT, 2.5)["context"][0] == pytest.approx(2.5 * word(model), rel=1e-4)
    assert differing(before, model) == []
    np.testing.assert_array_equal(model.encode([TEXT]), vectors)


def test_a_place_is_set(build):
    model = build()
    panel = SinkExplorer(model, INSTRUCTION)
    [own] = probes.contextual_tokens(model, [TEXT])
    length = own.norm().item() / word(model)
    with model[0].context_last():
        expected = probes.contextual_norms(model, [TEXT])
    pd.testing.assert_frame_equal(panel.norms(TEXT, length, LAST), expected, rtol=1e-4)
    others = [panel.norms(TEXT, length, place)["context"][1] for place in (BOS, INSTRUCTED, LAST)]
    assert len({round(norm, 4) for norm in others}) == 3


def test_a_text_is_cut_to_words(build):
    panel = SinkExplorer(build(), INSTRUCTION)
    for words, text in ((1, "Basil"), (3, "Basil likes  warm"), (6, TEXT), (99, TEXT), (None, TEXT)):
        expected = SinkExplorer(panel.models["tiny-llama"], INSTRUCTION).norms(text)
        assert panel.norms(TEXT, words=words).equals(expected)
    assert not panel.norms(TEXT, words=3).equals(panel.norms(TEXT))
    table = panel.table(TEXT, words=3)
    assert table.equals(panel.table("Basil likes  warm"))
    assert not table.equals(panel.table(TEXT))


def test_ranks_by_the_state_of_the_token(build):
    model = build()
    panel = SinkExplorer(model, INSTRUCTION, PAIRS)
    with probes.context_of_length(model[0], 0.5 * word(model)):
        for place, asked in ((BOS, None), (INSTRUCTED, INSTRUCTION)):
            expected = probes.layer_ranks(model, *PAIRS, asked).groupby(["token", "layer"])["reciprocal_rank"].mean()
            found = panel.ranks(0.5, place)
            assert found["layer"].tolist() == [0, 1, 2]
            for token in ("context", "last"):
                assert found[token].tolist() == pytest.approx((100 * expected[token]).tolist())
        cut = [["Basil", "Compost", "a"], ["Warm", "Twelve", "b"]]
        expected = probes.layer_ranks(model, *cut).groupby(["token", "layer"])["reciprocal_rank"].mean()
        assert panel.ranks(0.5, words=1)["context"].tolist() == pytest.approx((100 * expected["context"]).tolist())
        with model[0].context_last():
            expected = probes.layer_ranks(model, *PAIRS).groupby(["token", "layer"])["reciprocal_rank"].mean()
    assert panel.ranks(0.5, LAST)["last"].tolist() == pytest.approx((100 * expected["last"]).tolist())
    assert panel.ranks()["chance"].tolist() == pytest.approx([100 * (1 + 1 / 2 + 1 / 3) / 3] * 3)


def test_what_was_read_is_kept(build):
    model, read = build(), []
    panel = SinkExplorer(model, INSTRUCTION, PAIRS)
    hook = model[0].register_forward_pre_hook(lambda _, args: read.append(len(args[0]["input_ids"])))
    for _ in range(2):
        panel.norms(TEXT, 0.5, LAST)
        panel.ranks(0.5, LAST)
    hook.remove()
    assert len(read) == 1 + 2 * 3


def test_the_table_of_one_model(build):
    panel = SinkExplorer(build(), INSTRUCTION, PAIRS)
    table = panel.show(TEXT)
    assert table.columns.tolist() == ["place", "length", "state", "attention", "sink"]
    assert table["place"].tolist() == [place for place in (BOS, INSTRUCTED, LAST) for _ in range(6)]
    for place in (BOS, INSTRUCTED, LAST):
        row = panel.norms(TEXT, 0.5, place).loc[1]  # the middle of two layers
        found = table.query("place == @place and length == 0.5").iloc[0]
        assert found["state"] == pytest.approx(row["context"] / row["words"], abs=1e-3)
        assert found["attention"] == pytest.approx(row["attention"], abs=1e-3)
        assert found["sink"] == row["sink"]


def test_the_table_of_several_models_is_short(build):
    models = {name: build(name) for name in ("tiny-llama", "tiny-gemma3")}
    panel = SinkExplorer(models, INSTRUCTION)
    table = panel.table(TEXT)
    assert len(str(table).splitlines()) <= 40 - len(table) / 2  # a third and a fourth model fit too
    for name, model in models.items():
        own = table[table["backbone"] == name].drop(columns="backbone").reset_index(drop=True)
        whole = SinkExplorer(model, INSTRUCTION).table(TEXT)
        assert own.equals(whole[whole["length"].isin(own["length"])].reset_index(drop=True))
        assert own["length"].unique().tolist() == [0.1, 0.5, 2.0]
        pd.testing.assert_frame_equal(panel.norms(TEXT, backbone=name), SinkExplorer(model, INSTRUCTION).norms(TEXT))
    assert panel.norms(TEXT).equals(panel.norms(TEXT, backbone="tiny-llama"))


def test_the_panel_answers_what_is_typed_and_chosen(build):
    models = {name: build(name) for name in ("tiny-llama", "tiny-gemma3")}
    *controls, line = SinkExplorer(models, INSTRUCTION).panel(TEXT).children
    text, length, words, place, backbone = controls
    assert 'alt="by layer: log10 of the norm, share of attention"' in line.value
    said = [line.value]
    for control, value in ((length, 1.0), (words, 2), (place, LAST), (backbone, "tiny-gemma3"), (text, "Rain.")):
        control.value = value
        said.append(line.value)
    assert len(set(said)) == len(said)
    assert all("<img" in one for one in said)
    words.value = 0
    text.value = " "
    assert "expected a string that is not blank" in line.value


def test_ranks_are_drawn_where_pairs_are_given(build):
    *controls, line = SinkExplorer(build(), INSTRUCTION, PAIRS).panel(TEXT).children
    assert [control.description for control in controls] == ["Text", "Length of token", "Words of text", "Place"]
    assert "MRR x 100" in line.value


def test_bad_input(build, encoder):
    model = build()
    panel = SinkExplorer(model, INSTRUCTION)
    for length in (0, -1, float("nan"), float("inf"), True, "x", None):
        with pytest.raises(InvalidValueError, match="length: expected a number above 0"):
            panel.norms(TEXT, length)
    for words in (0, 1.5):
        with pytest.raises(InvalidValueError, match="words: expected a positive whole number"):
            panel.norms(TEXT, words=words)
    with pytest.raises(UnknownNameError, match="Unknown place 'lost'"):
        panel.norms(TEXT, place="lost")
    with pytest.raises(UnknownNameError, match="Unknown backbone 'b'"):
        panel.norms(TEXT, backbone="b")
    with pytest.raises(InvalidValueError, match="pairs: expected queries and their documents"):
        panel.ranks()
    for pairs in ((["a"], ["b"]), (["a", "b"], ["c"])):
        with pytest.raises(InvalidValueError, match="pairs: expected two or more queries, and as many documents"):
            SinkExplorer(model, INSTRUCTION, pairs)
    with pytest.raises(InvalidValueError, match="text: expected a string that is not blank"):
        SinkExplorer(model, INSTRUCTION, (["a", " "], ["b", "c"]))
    with pytest.raises(InvalidValueError, match="model: expected one that reads contextual tokens"):
        SinkExplorer({"one": model, "other": tiny("mean")}, INSTRUCTION)
    with pytest.raises(InvalidValueError, match="model: expected at least one"):
        SinkExplorer({}, INSTRUCTION)
    for pairs in (("ab", "cd"), 5, (["a", "b"],)):
        with pytest.raises(InvalidValueError, match="pairs: expected queries and documents, two lists"):
            SinkExplorer(model, INSTRUCTION, pairs)
    with pytest.raises(InvalidValueError, match=r"contextual tokens behind the instruction.*template="):
        SinkExplorer(tiny("causal2vec", "tiny-llama", encoder=encoder, template="causal2vec-before"), INSTRUCTION)
