"""Explorers: interactive where a person can type and choose, a table in batch runs."""

from .compress import CompressionExplorer
from .methods import MethodExplorer
from .single import Explorer, LatentExplorer, LexiconExplorer

__all__ = ["CompressionExplorer", "Explorer", "LatentExplorer", "LexiconExplorer", "MethodExplorer"]
