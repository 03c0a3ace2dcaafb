"""Backends: what answers an agent's requests."""
