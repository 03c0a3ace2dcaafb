"""docs/reference/studies.md: every study that this repository ships, with its question and where its verdict stands."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

from rlhf_core.plugins.registry import Registry
from rlhf_study.record import recorded

HERE = Path(__file__).parents[2] / "docs" / "reference"
INTRO = """# Studies

`rlhf study run NAME` repeats one, `rlhf study show NAME` prints what was found ([how](../studies.md)).

| study | asks | recorded |
|---|---|---|
"""


def page() -> str:
    registry = Registry(disabled=())
    rows, parts = [INTRO], list[str]()
    for entry in registry.entries("study"):
        if not entry.distribution.startswith("rlhf-"):
            continue
        figures = recorded(entry.point.module)
        assert figures.folder is not None, f"{entry.name} has no package"
        folder = os.path.relpath(figures.folder, HERE)
        table = f"[table]({folder}/result.md)" if figures.table else ""
        rows.append(f"| [{entry.name}]({folder}/README.md) | {figures.question} | {table} |\n")
        about = inspect.cleandoc(registry.load("study", entry.qualified).__doc__ or "")
        parts.append(f"\n## {entry.name}\n\n{about}\n")
    return "".join([*rows, *parts])
