"""docs/reference/migration.md: what each key of TRL, verl and OpenRLHF is called here, from the plugin's tables."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_plugin_migrate.printing import MEANINGS
from rlhf_plugin_migrate.tables import PEERS, Entry, Table, load_table

INTRO = """# Keys of TRL, verl and OpenRLHF

What `rlhf config from-trl`, `from-verl` and `from-openrlhf` make of each key ([guide](../migration.md)).
"""


def page() -> str:
    return "\n".join([INTRO, *(line for name in PEERS for line in section(load_table(name)))])


def section(table: Table) -> Iterator[str]:
    yield from (f"## {table.peer}", "", f"{table.about}.", "")
    yield from ("| key | here | |", "|---|---|---|")
    for entry in table.entries:
        if entry.ours and entry.meaning in ("same", "other"):
            yield f"| {codes(entry.keys)} | {codes(entry.ours)} | {meaning(entry)} |"
    yield from ("", "Without a counterpart:", "", "| key | | |", "|---|---|---|")
    for entry in table.entries:
        if not entry.ours or entry.meaning in ("unneeded", "unsupported"):
            yield f"| {codes(entry.keys)} | {MEANINGS[entry.meaning]} | {entry.note} |"
    yield ""


def meaning(entry: Entry) -> str:
    """Example: ``not quite the same; a hub id with a /, or a file``"""
    return "; ".join(filter(None, (MEANINGS[entry.meaning], entry.note)))


def codes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
