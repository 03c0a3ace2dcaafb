"""Algorithms as components: scored rollouts in, signals per token out."""
