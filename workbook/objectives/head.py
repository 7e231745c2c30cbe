"""What objectives share that predict tokens: the language-model head, which an embedder does not keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from accelerate.utils import extract_model_from_parallel
from pydantic import Field
from torch import nn

from .. import backbones
from ..errors import InvalidValueError
from ..modules import Decoder
from .base import Objective, Options

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class LMHeadOptions(Options):
    """Options of every :class:`LMHeadObjective`.

    Attributes:
        train_head: Train an untied head too. It is no part of the saved model.
    """

    train_head: Annotated[bool, Field(description="True or False")] = False


class LMHeadObjective(Objective):
    """An objective that predicts tokens from states, through the backbone's language-model head.

    A tied head is the table of the decoder's input embeddings, and trains when that does. Any other is no part of the
    model that is saved, trained or not.

    Args:
        model: A chain that begins with a Decoder.
        head: The head to use, on the model's device; the backbone's own if not given, in the decoder's dtype.
        **options: Of the objective's ``Options``.

    Raises:
        InvalidValueError: A chain that does not begin with a Decoder, or a head that does not fit.
        UnknownNameError: The backbone that the model was made from is not where it was.
        ModelNotFoundError: It is there, but without a head.
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

    @classmethod
    def stand_ins(cls, model: SentenceTransformer) -> dict[str, nn.Module]:
        """An empty head, where the real one would take a whole language model from disk."""
        config = model[0].decoder.config
        return {} if config.tie_word_embeddings else {"head": nn.Linear(config.hidden_size, 1, False, device="meta")}

    @property
    def decoder_module(self) -> Decoder:
        """The chain's first module, out of whatever a distributed training wraps around the model."""
        return extract_model_from_parallel(self.model)[0]

    def projection(self) -> tuple[torch.Tensor, float | None]:
        """The head's weight, (vocabulary, dim), and the bound of its logits or None, for ``token_losses``."""
        decoder = self.decoder_module.decoder
        weight = (self.head or decoder.get_input_embeddings()).weight
        return weight, getattr(decoder.config, "final_logit_softcapping", None)
