"""The clustered vocabulary of LENS: the rows of a language-model head in k clusters, whose means are the new head.

The paper clusters the rows by k-means, replaces the head by the centroids and leaves the input embeddings as they are
(section 3.2.1). It does not give the initialisation, the number of iterations or the scaling of rows, and its code is
not published. Here the rows are scaled to length 1 by default (spherical). The iterations are scikit-learn's. Its
initialisation, k-means++, would take many minutes for thousands of clusters, so many centers are drawn at a time
(``benchmarks/kmeans.py``).

A row of the new head is the mean of its tokens' rows as they are, even if they were scaled for clustering. So a
cluster's logit is the mean of its tokens' logits, on the scale of the model. The center of the clustering, of length 1,
would shrink it, and log(1 + relu(logit)) depends on scale.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

from ..backbones import load_head
from ..checksums import CHECKSUMS, folder_sha256, make_once, verify_checksums, write_checksums
from ..errors import DamagedFileError, InvalidValueError, MissingDataError, OutputError, whole
from ..files import atomic_folder, cache_path
from ..resolved import digest
from .kmeans import CANDIDATES, ROUNDS, empty_clusters, fill_empty, starting_centers
from .tokens import token_text, variants

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WEIGHTS, CONFIG = "clusters.safetensors", "config.json"
CLUSTERS = 4000
"""Of a head, if no number is given. Source: LENS-4000, section 4.1."""
ITERATIONS = 10
_VERSION = 2  # counts up when the same arguments come to give other clusters


@dataclass(frozen=True, eq=False)
class Clusters:
    """A language-model head in clusters.

    Attributes:
        assignment: int64 (vocabulary,), the cluster of each token.
        centroids: float32 (k, dim), the new head: the mean of the head's rows, as they are, over each cluster.
        distances: float32 (vocabulary,), from each token's row to the mean row of its cluster; of rows scaled to length
            1 if spherical.
        spherical: Whether the rows were scaled to length 1 for clustering.
        seed: Of the starting centers.
        head_sha256: Digest of the clustered head, see :func:`head_sha256`.
    """

    assignment: torch.Tensor
    centroids: torch.Tensor
    distances: torch.Tensor
    spherical: bool
    seed: int
    head_sha256: str

    def __len__(self) -> int:
        return len(self.centroids)

    @property
    def inertia(self) -> float:
        """Sum of the squared distances."""
        return float(self.distances.double().square().sum())

    @property
    def sizes(self) -> torch.Tensor:
        """Number of tokens of each cluster, int64 (k,); never 0."""
        return self.assignment.bincount(minlength=len(self))

    def members(self, cluster: int) -> torch.Tensor:
        """Ids of a cluster's tokens, int64 (size,), nearest to the center first.

        Raises:
            InvalidValueError: No such cluster.
        """
        cluster = whole("cluster", cluster, 0, len(self) - 1)
        ids = (self.assignment == cluster).nonzero()[:, 0]
        return ids[self.distances[ids].argsort(stable=True)]

    def words(self, tokenizer: PreTrainedTokenizerBase, cluster: int) -> list[str]:
        """A cluster's tokens as text, leading spaces kept, nearest to the center first.

        Args:
            tokenizer: The tokenizer of the head.
            cluster: Number of the cluster, from 0.

        Raises:
            InvalidValueError: No such cluster.
        """
        return [token_text(tokenizer, token) for token in self.members(cluster).tolist()]

    def shuffled(self, head: torch.Tensor, seed: int = 0) -> Clusters:
        """As many clusters of the same sizes, whose tokens are drawn at random: the control of what clusters mean.

        Means of unlike rows are short, and log(1 + relu(logit)) depends on scale. So the new rows are as long as these,
        once the mean row is subtracted, and have the same mean: see :func:`as_long`.

        Args:
            head: The one that the clusters were made from.
            seed: Of the draw.

        Raises:
            InvalidValueError: Another head.
        """
        self.check(head)
        order = np.random.default_rng(seed).permutation(len(self.assignment))
        assignment = self.assignment[torch.from_numpy(order)]
        means = _means(head.detach(), assignment, len(self))
        centroids = as_long(means - means.mean(dim=0), self.centroids) + self.centroids.mean(dim=0)
        rows = torch.from_numpy(_rows(head.detach(), self.spherical))
        distances = (rows - _means(rows, assignment, len(self))[assignment]).norm(dim=1)
        return replace(self, assignment=assignment, centroids=centroids, distances=distances)

    def report(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
        """Statistics of the clusters.

        Returns:
            ``tokens``, ``clusters``, ``singletons`` (clusters of one token), ``median size``, ``largest`` (tokens of
            the largest cluster) and ``inertia``; the share of pairs in one cluster, among pairs of tokens that differ
            by case alone (``case together``), by a leading space alone (``space together``), by either or both
            (``variants together``, of ``variant pairs``), and among all pairs (``chance``). A share of no pairs is nan.
        """
        sizes = self.sizes
        pairs = variants(tokenizer, len(self.assignment))
        assignment = self.assignment.numpy()
        together = assignment[pairs["first"]] == assignment[pairs["second"]]
        tokens = len(assignment)
        return {
            "tokens": tokens,
            "clusters": len(self),
            "singletons": int((sizes == 1).sum()),
            "median size": float(sizes.double().quantile(0.5)),
            "largest": int(sizes.max()),
            "inertia": self.inertia,
            "variant pairs": len(pairs),
            "variants together": float(together.mean()) if len(pairs) else float("nan"),
            "case together": float(together[~pairs["space"]].mean()) if (~pairs["space"]).any() else float("nan"),
            "space together": float(together[~pairs["case"]].mean()) if (~pairs["case"]).any() else float("nan"),
            "chance": float((sizes * (sizes - 1)).sum()) / (tokens * (tokens - 1)),
        }

    def check(self, head: torch.Tensor) -> None:
        """Check that a head is the one that the clusters were made from.

        Args:
            head: (vocabulary, dim), any floating dtype, any device.

        Raises:
            InvalidValueError: The head has another shape or other values.
        """
        shape = (len(self.assignment), self.centroids.shape[1])
        if tuple(head.shape) != shape:
            raise InvalidValueError(
                "head", f"the one the clusters were made from, of shape {shape}", tuple(head.shape), _OTHER_HEAD
            )
        if (found := head_sha256(head)) != self.head_sha256:
            raise InvalidValueError(
                "head", f"the one the clusters were made from, of sha256 {self.head_sha256}", found, _OTHER_HEAD
            )

    def save(self, folder: str | Path) -> None:
        """Write the clusters into a folder of their own: safetensors, configuration and checksums, all or nothing.

        Args:
            folder: The folder; clusters in it are replaced.

        Raises:
            OutputError: The folder can't be written, or holds something else, which is left as it is.
        """
        others = {path.name for path in Path(folder).glob("*")} - {WEIGHTS, CONFIG, CHECKSUMS}
        if others:
            raise OutputError(
                f"Expected an absent or empty folder, or one of clusters, got {folder} with {sorted(others)[0]}. "
                "Choose another."
            )
        with atomic_folder(Path(folder)) as temporary:
            save_file({name: getattr(self, name).contiguous() for name in _TENSORS}, temporary / WEIGHTS)
            config = {"spherical": self.spherical, "seed": self.seed, "head_sha256": self.head_sha256}
            (temporary / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
            write_checksums(temporary)

    @classmethod
    def load(cls, folder: str | Path) -> Clusters:
        """Read what :meth:`save` wrote.

        Raises:
            MissingDataError: No clusters there.
            DamagedFileError: A file is missing, does not match its checksum, or holds something else, or a cluster is
                empty.
        """
        folder = Path(folder)
        if not (folder / CHECKSUMS).is_file():
            raise MissingDataError(f"Expected clusters in the folder {folder}, found no {CHECKSUMS}. Save them there.")
        verify_checksums(folder, "Save the clusters again, or copy them again from their source.")
        try:
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            tensors = load_file(folder / WEIGHTS)
            found = cls(**{name: tensors[name] for name in _TENSORS}, **{name: config[name] for name in _CONFIG})
            empty = empty_clusters(found.assignment.numpy(), len(found))
        except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
            raise DamagedFileError(f"{folder}: expected clusters, found none ({error!r}). Save them again.") from error
        if empty:
            raise DamagedFileError(
                f"{folder}: expected clusters of one token at least, found none in {empty}. Number them without gaps, "
                "or cluster the head again, and save that."
            )
        return found


_TENSORS = ("assignment", "centroids", "distances")
_CONFIG = ("spherical", "seed", "head_sha256")
_OTHER_HEAD = "Name the backbone the clusters came from, or cluster this head."


@torch.no_grad()
def cluster_head(
    head: torch.Tensor, k: int, *, spherical: bool = True, seed: int = 0, iterations: int = ITERATIONS
) -> Clusters:
    """K-means of the rows of a language-model head, in float32 on the CPU.

    A seed gives the same clusters again on the same machine with as many threads; elsewhere rounding may send a row
    between two clusters to the other one.

    Args:
        head: (vocabulary, dim), any floating dtype, any device. Equal rows are allowed: they share a cluster.
        k: Number of clusters.
        spherical: Whether to scale the rows to length 1.
        seed: Of the rows that the clusters start from.
        iterations: Largest number of iterations; fewer if no row changes its cluster.

    Returns:
        The clusters, on the CPU.

    Raises:
        InvalidValueError: A head that is not a matrix of finite floating numbers, or, if spherical, has rows of 0; k
            below 2, above the vocabulary or above the number of distinct rows (if spherical, directions); ``seed`` or
            ``iterations`` that is not a whole number of at least 0 or 1; or ``spherical`` that is not a bool.

    Source: LENS, section 3.2.1; k of 4000 and 8000, section 4.1.
    """
    from sklearn.cluster import KMeans  # takes a second to import
    from sklearn.exceptions import ConvergenceWarning

    if not isinstance(head, torch.Tensor) or head.ndim != 2 or not head.is_floating_point():
        got = f"{head.dtype} {tuple(head.shape)}" if isinstance(head, torch.Tensor) else type(head).__name__
        raise InvalidValueError("head", "a floating tensor (vocabulary, dim), such as load_head(name).weight", got)
    k, seed = _checked(head, k, spherical, seed)
    iterations = whole("iterations", iterations)
    head = head.detach()
    rows = _rows(head, spherical)
    different = np.unique(rows, axis=0)
    if len(different) < k:
        what = "directions of the head's rows" if spherical else "rows of the head"
        raise InvalidValueError("k", f"at most {len(different)}, the different {what}", k)
    centers = starting_centers(different, k, np.random.default_rng(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of clusters without rows, which get some below
        fitted = KMeans(k, init=centers, n_init=1, max_iter=iterations, tol=0).fit(rows)
    centers, assignment = fitted.cluster_centers_, fitted.labels_
    distances = np.linalg.norm(rows - centers[assignment], axis=1)
    fill_empty(assignment, distances, k)
    owner = torch.from_numpy(assignment).long()
    return Clusters(owner, _means(head, owner, k), torch.from_numpy(distances), spherical, seed, head_sha256(head))


def clusters_of(
    backbone: str, k: int, *, spherical: bool = True, seed: int = 0, weight: torch.Tensor | None = None
) -> Clusters:
    """:func:`cluster_head` of a backbone's head, kept in the cache.

    Args:
        backbone: See :func:`~workbook.backbones.resolve`.
        k: Number of clusters.
        spherical: See :func:`cluster_head`.
        seed: Of the rows that the clusters start from.
        weight: The backbone's head, where it is at hand: then it is not loaded.

    Raises:
        UnknownNameError: No such backbone.
        ModelNotFoundError: No such backbone, or one without its language-model head.
        DamagedFileError: The clusters in the cache are damaged.
        OutputError: The cache can't be written.
        InvalidValueError: As :func:`cluster_head`.
    """
    head = (load_head(backbone).weight if weight is None else weight).detach()
    k, seed = _checked(head, k, spherical, seed)  # before they name a folder
    kept = kept_at(head_sha256(head), k, spherical, seed)
    make_once(kept, lambda folder: cluster_head(head, k, spherical=spherical, seed=seed).save(folder))
    verify_checksums(kept, f"Delete {kept}; it is made again.")
    return Clusters.load(kept)


def kept_at(sha256: str, k: int, spherical: bool = True, seed: int = 0) -> Path:
    """Where the cache has, or will have, the clusters of a head.

    Args:
        sha256: The head's, see :func:`head_sha256`.
        k, spherical, seed: See :func:`clusters_of`.
    """
    return cache_path("clusters", digest([clustering(k), sha256, spherical, seed])[:24])


def as_long(directions: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
    """Rows in other directions, as long as centroids without their mean; the mean of the new ones is subtracted last.

    Args:
        directions: float32 (k, dim), one for each row.
        centroids: float32 (k, dim).
    """
    rows = normalize(directions, dim=1) * (centroids - centroids.mean(dim=0)).norm(dim=1, keepdim=True)
    return rows - rows.mean(dim=0)


def clustering(clusters: int | str | Path | None) -> list[Any] | str | None:
    """All that decides the clusters of a head, as plain data: for a fingerprint.

    Args:
        clusters: Their number, or None for the default; the folder of a clustering; or ``vocabulary`` for none.

    Returns:
        The number, and what counts up or changes with the algorithm; a folder's sha256; or ``vocabulary``.

    Raises:
        MissingDataError: No clusters in the folder.
    """
    if clusters == "vocabulary":
        return clusters
    if isinstance(clusters, str | Path):
        if not (Path(clusters) / CHECKSUMS).is_file():
            raise MissingDataError(f"Expected clusters in the folder {clusters}, found no {CHECKSUMS}.")
        return folder_sha256(Path(clusters), WEIGHTS, CONFIG)
    return [clusters or CLUSTERS, _VERSION, ITERATIONS, ROUNDS, CANDIDATES]


def head_sha256(head: torch.Tensor) -> str:
    """Hex sha256 of a head's shape and its values in float32, whatever its dtype and device."""
    content = hashlib.sha256(json.dumps(list(head.shape)).encode())
    for part in head.detach().split(2048):  # no float32 copy of the whole
        content.update(part.float().cpu().contiguous().numpy())
    return content.hexdigest()


def check_flags(**flags: object) -> None:
    """Refuse flags that are not bools: ``"no"`` would count as true.

    Args:
        **flags: Values by name.

    Raises:
        InvalidValueError: A flag is not a bool; the message names it.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidValueError(name, "True or False", value)


def _checked(head: torch.Tensor, k: Any, spherical: Any, seed: Any) -> tuple[int, int]:
    """k and seed, after all three have been checked."""
    check_flags(spherical=spherical)
    k = whole("k", k, 2, len(head), of="clusters", hint=f"The vocabulary has {len(head)} tokens.")
    return k, whole("seed", seed, 0)


def _means(rows: torch.Tensor, assignment: torch.Tensor, k: int) -> torch.Tensor:
    """The mean row of each cluster, float32 (k, dim)."""
    sums = torch.zeros(k, rows.shape[1], dtype=torch.float64).index_add_(0, assignment, rows.cpu().double())
    return (sums / assignment.bincount(minlength=k)[:, None]).float()


def _rows(head: torch.Tensor, spherical: bool) -> np.ndarray:
    """The rows to cluster, float32 (vocabulary, dim), checked to be finite and, if spherical, not 0."""
    rows = head.float().cpu()
    if len(bad := (~rows.isfinite().all(dim=1)).nonzero()):
        raise InvalidValueError("head", "finite numbers", f"others in row {int(bad[0])}")
    if not spherical:
        return (rows + 0.0).numpy()  # -0 becomes 0
    if len(bad := (rows == 0).all(dim=1).nonzero()):
        raise InvalidValueError(
            "head",
            "rows that point somewhere, to scale them to length 1",
            f"zeros in row {int(bad[0])}",
            "Cluster without scaling (spherical=False), or leave out the rows of no token.",
        )
    # In float64, so that rows of one direction agree once they are rounded to float32.
    return (normalize(rows.double(), dim=1).float() + 0.0).numpy()
