"""The vocabulary as a space of its own: clusters of tokens, and vectors whose dimensions are words."""
