"""The card of a saved model: what it says is so, and its lines run."""

import re
import sys

import pandas as pd
import pytest
import yaml
from sentence_transformers import SentenceTransformer
from training_tools import stage, tiny, trained

import workbook
from workbook import cli, evaluation
from workbook.errors import InvalidValueError
from workbook.files import alone


def read(folder):
    """The metadata and the text of a card."""
    _, head, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(head), text


def section(text, name):
    return re.search(rf"## {name}\n(.*?)(?=\n## |\Z)", text, re.DOTALL)[1].strip()


def line(row, scale="quick"):
    """The line of a table for a row of scores."""
    return f"| {row.suite} | {row.task} | {scale} | {row.metric} | {row.score:.1f} | {row.low:.1f} to {row.high:.1f} |"


def run(text, folder, monkeypatch, capsys):
    """Run the lines of a card in its folder; returns what they print."""
    monkeypatch.chdir(folder)
    capsys.readouterr()
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], {})
    return capsys.readouterr().out


@pytest.mark.parametrize("method", ["nv-embed", "lens", "causal2vec", "icl", "gritlm"])
def test_the_snippet_of_a_saved_card_runs(method, tmp_path, monkeypatch, capsys):
    tiny(method).save(str(tmp_path))
    head, text = read(tmp_path)
    assert re.search(r"tensor\(\[\[-?\d\.\d+, +-?\d\.\d+\]\]\)", run(text, tmp_path, monkeypatch, capsys))
    assert text.strip().startswith(f"# {method} on tiny-llama")
    assert section(text, "Training") == "None."
    assert section(text, "Scores") == "Not measured."
    assert "license" not in head
    assert "base_model" not in head
    layout = workbook.templates.TEMPLATES[workbook.METHODS[method].chain.template].instructed
    assert "".join(piece.string for piece in layout).replace("\n", "\\n") in section(text, "Prompts")


def test_training_and_scores_are_told(own, tmp_path, monkeypatch, capsys):
    steps = {"steps": 2, "learning_rate": 1e-3}
    made = trained(stage(own, "mntp", **steps), stage(own, "simcse", name="second", **steps), model=tiny())
    model = made.model
    scores = evaluation.evaluate(model, "other", scale="quick")
    model.model_card_data.add_scores(scores.assign(score=0.0))
    model.model_card_data.add_scores(scores)
    model.save(str(tmp_path / "model"))
    _, text = read(tmp_path / "model")
    run(text, tmp_path / "model", monkeypatch, capsys)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section(text, "Training").splitlines()[2:]]
    tokens = made.history.groupby("stage")["tokens"].max()
    assert [row[:8] for row in rows] == [
        ["mntp", "mntp", "texts.txt", "2", "6", "32", "0.001", str(tokens["mntp"])],
        ["second", "simcse", "texts.txt", "2", "6", "32", "0.001", str(tokens["second"])],
    ]
    said = section(text, "Scores").splitlines()[4:]
    assert said == list(map(line, scores.itertuples()))
    assert str(tmp_path) not in text
    trained(stage(own, "simcse", **steps), model=model).model.save(str(tmp_path / "further"))
    _, text = read(tmp_path / "further")
    assert len(section(text, "Training").splitlines()) == 5
    assert section(text, "Scores") == "Not measured."  # they were another model's


def test_a_carried_backbone_has_its_license(smollm2):
    smollm2[0].attention = "causal"
    echo = workbook.build("echo", smollm2)
    assert echo.model_card_data.license == "apache-2.0"
    assert echo.model_card_data.base_model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert workbook.build("mean", "tiny-llama").model_card_data.base_model is None


def test_a_loaded_model_keeps_its_card_until_it_is_trained(own, tmp_path):
    tiny("mean").save(str(tmp_path / "built"))
    loaded = SentenceTransformer(str(tmp_path / "built"), trust_remote_code=True, device="cpu")
    loaded.save(str(tmp_path / "again"))
    assert read(tmp_path / "again") == read(tmp_path / "built")
    trained(stage(own, "simcse", steps=2), model=loaded).model.save(str(tmp_path / "trained"))
    _, text = read(tmp_path / "trained")
    assert text.strip().startswith("# a model that was saved before")
    assert "simcse" in section(text, "Training")


def test_a_hybrid_names_both(tmp_path, monkeypatch, capsys):
    both = workbook.hybrid(tiny("mean"), tiny("echo"))
    both.save(str(tmp_path))
    _, text = read(tmp_path)
    assert "# hybrid of mean and echo on tiny-llama" in text
    run(text, tmp_path, monkeypatch, capsys)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command in this process; returns its output."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["workbook", *map(str, arguments)])
        with pytest.raises(SystemExit, match="0"):
            cli.main()
        return capsys.readouterr().out

    return command


def test_evaluate_writes_into_the_card_of_a_training_and_leaves_the_rest(own, command, tmp_path):
    folder, table = tmp_path / "out", tmp_path / "table.csv"
    asked = ["mean", "--scale", "quick", "--backbone", "tiny-llama", "--data", f"contrastive={own['contrastive']}"]
    command("train", *asked, "--set", "contrastive.steps=2", "-o", folder)
    _, before = read(folder)
    for scale in ("quick", "cpu"):
        out = command("evaluate", folder, "--suite", "TopicClustering", "--scale", scale)
        assert out.endswith(f"Card: {folder / 'README.md'}\n")
    for _ in range(2):  # what is there already stays, once
        command("evaluate", folder, "--suite", "other", "--scale", "quick", "-o", table)
    _, text = read(folder)
    said = section(text, "Scores").splitlines()[4:]
    scores = pd.read_csv(table, keep_default_na=False)
    assert said[2:5] == list(map(line, scores.itertuples()))
    assert [one.split(" | ")[1:3] for one in said] == [
        *(["TopicClustering", "quick"], ["TopicClustering", "cpu"]),  # by themselves, without instructions
        *(["TopicClustering", "quick"], ["ReviewClassification", "quick"], ["ParaphraseLadder", "quick"]),
        ["other", "quick"],
    ]
    assert text.replace(section(text, "Scores"), "Not measured.") == before
    # It is still what the training wrote.
    assert "Nothing to do" in command("train", *asked, "--set", "contrastive.steps=2", "-o", folder, "--resume")


def test_a_card_that_its_reader_changed_keeps_their_words(own, command, tmp_path):
    folder = tmp_path / "out"
    asked = ["mean", "--scale", "quick", "--backbone", "tiny-llama", "--data", f"contrastive={own['contrastive']}"]
    command("train", *asked, "--set", "contrastive.steps=2", "-o", folder)
    (folder / "README.md").write_bytes(b"# Mine\r\n\xff, in my words.\n")
    for _ in range(2):
        command("evaluate", folder, "--suite", "ParaphraseLadder", "--scale", "quick")
    text = (folder / "README.md").read_bytes()
    with alone(folder):  # as a training that writes there
        assert "Card" not in command("evaluate", folder, "--suite", "TopicClustering", "--scale", "quick")
    assert (folder / "README.md").read_bytes() == text
    assert text.startswith(b"# Mine\r\n\xff, in my words.\n\n## Scores\n\nIn points")
    assert text.count(b"ParaphraseLadder") == 1
    (folder / "README.md").unlink()
    assert "Card" not in command("evaluate", folder, "--suite", "ParaphraseLadder", "--scale", "quick")
    assert not (folder / "README.md").exists()


def test_other_folders_are_not_written_into(command, tmp_path):
    tiny("mean").save(str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert "Card" not in command("evaluate", tmp_path, "--suite", "ParaphraseLadder", "--scale", "quick")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_scores_of_another_kind_are_refused():
    with pytest.raises(InvalidValueError, match="scores: expected a frame as evaluate gave it, got 'one without suite"):
        tiny("mean").model_card_data.add_scores([1.0])
