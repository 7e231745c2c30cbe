"""Text to learn and measure on: the docs corpus and the authored files."""
