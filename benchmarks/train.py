"""Tokens per second in training: the MNTP stage of LLM2Vec's recipe, and a plain LoRA loop, in one run.

    python benchmarks/train.py [--steps 12]

Both train SmolLM2-135M on the same 16 x 64 tokens a step. The recipe's stage goes through the engine: adapters on the
attention's projections, kept in float32, without dropout, eager attention on a CPU, the head on masked tokens alone.
The plain loop is what a tutorial gives: adapters on every linear layer with dropout 0.05, sdpa, logits of all tokens.
The first step, which allocates memory, is not counted.
"""

from __future__ import annotations

import argparse
import shutil
import time

import numpy as np
import peft
import torch
from transformers.utils import logging

import workbook
from workbook import backbones
from workbook.files import cache_path
from workbook.training import Recipe, train
from workbook.training.stage import load_data


def engine(steps: int) -> float:
    """Tokens per second of the recipe's stage; what it leaves in the cache is removed."""
    (stage,) = workbook.recipe("llm2vec", "cpu").only("mntp").stages
    stage = stage.model_copy(update={"steps": steps, "warmup_steps": 1})
    seed = time.time_ns() % 2**32  # a seed seen before would be taken from the cache
    trained = train(workbook.build("llm2vec"), Recipe(stages=(stage,)), seed=seed, progress=False)
    shutil.rmtree(cache_path("stages", trained.manifest["stages"]["mntp"]["key"][:24]))
    first, last = trained.history.iloc[0], trained.history.iloc[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])


def plain(steps: int) -> float:
    """Tokens per second of a plain loop with the backbone's own next-token loss."""
    (stage,) = workbook.recipe("llm2vec", "cpu").only("mntp").stages
    model = backbones.load_decoder("smollm2-135m", lm_head=True).train()
    config = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear")
    model = peft.get_peft_model(model, config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    data = load_data(stage, backbones.load_tokenizer("smollm2-135m")).datasets["docs"]
    chunks = torch.tensor(np.array(data[: stage.batch_size * steps]["chunk"]), device=model.device)
    times = []
    for batch in chunks.split(stage.batch_size):
        began = time.perf_counter()
        with torch.autocast(model.device.type, torch.bfloat16, enabled=model.dtype is torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    return stage.batch_size * stage.max_length * (steps - 1) / sum(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    logging.disable_progress_bar()
    print(f"{torch.get_num_threads()} threads; this machine suggests {backbones.capability()}")
    for name, measure in (("the recipe's MNTP stage", engine), ("plain LoRA loop", plain)):
        print(f"{name:<24} {measure(options.steps):6.0f} tokens/s")


if __name__ == "__main__":
    main()
