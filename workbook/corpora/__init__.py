"""Texts: what the project wrote itself, and the corpus that it builds from the packages it installs."""
