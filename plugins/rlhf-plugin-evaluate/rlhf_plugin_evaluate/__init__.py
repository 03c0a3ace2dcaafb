"""Comparison of policies; see the README."""
