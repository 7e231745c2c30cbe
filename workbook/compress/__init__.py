"""Compression after training: pruned weights, weights in eight bits, fewer blocks, and what they cost.

The appendix of NV-Embed compresses its embedder so, and compares it with smaller models.
"""

from ..quantized import FORMATS, QuantizedLinear
from .matrices import (
    CRITERIA,
    PATTERNS,
    ROUNDINGS,
    gptq,
    magnitude,
    mask,
    round_to_nearest,
    sparsegpt,
    wanda,
)
from .measured import disk_bytes, drift, report, sensitivity
from .models import prune, quantize, smaller

__all__ = [
    "CRITERIA",
    "FORMATS",
    "PATTERNS",
    "ROUNDINGS",
    "QuantizedLinear",
    "disk_bytes",
    "drift",
    "gptq",
    "magnitude",
    "mask",
    "prune",
    "quantize",
    "report",
    "round_to_nearest",
    "sensitivity",
    "smaller",
    "sparsegpt",
    "wanda",
]
