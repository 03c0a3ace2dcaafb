"""Writes docs/reference/ from the code: ``python -m scripts.reference [--check]``."""
