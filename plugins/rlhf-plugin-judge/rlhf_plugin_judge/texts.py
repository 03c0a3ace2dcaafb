"""Texts as the Messages API and the tokenizers take them."""

from __future__ import annotations


def clean(text: str) -> str:
    """A text that can be written as UTF-8: surrogate pairs joined, lone ones replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
