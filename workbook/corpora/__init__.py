"""Texts for training and measurement: the docs and roles corpora, the authored files, and readers of public data."""
