"""What scikit-learn's k-means leaves open for thousands of clusters: where it starts, and clusters without rows."""

from __future__ import annotations

import numpy as np

ROUNDS = 8  # in which the starting centers are drawn
CANDIDATES = 3  # rows drawn for each of them


def starting_centers(rows: np.ndarray, k: int, generator: np.random.Generator) -> np.ndarray:
    """The starting centers, float32 (k, dim): rows far from each other, with other rows near them.

    Each round draws more rows than needed, with odds by their squared distance to the nearest center so far. It keeps
    those that bring most of the other rows nearer, where a row counts only for the nearest of the drawn. That is greedy
    k-means++ with many centers per round.

    Args:
        rows: float32 (rows, dim), each a different one.
        k: Number of centers.
        generator: Of the draws.
    """
    from sklearn.metrics import pairwise_distances_argmin_min as nearest

    chosen = np.zeros(0, dtype=np.int64)
    gaps = np.square(rows, dtype=np.float64).sum(axis=1)  # to the nearest center; to 0 before there is any
    for wanted in (k * (done + 1) // ROUNDS for done in range(ROUNDS)):
        if not (count := wanted - len(chosen)):
            continue
        odds = gaps.clip(min=1e-12)  # never 0, or rows that agree with a center could leave too few to draw from
        odds[chosen] = 0
        most = min(CANDIDATES * count, len(rows) - len(chosen))
        drawn = generator.choice(len(rows), most, replace=False, p=odds / odds.sum())
        owner, near = nearest(rows, rows[drawn], metric="sqeuclidean")
        gains = np.bincount(owner, weights=(gaps - near).clip(min=0), minlength=most)
        picked = drawn[np.argsort(-gains, kind="stable")[:count]]
        near = nearest(rows, rows[picked], metric="sqeuclidean")[1]
        gaps = np.minimum(gaps, near) if len(chosen) else near
        chosen = np.concatenate([chosen, picked])
    return rows[chosen]


def fill_empty(assignment: np.ndarray, distances: np.ndarray, k: int) -> None:
    """Give each empty cluster the row that is farthest from its center, of those that are not alone; in place.

    The last assignment may leave a center without rows, and rows that hardly differ are one to scikit-learn.

    Args:
        assignment: Integers (rows,), the cluster of each row.
        distances: (rows,), from each row to the center of its cluster.
        k: Number of clusters.
    """
    sizes = np.bincount(assignment, minlength=k)
    farthest = iter(np.argsort(-distances, kind="stable"))
    for cluster in np.flatnonzero(sizes == 0):
        row = next(row for row in farthest if sizes[assignment[row]] > 1)
        sizes[assignment[row]] -= 1
        assignment[row], distances[row] = cluster, 0.0


def empty_clusters(assignment: np.ndarray, k: int) -> str:
    """Which clusters have no row, in words for a message, the first five by number; empty if none.

    Args:
        assignment: int64 (rows,), the cluster of each row, 0 to k - 1.
        k: Number of clusters.

    Raises:
        ValueError, TypeError: Other numbers, or of another shape.

    Examples:
        >>> empty_clusters(np.array([0, 4, 4, 2]), 6)
        'clusters 1, 3, 5'
    """
    sizes = np.bincount(assignment, minlength=k)
    if len(sizes) > k:
        raise ValueError(f"cluster {len(sizes) - 1} of {k}")
    empty = np.flatnonzero(sizes == 0).tolist()
    if not empty:
        return ""
    more = f" and {len(empty) - 5:,} more" if len(empty) > 5 else ""
    return f"cluster{'s' * (len(empty) > 1)} {', '.join(map(str, empty[:5]))}{more}"
