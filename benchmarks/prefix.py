"""What a prefix cache saves: time to encode with it and without, in one run, for prompts of three lengths.

    python benchmarks/prefix.py [--texts 256] [--repeats 3]

All share SmolLM2-135M in float32 and encode the same documents, cut at 64 tokens beside the examples: with bge-en-icl's
prompts and three examples, and by Causal2Vec and the last token with an instruction. With the cache and without take
turns, so that a busy machine slows both, after a round that does not count. Printed are the median of the repeats and
the ratios: for the examples at least 3.
"""

from __future__ import annotations

import statistics

from speed import documents, in_turns, parser
from transformers.utils import logging

import workbook
from workbook.methods import icl

LENGTH = 64


def main() -> None:
    made = parser(__doc__)
    made.set_defaults(texts=256)
    options = made.parse_args()
    logging.disable_progress_bar()
    texts, _ = documents(options.texts)
    base = workbook.build("last-token", dtype="float32", max_length=LENGTH)
    shots = icl.examples()
    instruction = next(iter(shots))
    for method in ("icl", "causal2vec", "last-token"):
        own = {"examples": shots} if method == "icl" else {}
        models = {
            name: workbook.build(method, base, max_length=LENGTH, prefix_cache=name == "cached", **own)
            for name in ("plain", "cached")
        }
        for model in models.values():
            model.prompts, model.default_prompt_name = {"it": instruction}, "it"
        in_turns(models, texts[:8], 1)
        times, agreement = in_turns(models, texts, options.repeats)
        medians = {name: statistics.median(spent) for name, spent in times.items()}
        (read,) = models["plain"][0].encode_texts(["a"], instruction)
        for name, median in medians.items():
            print(f"{method:<11} {name:<7} {median:7.2f} s {len(texts) / median:6.1f} texts/s", flush=True)
        ratio = medians["plain"] / medians["cached"]
        print(f"{method:<11} {read.prefix} tokens in front: {ratio:.2f} times as fast, smallest cosine {agreement:.6f}")


if __name__ == "__main__":
    main()
