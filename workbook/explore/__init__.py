"""Explorers: to type and choose where a person looks on, a table in batch runs."""

from .single import Explorer, LatentExplorer, LexiconExplorer

__all__ = ["Explorer", "LatentExplorer", "LexiconExplorer"]
