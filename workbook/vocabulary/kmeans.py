"""K-means for many clusters of few rows: the vocabulary of a language model, a dozen tokens to a cluster.

Plain Lloyd, with the same clusters at the end, but most of its work left out. After a few iterations most centers keep
their rows and stand still. A center that stood still is no nearer to any row than it was, so a row looks at the centers
that moved alone, and at all of them only where its own center moved away from it. ``benchmarks/kmeans.py`` compares it
with scikit-learn.

A chunk of rows at a time, in float32: no distance matrix of all rows, and no copy of the data.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import normalize

ROUNDS = 8
"""Rounds in which the starting centers are drawn."""
CANDIDATES = 3
"""Rows drawn for each starting center."""


class Rows:
    """What is clustered, float32: the rows of a matrix as they are, or scaled to length 1.

    Args:
        matrix: (rows, dim), any floating dtype, any device; neither copied nor changed.
        unit: Scaled to length 1; no row may be 0 then.
        chunk: Rows that are looked at in one go.
    """

    def __init__(self, matrix: torch.Tensor, *, unit: bool, chunk: int):
        self.matrix, self.unit, self.chunk = matrix, unit, chunk

    def __len__(self) -> int:
        return len(self.matrix)

    def chunks(self, ids: torch.Tensor | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Ids int64 (chunk,) and their rows float32 (chunk, dim), in order; of all rows if no ids are given."""
        every = torch.arange(len(self), device=self.matrix.device) if ids is None else ids
        for begin, part in enumerate(every.split(self.chunk)):
            of_all = slice(begin * self.chunk, (begin + 1) * self.chunk)
            rows = self.matrix[of_all if ids is None else part].float()
            yield part, normalize(rows, dim=1) if self.unit else rows

    def means(self, owner: torch.Tensor, k: int, touched: torch.Tensor | None = None) -> torch.Tensor:
        """Means of the rows of each cluster, float32 (k, dim); zeros for the clusters that are not ``touched``.

        Summed in float64, and by index_put_ since index_add_ has no fixed order on CUDA.
        """
        members = None if touched is None else touched[owner].nonzero()[:, 0]
        sums = torch.zeros(k, self.matrix.shape[1], dtype=torch.float64, device=owner.device)
        for ids, rows in self.chunks(members):
            sums.index_put_((owner[ids],), rows.double(), accumulate=True)
        return (sums / owner.bincount(minlength=k).clamp(min=1)[:, None]).float()


class KMeans:
    """One clustering: give it centers, by :meth:`draw` or :meth:`start`, then :meth:`run` it.

    A row's score for a center is row · center - |center|² / 2, largest for the nearest. Centers of unit rows are scaled
    to length 1 as well, so that the nearest is the one of largest cosine.

    Attributes:
        centers: float32 (k, dim); after :meth:`run` the means of their rows.
        owner: int64 (rows,), each row's center.
        best: float32 (rows,), its score.
    """

    def __init__(self, rows: Rows, k: int):
        device = rows.matrix.device
        self.rows, self.k = rows, k
        self.centers = torch.zeros(k, rows.matrix.shape[1], device=device)
        self.owner = torch.zeros(len(rows), dtype=torch.int64, device=device)
        self.best = torch.full((len(rows),), -torch.inf, device=device)
        self._squares = torch.cat([x.square().sum(dim=1) for _, x in rows.chunks()])

    def start(self, centers: torch.Tensor) -> None:
        """Begin from these centers, (k, dim)."""
        self.centers.copy_(centers)
        self._look(torch.arange(self.k, device=self.owner.device))

    def draw(self, generator: torch.Generator) -> None:
        """Begin from rows that are far from each other and have other rows near them.

        In rounds, rows are drawn with odds by their squared distances to the nearest center so far, more than needed;
        those are kept that bring most of the other rows nearer, where a row counts for the nearest of the drawn alone.
        That is k-means++ as scikit-learn has it, greedy, but with many centers a round: as good, at the cost of as many
        looks at all centers as there are candidates for one. The rounds leave each row with its nearest center.
        """
        drawn = torch.zeros(len(self.rows), dtype=torch.bool)
        ends = [self.k * (done + 1) // ROUNDS for done in range(ROUNDS)]
        for begin, end in zip([0, *ends], ends, strict=False):
            if begin == end:
                continue
            # Never 0, or rows that agree with a center could leave too few to draw from.
            odds = self._gaps().double().cpu().clamp(min=1e-12).masked_fill(drawn, 0)
            count = min(CANDIDATES * (end - begin), int((~drawn).sum()))
            picked = torch.multinomial(odds, count, generator=generator).to(self.owner.device)
            candidates = torch.cat([x for _, x in self.rows.chunks(picked)])
            best = self._gains(candidates).argsort(descending=True, stable=True)[: end - begin]
            drawn[picked[best].cpu()] = True
            self.centers[begin:end] = candidates[best]
            self._look(torch.arange(begin, end, device=self.owner.device))

    def run(self, iterations: int) -> int:
        """Move centers to the means of their rows and rows to their nearest centers, until nothing moves.

        Args:
            iterations: At most so many.

        Returns:
            How many it took.
        """
        before = moved = None
        for iteration in range(iterations):
            if moved is not None:
                self._look(moved)
            self._refill()
            moved = self._move(before)
            if not len(moved):
                return iteration + 1
            before = self.owner.clone()
        return iterations

    def distances(self) -> torch.Tensor:
        """Each row's distance to its center, float32 (rows,)."""
        parts = [(x - self.centers[self.owner[ids]]).norm(dim=1) for ids, x in self.rows.chunks()]
        return torch.cat(parts)

    def _move(self, before: torch.Tensor | None) -> torch.Tensor:
        """Put the centers where rows came or went since ``before``, all if None, to their means; ids of those moved."""
        touched = torch.full((self.k,), before is None, device=self.owner.device)
        if before is not None:
            changed = self.owner != before
            touched[self.owner[changed]] = touched[before[changed]] = True
        means = self.rows.means(self.owner, self.k, touched)
        means = normalize(means, dim=1) if self.rows.unit else means
        moved = (touched & (means != self.centers).any(dim=1)).nonzero()[:, 0]
        self.centers[moved] = means[moved]
        return moved

    def _look(self, moved: torch.Tensor) -> None:
        """Find every row's nearest center again after some, by their ids, have moved."""
        gone = torch.zeros(self.k, dtype=torch.bool, device=self.owner.device)
        gone[moved] = True
        minus = -self.centers.square().sum(dim=1) / 2
        near, near_minus = self.centers[moved].T, minus[moved]
        for ids, rows in self.rows.chunks():
            score, nearest = torch.addmm(near_minus, rows, near).max(dim=1)
            nearest = moved[nearest]
            owner, best = self.owner[ids], self.best[ids]
            own_gone = gone[owner]
            stays = ~own_gone & (score <= best)
            # The row's own center moved away from it: one that stood still may be nearest now.
            if len(open_ := (own_gone & (score < best)).nonzero()[:, 0]):
                score[open_], nearest[open_] = torch.addmm(minus, rows[open_], self.centers.T).max(dim=1)
            self.owner[ids] = owner.where(stays, nearest)
            self.best[ids] = best.where(stays, score)

    def _gains(self, candidates: torch.Tensor) -> torch.Tensor:
        """By how much each candidate would raise the scores of the rows that are nearest to it, float64 (candidates,).

        Before there is any center, by how much they are nearer to it than to 0.
        """
        gains = torch.zeros(len(candidates), dtype=torch.float64, device=candidates.device)
        minus = -candidates.square().sum(dim=1) / 2
        for ids, rows in self.rows.chunks():
            score, nearest = torch.addmm(minus, rows, candidates.T).max(dim=1)
            gain = (score - self.best[ids].nan_to_num(neginf=0.0)).clamp(min=0)
            gains.index_put_((nearest,), gain.double(), accumulate=True)
        return gains

    def _gaps(self) -> torch.Tensor:
        """Squared distance of each row to the center it was found nearest to; to 0 before there is any."""
        return (self._squares - 2 * self.best.nan_to_num(neginf=0.0)).clamp(min=0)

    def _refill(self) -> None:
        """Give each empty cluster the row that is farthest from its center, of those that don't have one alone."""
        counts = self.owner.bincount(minlength=self.k).tolist()
        empty = [cluster for cluster, count in enumerate(counts) if not count]
        if not empty:
            return
        farthest = iter(self._gaps().argsort(descending=True, stable=True).tolist())
        for cluster in empty:
            row = next(row for row in farthest if counts[self.owner[row]] > 1)
            counts[self.owner[row]] -= 1
            self.owner[row], counts[cluster] = cluster, 1
            self.best[row] = self._squares[row] / 2  # it will be its own center
