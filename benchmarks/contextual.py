"""What a contextual token costs: time to encode by Causal2Vec, the last token alone and Echo, in one run.

    python benchmarks/contextual.py [--texts 600] [--repeats 3]

All share SmolLM2-135M in the precision that this machine suggests and encode the same documents, each cut at 256
tokens, as many as MiniLM reads of its own. They take turns, so that a busy machine slows all, after a round that does
not count. Printed are the median of the repeats and the ratios: over the last token at most 1.25, over Echo 0.6.
"""

from __future__ import annotations

from speed import begun

import workbook
from workbook import probes

LENGTH = 256


def main() -> None:
    texts, _, repeats = begun(__doc__)
    model = workbook.build("causal2vec", max_length=LENGTH)
    others = {
        "last token": workbook.build("last-token", model, max_length=LENGTH),
        "Echo": workbook.build("echo", model, max_length=LENGTH),
    }
    spent = probes.encoding_cost({"causal2vec": model} | others, texts, repeats)
    median = spent.groupby("model", sort=False)[["tokens", "seconds"]].median()
    print(median.round(2).to_string())
    for other in others:
        ratio = median["seconds"]["causal2vec"] / median["seconds"][other]
        print(f"causal2vec over {other}: {ratio:.3f} times as long")


if __name__ == "__main__":
    main()
