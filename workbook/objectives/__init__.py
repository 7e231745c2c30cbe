"""Training objectives, as sentence-transformers losses: made with a model, called with a batch of tokenized columns."""

from ..errors import UnknownNameError
from .base import Objective
from .contrastive import Contrastive, SimCSE, set_attention_dropout
from .gritlm import GritLM
from .head import next_token_loss
from .mntp import MNTP, mask_tokens
from .reconstruction import LLaMA2Vec, Reconstruction
from .states import StateDistillation

OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind for kind in (MNTP, SimCSE, Contrastive, Reconstruction, LLaMA2Vec, GritLM, StateDistillation)
}
"""Objectives by the name that a stage uses."""

__all__ = [
    "MNTP",
    "OBJECTIVES",
    "Contrastive",
    "GritLM",
    "LLaMA2Vec",
    "Objective",
    "Reconstruction",
    "SimCSE",
    "StateDistillation",
    "get",
    "mask_tokens",
    "next_token_loss",
    "set_attention_dropout",
]


def get(name: str) -> type[Objective]:
    """The objective of that name.

    Raises:
        UnknownNameError: No such objective; the message lists all.
    """
    if name not in OBJECTIVES:
        raise UnknownNameError("objective", name, OBJECTIVES)
    return OBJECTIVES[name]
