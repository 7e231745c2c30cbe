"""Training objectives, as sentence-transformers losses: made with a model, called with a batch of tokenized columns."""

from .contrastive import Contrastive, SimCSE, set_attention_dropout
from .mntp import MNTP, mask_tokens, mntp_loss

OBJECTIVES = {"mntp": MNTP, "simcse": SimCSE, "contrastive": Contrastive}
"""Objectives by the name that a stage gives."""

__all__ = ["MNTP", "OBJECTIVES", "Contrastive", "SimCSE", "mask_tokens", "mntp_loss", "set_attention_dropout"]
