"""Sentence-transformers modules: what a chain from text to vector is made of."""

from .decoder import Decoder
from .pooling import Pooling

__all__ = ["Decoder", "Pooling"]
