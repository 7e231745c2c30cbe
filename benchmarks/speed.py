"""Tokens per second: this library's chain and plain sentence-transformers on the same texts, in one run.

    python benchmarks/encode.py [--texts 600] [--repeats 3]

Both encode with SmolLM2-135M, bidirectional attention and mean pooling. Plain sentence-transformers is its Transformer
and Pooling modules on the same weights, with its default batches of 32 texts sorted by length. The two take turns, so
that a busy machine slows both; the median of the repeats is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers.utils import logging

import workbook
from workbook import attention, backbones
from workbook.corpora.docs import load_docs


def plain(dtype: str) -> SentenceTransformer:
    """Plain sentence-transformers, told to leave the chat template alone and to look both ways."""
    transformer = Transformer(
        str(backbones.resolve("smollm2-135m")),
        model_kwargs={"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"},
        modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        module_output_name="token_embeddings",
    )
    attention.set_mode(transformer.model, "bidirectional")
    assert attention.probe(transformer.model) == "bidirectional"
    return SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), "mean")])


def documents(count: int) -> tuple[list[str], int]:
    """Documents of the docs corpus, and how many tokens they are; both are printed."""
    texts = load_docs().split("test")["document"].head(count).tolist()
    tokenizer = backbones.load_tokenizer("smollm2-135m")
    tokens = sum(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"]))
    print(f"{len(texts)} texts, {tokens} tokens ({tokens / len(texts):.0f} each), {torch.get_num_threads()} threads")
    return texts, tokens


def in_turns(
    models: dict[str, SentenceTransformer], texts: list[str], repeats: int
) -> tuple[dict[str, list[float]], float]:
    """Seconds of every repeat of each of two models, and the smallest cosine between their vectors."""
    times = {name: [] for name in models}
    for _ in range(repeats):
        vectors = []
        for name, model in models.items():
            began = time.perf_counter()
            vectors.append(model.encode(texts, show_progress_bar=False))
            times[name].append(time.perf_counter() - began)
    ours, theirs = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors)
    return times, (ours * theirs).sum(axis=1).min()


def begun(description: str | None) -> tuple[list[str], int, int]:
    """Texts, their tokens and the number of repeats that the command line asks for; the machine is printed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    logging.disable_progress_bar()
    print(f"this machine suggests {backbones.capability()}")
    return *documents(options.texts), options.repeats


def main() -> None:
    texts, tokens, repeats = begun(__doc__)
    for dtype in ("bfloat16", "float32"):
        models = {
            "workbook": workbook.build("mean", attention="bidirectional", dtype=dtype),
            "plain sentence-transformers": plain(dtype),
        }
        times, agreement = in_turns(models, texts, repeats)
        for name, measured in times.items():
            print(f"{dtype:<9} {name:<28} {tokens / statistics.median(measured):7.0f} tokens/s")
        print(f"{dtype:<9} smallest cosine between the two: {agreement:.4f}")


if __name__ == "__main__":
    main()
