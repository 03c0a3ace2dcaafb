"""docs/reference/sdk.md: the names of the sdk by topic, each with the first line of its docstring."""

from __future__ import annotations

import rlhf_core.sdk as sdk

from scripts.reference.api import row

INTRO = """# SDK

Import these from `rlhf_core.sdk`: what trainers, trained rewards, engines and commands need besides `rlhf_core.api`.
They follow semantic versioning, as the [api](api.md) does: a name that goes away was deprecated for two minor releases.
"""


def page() -> str:
    """Return the page."""
    return INTRO + "".join(topic(title, names) for title, names in sdk.names_by_topic().items())


def topic(title: str, names: tuple[str, ...]) -> str:
    """One section."""
    rows = "".join(row(name, getattr(sdk, name)) for name in names)
    return f"\n## {title}\n\n| name | what |\n|---|---|\n{rows}"
