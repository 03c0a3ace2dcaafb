"""docs/reference/api.md: the public names by topic, each with the first paragraph of its docstring."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from scripts.check.imports import TOPICS

INTRO = """# Public names

A topic is a module: `from rlhf_core.losses import LossOutput`. Public names follow semantic versioning: a name that is
removed was deprecated for two minor releases. Everything below a topic may change.
"""


def page() -> str:
    return INTRO + "".join(section(module) for module in ("rlhf_core", *TOPICS))


def section(topic: str) -> str:
    module = import_module(topic)
    names = module.__all__ if topic == "rlhf_core" else dir(module)
    rows = "".join(row(name, getattr(module, name)) for name in names)
    return f"\n## `{topic}`\n\n{module.__doc__}\n\n| name | what |\n|---|---|\n{rows}"


def row(name: str, thing: Any) -> str:
    documented = inspect.isclass(thing) or inspect.isfunction(thing)
    about = (inspect.getdoc(thing) or "").split("\n\n")[0] if documented else ""
    return f"| `{name}` | {' '.join(about.split()).replace('|', chr(92) + '|')} |\n"
