"""Training data: their sources, how they are made, and the rows that a stage reads."""
