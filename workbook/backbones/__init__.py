"""Backbones: finding, checking and loading the language models that become embedders.

There is a tiny random model of each architecture for tests.
"""

from ..tiny import TINY
from .folders import CARRIED, INSTALL_MODELS, CarriedModel, available, content_sha256, hub_folder, resolve, shown
from .models import (
    TRUST,
    as_dtype,
    capability,
    from_folder,
    load_config,
    load_decoder,
    load_encoder,
    load_head,
    load_tokenizer,
    loading,
)

__all__ = [
    "CARRIED",
    "INSTALL_MODELS",
    "TINY",
    "TRUST",
    "CarriedModel",
    "as_dtype",
    "available",
    "capability",
    "content_sha256",
    "from_folder",
    "hub_folder",
    "load_config",
    "load_decoder",
    "load_encoder",
    "load_head",
    "load_tokenizer",
    "loading",
    "resolve",
    "shown",
]
