"""Explorers: interactive where a person can type and choose, a table in batch runs."""

from .methods import MethodExplorer
from .negatives import NegativesExplorer
from .single import Explorer, LatentExplorer, LexiconExplorer

__all__ = ["Explorer", "LatentExplorer", "LexiconExplorer", "MethodExplorer", "NegativesExplorer"]
