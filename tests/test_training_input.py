"""What training refuses, and how it says so: before anything trains, and with the model as it was."""

import json

import pytest
import torch
from pydantic import ValidationError
from sentence_transformers import SentenceTransformer
from training_tools import TEXTS, differing, stage, steps_counted, tiny, trained, write_data

from workbook import backbones
from workbook.errors import (
    DamagedFileError,
    InvalidValueError,
    MissingDataError,
    OutputError,
    UnknownNameError,
    WorkbookError,
)
from workbook.files import cache_path
from workbook.training import Adapter, Evaluator, Recipe, Stage, train_into


@pytest.mark.parametrize(
    ("objective", "changes", "error", "message"),
    [
        ("simcse", {"objective": "simsce"}, UnknownNameError, "objective 'simsce'. Did you mean 'simcse'"),
        ("simcse", {"options": {"dropuot": 0.1}}, UnknownNameError, "option of simcse 'dropuot'. Did you mean"),
        ("contrastive", {"options": {"dropout": 0.1}}, UnknownNameError, "option of contrastive 'dropout'"),
        ("mntp", {"options": {"head": 1}}, UnknownNameError, "option of mntp 'head'"),
        ("mntp", {"options": {"rate": 0}}, InvalidValueError, "rate: expected a share .*, got 0"),
        ("mntp", {"options": {"rate": 1}}, InvalidValueError, "rate: expected a share .*, got 1"),
        ("mntp", {"options": {"style": "albert"}}, UnknownNameError, "masking style 'albert'. Did you mean 'bert'"),
        ("simcse", {"options": {"dropout": 1}}, InvalidValueError, "dropout: expected a share"),
        ("simcse", {"options": {"temperature": 0}}, InvalidValueError, "temperature: expected a positive number"),
        (
            "simcse",
            {"adapter": Adapter(targets=("q_proj", "k_porj"))},
            UnknownNameError,
            "Stage simcse: Unknown adapter target 'k_porj'. Did you mean 'k_proj'",
        ),
        (
            "simcse",
            {"adapter": Adapter(targets=("q_proj", "embed_tokens"))},
            UnknownNameError,
            "'embed_tokens'. Expected one of: down_proj, gate_proj, k_proj",
        ),
        (
            "simcse",
            {"batch_size": 6, "accumulation": 4},
            InvalidValueError,
            "Stage simcse: batch_size: expected a multiple of 4 micro-batches on 1 devices, got 6",
        ),
        (
            "simcse",
            {"batch_size": 25},
            InvalidValueError,
            r"no more rows than a data set has \(texts: 24\), got 25. Lower the batch size, or give more data",
        ),
        ("simcse", {"batch_size": 36, "accumulation": 3}, InvalidValueError, "no more rows than a data set has"),
        ("mntp", {"batch_size": 100}, InvalidValueError, r"no more rows than a data set has \(texts: \d+\), got 100"),
        ("simcse", {"batch_size": 1}, InvalidValueError, "batch: expected at least two rows"),
        ("contrastive", {"batch_size": 6, "accumulation": 6}, InvalidValueError, "batch: expected at least two rows"),
        ("simcse", {"data": "wikitex"}, UnknownNameError, "training source 'wikitex'. Did you mean 'wikitext'"),
        ("simcse", {"data": "absent/texts.txt"}, MissingDataError, "expected a file"),
        ("mntp", {"max_length": 10_000}, InvalidValueError, "10000"),
    ],
)
def test_a_stage_that_is_refused(own, monkeypatch, objective, changes, error, message):
    model = tiny()
    with steps_counted(monkeypatch) as steps, pytest.raises(error, match=message):
        trained(stage(own, objective, **changes), model=model)
    assert steps == []
    assert differing(model, tiny()) == []
    decoder = model[0].decoder
    assert (decoder.config._attn_implementation, model[0].max_length) == ("sdpa", 512)
    assert all(p.requires_grad for p in model.parameters())
    assert {m.attention_dropout for m in model.modules() if hasattr(m, "attention_dropout")} == {0.0}
    assert [name for name, _ in model.named_modules() if "lora" in name] == []
    assert not list(cache_path("stages").glob("*"))


@pytest.mark.parametrize(
    ("objective", "wrong"),
    [
        ("simcse", {"options": {"dropuot": 0.1}}),
        ("simcse", {"options": {"temperature": 0}}),
        ("simcse", {"batch_size": 25}),
        ("simcse", {"batch_size": 1}),
        ("simcse", {"data": "absent/texts.txt"}),
        ("simcse", {"adapter": Adapter(targets=("q_proj", "k_porj"))}),
        ("mntp", {"options": {"rate": 1.0}}),
        ("mntp", {"max_length": 10_000}),
        ("contrastive", {"options": {"in_batch": False}}),
    ],
)
def test_what_is_wrong_with_the_last_stage_is_said_first(own, monkeypatch, objective, wrong):
    model = tiny()
    monkeypatch.setattr(backbones, "load_head", pytest.fail)  # a whole language model, read only where a stage trains
    with steps_counted(monkeypatch) as steps, pytest.raises(WorkbookError, match="Stage last: "):
        trained(stage(own, "contrastive", name="first"), stage(own, objective, name="last", **wrong), model=model)
    assert steps == []
    assert (differing(model, tiny()), model[0].max_length) == ([], 512)


def test_the_first_text_of_each_instruction_is_tried(own, tmp_path):
    """Of every data set, and of every instruction in a blend."""
    rows = [{"query": text[::-1], "positive": text, "instruction": "a" * (place % 2 * 40)}
            for place, text in enumerate(TEXTS)]  # fmt: skip
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for changes in ({}, {"blend": True}):
        one = stage({"contrastive": str(tmp_path / "two.jsonl")}, "contrastive", steps=1, batch_size=4, **changes)
        with pytest.raises(InvalidValueError, match=r"Stage contrastive: max_length: .* own 42 tokens .* got 32"):
            trained(one)
        trained(one.model_copy(update={"max_length": 43}))


def test_texts_that_are_all_alike_make_no_batch(own, tmp_path):
    """Seven rows are enough, but no two of them may stand in one batch."""
    rows = [{"query": "the same", "positive": text} for text in TEXTS[:7]]
    (tmp_path / "alike.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InvalidValueError, match=r"no more rows than have nothing in common.* got 3. Lower it"):
        trained(stage({"contrastive": str(tmp_path / "alike.jsonl")}, "contrastive", batch_size=3))


def test_a_data_set_that_is_too_small_for_a_batch_is_said(own, tmp_path):
    rows = [{"query": f"{text}?", "positive": text, "instruction": "a" if place else "b"}
            for place, text in enumerate(TEXTS)]  # fmt: skip
    rows[1]["instruction"] = "b"
    (tmp_path / "uneven.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one = stage({"contrastive": str(tmp_path / "uneven.jsonl")}, "contrastive", steps=1)
    with pytest.warns(UserWarning, match="uneven/1 hold fewer rows than a batch of 6 and are never read"):
        trained(one)


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5, True, "0", None])
def test_a_seed_that_is_none(own, seed):
    with pytest.raises(InvalidValueError, match="seed: expected a whole number from 0 to 4294967295, got"):
        trained(stage(own), seed=seed)


def test_a_model_without_a_decoder(own):
    for model, name in ((SentenceTransformer(modules=[tiny()[1]]), "Pooling"), (torch.nn.Sequential(), "NoneType")):
        with pytest.raises(
            InvalidValueError, match=f"model: expected a chain that begins with a Decoder, got '{name}'"
        ):
            trained(stage(own), model=model)


def test_data_for_a_stage_that_does_not_exist(own):
    with pytest.raises(UnknownNameError, match=r"stage 'simsce'. Did you mean 'simcse'"):
        trained(stage(own), data={"simsce": own["simcse"]})


@pytest.mark.parametrize(
    ("name", "content", "objective", "message"),
    [
        ("a.jsonl", '{"text": "fine"}\n{"text": "  "}\n', "simcse", r"a\.jsonl, line 2, field text: expected text"),
        (
            "a.csv",
            "query,positive\nfine,fine too\n \t,blank\n",
            "contrastive",
            r"a\.csv, line 3, field query: expected text",
        ),
        ("a.txt", " \n\t\n", "simcse", r"a\.txt: "),
    ],
)
def test_rows_of_nothing_but_blanks(own, tmp_path, name, content, objective, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DamagedFileError, match=message):
        trained(stage({objective: str(tmp_path / name)}, objective))


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"learning_rate": 0},
        {"warmup_steps": -1},
        {"name": "Sim CSE"},
        {"step": 1},
        {"max_length": 2.5},
        {"decay_steps": 9},  # of the ten that are trained
    ],
)
def test_a_stage_that_can_not_be_written_down(own, changes):
    with pytest.raises(ValidationError, match=next(iter(changes))):
        stage(own, **changes)


@pytest.mark.parametrize("every", [0, -1, 2.0, True, None])
def test_a_watch_that_never_looks(every):
    with pytest.raises(InvalidValueError, match="every: expected a positive whole number of steps, got"):
        Evaluator("sum", every, lambda model: {})


def test_a_recipe_that_can_not_be_written_down(own):
    with pytest.raises(ValidationError, match="expected stages of different names, got simcse, simcse"):
        Recipe(stages=(stage(own), stage(own, steps=1)))
    with pytest.raises(ValidationError, match="targets"):
        Adapter(targets=())
    with pytest.raises(UnknownNameError, match=r"stage 'mntp'. Expected one of: simcse"):
        Recipe(stages=(stage(own),)).only("mntp")


# The folder


def into(folder, *stages, method="llm2vec", **options):
    return train_into(folder, tiny(), Recipe(stages=stages), plan={"method": method}, progress=False, **options)


def test_a_folder_that_holds_something_else(own, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("Dear")
    for taken in (tmp_path / "full", tmp_path / "full" / "letter.txt"):
        with pytest.raises(
            OutputError, match=r"Expected an absent or empty folder, got .* Choose another with --output"
        ):
            into(taken, stage(own))
    assert (tmp_path / "full" / "letter.txt").read_text() == "Dear"


def test_a_training_that_is_there_or_is_not(own, tmp_path):
    one, folder = stage(own, steps=1), tmp_path / "out"
    with pytest.raises(MissingDataError, match=r"Expected a training to resume in .*leave --resume out"):
        into(folder, one, resume=True)
    assert not folder.exists()
    folder.mkdir()
    into(folder, one)
    with pytest.raises(OutputError, match=r"holds a training already. Go on with it by --resume"):
        into(folder, one)
    assert into(folder, one, resume=True) is None  # it is done and whole


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", r"Expecting property name"),
        ("[]", r"Input should be a valid dictionary"),
        ("{}", r"asked: Field required"),
        ('{"asked": {}, "keys": null}', r"keys: Input should be a valid list"),
        ('{"asked": {}, "keys": [3]}', r"keys: 0: Input should be a valid string"),
        ('{"asked": [], "keys": []}', r"asked: Input should be a valid dictionary"),
        ('{"asked": {}, "keys": [], "files": ["README.md"]}', r"files: Input should be a valid dictionary"),
        ('{"asked": {}, "keys": [], "begun_with": ""}', r"begun_with: Input should be a valid dictionary"),
        ('{"asked": {}, "keys": [], "done": true}', r"done: Input should be a valid dictionary"),
    ],
)
def test_a_damaged_plan(own, tmp_path, content, reason):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "training.json").write_text(content)
    said = rf"training\.json: expected what a training was asked for, got something else \({reason}.*another folder\.$"
    with pytest.raises(DamagedFileError, match=said):
        into(tmp_path / "out", stage(own, steps=1), resume=True)


def test_a_resume_asks_for_the_same(own, tmp_path):
    """Whatever differs is named, with both values."""
    one, folder = stage(own, steps=1), tmp_path / "out"
    into(folder, one)
    before = (folder / "training.json").read_bytes()
    other = write_data(tmp_path, TEXTS[:-1], "other")
    for options, named in [
        ({"seed": 3}, "seed 0, now 3"),
        ({"data": {"simcse": other["simcse"]}}, r"stages\.simcse\.data '\w+', now '\w+'"),
        ({"method": "echo"}, "method 'llm2vec', now 'echo'"),
        ({"stages": (one.model_copy(update={"steps": 2}),)}, r"stages\.simcse\.steps 1, now 2"),
        ({"stages": (stage(own, steps=1, adapter=None),)}, r"stages\.simcse\.adapter \{.*\}, now None"),
        ({"stages": (one, stage(own, "contrastive", steps=1))}, r"stages\.contrastive None, now \{"),
    ]:
        stages = options.pop("stages", (one,))
        with pytest.raises(InvalidValueError, match=f"resume of {folder}: .*It was begun with {named}"):
            into(folder, *stages, resume=True, **options)
    assert (folder / "training.json").read_bytes() == before
    (tmp_path / "moved").mkdir()  # the same data in another place is the same training
    into(folder, one, resume=True, data={"simcse": write_data(tmp_path / "moved")["simcse"]})


def test_a_stage_is_plain_data(own):
    one = stage(own, "mntp", accumulation=2)
    assert Stage.model_validate_json(one.model_dump_json()) == one
