"""docs/reference/studies.md and claims.md: every study that this repository ships, and what they say of published
findings."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

from rlhf_core.plugins.registry import Registry
from rlhf_study.record import claims, recorded

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


CLAIMS = """# Published findings

What the three documents that this project follows report, and what is measured here; a number such as `002:97` is
document and line. `rlhf study claims` prints the same. *Inconsistent* findings contradict another figure of their
own document.

| line | finding | here | verdict | shown by |
|---|---|---|---|---|
"""


def claims_page() -> str:
    """One row per finding."""
    entries = (e for e in Registry(disabled=()).entries("study") if e.distribution.startswith("rlhf-"))
    rows = claims({entry.name: entry.point.module for entry in entries})
    shown = (f"`{row.command}`" if row.command else "" for row in rows)
    return CLAIMS + "".join(
        f"| {row.line} | {row.says} | {row.here} | {row.verdict} | {by} |\n"
        for row, by in zip(rows, shown, strict=True)
    )
