"""What sorting texts by length saves: time to encode the same texts in three orders, in one run.

    python benchmarks/order.py [--texts 256] [--repeats 3] [--batches 8 32 128]

SmolLM2-135M with mean pooling encodes the documents of notebook 08's second analysis: batches as the texts come;
batches by characters, which is what sentence-transformers does; and those read in groups of like length, which is what
the workbook's decoder does. They take turns, so that a busy machine slows all, after a round that does not count.
Printed are the median of the repeats, how many times as fast that is as the first order, and what it would be if
nothing but tokens took time. The last order should be the fastest, whatever the size of a batch.
"""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from unittest.mock import patch

from sentence_transformers import SentenceTransformer
from speed import parser, seconds
from transformers.utils import logging

import workbook
from workbook.corpora.docs import load_docs
from workbook.modules import passes

NEVER = 10**9
"""Tokens that a pass costs besides its own, so that no batch is parted."""


def main() -> None:
    made = parser(__doc__)
    made.set_defaults(texts=256)
    made.add_argument("--batches", type=int, nargs="+", default=[8, 32, 128])
    options = made.parse_args()
    logging.disable_progress_bar()
    print(f"this machine suggests {workbook.backbones.capability()}")
    texts = load_docs().split("train").head(options.texts)["document"].tolist()
    by_characters = sorted(texts, key=len, reverse=True)
    model = workbook.build("mean")
    for batch in options.batches:
        orders = {"as they come": (texts, False), "by characters": (by_characters, False)}
        orders["in groups"] = by_characters, True
        times: dict[str, list[float]] = {order: [] for order in orders}
        for _ in range(1 + options.repeats):
            for order, (ordered, parted) in orders.items():
                with nullcontext() if parted else patch.multiple(passes, _PASS={}, _PASS_ELSEWHERE=NEVER):
                    began = seconds()
                    for at in range(0, len(texts), batch):
                        model.encode(ordered[at : at + batch], batch_size=batch, show_progress_bar=False)
                    times[order].append(seconds() - began)
        medians = {order: statistics.median(spent[1:]) for order, spent in times.items()}
        read = {order: cells(model, ordered, batch, parted) for order, (ordered, parted) in orders.items()}
        for order, median in medians.items():
            faster, by_tokens = (one["as they come"] / one[order] for one in (medians, read))
            label = f"batches of {batch:<4} {order:<14}"
            print(f"{label} {median:7.2f} s, {faster:5.2f} times as fast ({by_tokens:.2f} by tokens)", flush=True)


def cells(model: SentenceTransformer, texts: list[str], batch: int, parted: bool) -> int:
    """Tokens that are computed, padding among them."""
    length = [len(one.input_ids) for one in model[0].encode_texts(texts)]
    a_pass = passes._PASS.get(model.device.type, passes._PASS_ELSEWHERE) if parted else NEVER
    parts = [passes.groups_of_like_length(length[at : at + batch], a_pass) for at in range(0, len(texts), batch)]
    return sum(len(rows) * widest for part in parts for rows, widest in part)


if __name__ == "__main__":
    main()
