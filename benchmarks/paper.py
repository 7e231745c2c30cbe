"""The stages of scale ``paper``, a few steps of each: whether they fit, their peak memory, and tokens a second.

    python benchmarks/paper.py --output FOLDER [--backbones mistral llama qwen] [--methods llm2vec lens] [--stages mntp]

Backbones and Causal2Vec's encoder are random, of the published sizes, and are written once below the folder (15 GB a
backbone): nothing is fetched. So are the texts, which are as long as a stage cuts them. The table is
``paper.csv``, printed at the end; rows that it holds are not measured again. A stage that does not fit is a row with
the reason, and the next one begins. All of it at a tiny size, on a CPU, in a minute:

    python benchmarks/paper.py --output FOLDER --layers 2 --width 32 --vocabulary 300 --batch 4 --length 32 --steps 2
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
)
from transformers.utils import logging

import workbook
from workbook.errors import UnknownNameError, WorkbookError
from workbook.files import atomic_file, atomic_folder, cache_path
from workbook.methods import options as options_of
from workbook.objectives import get
from workbook.tiny import tiny_tokenizer
from workbook.training import Recipe, Stage, train
from workbook.training.devices import memory, weights

LLAMA = {"hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32}
BACKBONES = {
    "mistral": MistralConfig(**LLAMA | {"intermediate_size": 14_336}, num_key_value_heads=8, vocab_size=32_000),
    "llama": LlamaConfig(**LLAMA, num_key_value_heads=32, vocab_size=32_000),
    "qwen": Qwen2Config(
        hidden_size=3584, intermediate_size=18_944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        vocab_size=152_064, tie_word_embeddings=False,
    ),
}  # fmt: skip
"""Mistral-7B, Llama-2-7B and Qwen2-7B."""

ENCODER = BertConfig(max_position_embeddings=512)
"""The size of ``intfloat/e5-base-v2``, that of BERT."""

METHODS = ("llm2vec", "nv-embed", "lens", "causal2vec", "anchor")
HEADS = 4
"""Attention heads at another width."""

CLUSTERS = 4000
"""Of LENS; with a smaller vocabulary half of it."""

COLUMNS = [
    *("backbone", "method", "stage", "layers", "width", "steps", "batch", "length", "device", "dtype"),
    *("tokens a second", "peak memory", "note"),
]


def smaller(config: PreTrainedConfig, options: argparse.Namespace) -> PreTrainedConfig:
    """A configuration of fewer layers, another width or a smaller vocabulary, with its own shape otherwise."""
    given = config.to_dict() | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}  # of the tokenizer
    if options.width:
        heads = given["num_attention_heads"]
        given |= {
            "hidden_size": options.width,
            "intermediate_size": options.width * given["intermediate_size"] // given["hidden_size"],
            "num_attention_heads": HEADS,
        }
        if "num_key_value_heads" in given:
            given["num_key_value_heads"] = max(1, HEADS * given["num_key_value_heads"] // heads)
        if given.get("head_dim"):
            given["head_dim"] = options.width // HEADS
    given |= {"num_hidden_layers": options.layers} if options.layers else {}
    given |= {"vocab_size": options.vocabulary} if options.vocabulary else {}
    # Qwen's says of every layer what it is, and makes that anew.
    return type(config)(**{name: value for name, value in given.items() if name not in ("model_type", "layer_types")})


def random_model(folder: Path, factory: Any, config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> str:
    """Write random weights with a tokenizer of bytes into a folder, unless they are there; returns the folder."""
    if not folder.is_dir():
        torch.manual_seed(0)
        make = getattr(factory, "from_config", None) or factory._from_config
        with atomic_folder(folder) as made:
            make(config, dtype=dtype).save_pretrained(made)
            tokenizer = tiny_tokenizer()
            tokenizer.model_max_length = getattr(config, "max_position_embeddings", 512) - 2
            tokenizer.save_pretrained(made)
    return str(folder)


def random_data(folder: Path, rows: int, length: int) -> dict[str, str]:
    """Files of random texts as long as a stage cuts them, by what an objective reads: pairs have a hard negative."""
    draw, folder = np.random.default_rng(0), folder / f"texts-{rows}-{length}"
    if not folder.is_dir():
        letters = draw.integers(ord("a"), ord("z") + 1, (3 * rows, length), dtype=np.uint8)
        letters[:, 7::8] = ord(" ")
        texts = [bytes(row).decode().strip() for row in letters]
        triples = zip(texts[:rows], texts[rows : 2 * rows], texts[2 * rows :], strict=True)
        lines = [json.dumps(dict(zip(("query", "positive", "negative"), one, strict=True))) for one in triples]
        with atomic_folder(folder) as made:
            (made / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
            (made / "pairs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    texts, pairs = str(folder / "texts.txt"), str(folder / "pairs.jsonl")
    return {"chunks": texts, "texts": texts, "pairs": pairs}


def short(stage: Stage, options: argparse.Namespace) -> Stage:
    """A few steps of a stage, with as many rows a micro-batch as it has unless a smaller batch is asked for.

    Its rows are all of retrieval: LENS' largest batches. The scores that come with them take no time and are left out.
    """
    batch = min(stage.batch_size, options.batch or stage.batch_size)
    changed: dict[str, Any] = {
        "steps": options.steps, "warmup_steps": 1, "decay_steps": None, "batch_size": batch, "blend": False,
        "mixed": False, "others": None, "teacher": None,
        "accumulation": min(stage.accumulation, batch // 2), "max_length": min(stage.max_length, options.length),
    }  # fmt: skip
    if "mini_batch_size" in stage.options:
        changed["options"] = {**stage.options, "mini_batch_size": min(stage.options["mini_batch_size"], batch // 2)}
    return stage.model_copy(update=changed)


@contextlib.contextmanager
def peak(device: torch.device) -> Iterator[list[int]]:
    """A list that gets the peak memory of the block, in bytes; on a CPU that of the process, where Linux counts it."""
    found: list[int] = []
    gc.collect()
    counter = Path("/proc/self/clear_refs")
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif counter.exists():
        counter.write_text("5", encoding="ascii")
    try:
        yield found
    finally:
        if device.type == "cuda":
            found.append(torch.cuda.max_memory_allocated(device))
        else:
            said = Path("/proc/self/status")
            lines = said.read_text(encoding="ascii").splitlines() if said.exists() else []
            high = next((line.split()[1] for line in lines if line.startswith("VmHWM")), None)
            found.append(int(high) * 1024 if high else psutil.Process().memory_info().rss)


def measured(model: Any, stage: Stage, data: str, place: torch.device) -> dict[str, Any]:
    """Tokens a second and peak memory of a stage, or in ``note`` why it was not trained."""
    row: dict[str, Any] = {"tokens a second": np.nan, "note": ""}
    with peak(place) as high:
        try:
            # No checkpoint: those of a large model take longer than the steps.
            done = train(model, Recipe(stages=(stage,)), data={stage.name: data}, save_every=stage.steps + 1,
                         progress=False)  # fmt: skip
        except WorkbookError as error:
            row["note"] = str(error)
            if isinstance(error.__cause__, torch.OutOfMemoryError):
                trained, kept = weights(model, stage)
                row["note"] = (
                    f"out of memory: {16 * trained / 1e9:,.1f} GB for {trained:,} numbers that train (16 bytes each), "
                    f"{kept / 1e9:,.1f} GB of weights that don't, and activations do not fit the "
                    f"{(memory(place) or 0) / 1e9:,.1f} GB of the device"
                )
        else:
            shutil.rmtree(cache_path("stages", done.manifest["stages"][stage.name]["key"][:24]))
            first, last = done.history.iloc[0], done.history.iloc[-1]  # the first step allocates memory
            row["tokens a second"] = (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])
    return row | {"peak memory": high[0]}


def rows_of(backbone: str, options: argparse.Namespace, known: set[tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """Rows of all stages of a backbone but the known ones."""
    config = smaller(BACKBONES[backbone], options)
    size = f"{config.num_hidden_layers}x{config.hidden_size}x{config.vocab_size}"
    models = options.output / "models"
    place = torch.device(workbook.backbones.capability()["device"])
    for method in options.methods:
        folder = random_model(models / f"{backbone}-{size}", AutoModelForCausalLM, config, torch.bfloat16)
        stages = [short(one, options) for one in workbook.recipe(method, "paper", folder).stages]
        same = [str(one) for one in (config.num_hidden_layers, config.hidden_size, options.steps)]
        wanted = [
            one for one in stages
            if (not options.stages or one.name in options.stages)
            and (backbone, method, one.name, *same, str(one.batch_size), str(one.max_length)) not in known
        ]  # fmt: skip
        if not wanted:
            continue
        chain = options_of(method, "paper", folder)
        if "encoder" in chain:
            encoder = smaller(ENCODER, options)
            chain["encoder"] = random_model(models / f"encoder-{encoder.hidden_size}", BertModel, encoder)
        if method == "lens":
            chain["pooling_options"] = {"clusters": min(CLUSTERS, config.vocab_size // 2)}
        try:
            model = workbook.build(method, folder, **chain)
        except torch.OutOfMemoryError:
            size = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
            there = f"{(memory(place) or 0) / 1e9:,.1f} GB of the device"
            print(f"{backbone}, {method}: its weights, {size / 1e9:,.1f} GB, do not fit the {there}", flush=True)
            continue
        for stage in wanted:
            # Each step its own rows, and a chunk more than they fill.
            data = random_data(options.output, (options.steps + 1) * stage.batch_size, stage.max_length)
            found = measured(model, stage, data[get(stage.objective).reads], place)
            yield {
                "backbone": backbone, "method": method, "stage": stage.name, "layers": config.num_hidden_layers,
                "width": config.hidden_size, "steps": stage.steps, "batch": stage.batch_size,
                "length": stage.max_length, "device": workbook.backbones.capability()["why"],
                "dtype": str(model[0].decoder.dtype).removeprefix("torch."), **found,
            }  # fmt: skip
        del model  # before the next one is loaded


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of models, texts and the table")
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, default=[*BACKBONES])
    parser.add_argument("--methods", nargs="+", choices=workbook.METHODS, default=METHODS, metavar="METHOD")
    parser.add_argument("--stages", nargs="+", help="only those of these names")
    parser.add_argument("--steps", type=int, default=5, help="at least 2: the first is not timed")
    parser.add_argument("--layers", type=int, help="fewer than the published ones")
    parser.add_argument("--width", type=int, help="a multiple of 8")
    parser.add_argument("--vocabulary", type=int, help="at least 300")
    parser.add_argument("--batch", type=int, help="largest batch, at least 4")
    parser.add_argument("--length", type=int, default=512, help="longest input in tokens")
    options = parser.parse_args(arguments)
    if options.steps < 2:
        parser.error("argument --steps: expected at least 2, since the first is not timed")
    every = {one.name for name in options.methods for one in workbook.recipe(name, "paper", "tiny-llama").stages}
    for name in options.stages or ():
        if name not in every:
            raise UnknownNameError("stage", name, sorted(every))
    logging.disable_progress_bar()
    options.output.mkdir(parents=True, exist_ok=True)
    # Trained stages are not kept, and a kept one would be no measurement.
    os.environ["WORKBOOK_CACHE"] = str(options.output / "cache")
    file = options.output / "paper.csv"
    table = pd.read_csv(file, keep_default_na=False, na_values={"tokens a second": ""}) if file.exists() else None
    table = pd.DataFrame(columns=COLUMNS) if table is None else table
    key = ["backbone", "method", "stage", "layers", "width", "steps", "batch", "length"]
    known = {tuple(map(str, row)) for row in table[key].itertuples(index=False)}
    for backbone in options.backbones:
        for row in rows_of(backbone, options, known):
            table = pd.DataFrame([*table.to_dict("records"), row], columns=COLUMNS)
            with atomic_file(file) as made:
                table.to_csv(made, index=False)
            fits = row["note"] or f"{row['tokens a second']:,.0f} tokens/s, {row['peak memory'] / 1e9:,.1f} GB"
            print(f"{backbone}, {row['method']}, {row['stage']}: {fits}", flush=True)
    shown = table.assign(**{"peak memory": (table["peak memory"] / 1e9).map("{:,.1f} GB".format)})
    print(shown.drop(columns=["device", "dtype"]).to_string(index=False, float_format="{:,.0f}".format))


if __name__ == "__main__":
    main()
