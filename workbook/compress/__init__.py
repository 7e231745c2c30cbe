"""Compression of a trained embedder: pruning, quantization, and the smaller model that they compete with.

Only the linear layers of the decoder's blocks are compressed; embeddings, norms, heads and encoders stay as they are.

Source: NV-Embed, appendix A.
"""

from ..quantized import FORMATS, Quantized, QuantizedLinear
from .matrices import PATTERNS, gptq, magnitude, mask, round_to_nearest, sparsegpt, wanda
from .measures import disk_bytes, drift, report
from .models import CONTROL, CRITERIA, ROUNDINGS, alone, prune, quantize, sensitivity, smaller

__all__ = [
    "CONTROL",
    "CRITERIA",
    "FORMATS",
    "PATTERNS",
    "ROUNDINGS",
    "Quantized",
    "QuantizedLinear",
    "alone",
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
