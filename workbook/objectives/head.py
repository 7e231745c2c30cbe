"""The base of objectives that predict tokens: they need the language-model head, which an embedder does not keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from accelerate.utils import extract_model_from_parallel
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from .. import backbones
from ..errors import InvalidValueError
from ..modules import Decoder
from ..modules.projection import token_losses
from .base import Objective, Options

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


IGNORED = -100
"""Label of a token that is not predicted, as in torch's cross-entropy."""


class LMHeadOptions(Options):
    """Options of every :class:`LMHeadObjective`.

    Attributes:
        train_head: Whether to train an untied head too. It is not part of the saved model.
    """

    train_head: Annotated[bool, Field(description="True or False")] = False


class LMHeadObjective(Objective):
    """An objective that predicts tokens from states, through the backbone's language-model head.

    A tied head is the table of the decoder's input embeddings, and trains when that does. Any other head is not part of
    the saved model, trained or not.

    Args:
        model: A chain that begins with a Decoder.
        head: The head to use, on the model's device; None for the backbone's own, in the decoder's dtype. One that
            trains is held in float32.
        **options: Fields of the objective's ``Options``.

    Raises:
        InvalidValueError: A chain that does not begin with a Decoder, an option outside its range, or a head that does
            not fit.
        UnknownNameError: No such option, or the backbone that the model was made from is no longer there.
        ModelNotFoundError: The backbone has no head.
    """

    Options = LMHeadOptions

    def __init__(self, model: SentenceTransformer, head: nn.Linear | None = None, **options: Any):
        if not isinstance(model[0], Decoder):
            raise InvalidValueError("model", "a chain that begins with a Decoder", type(model[0]).__name__)
        super().__init__(model, **options)
        config = model[0].decoder.config
        if head is None and not config.tie_word_embeddings:
            head = backbones.load_head(config.name_or_path).to(model.device, model[0].decoder.dtype)
        if head is not None and (getattr(head, "in_features", None) != config.hidden_size or head.bias is not None):
            expected = f"a linear layer of {config.hidden_size} inputs without bias"
            raise InvalidValueError("head", expected, head, "Pass backbones.load_head(name) with the backbone's name.")
        self.head = None if head is None else head.requires_grad_(self.options.train_head)
        if head is not None and self.options.train_head:
            head.float()  # in half precision small updates round to nothing

    @classmethod
    def stand_ins(cls, model: SentenceTransformer) -> dict[str, nn.Module]:
        """An empty head in place of an untied one, which would have to be read from disk; see
        :meth:`~.base.Objective.stand_ins`."""
        config = model[0].decoder.config
        return {} if config.tie_word_embeddings else {"head": nn.Linear(config.hidden_size, 1, False, device="meta")}

    @property
    def decoder_module(self) -> Decoder:
        """The chain's first module, without whatever distributed training wraps around the model."""
        return extract_model_from_parallel(self.model)[0]

    def projection(self) -> tuple[torch.Tensor, float | None]:
        """The head's weight (vocabulary, dim) and the bound of its logits or None, for ``token_losses``."""
        decoder = self.decoder_module.decoder
        weight = (self.head or decoder.get_input_embeddings()).weight
        return weight, getattr(decoder.config, "final_logit_softcapping", None)


def predictable(features: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mask of the tokens of the text that have a real token to their left, bool (batch, tokens).

    Args:
        features: Output of ``model.preprocess``.
    """
    real = features["attention_mask"].bool()
    text = features.get("pooling_mask", features["attention_mask"]).bool()
    return real & F.pad(real[:, :-1], (1, 0)) & text


def next_token_loss(
    states: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, softcap: float | None = None
) -> torch.Tensor:
    """Cross-entropy of the labelled tokens, each read from the state one to its left.

    Args:
        states: Last hidden states, (batch, tokens, dim), any floating dtype.
        labels: int64 (batch, tokens), :data:`IGNORED` where nothing is predicted. A label in the first column has no
            state to its left and is not counted.
        weight: Weight of the language-model head, (vocabulary, dim).
        softcap: Bound of the logits, for backbones that have one (Gemma 2).

    Returns:
        The mean over the counted labels of the batch in nats, a float32 scalar; 0 when there are none.

    Source: the loss of every language model; for MNTP, LLM2Vec, section 2.1 ("the loss based on the logits obtained
    from the token representation at the previous position i - 1").
    """
    predicted = labels[:, 1:] != IGNORED
    losses = token_losses(states[:, :-1][predicted], labels[:, 1:][predicted].unsqueeze(1), weight, softcap)
    # A sum and a division, because the mean over no labels would be NaN.
    return losses.sum() / predicted.sum().clamp(min=1)
