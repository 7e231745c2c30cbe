"""Training: data, and the stages of a recipe."""
