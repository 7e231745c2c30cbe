"""What lexicon pooling costs: memory over a full vocabulary, and time to encode with clusters and with the mean.

    python benchmarks/lexicon.py [--texts 32] [--tokens 512] [--clusters 49152] [--width 576] [--pooling max] [--plain]
    python benchmarks/lexicon.py --encode 600 [--clusters 4000] [--backbone smollm2-135m] [--repeats 3]

The first pools random states over a random head, forward and backward, and prints how far the process grew above what
it held with states and head loaded (on a GPU: the tensors alone); that should be less than 1 GiB. A process has one
peak in its life, so each run measures one pooling. ``--plain`` measures the formula with all logits at once.

The second encodes documents with lexicon and with mean pooling on one decoder, in turns, and prints the medians and
their ratio, which should be at most 1.15. The head is random: its rows cost what centroids cost.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from speed import documents
from torch.nn.functional import normalize
from transformers.utils import logging

import workbook
from workbook import backbones
from workbook.modules import Lexicon
from workbook.modules.lexicon import LEXICON_POOLINGS, pooled_positions


def held(device: str) -> int:
    """Bytes that this process holds now."""
    if device != "cpu":
        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak(device: str) -> int:
    """The most bytes that this process ever held."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def plain(module: Lexicon, features: dict[str, torch.Tensor]) -> torch.Tensor:
    """All logits at once."""
    mask = pooled_positions(features["pooling_mask"], features["attention_mask"], module.pooling)
    weights = torch.log1p(torch.relu(features["token_embeddings"] @ module.head.T)) * mask.unsqueeze(-1)
    return normalize(weights.sum(dim=1) if module.pooling == "sum" else weights.amax(dim=1), dim=1)


def memory(options: argparse.Namespace) -> None:
    device = backbones.capability()["device"]
    generator = torch.Generator().manual_seed(0)
    module = Lexicon(torch.randn(options.clusters, options.width, generator=generator), options.pooling).to(device)
    states = torch.randn(options.texts, options.tokens, options.width, generator=generator).to(device)
    mask = torch.ones(options.texts, options.tokens, dtype=torch.long, device=device)
    features = {"token_embeddings": states.requires_grad_(), "attention_mask": mask, "pooling_mask": mask}
    before, began = held(device), time.perf_counter()
    vectors = plain(module, features) if options.plain else module(dict(features))["sentence_embedding"]
    forward, middle = peak(device), time.perf_counter()
    vectors.square().sum(dim=1).mean().backward()
    if device != "cpu":
        torch.cuda.synchronize()
    end = time.perf_counter()
    print(
        f"{options.pooling}{', plain' if options.plain else ''}: {options.texts} x {options.tokens} tokens over "
        f"{options.clusters} x {options.width}, {device}, {torch.get_num_threads()} threads\n"
        f"held before {before / 2**20:6.0f} MiB (all logits at once would be "
        f"{mask.numel() * options.clusters * 4 / 2**20:.0f} MiB)\n"
        f"forward     {(forward - before) / 2**20:6.0f} MiB more, {middle - began:6.1f} s\n"
        f"backward    {(peak(device) - before) / 2**20:6.0f} MiB more, {end - middle:6.1f} s"
    )


def encode(options: argparse.Namespace) -> None:
    texts, tokens = documents(options.encode)
    print(f"this machine suggests {backbones.capability()}")
    mean = workbook.build("mean", options.backbone, attention="bidirectional", template="lens")
    width = mean[0].get_embedding_dimension()
    head = torch.randn(options.clusters, width, generator=torch.Generator().manual_seed(0))
    lexicon = SentenceTransformer(modules=[mean[0], Lexicon(head, options.pooling)], device=str(mean.device))
    models = {"mean": mean, "lexicon": lexicon}
    times = {name: [] for name in models}
    for repeat in range(options.repeats + 1):  # the first, a short one, does not count
        for name, model in models.items():
            began = time.perf_counter()
            model.encode(texts if repeat else texts[:8], show_progress_bar=False)
            times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(measured[1:]) for name, measured in times.items()}
    for name, median in medians.items():
        print(f"{name:<8} {median:7.2f} s {tokens / median:7.0f} tokens/s")
    print(f"lexicon of {options.clusters} over mean: {medians['lexicon'] / medians['mean']:.3f} times as long")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("texts", 32), ("tokens", 512), ("width", 576), ("repeats", 3), ("encode", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--clusters", type=int, help="49152 for memory, 4000 to encode, if not given")
    parser.add_argument("--pooling", choices=LEXICON_POOLINGS, default="max")
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    options.clusters = options.clusters or (4000 if options.encode else 49152)
    logging.disable_progress_bar()
    (encode if options.encode else memory)(options)


if __name__ == "__main__":
    main()
