"""Exact answers: strings, choices, regular expressions and JSON schemas."""
