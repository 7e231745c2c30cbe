"""Explorers: interactive where a person can type and choose, a table in batch runs."""

from .atlas import AtlasExplorer
from .compress import CompressionExplorer
from .cost import CostCalculator
from .dial import Dial
from .dictionary import DictionaryLab
from .glass import GlassBox
from .methods import MethodExplorer
from .negatives import NegativesExplorer
from .single import AnchorExplorer, Explorer, LatentExplorer, LexiconExplorer, PrefixExplorer
from .sinks import SinkExplorer

__all__ = [
    "AnchorExplorer",
    "AtlasExplorer",
    "CompressionExplorer",
    "CostCalculator",
    "Dial",
    "DictionaryLab",
    "Explorer",
    "GlassBox",
    "LatentExplorer",
    "LexiconExplorer",
    "MethodExplorer",
    "NegativesExplorer",
    "PrefixExplorer",
    "SinkExplorer",
]
