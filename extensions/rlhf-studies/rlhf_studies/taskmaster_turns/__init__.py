"""A turn reward model on people's verdicts."""
