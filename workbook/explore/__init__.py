"""Explorers: to type and choose where a person looks on, a table in batch runs."""

from .methods import MethodExplorer
from .single import Explorer, LatentExplorer, LexiconExplorer

__all__ = ["Explorer", "LatentExplorer", "LexiconExplorer", "MethodExplorer"]
