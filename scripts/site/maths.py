"""Formulas as MathML, so that the site needs no JavaScript for them and no network."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def display(source: str, language: str, css_class: str, options: Any, md: Any, **kwargs: Any) -> str:
    r"""Format a fenced block ``math`` for pymdownx.superfences: one formula per line.

    Example: ``\frac{a}{b}`` -> ``<p class="formula"><math display="block">...</math></p>``
    """
    lines = [line for line in source.splitlines() if line.strip()]
    return "".join(f'<p class="formula">{convert(line, display="block")}</p>' for line in lines)
