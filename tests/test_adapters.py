"""Adapters of a training, taken out of it, and adapters of others, merged into a backbone."""

import json
import sys

import numpy as np
import peft
import pytest
from safetensors.torch import load_file, save_file
from training_tools import differing, stage, tiny

import workbook
from workbook import backbones, cli
from workbook.errors import DamagedFileError, InvalidValueError, MissingDataError, OutputError
from workbook.training import Adapter, Recipe, export_adapters, train_into


def into(folder, *stages, **options):
    plan = {"method": "llm2vec", "backbone": "tiny-llama"}
    return train_into(folder, tiny(**options), Recipe(stages=stages), plan=plan, progress=False).model


@pytest.fixture
def published(tmp_path):
    """Writes an adapter of random numbers, as peft saves it; returns the folder and the adapted decoder's weights."""

    def published(name="adapter", head=False, backbone="tiny-llama", **options):
        decoder = backbones.load_decoder(backbone, dtype="float32", device="cpu", lm_head=head)
        options = {"r": 4, "target_modules": ["q_proj", "up_proj"], "init_lora_weights": False} | options
        task = "CAUSAL_LM" if head else None
        adapted = peft.get_peft_model(decoder, peft.LoraConfig(task_type=task, **options))
        adapted.save_pretrained(str(tmp_path / name), save_embedding_layers=False)
        merged = adapted.merge_and_unload()
        return tmp_path / name, (merged.model if head else merged).state_dict()

    return published


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exported_adapters_give_the_trained_decoder_again(own, tmp_path, dtype):
    stages = [
        stage(own, "mntp", adapter=Adapter()),
        stage(own, "simcse", adapter=Adapter(rank=4, targets=("up_proj",))),
    ]
    model = into(tmp_path / "model", *stages, dtype=dtype)
    folders = export_adapters(tmp_path / "model", tmp_path / "adapters")
    assert folders == [tmp_path / "adapters" / name / "decoder" for name in ("mntp", "simcse")]
    again = tiny(dtype=dtype, adapter=folders)
    assert differing(again, model) == []
    assert differing(tiny(dtype=dtype, adapter=folders[:1]), model)
    assert again.model_card_data.adapters == ["mntp", "simcse"]
    for folder in folders:
        text = (folder / "adapter_config.json").read_text()
        assert json.loads(text)["base_model_name_or_path"] == "tiny-llama"
        assert str(tmp_path) not in text
    plain = backbones.load_decoder("tiny-llama", dtype="float32", device="cpu")
    assert peft.PeftModel.from_pretrained(plain, str(folders[0])).peft_config["default"].r == 16


@pytest.mark.parametrize("head", [False, True], ids=["states", "language model"])
def test_published_adapters_are_merged(published, head):
    folder, expected = published(head=head)
    model = tiny("mean", adapter=str(folder))
    assert differing(model[0].decoder.state_dict(), expected, 1e-6) == []
    assert not any("lora" in name for name, _ in model.named_parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert np.abs(model.encode(["a text"]) - tiny("mean").encode(["a text"])).max() > 1e-3


def rename(folder, old, new):
    """Rename the layers of an adapter."""
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({name.replace(old, new): w for name, w in weights.items()}, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: rename(folder, "layers.1.", "layers.7."), "it has no .*layers.1"),
        (lambda folder: (rename(folder, "q_proj", "c_proj"), retarget(folder, ["c_proj"])), "c_proj"),
        (lambda folder: retarget(folder, ["q_proj", "up_proj"], r=8), "size mismatch|shape"),
    ],
    ids=["depth", "names", "size"],
)
def test_an_adapter_of_another_backbone_is_refused(published, change, said):
    folder, _ = published()
    change(folder)
    with pytest.raises(InvalidValueError, match=f"(?s)expected one that was trained on this backbone.*({said})"):
        tiny("mean", adapter=folder)


def retarget(folder, targets, **changes):
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": targets} | changes))


def test_what_is_no_adapter_is_refused(published, tmp_path):
    with pytest.raises(InvalidValueError, match="adapter: expected a folder that peft wrote"):
        tiny("mean", adapter=3)
    with pytest.raises(MissingDataError, match="found no folder"):
        tiny("mean", adapter=tmp_path / "absent" / "one")
    with pytest.raises(MissingDataError, match=r"found no adapter_config\.json"):
        tiny("mean", adapter=tmp_path)
    folder, _ = published()
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(DamagedFileError, match=r"adapter_config\.json"):
        tiny("mean", adapter=folder)
    with pytest.raises(InvalidValueError, match="adapter: expected nothing, where a loaded decoder is shared"):
        workbook.build("echo", tiny("mean"), adapter=folder)


def test_what_holds_no_adapters_gives_none(own, tmp_path, monkeypatch):
    with pytest.raises(MissingDataError, match="finished training"):
        export_adapters(tmp_path, tmp_path / "adapters")
    into(tmp_path / "whole", stage(own, "simcse", steps=1, adapter=None))
    with pytest.raises(InvalidValueError, match="stage simcse: expected one that trained adapters"):
        export_adapters(tmp_path / "whole", tmp_path / "adapters")
    into(tmp_path / "model", stage(own, "simcse", steps=1))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(OutputError, match="absent or empty"):
        export_adapters(tmp_path / "model", tmp_path / "full")
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "another"))
    with pytest.raises(MissingDataError, match="not there any more"):
        export_adapters(tmp_path / "model", tmp_path / "adapters")


def test_the_command(own, tmp_path, monkeypatch, capsys):
    model = into(tmp_path / "model", stage(own, "simcse", steps=1))
    command = ["workbook", "adapters", str(tmp_path / "model"), "--output", str(tmp_path / "adapters")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as exit:
        cli.main()
    said = capsys.readouterr().out
    folder = tmp_path / "adapters" / "simcse" / "decoder"
    assert exit.value.code == 0
    assert said.splitlines() == [
        f"Adapters: {folder}",
        f"They are merged again by workbook.build(METHOD, BACKBONE, adapter={[str(folder)]}).",
    ]
    assert differing(tiny(adapter=folder), model) == []
