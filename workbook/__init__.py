"""Five ways to turn a decoder-only LLM into a text embedder: learn them, train them, take them apart."""

__version__ = "0.1.0"
