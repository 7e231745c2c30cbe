"""What an inverted index finds of LENS' vectors, and how fast: Seismic, beside the product of all vectors.

    pip install pyseismic-lsr
    python benchmarks/index.py [--queries 200] [--documents 2000] [--kept 32 128 512]

Queries and documents of docs are read by LENS on SmolLM2-135M, untrained, with a tenth of the weights above zero and
the collection's mean weight subtracted; of documents the largest weights are kept, of queries all. Both searches have
one thread. Printed are, for each number of weights, the share of the exact ten best documents that the index finds, the
mean reciprocal rank x 100 of both among ten, and milliseconds a query, the median of five turns. Seismic is approximate
and reads the ten heaviest clusters of a query by default (``query_cut``): 0.9 of the ten best or more would be good.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from sentence_transformers.sparse_encoder.search_engines import semantic_search_seismic
from transformers.utils import logging

import workbook
from workbook import probes
from workbook.experiments import dial
from workbook.scale import get_scale
from workbook.vocabulary.sparse import postings

TOP, TURNS = 10, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--kept", type=int, nargs="+", default=[32, 128, 512])
    options = parser.parse_args()
    logging.disable_progress_bar()
    sizes = get_scale("night").model_copy(update={"queries": options.queries, "documents": options.documents})
    _, texts = dial.collected(workbook.build("lens"), sizes)
    pooled = probes.pooled_logits(texts, probes.head_of("smollm2-135m", "k-means"))
    queries, whole = probes.lexicon_vectors(pooled, probes.zero_at(pooled, 0.1), "subtracted")
    asked = postings(queries, queries.shape[1])
    for kept in options.kept:
        documents = whole * (whole >= np.sort(whole)[:, [-kept]])
        exact, began = [], time.perf_counter()
        for query in queries:
            scores = documents @ query
            best = np.argpartition(-scores, TOP)[:TOP]
            exact.append(best[np.argsort(-scores[best])].tolist())
        product = (time.perf_counter() - began) / len(queries)
        one = {"search_kwargs": {"num_threads": 1}, "top_k": TOP}
        *_, index = semantic_search_seismic(asked[:1], postings(documents, kept), output_index=True, **one)
        turns = [semantic_search_seismic(asked, corpus_index=index, **one) for _ in range(TURNS)]
        found = [[hit["corpus_id"] for hit in hits] for hits in turns[0][0]]
        shared = np.mean([len({*both[0]} & {*both[1]}) / TOP for both in zip(exact, found, strict=True)])
        spent = statistics.median(seconds for _, seconds in turns) / len(queries)
        print(f"{kept} weights: {shared:.2f} of the ten best found; MRR {mrr(found):.1f}, exact {mrr(exact):.1f}; "
              f"{1000 * spent:.2f} ms a query, the product {1000 * product:.2f}", flush=True)  # fmt: skip


def mrr(ranked: list[list[int]]) -> float:
    """Mean reciprocal rank x 100; the right document of a query has its number."""
    return 100 * float(np.mean([1 / (1 + found.index(n)) if n in found else 0 for n, found in enumerate(ranked)]))


if __name__ == "__main__":
    main()
