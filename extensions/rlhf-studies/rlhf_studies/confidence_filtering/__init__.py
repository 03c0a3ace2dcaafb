"""Preference pairs that a reward model is sure of."""
