"""docs/reference/components.md, one line per component, and a page per kind with all settings."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.plugins.entry_points import CORE, Entry, scan
from rlhf_core.plugins.registry import KINDS, Registry
from scripts.reference.fields import rows_of, table_of

INTRO = """# Components

Every component that this repository ships, by kind; a link leads to its settings. A plugin of yours appears in
`rlhf plugins list`, its settings in `rlhf plugins info NAME`.
"""
PARITY = Path(__file__).parents[2] / "docs/bench/verl_parity.json"
NOT_HERE = ("study",)
"""Kinds with a page of their own."""
FOLDED_FROM = 12
"""Longer tables are folded, so that a kind's components can be skimmed; so many settings are worth a link to the class
that several components have them from."""


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
        texts[f"components/{kind}.md"] = page(kind, components)
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


def page(kind: str, components: Sequence[tuple[Entry, type[ComponentConfig]]]) -> str:
    """All settings of a kind's components: those of a class that several are made from once, under its own heading."""
    headings: dict[type[Any], str] = {config: entry.name for entry, config in reversed(components)}
    inherited = Counter(base for _, config in components for base in config.__mro__[1:])
    large = [base for base, count in inherited.items() if count > 1 and len(settings_of(base)) > FOLDED_FROM]
    nearest = {config: next((b for b in config.__mro__[1:] if b in large), None) for _, config in components}
    bases = sorted({b for b in nearest.values() if b and b not in headings}, key=lambda base: base.__name__)
    headings |= {base: base.__name__.removesuffix("Config") for base in bases}
    parts = [f"# Components: {kind}\n\n[All kinds](../components.md)\n"]
    for entry, config in components:
        about, base = inspect.cleandoc(config.__doc__ or ""), nearest[config]
        table = as_base(config, base, headings[base]) if base else folded(settings_of(config))
        parts.append(f"\n## {entry.name}\n\n{about}\n\nFrom `{entry.distribution}`.{parity(entry)}\n\n{table}")
    parts += [f"\n## {headings[base]}\n\n{folded(settings_of(base))}" for base in bases]
    return "".join(parts)


def as_base(config: type[Any], base: type[Any], heading: str) -> str:
    """A link to the settings of a class, and a table of what differs from them."""
    rows, known = settings_of(config), settings_of(base)
    gone = ", ".join(name for name in known if name not in rows)
    lead = f"Settings: those of [{heading}](#{anchor(heading)}){f', without {gone}' if gone else ''}"
    differing = {name: row for name, row in rows.items() if known.get(name) != row}
    return f"{lead}, and these (new, or with another default):\n\n{folded(differing)}" if differing else f"{lead}.\n"


def folded(rows: Mapping[str, tuple[str, ...]]) -> str:
    text = table_of(list(rows.values()))
    if len(rows) <= FOLDED_FROM:
        return text
    return f"<details><summary>{len(rows)} settings</summary>\n\n{text}\n</details>\n"


def settings_of(config: type[Any]) -> dict[str, tuple[str, ...]]:
    """Name of a setting -> its row; none for what is no component."""
    if not issubclass(config, ComponentConfig):
        return {}
    return {row[0]: row for row in rows_of(config, "", None, frozenset({"name"}))}


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
