"""docs/reference/api.md: the promised names, each with the first line of its docstring."""

from __future__ import annotations

import inspect
from typing import Any

import rlhf_core.api as promised

INTRO = """# Public API

Import these from `rlhf_core.api`. They follow semantic versioning: a name that goes away was deprecated for two minor
releases. Everything else may change.

| name | what |
|---|---|
"""


def page() -> str:
    """Return the page."""
    return INTRO + "".join(row(name, getattr(promised, name)) for name in sorted(promised.__all__))


def row(name: str, thing: Any) -> str:
    """A name and the first paragraph of its docstring."""
    documented = inspect.isclass(thing) or inspect.isfunction(thing)
    about = (inspect.getdoc(thing) or "").split("\n\n")[0] if documented else ""
    return f"| `{name}` | {' '.join(about.split()).replace('|', chr(92) + '|')} |\n"
