"""Published checkpoints as models of this library: read in their own layouts, without the code that comes with them.

The layouts are those of NV-Embed (nvidia/NV-Embed-v2) and LENS (yibinlei/LENS-d4000). Their weights are taken as they
are, one tensor after another; attention, template and pooling are this library's, which its tests hold to the numbers
of the published code. Names, shapes and settings are checked before any weight is read.
"""

from .checkpoint import Checkpoint, convert, find, load
from .layouts import LAYOUTS

__all__ = ["LAYOUTS", "Checkpoint", "convert", "find", "load"]
