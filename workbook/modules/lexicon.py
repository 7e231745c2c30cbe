"""Lexicon pooling: a vector in which every dimension is the weight of a word, or of a cluster of words."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.nn.functional import normalize

from ..backbones import load_config, load_head
from ..errors import InvalidValueError, UnknownNameError
from ..vocabulary.clusters import CLUSTERS, Clusters, check_flags, clusters_of
from ..vocabulary.kmeans import empty_clusters
from ..vocabulary.tokens import token_text
from .pooling import refuse_empty
from .projection import max_logits, sum_weights
from .saving import SavedModule, is_converted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEXICON_POOLINGS = ("max", "sum", "last")
ZEROS = ("paper", "mean")
"""Where relu's zero may lie, besides a number and a share; see :func:`lexicon_of`."""


class Lexicon(SavedModule):
    """The weight of each row of a head in a text: log(1 + relu(logit - zero)), pooled over positions; of length 1.

    The head's rows stand for words: they are those of the language model's own head, or centroids of clusters of them.
    The head is frozen: a buffer, which no optimizer sees, and a copy, which does not change when the decoder that its
    rows came from trains. For the positions that are pooled see :func:`pooled_positions`.

    If the tokenizer adds a beginning-of-text token, that position predicts the first token of the text, and so it is
    pooled where there is no instruction, as published. On a backbone whose first state is unlike all others, it may
    hold an outsized share of the maxima: :meth:`contributions` shows it.

    Args:
        head: Floating (clusters, dim), as wide as the token states.
        pooling: ``max``, the paper's; ``sum``, over the same positions; or ``last``, the state of the last token.
        clusters: int64 (vocabulary,), the row that stands for each token, and each row for one at least; None if each
            token has its own. It is kept with the head, and says what a weight means: see :meth:`words`.
        zero: What a logit must exceed to have a weight, 0 or more; 0 in the paper.

    Raises:
        InvalidValueError: A head that is not a matrix of finite numbers, clusters that are not its rows or leave one
            without a token, or a ``zero`` below 0.
        UnknownNameError: No such pooling.

    Source: LENS, section 3.2 and table 5; the scaling is that of the released code.
    """

    config_keys = ("pooling", "zero")

    def __init__(
        self, head: torch.Tensor, pooling: str = "max", clusters: torch.Tensor | None = None, zero: float = 0.0
    ):
        super().__init__()
        if pooling not in LEXICON_POOLINGS:
            raise UnknownNameError("lexicon pooling", pooling, LEXICON_POOLINGS)
        if not (isinstance(head, torch.Tensor) and head.is_floating_point() and head.dim() == 2 and head.numel()):
            got = f"{head.dtype} {tuple(head.shape)}" if isinstance(head, torch.Tensor) else type(head).__name__
            raise InvalidValueError("head", "a floating tensor (clusters, dim)", got)
        if not (finite := head.isfinite().all(dim=1)).all():
            raise InvalidValueError("head", "finite numbers", f"others in row {int(finite.int().argmin())}")
        clusters = torch.arange(len(head)) if clusters is None else clusters
        if clusters.dtype is not torch.int64 or clusters.dim() != 1 or not len(clusters):
            got = f"{clusters.dtype} {tuple(clusters.shape)}"
            raise InvalidValueError("clusters", "an int64 tensor (vocabulary,)", got)
        if not 0 <= int(clusters.min()) <= int(clusters.max()) < len(head):
            got = f"{int(clusters.min())} to {int(clusters.max())}"
            raise InvalidValueError("clusters", f"rows of the head, 0 to {len(head) - 1}", got)
        if empty := empty_clusters(clusters.cpu().numpy(), len(head)):
            raise InvalidValueError(
                "clusters", f"one token at least for each of the head's {len(head)} rows", f"none in {empty}",
                "Leave these rows out, and number the clusters without gaps.",
            )  # fmt: skip
        if isinstance(zero, bool) or not (isinstance(zero, int | float) and 0 <= zero < float("inf")):
            raise InvalidValueError("zero", "a number of 0 or more", zero)
        self.pooling, self.zero = pooling, float(zero)
        self.register_buffer("head", head.detach().clone(memory_format=torch.contiguous_format))
        self.register_buffer("clusters", clusters.clone())

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, float32 (batch, clusters), of length 1, to the features; see ``Module.forward``.

        The vector of a text in which no cluster has a weight stays 0.

        Args:
            features: See :meth:`weights`.
            **kwargs: Ignored.

        Raises:
            InvalidValueError: Token states of another width than the head's, or a row without a token to pool.
        """
        features["sentence_embedding"] = normalize(self.weights(features), dim=1)
        return features

    def weights(self, features: dict[str, Any]) -> torch.Tensor:
        """The weights before they are scaled, float32 (batch, clusters); see ``projection`` for gradients and memory.

        Args:
            features: ``token_embeddings`` (batch, tokens, dim); ``attention_mask`` and ``pooling_mask``
                (batch, tokens), the latter 1 at the tokens of the text.

        Raises:
            InvalidValueError: As :meth:`forward`.

        Source: LENS, equations 1 and 2 and section 3.2.2.
        """
        states, mask = self._pooled(features)
        if self.pooling == "sum":
            return sum_weights(states, mask, self.head, zero=self.zero).float()
        return max_logits(states, mask, self.head, zero=self.zero)[0].log1p().float()

    @torch.no_grad()
    def activate(self, share: float, features: dict[str, Any]) -> None:
        """Set :attr:`zero` so that a share of the weights of these texts is above 0.

        Args:
            share: Above 0 and below 1.
            features: See :meth:`weights`.

        Raises:
            InvalidValueError: Fewer of the logits than that exceed 0, or as :meth:`forward`.
        """
        states, mask = self._pooled(features)
        # With sum pooling, too, a weight is above 0 where the largest logit is.
        largest = max_logits(states, mask, self.head)[0].flatten().sort(descending=True).values
        zero = float(largest[min(round(share * len(largest)), len(largest) - 1)])
        if not zero:
            got = f"{float((largest > 0).float().mean()):.1%}"
            raise InvalidValueError("zero", f"a share below that of the logits above the mean, {got}", f"share {share}")
        self.zero = zero

    @torch.no_grad()
    def contributions(self, features: dict[str, Any]) -> torch.Tensor:
        """The position that gave each cluster its largest weight: int64 (batch, clusters), -1 where the weight is 0.

        A position is a column of the batch; its state predicts the token in the next one. Of several equal positions,
        one is given.

        Args:
            features: See :meth:`weights`.

        Raises:
            InvalidValueError: As :meth:`forward`.
        """
        logits, positions = max_logits(*self._pooled(features), self.head, zero=self.zero)
        return positions.masked_fill(logits == 0, -1)

    def words(self, tokenizer: PreTrainedTokenizerBase, clusters: Iterable[int] | None = None) -> list[list[str]]:
        """The tokens of each cluster as text, leading spaces kept, in the order of their ids.

        Args:
            tokenizer: The tokenizer of the clustered tokens.
            clusters: Numbers of the clusters from 0, in any order; None for all, which takes a second for 50,000
                tokens.

        Raises:
            InvalidValueError: The tokenizer has tokens that the clusters do not know, or no such cluster.
        """
        if len(tokenizer) > len(self.clusters):
            got = f"{len(tokenizer)} tokens"
            raise InvalidValueError("tokenizer", f"that of {len(self.clusters)} clustered tokens", got)
        known = range(len(self.head))
        chosen = known if clusters is None else [*clusters]
        if unknown := [cluster for cluster in chosen if cluster not in known]:
            raise InvalidValueError("clusters", f"numbers from 0 to {known[-1]}", unknown[0])
        found: dict[int, list[str]] = {cluster: [] for cluster in chosen}
        for token, cluster in enumerate(self.clusters.tolist()):
            if cluster in found:
                found[cluster].append(token_text(tokenizer, token))
        return [found[cluster] for cluster in chosen]

    def get_embedding_dimension(self) -> int:
        """Number of clusters."""
        return len(self.head)

    def _pooled(self, features: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        states, real = features["token_embeddings"], features["attention_mask"]
        if states.shape[-1] != self.head.shape[1]:
            raise InvalidValueError(
                "head", f"{states.shape[-1]} columns, as wide as the token states", self.head.shape[1],
                "Make the head from this decoder's own.",
            )  # fmt: skip
        mask = pooled_positions(features.get("pooling_mask", real), real, self.pooling)
        refuse_empty(mask)
        return states, mask

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:
        """Load from a folder or the hub; see :meth:`.SavedModule.load`.

        Raises:
            DamagedFileError: As :meth:`.SavedModule.load`.
            InvalidValueError: The model is read as a SparseEncoder, which would put an autoencoder with random weights
                behind it.
        """
        if is_converted(kwargs.get("model_kwargs")):
            raise InvalidValueError(
                "a lexicon model", "workbook.modules.LexiconEncoder, or SentenceTransformer", "SparseEncoder",
                "It would put an autoencoder with random weights behind the model, and decode clusters as tokens.",
            )  # fmt: skip
        return super().load(model_name_or_path, subfolder=subfolder, **kwargs)

    @classmethod
    def _unfilled(cls, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Self:
        return cls(weights.get("head", torch.zeros(1, 1)), clusters=weights.get("clusters"), **config)


def lexicon_of(
    backbone: str,
    *,
    pooling: str = "max",
    clusters: int | str | None = None,
    spherical: bool = True,
    shuffled: bool = False,
    zero: str | float | None = None,
    seed: int = 0,
) -> Lexicon:
    """Lexicon pooling over the language-model head of a backbone.

    Only differences between a language model's logits have a meaning: the same number added to all of them changes no
    prediction. ``log(1 + relu(logit))`` compares a logit with 0, and so depends on that number, which is a property of
    the backbone. Mistral-7B's logits are about 2.8 below 0 on average, so that relu there keeps what stands out.
    SmolLM2, whose head is also its table of word embeddings, adds about 12: before training 99 of 100 logits are
    positive, the vectors of any two texts have a cosine of 0.999, and a model that is trained so falls behind. So
    ``zero`` says where relu's zero lies: as in the paper, or measured from the mean, which is subtracted from the
    head's rows.

    Args:
        backbone: See :func:`~workbook.backbones.resolve`.
        pooling: One of :data:`LEXICON_POOLINGS`.
        clusters: Number of clusters of the head's rows; ``"vocabulary"`` for the head as it is; or the folder of
            :class:`~workbook.vocabulary.clusters.Clusters` made from it. None for 4000 as in LENS-4000, or an eighth
            of a vocabulary that is smaller than the paper's 32,000 tokens.
        spherical: See :func:`~workbook.vocabulary.clusters.cluster_head`; does not matter where nothing is clustered.
        shuffled: Whether tokens are dealt out to the clusters at random, sizes kept: the control of what clusters mean.
        zero: What a logit must exceed to have a weight. ``paper``: 0, the rows of the new head as they are. ``mean``:
            the mean of a position's logits over the new head. A number of 0 or more: that much above the mean.
            ``share 0.25``: as much above the mean as leaves a quarter of the weights above 0, measured on 64 short
            texts when the model is built; a training moves the share, not the zero. None for ``mean`` where the head is
            also the table of word embeddings, and else ``paper``.
        seed: Of the rows that the clusters start from, and of the shuffle.

    Raises:
        ModelNotFoundError: No such backbone, or one without its language-model head.
        UnknownNameError: No such backbone or pooling.
        InvalidValueError: An impossible number of clusters, a name that is not a folder, clusters of another head,
            nothing to shuffle, a ``spherical`` or ``shuffled`` that is not a bool, or a ``zero`` that is none of these.
        MissingDataError, DamagedFileError: No clusters in the folder.

    Source: LENS, sections 3.2.1 and 4.1. Mistral's mean is from the tests of transformers.
    """
    check_flags(spherical=spherical, shuffled=shuffled)
    if zero is None:
        zero = "mean" if load_config(backbone).tie_word_embeddings else "paper"
    elif not (zero in ZEROS or isinstance(zero, int | float) or share_of(zero)):
        raise InvalidValueError(
            "zero", f"{' or '.join(map(repr, ZEROS))}, a number of 0 or more, or 'share 0.25'", zero
        )
    if shuffled and clusters == "vocabulary":
        raise InvalidValueError("shuffled", "False, where nothing is clustered", shuffled)
    if clusters == "vocabulary":
        head, assignment = load_head(backbone).weight.detach().float(), None
    else:
        if isinstance(clusters, str | Path):
            if not os.path.isdir(clusters):
                raise InvalidValueError("clusters", "a whole number, 'vocabulary', or a folder of clusters", clusters)
            made = Clusters.load(clusters)
            made.check(load_head(backbone).weight)
        else:
            k = min(CLUSTERS, load_config(backbone).vocab_size // 8) if clusters is None else clusters
            made = clusters_of(backbone, k, spherical=spherical, seed=seed)
        made = made.shuffled(load_head(backbone).weight, seed) if shuffled else made
        head, assignment = made.centroids, made.assignment
    above = zero if isinstance(zero, int | float) else 0.0
    return Lexicon(head if zero == "paper" else head - head.mean(dim=0), pooling, assignment, above)


def share_of(zero: Any) -> float | None:
    """The share in a ``zero`` such as ``share 0.25``, or None if it is another kind.

    Raises:
        InvalidValueError: A share that is not a number above 0 and below 1.
    """
    if not (isinstance(zero, str) and zero.startswith("share")):
        return None
    try:
        share = float(zero.removeprefix("share"))
    except ValueError:
        share = float("nan")
    if not 0 < share < 1:
        raise InvalidValueError("zero", "a share above 0 and below 1, such as 'share 0.25'", zero)
    return share


def pooled_positions(text: torch.Tensor, real: torch.Tensor, pooling: str) -> torch.Tensor:
    """The positions that are pooled: those whose logits predict a token of the text, one to the left of each.

    In ``<s> <instruct> .. <query> t1 .. tn </s>`` these are ``<query>`` to t(n-1); in ``<s> t1 .. tn </s>`` they are
    ``<s>`` to t(n-1). A first token with nothing in front of it has no such position; if the text has no other token,
    its own position is taken. ``last`` is the last real position, that of ``</s>``.

    Args:
        text: (batch, tokens), 1 at the tokens of the text; its row is empty where there are none.
        real: (batch, tokens), 1 at all tokens but padding, on either side.
        pooling: One of :data:`LEXICON_POOLINGS`.

    Returns:
        Bool (batch, tokens).

    Source: LENS, section 3.2.2; which tokens, and ``last``, by the released code.
    """
    text, real = text.bool(), real.bool()
    if pooling == "last":
        order = real.cumsum(dim=1)
        return real & (order == order[:, -1:]) & text.any(dim=1, keepdim=True)
    left = text.roll(-1, dims=1) & real
    left[:, -1] = False
    return left | (text & ~left.any(dim=1, keepdim=True))
