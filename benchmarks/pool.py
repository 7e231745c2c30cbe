"""What pooling by latent attention costs: time to encode with it and with the mean, on one decoder, in one run.

    python benchmarks/pool.py [--texts 600] [--repeats 3]

Both chains share SmolLM2-135M with bidirectional attention, in the precision that this machine suggests, and encode the
same texts in the same batches; the latent attention is as large as published, 512 latents and 8 heads. The two take
turns, so that a busy machine slows both, after a short one each that does not count. Printed are the median of the
repeats and their ratio, which should be at most 1.15. What is done once a batch weighs too much in fewer than 32 texts,
one batch. The block begins as plain mean pooling: the vectors agree.
"""

from __future__ import annotations

import statistics

from speed import begun, in_turns

import workbook


def main() -> None:
    texts, tokens, repeats = begun(__doc__)
    mean = workbook.build("mean", attention="bidirectional")
    latent = workbook.build("mean", mean, attention="bidirectional", pooling="latent_attention")
    models = {"mean": mean, "latent attention": latent}
    in_turns(models, texts[:8], 1)
    times, agreement = in_turns(models, texts, repeats)
    medians = {name: statistics.median(measured) for name, measured in times.items()}
    for name, median in medians.items():
        print(f"{name:<17} {median:7.2f} s {tokens / median:7.0f} tokens/s")
    print(f"latent attention over mean: {medians['latent attention'] / medians['mean']:.3f} times as long")
    print(f"smallest cosine between the two: {agreement:.4f}")


if __name__ == "__main__":
    main()
