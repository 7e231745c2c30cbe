"""Heads to compare LENS' clusters with: k-means, random clusters, Gaussian rows, merged spellings, the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ..backbones import load_head, load_tokenizer
from ..errors import InvalidValueError, UnknownNameError
from ..vocabulary.clusters import CLUSTERS, Clusters, as_long, check_flags, clusters_of, head_sha256, kept_at
from ..vocabulary.tokens import variants

HEADS = ("k-means", "k-means plain", "random clusters", "gaussian", "merged", "vocabulary")
"""Kinds of heads; see :func:`head_of`."""
SIZED = HEADS[:4]
"""Those with a number of rows to choose, and a seed."""


@dataclass(frozen=True, eq=False)
class Head:
    """Rows that stand in for those of a language-model head.

    Attributes:
        rows: float32 (k, dim).
        assignment: int64 (vocabulary,), the row that stands for each token; None if rows stand for no tokens.
        mean: float32 (dim,), the mean row, where it is subtracted from the rows; None if they are as they are.
    """

    rows: torch.Tensor
    assignment: torch.Tensor | None = None
    mean: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)


class Heads:
    """All heads over the language-model head of a backbone, which is loaded once, as each clustering is.

    Args:
        backbone: See :func:`~workbook.backbones.resolve`.

    Attributes:
        weight: Floating (vocabulary, dim), the language-model head.

    Raises:
        UnknownNameError, ModelNotFoundError: No such backbone, or one without its language-model head.
    """

    def __init__(self, backbone: str):
        self.backbone, self.weight = backbone, load_head(backbone).weight.detach()
        self._made: dict[tuple, Clusters] = {}

    def at_hand(self, kind: str, k: int) -> bool:
        """Whether a head of seed 0 can be made without clustering, which may take minutes.

        Args:
            kind: One of :data:`HEADS`.
            k: Number of rows; does not matter for a kind that has its own.

        Raises:
            UnknownNameError: No such kind.
        """
        if kind not in HEADS:
            raise UnknownNameError("head", kind, HEADS)
        spherical = kind != "k-means plain"
        if kind not in SIZED or (k, spherical, 0) in self._made:
            return True
        return kept_at(self._sha256, k, spherical).is_dir()

    @cached_property
    def _sha256(self) -> str:
        return head_sha256(self.weight)

    @torch.no_grad()
    def head(self, kind: str, k: int | None = None, seed: int = 0, *, centred: bool = True) -> Head:
        """One of them; see :func:`head_of`.

        Args:
            kind, k, seed, centred: See :func:`head_of`.

        Raises:
            UnknownNameError, InvalidValueError: As :func:`head_of`.
        """
        if kind not in HEADS:
            raise UnknownNameError("kind of head", kind, HEADS)
        check_flags(centred=centred)
        if kind not in SIZED:
            if k is not None:
                raise InvalidValueError("k", f"None for {kind!r}, which has a number of its own", k)
            count = len(self.weight)
            assignment = _spellings(self.backbone, count) if kind == "merged" else torch.arange(count)
            return clustered(self.weight.float(), assignment, centred=centred)
        k = min(CLUSTERS, len(self.weight) // 8) if k is None else k
        made = self.clusters(k, kind != "k-means plain", seed)
        rows, mean = _apart(made.centroids)
        if kind.startswith("k-means"):
            return Head(rows, made.assignment, mean) if centred else Head(made.centroids, made.assignment)
        assignment, generator = None, torch.Generator().manual_seed(seed)
        directions = torch.randn(rows.shape, generator=generator)
        if kind == "random clusters":
            assignment = made.assignment[torch.randperm(len(made.assignment), generator=generator)]
            directions = clustered(self.weight, assignment).rows
        rows = as_long(directions, made.centroids)
        return Head(rows, assignment, mean) if centred else Head(rows + mean, assignment)

    def clusters(self, k: int, spherical: bool = True, seed: int = 0) -> Clusters:
        """The head's rows in clusters, which are kept; see :func:`~workbook.vocabulary.clusters.clusters_of`.

        Args:
            k: Number of clusters.
            spherical, seed: See :func:`~workbook.vocabulary.clusters.cluster_head`.
        """
        setting = (k, spherical, seed)
        if setting not in self._made:
            self._made[setting] = clusters_of(self.backbone, k, spherical=spherical, seed=seed, weight=self.weight)
        return self._made[setting]


def head_of(backbone: str, kind: str, k: int | None = None, seed: int = 0, *, centred: bool = True) -> Head:
    """A head over the language-model head of a backbone.

    - ``k-means``: the mean rows of spherical k-means, LENS' own; ``k-means plain``: of rows that are not scaled.
    - ``random clusters``: those of a permutation of the k-means assignment, so of the same sizes.
    - ``gaussian``: rows in random directions, which stand for no tokens.
    - ``merged``: the mean rows of tokens that are one but for case and a leading space.
    - ``vocabulary``: the head's rows as they are.

    Means of unlike rows are short, and log(1 + relu(logit)) depends on scale. So that they differ from k-means in
    direction alone, rows of the two controls, random clusters and Gaussian rows, have the lengths of its rows, once the
    mean row is subtracted.

    Args:
        backbone: See :func:`~workbook.backbones.resolve`.
        kind: One of :data:`HEADS`.
        k: Number of rows of one of :data:`SIZED`; None for 4000, or an eighth of a smaller vocabulary. The others have
            a number of their own.
        seed: Of k-means, permutation and directions; does not matter for the others.
        centred: Whether the mean row is subtracted, so that the mean logit of a position is 0; False for the paper's.

    Raises:
        UnknownNameError: No such kind or backbone.
        InvalidValueError: A number of rows for a kind that has its own, more than there are tokens, or as
            :func:`~workbook.vocabulary.clusters.clusters_of`.
        ModelNotFoundError: No such backbone, or one without its language-model head.

    Source: LENS, section 3.2.1, for k-means; the others are controls of this project.
    """
    if kind not in HEADS:  # before anything is loaded
        raise UnknownNameError("kind of head", kind, HEADS)
    return Heads(backbone).head(kind, k, seed, centred=centred)


def clustered(weight: torch.Tensor, assignment: torch.Tensor, *, centred: bool = True) -> Head:
    """The head whose rows are the means of a language-model head's rows over any clusters.

    Args:
        weight: (vocabulary, dim), floating: the language-model head.
        assignment: int64 (vocabulary,), the cluster of each token, numbered from 0 without gaps.
        centred: Whether the mean of the new rows is subtracted.

    Raises:
        InvalidValueError: Not a cluster for each token, or a cluster without tokens.
    """
    if assignment.dtype is not torch.int64 or assignment.shape != weight.shape[:1]:
        got = f"{assignment.dtype} {tuple(assignment.shape)}"
        raise InvalidValueError("assignment", f"int64 ({len(weight)},), a cluster for each token", got)
    if int(assignment.min()) < 0:
        raise InvalidValueError("assignment", "clusters numbered from 0", int(assignment.min()))
    sizes = assignment.bincount()
    if not sizes.all():
        empty = int((sizes == 0).nonzero()[0])
        raise InvalidValueError(
            "assignment", "clusters of one token at least", f"none in cluster {empty}", "Number them without gaps."
        )
    sums = torch.zeros(len(sizes), weight.shape[1], dtype=torch.float64)
    rows = (sums.index_add_(0, assignment, weight.detach().cpu().double()) / sizes[:, None]).float()
    if not centred:
        return Head(rows, assignment)
    rows, mean = _apart(rows)
    return Head(rows, assignment, mean)


def _apart(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows without their mean, and the mean."""
    mean = rows.mean(dim=0)
    return rows - mean, mean


def _spellings(backbone: str, vocabulary: int) -> torch.Tensor:
    """The cluster of each token, int64 (vocabulary,), where tokens that differ by case or space alone share one."""
    pairs = variants(load_tokenizer(backbone), vocabulary)
    first = np.arange(vocabulary)  # of the lowest of its spellings
    np.minimum.at(first, pairs["second"].to_numpy(), pairs["first"].to_numpy())
    return torch.from_numpy(np.unique(first, return_inverse=True)[1]).long()
