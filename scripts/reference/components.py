"""docs/reference/components.md: every component of this repository's distributions, with its settings."""

from __future__ import annotations

import inspect

from rlhf_core.registry import KINDS, Registry
from scripts.reference.fields import table

INTRO = """# Components

Every component that this repository ships, by kind. A plugin of yours appears in `rlhf plugins list`.
"""


def page() -> str:
    """Return the page."""
    registry = Registry(disabled=())
    parts = [INTRO]
    for kind in KINDS:
        entries = [e for e in registry.entries(kind) if e.distribution.startswith("rlhf-")]
        if entries:
            parts.append(f"\n## {kind}\n")
        for entry in entries:
            config = registry.load(kind, entry.qualified)
            about = inspect.cleandoc(config.__doc__ or "")
            parts.append(
                f"\n### {entry.name}\n\n{about}\n\nFrom `{entry.distribution}`.\n\n"
                + table(config, skip=frozenset({"name"}))
            )
    return "".join(parts)
