"""Contrastive objectives: InfoNCE over in-batch and hard negatives, and SimCSE, whose only supervision is dropout.

The computation is sentence-transformers' own, in float32 whatever the trainer's autocast: at a temperature of 0.02 a
logit in bfloat16 is off by as much as an eighth. Added are the papers' terms, and errors for batches that hold no
negative and for decoders without dropout.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)

from ..errors import AttentionError, InvalidValueError
from ..precision import autocast_of_now, without_autocast
from .base import Objective, Options, Whole
from .own import distillation, own_loss, own_scores

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel


class ContrastiveOptions(Options):
    """Options of :class:`Contrastive`.

    Attributes:
        temperature: Divisor of the cosines.
        in_batch: Whether documents of other rows are negatives. They mislead where rows share a class: there the
            positive of one row is right for another too.
        mini_batch_size: Rows that go through the model at once, with GradCache: a batch of any size takes the memory of
            one mini-batch, at the price of a second forward pass. None for the whole batch at once. Without in-batch
            negatives rows don't need each other, and accumulation, where it can be, does the same at less cost.
    """

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False, description="a positive number")] = 0.02
    in_batch: Annotated[bool, Field(description="True or False")] = True
    mini_batch_size: Annotated[Whole | None, Field(description="a positive whole number of rows, or None")] = None


class Contrastive(Objective):
    """InfoNCE: a query should be nearer to its positive than to every other document of the batch.

    The data has the columns query, positive, and any number of hard negatives. The candidates of a query are the
    positives and hard negatives of the whole batch, or with ``in_batch=False`` its own alone. The loss is the
    cross-entropy of cosine / temperature, from queries to documents only. Instructions are prompts of the columns; the
    loss does not see them.

    Since every query has the same candidates, a column of hard negatives may be longer or shorter than that of the
    queries. Data sets have no such batches; a call of the loss may, as in the released code of LLM2Vec.

    Where the data has a teacher's scores as labels, distillation is added with weight 1: the cross-entropy from the
    teacher's softmax over a query's own candidates to the model's.

    A text that is twice in a batch is a false negative of its own pair. The loss warns once, with the rows, and counts
    the text all the same, as the published code does; ``BatchSamplers.NO_DUPLICATES`` keeps such texts apart.

    When training on several devices, the documents of all of them are candidates, with their gradients.

    Attributes:
        in_batch: Whether the next batch is contrasted with the documents of other rows; at first as in the options. A
            stage that mixes tasks sets it for each batch.

    Args:
        model: Any sentence-transformers model.
        **options: Of :class:`ContrastiveOptions`.

    Raises:
        InvalidValueError: A temperature or a mini-batch size that is not positive, or a mini-batch size without
            in-batch negatives.

    Source: LLM2Vec, section 5.1 and appendix G.2 (the default temperature is that of the released code); GradCache
    after Gao et al. (2021). Own negatives alone: NV-Embed, section 3.3, and LENS, section 4.1. Distillation: LENS,
    section 4.1, computed as in its released code.
    """

    name = "contrastive"
    hard_negatives = True
    teacher = True
    Options = ContrastiveOptions
    _passes = 1  # of each column through the model

    def __init__(self, model: SentenceTransformer, **options: Any):
        super().__init__(model, **options)
        # Found out here, not given as an option: no objective built on this can forget the other devices' negatives.
        given = {"scale": 1 / self.options.temperature, "gather_across_devices": _distributed()}
        if self.options.mini_batch_size is None:
            self.loss = _Plain(model, **given)
        else:
            self.loss = _Cached(model, mini_batch_size=self.options.mini_batch_size, **given)
        self.in_batch = self.options.in_batch
        self._told = False

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The loss of one batch, a scalar.

        Args:
            sentence_features: One output of ``model.preprocess`` per column.
            labels: A teacher's scores, floating (rows, columns - 1): of each query with its positive and its hard
                negatives, in the order of the columns, on the scale of logits. None to learn without a teacher. Row i
                of the positives always belongs to row i of the queries.

        Raises:
            InvalidValueError: Too few columns, a batch that holds no negative, scores of another shape, or columns of
                different lengths where a row belongs to one query alone: the positives always, the hard negatives
                without in-batch negatives or with a teacher.
        """
        given = list(sentence_features)
        devices = torch.distributed.get_world_size() if self.loss.gather_across_devices else 1
        self.check_batch(devices * (_rows(given[0]) if given else 0), len(given))
        columns = [dict(features) for features in given for _ in range(self._passes)]
        self._check_rows([_rows(column) for column in columns], taught=labels is not None)
        if labels is not None and labels.shape != (shape := (_rows(columns[0]), len(columns) - 1)):
            raise InvalidValueError("labels", f"a teacher's scores {shape}", tuple(labels.shape))
        if self.in_batch:
            self._tell_twins(columns)
        if self.options.mini_batch_size is not None:
            self.loss.in_batch = self.in_batch
            return self.loss(columns, labels)
        if not self.in_batch:
            return own_loss(self.embedded(columns), self.options.temperature, labels)
        return self.loss.compute_loss_from_embeddings(self.embedded(columns), labels)

    def check_batch(self, rows: int, columns: int) -> None:
        """Refuse data whose batches hold no negative; see :meth:`~.base.Objective.check_batch`.

        Raises:
            InvalidValueError: No positive, or no negative in a batch.
        """
        if columns < 2:
            raise InvalidValueError("training data", "a query, a positive and any hard negatives", f"{columns} column")
        if not self.in_batch and columns == 2:
            raise InvalidValueError(
                "training data", "hard negatives in every row, the only ones without in-batch negatives", "none",
                "Mine them, or turn in-batch negatives on.",
            )  # fmt: skip
        if rows == 1 and columns == 2:
            raise InvalidValueError(
                "batch", "at least two rows, or hard negatives", "one row without hard negatives",
                "Nothing is left to tell the positive from: raise the batch size, and drop the last, incomplete batch "
                "(dataloader_drop_last=True).",
            )  # fmt: skip

    def _check_rows(self, rows: list[int], taught: bool) -> None:
        """Refuse columns that are shorter or longer than the queries, where each row belongs to one query."""
        queries, positives, *negatives = rows
        if positives != queries:
            raise InvalidValueError("positives", f"one for each of {queries} queries", f"{positives} rows")
        if not all(negatives):
            raise InvalidValueError("hard negatives", "a row in every column", "none", "Leave the empty column out.")
        if (taught or not self.in_batch) and set(negatives) - {queries}:
            raise InvalidValueError(
                "hard negatives", f"one for each of {queries} queries in every column", f"columns of {negatives} rows",
                "Only as candidates of all queries, with in-batch negatives and without a teacher, may they be more or "
                "fewer.",
            )  # fmt: skip

    def _tell_twins(self, columns: list[dict[str, torch.Tensor]]) -> None:
        if not self._told and (twins := _twins(columns[1])):
            self._told = True
            warnings.warn(
                f"Rows {' and '.join(map(str, twins))} of a batch have the same positive, each a false negative of the "
                "other. Keep them apart with batch_sampler=BatchSamplers.NO_DUPLICATES, or drop duplicates. (Said "
                "once.)",
                stacklevel=3,
            )

    def get_config_dict(self) -> dict[str, Any]:
        """The options of the loss, for the model card."""
        return {**super().get_config_dict(), **self.loss.get_config_dict()}


class _Plain(MultipleNegativesRankingLoss):
    """The loss of sentence-transformers in float32, with distillation."""

    def compute_loss_from_embeddings(self, embeddings: list[torch.Tensor], labels: torch.Tensor | None) -> torch.Tensor:
        embeddings = [column.float() for column in embeddings]
        with without_autocast(embeddings[0].device):
            loss = super().compute_loss_from_embeddings(embeddings, labels)
        return loss if labels is None else loss + distillation(own_scores(embeddings, self.temperature), labels)


class _Cached(CachedMultipleNegativesRankingLoss):
    """The loss of sentence-transformers with GradCache, in float32, with distillation, or without in-batch negatives.

    Both passes have one precision. The second runs within the backward pass, outside the trainer's autocast. Each
    column is sorted by length, so that the rows of a mini-batch need little padding; for the loss the vectors are put
    back into the order of the rows.
    """

    in_batch = True

    def forward_cached(self, sentence_features: list[dict[str, torch.Tensor]], *args: Any, **kwargs: Any) -> Any:
        self._precision = autocast_of_now(_tensor(sentence_features[0]).device)
        columns, self._orders = zip(*map(by_length, sentence_features), strict=True)
        return super().forward_cached(list(columns), *args, **kwargs)

    def embed_minibatch(self, *args: Any, **kwargs: Any) -> Any:
        with self._precision():
            return super().embed_minibatch(*args, **kwargs)

    def calculate_loss(
        self, reps: list[list[torch.Tensor]], labels: torch.Tensor | None = None, *, with_backward: bool = False
    ) -> torch.Tensor:
        columns = [
            torch.cat(parts).detach().float()[order.argsort()].requires_grad_(with_backward)
            for parts, order in zip(reps, self._orders, strict=True)
        ]
        with without_autocast(columns[0].device):  # of the backward pass too, which is taken here
            terms = []
            if self.in_batch:
                loss = super().calculate_loss([[column] for column in columns], labels, with_backward=with_backward)
                if labels is not None:
                    terms = [distillation(own_scores(columns, 1 / self.scale), labels)]
            else:
                loss, terms = columns[0].new_zeros(()), [own_loss(columns, 1 / self.scale, labels)]
            for term in terms:
                if with_backward:
                    term.backward()
                loss = loss + term.detach()
        if with_backward:
            for parts, column, order in zip(reps, columns, self._orders, strict=True):
                for part, gradient in zip(parts, column.grad[order].split([*map(len, parts)]), strict=True):
                    part.grad = gradient.to(part.dtype)
        return loss


class SimCSEOptions(ContrastiveOptions):
    """Options of :class:`SimCSE`; temperature after Gao et al. (2021).

    Attributes:
        dropout: Share of the attention weights that is dropped, at least 0 and less than 1. At 0 :class:`SimCSE`
            refuses the decoder, since its two passes are equal.
    """

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False, description="a positive number")] = 0.05
    dropout: Annotated[float, Field(ge=0, lt=1, description="a share, at least 0 and less than 1")] = 0.3


class SimCSE(Contrastive):
    """Unsupervised SimCSE: each text goes through the model twice, and dropout makes the two vectors differ.

    Without dropout the positive is trivially right, and training only pushes the other texts apart, which ends in
    collapse (Gao et al. 2021).

    The data has one column of texts. Constructing the loss switches the decoder's attention dropout on and measures
    that it works; it stays on until :func:`set_attention_dropout` sets it to 0.

    Args:
        model: A chain that begins with a Decoder.
        **options: Of :class:`SimCSEOptions`.

    Raises:
        InvalidValueError: As :class:`Contrastive`, or a dropout outside its range.
        AttentionError: Two passes through the decoder give equal states.

    Source: LLM2Vec, sections 2.1 and 2.2, appendix D.1.2 (dropout 0.3); temperature after Gao et al. (2021).
    """

    name = "simcse"
    reads = "texts"
    drops = True
    hard_negatives = False
    teacher = False
    Options = SimCSEOptions
    _passes = 2

    def __init__(self, model: SentenceTransformer, **options: Any):
        super().__init__(model, **options)
        dropout = self.options.dropout
        decoder = getattr(model[0], "decoder", None)
        if decoder is None:
            raise InvalidValueError("model", "a chain that begins with a Decoder", type(model[0]).__name__)
        set_attention_dropout(decoder, dropout)
        if not _varies(decoder):
            raise AttentionError(
                f"Expected two passes with dropout {dropout} to differ, measured equal states with "
                f"{decoder.config._attn_implementation!r} attention: positives would be "
                "trivially right, and other texts only pushed apart. Raise the dropout, or load the backbone with "
                "attn_implementation='sdpa' or 'eager'."
            )

    def check_batch(self, rows: int, columns: int) -> None:
        """Refuse data that is not one column of texts, and a batch of a single text; see
        :meth:`~.base.Objective.check_batch`."""
        Objective.check_batch(self, rows, columns)
        super().check_batch(rows, 2)


def set_attention_dropout(decoder: PreTrainedModel, probability: float) -> None:
    """Set the share of attention weights that a decoder drops in training, in place.

    It is set where the layers read it, because they read the configuration only once, when they are made. The
    configuration stays as it is, so that a saved model does not drop anything when it is trained again.

    Args:
        decoder: A transformers decoder, with or without adapters.
        probability: At least 0 and less than 1.

    Raises:
        InvalidValueError: A probability outside its range, or a decoder that has no attention dropout.

    Source: LLM2Vec, appendix D.1.2.
    """
    if isinstance(probability, bool) or not isinstance(probability, Real) or not 0 <= probability < 1:
        raise InvalidValueError("dropout", "a share, at least 0 and less than 1", probability)
    layers = [module for module in decoder.modules() if hasattr(module, "attention_dropout")]
    if not layers:
        raise InvalidValueError("decoder", "layers with attention_dropout", type(decoder).__name__)
    for layer in layers:
        layer.attention_dropout = float(probability)


@torch.no_grad()
def _varies(decoder: PreTrainedModel) -> bool:
    """True if two passes in training mode differ, as measured; leaves mode and generators as they were."""
    modes = [(module, module.training) for module in decoder.modules()]
    ids = torch.arange(3, 11, device=decoder.device).repeat(4, 1)
    devices = [decoder.device] if decoder.device.type == "cuda" else []
    decoder.train()
    try:
        with torch.random.fork_rng(devices=devices):
            first, second = (decoder(input_ids=ids, use_cache=False).last_hidden_state for _ in range(2))
    finally:
        for module, training in modes:
            module.training = training
    # Not bit by bit: on some processors even equal passes differ in their last digits, depending on memory alignment.
    return bool((first - second).norm() > 1e-3 * first.norm())


def _twins(features: dict[str, torch.Tensor]) -> list[int]:
    """Rows of a column that hold the same text, counted from 0; none when all differ."""
    if "input_ids" not in features:
        return []
    rows = torch.where(features["attention_mask"].bool(), features["input_ids"], -1)
    _, groups, sizes = rows.unique(dim=0, return_inverse=True, return_counts=True)
    return (groups == sizes.argmax()).nonzero().flatten().tolist() if sizes.max() > 1 else []


def by_length(features: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
    """A column with its shortest texts first; as it is where lengths are not known.

    Args:
        features: Output of ``model.preprocess``.

    Returns:
        The features, and for each of their rows its number before, int64 (rows,).
    """
    if "attention_mask" not in features:
        return features, torch.arange(_rows(features))
    order = features["attention_mask"].sum(dim=1).argsort(stable=True)
    return {name: value[order] if isinstance(value, torch.Tensor) else value for name, value in features.items()}, order


def _rows(features: dict[str, torch.Tensor]) -> int:
    return len(_tensor(features))


def _tensor(features: dict[str, torch.Tensor]) -> torch.Tensor:
    return next(value for value in features.values() if isinstance(value, torch.Tensor))


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
