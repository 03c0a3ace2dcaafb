"""Seconds of a step on GPUs that are not at hand: a simulation."""
