"""Kissing configurations: the exact check, and a search that needs no model."""
