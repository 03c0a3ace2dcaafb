"""``seeds.toml`` as a page: what three documents ask for, what is there now, and what shows it."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rlhf_core.plugins.registry import Registry
from rlhf_study.record import recorded

ROOT = Path(__file__).parents[2]
INTRO = """# What was asked for

Every row of an audit of the three documents that this project follows: `000:22` is document and line, F1 a fault, R1
an open row. `python -m scripts.audit seeds` prints the same. What the documents *found* is in [claims](claims.md).

"""


class Requirement(NamedTuple):
    place: str
    """Document and line, or the number of a fault. Example: ``000:22``"""
    asked: str
    shown: tuple[str, ...]
    """Commands, and files of the repository. Example: ``("rlhf study show baselines", "docs/update.md")``"""
    now: str
    """``works``, or ``partly`` or ``missing`` with what is not there."""


def read_seeds() -> list[Requirement]:
    """The table; a row whose study has no record yet is ``partly`` done."""
    tables = tomllib.loads(Path(__file__).with_name("seeds.toml").read_text(encoding="utf-8"))
    modules = {entry.name: entry.point.module for entry in Registry(disabled=()).entries("study")}
    return [_row(row, modules) for rows in tables.values() for row in rows]


def _row(row: list[str], modules: dict[str, str]) -> Requirement:
    place, asked, shown, now = row
    commands: list[str] = []
    for part in shown.split("; "):
        kind, _, name = part.partition(" ")
        if kind == "study":
            found = recorded(modules[name])
            if "not recorded yet" in found.verdict:
                now = _lessened(now, f"{name} is not recorded yet")
            part = f"rlhf study {'show' if found.table else 'run'} {name}"
        commands.append(part)
    return Requirement(place, asked, tuple(commands), now)


def _lessened(now: str, reason: str) -> str:
    return f"partly: {reason}" if now == "works" else f"{now}; {reason}"


def absent_files(rows: Iterable[Requirement]) -> list[str]:
    """Files of the table that the repository does not have."""
    return [part for row in rows for part in row.shown if " " not in part and not (ROOT / part).is_file()]


def page() -> str:
    """The table, and how many rows work."""
    rows = read_seeds()
    counts = Counter(row.now.partition(":")[0] for row in rows)
    lines = [f"| {r.place} | {r.asked} | {r.now} | {'; '.join(_linked(s) for s in r.shown)} |\n" for r in rows]
    total = f"{len(rows)} rows: {', '.join(f'{counts[kind]} {kind}' for kind in ('works', 'partly', 'missing'))}.\n\n"
    return "".join([INTRO, total, "| | asked | now | shown by |\n|---|---|---|---|\n", *lines])


def _linked(part: str) -> str:
    return f"`{part}`" if " " in part else f"[{Path(part).name}](../../{part})"
