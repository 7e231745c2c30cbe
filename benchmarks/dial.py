"""The dial's panel: seconds from a move of a slider to the answer, table and picture, on texts that are read.

    python benchmarks/dial.py [--queries 30] [--documents 60] [--rows 4000] [--length 128] [--head k-means]

The model is LENS on SmolLM2-135M, untrained; queries and documents are of the docs corpus. Each control is moved to all
its values once, so that no answer was computed before, while the others stay: zero, idf, rows, and the cut. Printed are
the median and the longest answer, in milliseconds on the clock and of all processors (which a busy machine stretches
less). Numbers of rows whose clusters the cache lacks are left out, and those above --rows are in a line of their own.
An answer should take less than 300 ms on two cores.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import workbook
from workbook import probes
from workbook.corpora.authored import instruction_of
from workbook.corpora.docs import load_docs
from workbook.explore import Dial


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=30)
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--head", choices=probes.HEADS, default=probes.HEADS[0])
    options = parser.parse_args()

    model = workbook.build("lens")
    model.max_seq_length = options.length
    pairs = load_docs().split("test").head(options.documents)
    queries, documents = pairs["query"].tolist()[: options.queries], pairs["document"].tolist()
    dial = Dial(model, queries, documents, instruction_of("DocsRetrieval"))
    print(f"{len(queries)} queries, {len(documents)} documents, {torch.get_num_threads()} threads")

    began, busy = time.perf_counter(), time.process_time()
    zero, idf, head, k, top, answer = dial.panel().children
    if head.value != options.head:
        head.value = options.head
    if k.value != options.rows:
        k.value = options.rows
    _line("the panel at its start", [(time.perf_counter() - began, time.process_time() - busy)])

    moves = {
        "zero": (zero, [value for _, value in zero.options]),
        "idf": (idf, idf.options),
        "rows": (k, [rows for rows in dial.rows if rows < options.rows]),
        "more rows": (k, [rows for rows in dial.rows if rows > options.rows]),
        "kept": (top, [value for _, value in top.options]),
    }
    for name, (control, values) in moves.items():
        usual, taken = control.value, []
        for value in values:
            if value != usual and (control is not k or dial.at_hand(head.value, value)):
                began, busy = time.perf_counter(), time.process_time()
                control.value = value
                taken.append((time.perf_counter() - began, time.process_time() - busy))
                assert "<img" in answer.value, answer.value
        control.value = usual
        if taken:
            _line(name, taken)


def _line(name: str, taken: list[tuple[float, float]]) -> None:
    (clock, most), (busy, most_busy) = ((1000 * np.median(one), 1000 * max(one)) for one in zip(*taken, strict=True))
    print(f"{name:<22} {len(taken):2} moves: median {clock:5.0f} ms, {busy:5.0f} ms busy; "
          f"longest {most:5.0f} ms, {most_busy:5.0f} ms busy", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
