"""Training objectives, as sentence-transformers losses: made with a model, called with a batch of tokenized columns."""

from .contrastive import Contrastive, SimCSE, set_attention_dropout
from .mntp import MNTP, mask_tokens, mntp_loss
from .reconstruction import LLaMA2Vec, Reconstruction

OBJECTIVES = {
    "mntp": MNTP,
    "simcse": SimCSE,
    "contrastive": Contrastive,
    "reconstruction": Reconstruction,
    "llama2vec": LLaMA2Vec,
}
"""Objectives by the name that a stage gives."""

__all__ = [
    "MNTP",
    "OBJECTIVES",
    "Contrastive",
    "LLaMA2Vec",
    "Reconstruction",
    "SimCSE",
    "mask_tokens",
    "mntp_loss",
    "set_attention_dropout",
]
