"""K-means of a language-model head: this library's, and scikit-learn's, on the same rows, in one run.

    python benchmarks/kmeans.py [--rows 49152] [--clusters 4000] [--plain] [--only NAME ...]

The rows are those of SmolLM2-135M's head, all 49152 or as many drawn at random, scaled to length 1 unless --plain.
Printed are seconds on the clock, seconds of all processors (which a busy machine stretches less), iterations, and the
inertia: the sum of squared distances to the means of the clusters, scaled to length 1 where the rows are, by one rule
for all. A quarter of the rows and of the clusters (--rows 12288 --clusters 1000) takes a sixteenth of the time.
For all, the library should need less than 20 s on two cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.cluster import MiniBatchKMeans
from torch.nn.functional import normalize

from workbook import backbones
from workbook.vocabulary.clusters import CHUNK, ITERATIONS
from workbook.vocabulary.kmeans import KMeans, Rows

Found = tuple[torch.Tensor, int]


def ours(rows: Rows, k: int, start: str) -> Found:
    """Clusters and iterations of this library's k-means."""
    generator = torch.Generator().manual_seed(0)
    clustering = KMeans(rows, k)
    if start == "random":
        picked = torch.randperm(len(rows), generator=generator)[:k]
        clustering.start(torch.cat([part for _, part in rows.chunks(picked)]))
    else:
        clustering.draw(generator)
    return clustering.owner, clustering.run(ITERATIONS)


def theirs(rows: Rows, model: SklearnKMeans | MiniBatchKMeans) -> Found:
    """Clusters and iterations of scikit-learn's."""
    fitted = model.fit(torch.cat([part for _, part in rows.chunks()]).numpy())
    return torch.from_numpy(fitted.labels_).long(), fitted.n_iter_


def inertia(rows: Rows, owner: torch.Tensor, k: int) -> float:
    """Of any clusters, by one rule."""
    means = rows.means(owner, k)
    means = normalize(means, dim=1) if rows.unit else means
    return sum(float((part - means[owner[ids]]).double().square().sum()) for ids, part in rows.chunks())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=49152)
    parser.add_argument("--clusters", type=int, default=4000)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--only", nargs="+", help="words of which a contender's name must hold one")
    options = parser.parse_args()

    k, limit = options.clusters, {"n_init": 1, "max_iter": ITERATIONS, "tol": 0, "random_state": 0}
    head = backbones.load_head("smollm2-135m").weight.detach()
    picked = torch.randperm(len(head), generator=torch.Generator().manual_seed(0))[: options.rows]
    rows = Rows(head[picked.sort().values], unit=not options.plain, chunk=CHUNK)
    contenders: dict[str, Callable[[], Found]] = {
        "workbook, drawn start": lambda: ours(rows, k, "rounds"),
        "workbook, random start": lambda: ours(rows, k, "random"),
        "KMeans lloyd, random start": lambda: theirs(rows, SklearnKMeans(k, init="random", **limit)),
        "KMeans elkan, random start": lambda: theirs(rows, SklearnKMeans(k, init="random", algorithm="elkan", **limit)),
        "KMeans lloyd, k-means++": lambda: theirs(rows, SklearnKMeans(k, **limit)),
        "MiniBatchKMeans, random start": lambda: theirs(
            rows, MiniBatchKMeans(k, init="random", n_init=1, batch_size=4096, max_iter=10, random_state=0)
        ),
    }
    print(f"{len(rows)} x {head.shape[1]}, {k} clusters, {'plain' if options.plain else 'scaled to length 1'}")
    print(f"{torch.get_num_threads()} threads, at most {ITERATIONS} iterations")
    for name, cluster in contenders.items():
        if options.only and not any(word in name for word in options.only):
            continue
        began, busy = time.perf_counter(), time.process_time()
        owner, iterations = cluster()
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
        found = inertia(rows, owner, k)
        print(
            f"{name:<32} {seconds:7.1f} s {busy:7.1f} s busy {iterations:3} iterations, inertia {found:.1f}", flush=True
        )


if __name__ == "__main__":
    with torch.no_grad():
        main()
