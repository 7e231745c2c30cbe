"""Explorers: interactive where a person can type and choose, a table in batch runs."""

from .dictionary import DictionaryLab
from .methods import MethodExplorer
from .single import Explorer, LatentExplorer, LexiconExplorer

__all__ = ["DictionaryLab", "Explorer", "LatentExplorer", "LexiconExplorer", "MethodExplorer"]
