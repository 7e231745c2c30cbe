"""Training data: where they come from, how they are made, and the rows that a stage reads."""
