"""Five ways to turn a decoder-only LLM into a text embedder: learn them, train them, take them apart."""

from .methods import METHODS, build, hybrid, recipe

__version__ = "0.1.0"
__all__ = ["METHODS", "build", "hybrid", "recipe"]
