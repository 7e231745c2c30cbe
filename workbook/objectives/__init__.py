"""Training objectives, as sentence-transformers losses: made with a model, called with a batch of tokenized columns."""

from .contrastive import Contrastive, SimCSE, set_attention_dropout
from .mntp import MNTP, mask_tokens, mntp_loss

__all__ = ["MNTP", "Contrastive", "SimCSE", "mask_tokens", "mntp_loss", "set_attention_dropout"]
