"""Accuracy of a reward model on acoustic features by the number of pairs."""
