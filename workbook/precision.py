"""Precision: float32 where half would lose digits, and the same in passes that belong together.

Training in half precision runs under autocast, which would otherwise decide for every product.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch


def without_autocast(device: torch.device) -> AbstractContextManager:
    """A block in which tensors are computed in their own dtypes.

    Args:
        device: Where they lie.
    """
    return torch.autocast(device.type, enabled=False)


def autocast_of_now(device: torch.device) -> Callable[[], AbstractContextManager]:
    """Blocks of the precision that holds now, for later, such as for a pass within the backward pass.

    Args:
        device: Where the tensors of those blocks lie.

    Returns:
        A function that makes such a block, each time a new one.
    """
    enabled, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
    return lambda: torch.autocast(device.type, dtype, enabled=enabled)
