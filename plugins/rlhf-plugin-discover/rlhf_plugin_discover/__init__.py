"""Propose, verify, refine."""
