"""The command train: a folder that plain sentence-transformers loads, --resume after a kill, one message a mistake."""

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import psutil
import pytest
from accelerate import PartialState
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from training_tools import TEXTS, write_data

import workbook
from workbook import backbones, cli
from workbook.errors import WorkbookError
from workbook.files import ROOT, cache_path
from workbook.modules import load_embedder
from workbook.training import Adapter, Recipe, Stage, rehearse
from workbook.training.stage import REPORTS

MORE = [*TEXTS, *(f"{text} again" for text in TEXTS)]


@pytest.fixture
def data(own, tmp_path):
    """Arguments that give each stage of LLM2Vec its own data."""
    more = write_data(tmp_path, MORE, "more")
    stages = ("mntp", "simcse", "contrastive")
    return [argument for stage in stages for argument in ("--data", f"{stage}={more[stage]}")]


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process; returns exit code, output, errors."""

    def command(*arguments, flags=()):
        monkeypatch.setattr(sys, "argv", ["workbook", *flags, "train", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code, *capsys.readouterr()

    return command


def process(*arguments):
    """The command in a process of its own, where loggers and warnings are as a user has them."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "workbook", "train", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_each_process_takes_its_device_before_the_model_is_loaded(tmp_path, monkeypatch, command):
    seen = []

    def load_decoder(*_, **__):
        seen.append(PartialState._shared_state != {})
        raise WorkbookError("enough")

    monkeypatch.setattr(backbones, "load_decoder", load_decoder)
    PartialState._reset_state()
    code, _, errors = command("mean", "--scale", "quick", "--backbone", "tiny-llama", "--output", tmp_path / "out")
    assert (code, seen) == (2, [True])
    assert "enough" in errors


@pytest.mark.journey
def test_train(data, tmp_path):
    folder = tmp_path / "out"
    with process("llm2vec", "-o", folder, "--scale", "quick", "--backbone", "tiny-llama", "--seed", 7, *data) as ran:
        out, err = ran.communicate()
    assert (ran.returncode, err) == (0, "")
    *stages, last = out.splitlines()
    assert last == f"Model: {folder}"
    for line, (stage, steps) in zip(stages, {"mntp": 6, "simcse": 4, "contrastive": 4}.items(), strict=True):
        assert re.fullmatch(rf"{stage}: {steps} steps, \d+ tokens, \d+ s, loss \d+\.\d{{3}}", line)
    history = pd.read_csv(folder / "history.csv")
    assert list(history["stage"]) == ["mntp"] * 6 + ["simcse"] * 4 + ["contrastive"] * 4
    plan = json.loads((folder / "training.json").read_text())
    asked, done = plan["asked"], plan["done"]
    named = [asked[name] for name in ("method", "scale", "backbone", "seed")]
    assert named == ["llm2vec", "quick", "tiny-llama", 7]
    assert list(asked["stages"]) == list(done) == ["mntp", "simcse", "contrastive"]
    assert done["mntp"]["source"] == str(tmp_path / "more.txt")
    vectors = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu").encode(TEXTS)
    assert vectors.shape == (24, 32)
    assert np.isfinite(vectors).all()


def test_verbose_says_where_a_stage_came_from(command, data, tmp_path):
    asked = ["llm2vec", "--scale", "quick", "--backbone", "tiny-llama", "--stages", "simcse", *data[2:4]]
    first, second, third = (
        command(*asked, "-o", tmp_path / name, flags=flags)[2]
        for name, flags in (("one", ["-v"]), ("two", ["-v"]), ("three", []))
    )
    assert "stage simcse: not in the cache, is trained\nstage simcse: begins at its first step\n" in first
    assert "stage simcse: from the cache\n" in second
    assert f"training is on {backbones.capability()['device']}" in second
    assert third == ""


@pytest.mark.journey
def test_killed_and_resumed(command, data, tmp_path, monkeypatch):
    """The weights are those of a training that was let alone. What is killed and resumed are processes of their own."""
    arguments = ["llm2vec", "--scale", "cpu", "--backbone", "tiny-llama", "--stages", "simcse", *data[2:4]]
    folder, whole = tmp_path / "out", tmp_path / "whole"
    steps = workbook.recipe("llm2vec", "cpu", "tiny-llama").only("simcse").stages[0].steps
    with process(*arguments, "-o", folder) as killed:
        while not [*cache_path("training").glob("*/checkpoint-*/checksums.json")] and killed.poll() is None:
            time.sleep(0.01)
        killed.send_signal(signal.SIGSTOP)
        code, _, err = command(*arguments, "-o", folder, "--resume")
        assert (code, "Error: Another training is writing into" in err) == (2, True)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert {file.name for file in folder.iterdir()} == {".workbook.lock", "training.json"}
    assert [*cache_path("stages").glob("*")] == []
    newest = max(cache_path().glob("*/*/checkpoint-*/checksums.json"), key=lambda p: int(p.parent.name.split("-")[1]))
    before = json.loads((newest.parent / "trainer_state.json").read_text())["log_history"]
    assert 0 < len(before) < steps

    code, _, err = command(*arguments, "-o", folder)
    assert (code, "--resume" in err) == (2, True)
    with process(*arguments, "-o", folder, "--resume") as resumed:
        out, err = resumed.communicate()
    assert (resumed.returncode, err) == (0, "")
    assert not (folder / ".workbook.lock").exists()
    history = pd.read_csv(folder / "history.csv")
    assert list(history["seconds"][: len(before)]) == [entry["seconds"] for entry in before]  # those steps ran once
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "another"))
    assert command(*arguments, "-o", whole)[0] == 0
    assert [len(out.splitlines()), [*history["step"]]] == [2, [*range(1, steps + 1)]]
    one, other = (load_file(path / "model.safetensors") for path in (folder, whole))
    assert one.keys() == other.keys()
    # Bit by bit on most processors; on others the libraries add numbers up in an order that memory's layout decides.
    # A forgotten random state or schedule moves the weights a hundred times as far.
    assert max((one[name] - other[name]).abs().max().item() for name in one) < 1e-5
    for name in ("config.json", "modules.json", "decoder_config.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    (folder / "notes.txt").write_text("Dear")
    said = f"Nothing to do: {folder} holds this training, done and whole.\n"
    assert command(*arguments, "-o", folder, "--resume") == (0, said, "")
    assert (folder / "notes.txt").read_text() == "Dear"
    rest = pd.read_csv(whole / "history.csv")
    pd.testing.assert_frame_equal(history.drop(columns="seconds"), rest.drop(columns="seconds"), rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llm2vce"], "Unknown method 'llm2vce'. Did you mean 'llm2vec'?"),
        (["llm2vec", "--scale", "qick"], "Unknown scale 'qick'. Did you mean 'quick'?"),
        (["llm2vec", "--stages", "mntp,simsce"], "Unknown stage 'simsce'. Did you mean 'simcse'?"),
        (["mean", "--stages", "mntp"], "Unknown stage 'mntp'. Expected one of: contrastive."),
        (["llm2vec", "--data", "pairs.jsonl"], "--data: expected STAGE=FILE, such as contrastive=pairs.jsonl, got"),
        (["llm2vec", "--data", "=pairs.jsonl"], "--data: expected STAGE=FILE"),
        (["llm2vec", "--data", "mntp="], "--data: expected STAGE=FILE"),
        (["mean", "--option", "attention"], "--option: expected NAME=VALUE, such as suffix=answer, got 'attention'"),
        (["mean", "--option", "colour=red"], "Unknown option 'colour'"),
        (["llm2vec", "--data", "mtnp=texts.txt"], "Unknown stage 'mtnp'. Did you mean 'mntp'?"),
        (["llm2vec", "--stages", ""], "Unknown stage ''. Expected one of: mntp"),
        (
            ["llm2vec", "--data", "mntp=a.txt", "--data", "mntp=b.txt"],
            "--data: expected one value for mntp, got 'a.txt and b.txt'. Give one of them.",
        ),
        (["llm2vec", "--data", "mntp=absent.txt"], "Training data: expected a file"),
        (["llm2vec", "--stages", "simcse", "--data", "mntp=texts.txt"], "Unknown stage 'mntp'"),
        (["llm2vec", "--resume"], "Expected a training to resume in"),
        (["llm2vec", "--seed", "-1"], "Invalid value for '--seed'"),
        (["llm2vec", "--seed", "4294967296"], "seed: expected a whole number from 0 to 4294967295"),
        (["llm2vec", "--backbone", "tiny-lama"], "tiny-lama"),
        (
            ["llm2vec", "--option", "device=cuda:7"],
            "device: expected cpu, or a device that torch finds here, got 'cuda:7'",
        ),
        (
            ["llm2vec", "--set", "steps"],
            "--set: expected STAGE.FIELD=VALUE, such as contrastive.steps=500, got 'steps'",
        ),
        (
            ["llm2vec", "--set", "mtnp.steps=1"],
            "Unknown stage 'mtnp'. Did you mean 'mntp'? Expected one of: mntp, simcse",
        ),
        (
            ["llm2vec", "--set", "mntp.stpes=1"],
            "Unknown field of stage mntp 'stpes'. Did you mean 'steps'? Expected one of",
        ),
        (["llm2vec", "--set", "mntp.data=a.txt"], "Unknown field of stage mntp 'data'"),
        (["llm2vec", "--set", "mntp.adapter.rnak=1"], "Unknown field of mntp.adapter 'rnak'. Did you mean 'rank'?"),
        (["llm2vec", "--set", "mntp.options.rat=1"], "Stage mntp: Unknown option of mntp 'rat'. Did you mean 'rate'?"),
        (["llm2vec", "--set", "mntp.options.rate=9"], "Stage mntp: rate: expected"),
        (["llm2vec", "--set", "mntp.steps=0"], "mntp.steps: expected greater than 0, got 0."),
        (["llm2vec", "--set", "mntp.steps=few"], "mntp.steps: expected a valid integer, unable to parse"),
        (["llm2vec", "--set", "mntp.adapter.rank=-1"], "mntp.adapter.rank: expected greater than 0, got -1."),
        (["llm2vec", "--set", "mntp.decay_steps=1"], "mntp.decay_steps: expected no fewer than steps (6)"),
        (["llm2vec", "--suite", "docs"], "--suite: expected --evaluate-every beside it, got ['docs']"),
        (["llm2vec", "--evaluate-every", "1", "--suite", "dosc"], "Unknown suite or task 'dosc'. Did you mean 'docs'?"),
        (["llm2vec", "--report-to", "wandbb"], "Unknown experiment tracker 'wandbb'. Did you mean 'wandb'?"),
        (["llm2vec", "--report-to", "absent,wandb"], "Expected one of: tensorboard, wandb"),
        ([], "Missing argument 'METHOD'"),
    ],
)
def test_mistakes_exit_with_2_and_one_message(command, data, tmp_path, arguments, message):
    folder = tmp_path / "out"
    # A later option counts; the data given here come first, so that each mistake is the only one.
    stages = [] if {"--data", "--stages"} & {*arguments} or arguments[:1] == ["mean"] else data
    backbone = [] if "--backbone" in arguments else ["--backbone", "tiny-llama"]
    scale = [] if "--scale" in arguments else ["--scale", "quick"]
    code, out, err = command("-o", folder, *scale, *backbone, *stages, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert not folder.exists()
    assert not list(cache_path("stages").glob("*"))


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_said(command, data, tmp_path, tracker, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in REPORTS[tracker] else found(name, *a)
    )
    arguments = ["llm2vec", "-o", tmp_path / "out", "-s", "quick", "--backbone", "tiny-llama", *data]
    code, _, err = command(*arguments, "--report-to", tracker)
    assert (code, err) == (
        2,
        f"Error: report_to: expected an installed package, got '{tracker}'. Way out: pip install {tracker}.\n",
    )
    assert not (tmp_path / "out").exists()


WRITER = """
class SummaryWriter:
    def __init__(self, log_dir):
        import pathlib
        pathlib.Path(log_dir).mkdir(parents=True)
        self.file = open(log_dir + "/scalars", "w")
    def add_text(self, *args): pass
    def add_hparams(self, *args, **kwargs): pass
    def add_scalar(self, name, value, step): print(name, step, file=self.file, flush=True)
    def flush(self): pass
    def close(self): pass
"""


def test_a_tracker_gets_the_loss_of_every_step_by_stage(command, data, tmp_path, monkeypatch):
    """A stand-in has the interface of tensorboardX, which is not among what is installed."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "tensorboardX.py").write_text(WRITER)
    folder = tmp_path / "out"
    arguments = ["llm2vec", "-o", folder, "--scale", "quick", "--backbone", "tiny-llama", "--stages", "mntp,simcse"]
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, _, err = command(*arguments, *data[:4], "--report-to", "tensorboard")
    monkeypatch.delitem(sys.modules, "tensorboardX")
    assert (code, err) == (0, "")
    for stage, steps in {"mntp": 6, "simcse": 4}.items():
        lines = (folder / "logs" / stage / "scalars").read_text().splitlines()
        assert [line for line in lines if line.startswith("train/loss ")] == [
            f"train/loss {step}" for step in range(1, steps + 1)
        ]


def test_values_of_the_recipe_are_set(command, data, tmp_path):
    arguments = [
        "llm2vec",
        "-s",
        "quick",
        "--backbone",
        "tiny-llama",
        "-o",
        tmp_path / "out",
        "--stages",
        "mntp",
        *data[:2],
    ]
    changes = ["mntp.steps=3", "mntp.adapter.rank=2", "mntp.options.rate=0.4", "mntp.learning_rate=1e-4"]
    changed = [argument for change in changes for argument in ("--set", change)]
    code, _, err = command(*arguments, *changed)
    assert code == 0, err
    assert list(pd.read_csv(tmp_path / "out" / "history.csv")["step"]) == [1, 2, 3]
    asked = json.loads((tmp_path / "out" / "training.json").read_text())["asked"]["stages"]["mntp"]
    assert (asked["adapter"]["rank"], asked["adapter"]["alpha"]) == (2, 32)
    assert (asked["options"]["rate"], asked["learning_rate"]) == (0.4, 1e-4)
    code, _, err = command(*arguments, *changed[:2], "--resume")
    assert (code, "stages.mntp.learning_rate 0.0001, now" in err) == (2, True)


def test_an_adapter_can_be_left_out_and_put_in():
    recipe = workbook.recipe("llm2vec", "quick", "tiny-llama").only("mntp")
    without = recipe.changed({"mntp.adapter": None})
    assert without.stages[0].adapter is None
    assert without.changed({"mntp.adapter.rank": 4}).stages[0].adapter == Adapter(rank=4)
    assert recipe.changed({}) == recipe


def test_evaluation_while_training(command, data, corpora, tmp_path):
    cache_path().mkdir(exist_ok=True)
    for path in corpora:
        (cache_path() / path.name).symlink_to(path)
    arguments = ["mean", "-s", "quick", "--backbone", "tiny-llama", "-o", tmp_path / "out", *data[4:]]
    arguments += [
        "--set",
        "contrastive.steps=3",
        "--set",
        "contrastive.max_length=96",
        "--evaluate-every",
        "2",
        "--option",
        "dtype=float32",
    ]
    suites = ["--suite", "ParaphraseLadder", "--suite", "other"]
    code, _, err = command(*arguments, *suites)
    assert code == 0, err
    curve = pd.read_csv(tmp_path / "out" / "curve.csv")
    assert list(curve["step"]) == [0, 2, 3]
    other = ["TopicClustering", "ReviewClassification", "ParaphraseLadder"]
    assert list(curve.columns[4:]) == ["ParaphraseLadder", *other[:2], "other"]
    np.testing.assert_allclose(curve[other].mean(axis=1), curve["other"])
    model = load_embedder(tmp_path / "out", device="cpu", model_kwargs={"dtype": "float32"})
    scores = workbook.evaluation.evaluate(model, "ParaphraseLadder", scale="quick", instructions="docs")
    assert scores["score"].item() == pytest.approx(curve["ParaphraseLadder"].iloc[-1], abs=0.5)
    assert "curve.csv" in json.loads((tmp_path / "out" / "training.json").read_text())["files"]
    assert "Nothing to do" in command(*arguments, *suites, "--resume")[1]
    code, _, err = command(*arguments, "--resume")
    assert (code, "It was begun with evaluator" in err) == (2, True)


def test_check_says_what_each_stage_takes_and_leaves_no_file(command, data, tmp_path):
    folder = tmp_path / "out"
    arguments = ["llm2vec", "-s", "quick", "--backbone", "tiny-llama", "-o", folder, *data]
    code, out, err = command(*arguments, "--check", "--set", "simcse.steps=1000", "--set", "contrastive.batch_size=8")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["stage", "rows", "tokens", "peak_gb", "tokens_per_second", "steps", "days"]
    assert [line.split()[0] for line in lines[1:]] == ["mntp", "simcse", "contrastive"]
    assert not folder.exists()
    assert not list(cache_path("stages").glob("*"))
    assert not list(cache_path("training").glob("*"))


def test_the_longest_rows_are_tried(own, tmp_path):
    texts = [*TEXTS, "a long text " * 3, "a long text " * 4, "a long text " * 40]
    data = write_data(tmp_path, texts, "long")
    one = Stage(
        **{"name": "simcse", "objective": "simcse", "data": data["simcse"], "options": {"dropout": 0.3}},
        **{"steps": 1000, "batch_size": 4, "max_length": 64, "learning_rate": 1e-3},
    )
    model = workbook.build("mean", "tiny-llama", dtype="float32", device="cpu")
    table = rehearse(model, Recipe(stages=(one,)))
    (row,) = table.to_dict("records")
    # A byte is a token, with one in front; the longest text is cut, and none ends in a space.
    assert (row["rows"], row["tokens"]) == (4, 64 + 48 + 36 + max(map(len, TEXTS)) + 1)
    assert row["days"] == pytest.approx(1000 * row["tokens"] / row["tokens_per_second"] / 86400)
    assert 0.05 < row["peak_gb"] < psutil.virtual_memory().total / 1e9


def test_too_little_text_names_file_and_stage(command, tmp_path):
    (tmp_path / "one.txt").write_text("Short.\n")
    arguments = ["llm2vec", "-o", tmp_path / "out", "-s", "quick", "--backbone", "tiny-llama", "--stages", "mntp"]
    code, _, err = command(*arguments, "--data", f"mntp={tmp_path / 'one.txt'}")
    said = f"Error: Stage mntp: training data {tmp_path / 'one.txt'}: expected at least 32 tokens, to fill one chunk, "
    assert (code, err[: len(said)]) == (2, said)


@pytest.mark.journey
def test_a_warning_is_one_plain_line(own, tmp_path):
    """In a process, since pytest catches warnings before they are written."""
    (tmp_path / "twice.txt").write_text("\n".join([*TEXTS, TEXTS[0]]) + "\n")
    arguments = ["llm2vec", "-o", tmp_path / "out", "--scale", "quick", "--backbone", "tiny-llama"]
    with process(*arguments, "--stages", "simcse", "--data", f"simcse={tmp_path / 'twice.txt'}") as ran:
        _, err = ran.communicate()
    assert (ran.returncode, err) == (0, "Warning: twice: 1 of 25 rows repeat another: left out (25).\n")


def test_a_folder_is_never_overwritten(command, data, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("Dear")
    code, _, err = command("llm2vec", "-o", tmp_path / "full", "-s", "quick", "--backbone", "tiny-llama", *data)
    assert code == 2
    assert "Expected an absent or empty folder" in err
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_a_training_that_never_began_is_begun_anew(command, data, tmp_path, options):
    """Its data fill no batch, which only training finds; with other data the folder is free."""
    alike = tmp_path / "alike.jsonl"
    alike.write_text("".join(json.dumps({"query": "the same", "positive": text}) + "\n" for text in TEXTS))
    folder = tmp_path / "out"
    arguments = ["llm2vec", "-o", folder, "-s", "quick", "--backbone", "tiny-llama", "--stages", "contrastive"]
    code, _, err = command(*arguments, "--data", f"contrastive={alike}")
    assert (code, [file.name for file in folder.iterdir()]) == (2, ["training.json"])
    assert "no more rows than have nothing in common" in err
    said = pytest.warns(UserWarning, match=r"nothing was kept yet. What is missing begins anew")
    with said if options else contextlib.nullcontext():
        code, out, _ = command(*arguments, *data[4:], *options)
    assert (code, out.splitlines()[-1]) == (0, f"Model: {folder}")
    assert "holds a training already" in command(*arguments, *data[4:])[2]


def test_a_resume_on_a_backbone_of_other_weights_is_refused(command, data, tmp_path):
    backbone, folder = tmp_path / "backbone", tmp_path / "out"
    backbones.load_tokenizer("tiny-llama").save_pretrained(backbone)
    decoder = backbones.load_decoder("tiny-llama", dtype="float32", device="cpu", lm_head=True)
    decoder.save_pretrained(backbone)
    arguments = ["mean", "-o", folder, "-s", "quick", "--backbone", backbone, *data[4:]]
    assert command(*arguments)[0] == 0
    decoder.model.norm.weight.data[0] += 1
    decoder.save_pretrained(backbone)
    before = (folder / "training.json").read_bytes()
    code, out, err = command(*arguments, "--resume")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert re.search(
        r"It was begun with backbone_sha256 '\w+', now '\w+'\. Go back to that, or leave --resume out", err
    )
    assert (folder / "training.json").read_bytes() == before


def test_help(command):
    code, out, _ = command("--help")
    assert code == 0
    for option in (
        "--set",
        "--check",
        "--evaluate-every",
        "--report-to",
        "--data",
        "--stages",
        "--resume",
        "--seed",
        "--backbone",
        "--scale",
    ):
        assert option in out


def test_options_of_the_chain(command, data, tmp_path):
    data = [one for pair in zip(data[::2], data[1::2], strict=True) if "contrastive" in pair[1] for one in pair]
    common = ["mean", "--scale", "quick", "--backbone", "tiny-llama", *data]
    chain = ["--option", "attention=bidirectional", "--option", 'pooling="weighted_mean"', "--option", "max_length=200"]
    code, _, err = command(*common, "-o", tmp_path / "out", *chain)
    assert code == 0, err
    model = SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True)
    assert (model[0].attention, model[1].pooling) == ("bidirectional", "weighted_mean")
    asked = json.loads((tmp_path / "out" / "training.json").read_text())["asked"]
    assert asked["options"] == {"attention": "bidirectional", "pooling": "weighted_mean", "max_length": 200}


def test_what_a_chain_is_at_scale_paper():
    assert workbook.methods.options("causal2vec", "cpu", "tiny-llama") == {}
    assert workbook.methods.options("mean", "paper", "tiny-llama") == {}
    small = workbook.methods.options("causal2vec", "paper", "tiny-llama")
    assert small == {"encoder": "intfloat/e5-base-v2", "encoder_options": {"trainable": True, "length": "torch"}}


@pytest.mark.parametrize(("writes", "template"), [("[INST] {} [/INST]", "causal2vec-chat"), ("user: {}", None)])
def test_at_scale_paper_a_chat_of_llama_2_or_mistral_has_the_papers_form(tmp_path, writes, template):
    backbones.load_decoder("tiny-llama", device="cpu", lm_head=True).save_pretrained(tmp_path)
    tokenizer = backbones.load_tokenizer("tiny-llama")
    tokenizer.chat_template = "{% for one in messages %}" + writes.format("{{ one['content'] }}") + "{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    assert workbook.methods.options("causal2vec", "paper", str(tmp_path)).get("template") == template
