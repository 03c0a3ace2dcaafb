"""The tables as Markdown, for docs/migration.md: ``python -m rlhf_plugin_migrate.page docs/migration.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rlhf_plugin_migrate.printing import MEANINGS
from rlhf_plugin_migrate.tables import PEERS, Entry, Table, load_table

MARK = "<!-- tables: written by python -m rlhf_plugin_migrate.page -->"


def with_tables(text: str) -> str:
    """A page with everything after :data:`MARK` written anew."""
    return text.partition(MARK)[0] + MARK + "\n\n" + "\n".join(sections())


def sections() -> Iterator[str]:
    """One section per library."""
    for name in PEERS:
        table = load_table(name)
        yield from (f"## {table.peer}", "", f"{table.about}.", "")
        yield from _rows(table)


def _rows(table: Table) -> Iterator[str]:
    yield from ("| key | here | |", "|---|---|---|")
    for entry in table.entries:
        if entry.ours and entry.meaning in ("same", "other"):
            yield f"| {_codes(entry.keys)} | {_codes(entry.ours)} | {_told(entry)} |"
    yield from ("", "Without a counterpart of their own:", "", "| key | | |", "|---|---|---|")
    for entry in table.entries:
        if not entry.ours or entry.meaning in ("unneeded", "unsupported"):
            yield f"| {_codes(entry.keys)} | {MEANINGS[entry.meaning]} | {entry.note} |"
    yield ""


def _told(entry: Entry) -> str:
    return "; ".join(filter(None, (MEANINGS[entry.meaning], entry.note)))


def _codes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_tables(page.read_text()))
