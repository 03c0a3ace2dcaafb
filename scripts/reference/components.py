"""docs/reference/components.md, one line per component, and a page per kind with all settings."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.plugins.entry_points import CORE, Entry, scan
from rlhf_core.plugins.registry import KINDS, Registry
from scripts.reference.fields import table

INTRO = """# Components

Every component that this repository ships, by kind; a link leads to its settings. A plugin of yours appears in
`rlhf plugins list`, its settings in `rlhf plugins info NAME`.
"""
PARITY = Path(__file__).parents[2] / "docs/bench/verl_parity.json"
NOT_HERE = ("study",)
"""Kinds with a page of their own."""
FOLDED_FROM = 12
"""Longer tables are folded, so that a kind's components can be skimmed."""


def pages() -> Mapping[str, str]:
    """File name -> text: the index, and one page per kind."""
    registry = Registry(disabled=())
    texts: dict[str, str] = {}
    index: list[str] = []
    counts: dict[str, int] = {}
    for kind in KINDS:
        entries = [e for e in registry.entries(kind) if e.distribution.startswith("rlhf-")]
        if not entries or kind in NOT_HERE:
            continue
        counts[kind] = len(entries)
        components = [(entry, registry.load(kind, entry.qualified)) for entry in entries]
        index.append(f"\n## {kind}\n\n| name | what | from |\n|---|---|---|\n")
        index += [index_row(entry, config) for entry, config in components]
        parts = [f"# Components: {kind}\n\n[All kinds](../components.md)\n"]
        parts += [section(entry, config) for entry, config in components]
        texts[f"components/{kind}.md"] = "".join(parts)
    index.append("\n## study\n\n[Studies](studies.md) have a page of their own.\n")
    kinds = " · ".join(f"[{kind}](#{kind}) ({count})" for kind, count in counts.items())
    return {"components.md": f"{INTRO}\n{kinds} · [study](#study)\n{''.join(index)}", **texts}


def shipped() -> str:
    """For errors of the core: kind -> name -> the distribution of ours that has it, none of the core's own; a group of
    commands has the name of its first.
    """
    rows: dict[str, dict[str, str]] = {}
    for entry in sorted(scan(), key=lambda entry: entry.distribution):
        if entry.distribution.startswith("rlhf-") and entry.distribution != CORE and entry.kind != "hook":
            of_kind = rows.setdefault(entry.kind, {})
            for name in {entry.name, entry.name.partition(".")[0]}:
                of_kind.setdefault(name, entry.distribution)
    return json.dumps(rows, indent=1, sort_keys=True) + "\n"


def index_row(entry: Entry, config: type[ComponentConfig]) -> str:
    link = f"components/{entry.kind}.md#{anchor(entry.name)}"
    return f"| [{entry.name}]({link}) | {first_sentence(config)} | {entry.distribution} |\n"


def section(entry: Entry, config: type[ComponentConfig]) -> str:
    about, settings = inspect.cleandoc(config.__doc__ or ""), table(config, skip=frozenset({"name"}))
    count = max(0, settings.count("\n") - 2)
    if count > FOLDED_FROM:
        settings = f"<details><summary>{count} settings</summary>\n\n{settings}\n</details>\n"
    return f"\n## {entry.name}\n\n{about}\n\nFrom `{entry.distribution}`.{parity(entry)}\n\n{settings}"


def parity(entry: Entry) -> str:
    """How far a loss or estimator is from the peer's of the same name, where it was compared."""
    record = json.loads(PARITY.read_text())
    rows = {"loss": record["losses"], "advantage": record["advantages"]}.get(entry.kind, {})
    compared = [row for name, row in rows.items() if name.split()[0] == entry.name]
    peers = ", ".join(f"`{row['theirs']}` {row['largest_difference']:.0e}" for row in compared)
    return f" Largest difference from {record['peer']}: {peers}." if compared else ""


def first_sentence(thing: Any) -> str:
    paragraph = " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<!Dr\.)(?<=[.!?]) (?=[A-Z`])", paragraph)[0].replace("|", "\\|")


def anchor(heading: str) -> str:
    """As the usual renderers of Markdown make it. Example: ``pocket/assistant`` -> ``pocketassistant``"""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
