"""GritLM's objective: one decoder learns to embed and keeps learning to write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from sentence_transformers.base.losses.gradcache import RandContext
from torch import nn

from ..precision import autocast_of_now
from .contrastive import Contrastive, ContrastiveOptions, by_length
from .head import IGNORED, LMHeadObjective, LMHeadOptions, next_token_loss, predictable

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class GritLMOptions(ContrastiveOptions, LMHeadOptions):
    """Options of :class:`GritLM`, with those of :class:`~.contrastive.Contrastive`.

    Attributes:
        generative_weight: Weight of the language model's loss, where the contrastive one has 1; 0 leaves it out.
    """

    generative_weight: Annotated[float, Field(ge=0, allow_inf_nan=False, description="a number, at least 0")] = 1.0


class GritLM(LMHeadObjective):
    """InfoNCE on bidirectional vectors, plus the language model's own loss on causal states of the same decoder.

    The loss is L_rep + generative_weight * L_gen. The documents are read twice: once with the decoder's bidirectional
    attention, for their vectors, and once causally, each token predicted from those before it. Only tokens of the texts
    are predicted, never those of the instruction or the template.

    Args:
        model, head: See :class:`~.head.LMHeadObjective`.
        **options: Fields of :class:`GritLMOptions`.

    Raises:
        InvalidValueError: A causal decoder, an option outside its range, or as :class:`~.head.LMHeadObjective` and
            :class:`~.contrastive.Contrastive`.
        UnknownNameError, ModelNotFoundError: As :class:`~.head.LMHeadObjective`.

    Source: Muennighoff et al. 2024, "Generative representational instruction tuning", section 2. There the generative
    loss is that of answers to instructions, from a data set of its own; here it is that of the documents.
    """

    name = "gritlm"
    hard_negatives = True
    attention = "bidirectional"
    own_attention = True
    Options = GritLMOptions

    def __init__(self, model: SentenceTransformer, head: nn.Linear | None = None, **options: Any):
        super().__init__(model, head, **options)
        own = {name: getattr(self.options, name) for name in ContrastiveOptions.model_fields}
        self.contrastive = Contrastive(model, **own)

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The loss of one batch, a scalar; see :meth:`.contrastive.Contrastive.forward`."""
        columns = list(sentence_features)
        loss = self.contrastive(columns, labels)
        weight = self.options.generative_weight
        return loss + weight * self.generative_loss(columns[1]) if weight else loss

    def generative_loss(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of writing texts token by token: the mean over their tokens in nats, a float32 scalar.

        With ``mini_batch_size``, that many texts are read at once, and read again for the gradient, as in GradCache.

        Args:
            features: Output of ``model.preprocess`` for the texts.
        """
        size, count = self.options.mini_batch_size, predictable(features).sum().clamp(min=1)

        def loss(part: dict[str, torch.Tensor]) -> torch.Tensor:
            where = predictable(part)
            states = self.model({**part, "attention": "causal"})["token_embeddings"]
            targets = part["input_ids"].where(where, IGNORED)
            return next_token_loss(states, targets, *self.projection()) * where.sum() / count

        if size is None:
            return loss(features)
        rows, features = range(0, len(features["input_ids"]), size), by_length(features)[0]
        return _in_parts(loss, [{name: value[row : row + size] for name, value in features.items()} for row in rows])

    def check_batch(self, rows: int, columns: int) -> None:
        """Refuse data whose batches hold no negative; see :meth:`.contrastive.Contrastive.check_batch`."""
        self.contrastive.check_batch(rows, columns)


def _in_parts(
    loss: Callable[[dict[str, torch.Tensor]], torch.Tensor], parts: list[dict[str, torch.Tensor]]
) -> torch.Tensor:
    """The sum of a loss over parts of a batch, in the memory of one of them.

    GradCache takes its gradient in passes of its own too. On several devices, a part of the loss that did not would
    give its gradient after the wrapper around the model has averaged that of the other passes. As there, the pass for
    the gradient drops what the first one dropped, and has its precision.
    """
    drawn, values, precision = [], [], autocast_of_now(parts[0]["input_ids"].device)
    with torch.no_grad():
        for part in parts:
            drawn.append(RandContext(*part.values()))
            values.append(loss(part))
    value = torch.stack(values).sum()
    if torch.is_grad_enabled():

        def again(gradient: torch.Tensor) -> None:
            with torch.enable_grad():
                for part, random in zip(parts, drawn, strict=True):
                    with random, precision():
                        once_more = loss(part)
                    (once_more * gradient).backward()

        value.requires_grad_().register_hook(again)
    return value
