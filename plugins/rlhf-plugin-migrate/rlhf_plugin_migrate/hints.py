"""What an unknown key stands for in TRL, verl or OpenRLHF (entry point ``rlhf.key_hints``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_core.config import Registry
from rlhf_plugin_migrate.tables import PEERS, Entry, by_last_word, load_table
from rlhf_plugin_migrate.targets import Targets

MOST = 4
"""Keys of a section that are explained."""


def hint(key: str, value: Any, registry: Registry, chosen: Mapping[str, str]) -> str:
    """A sentence about an unknown key, "" if no peer uses it."""
    targets = Targets(registry, chosen)
    if isinstance(value, Mapping):
        found = [(name, entry) for name in flat(value, key) if (entry := best(name, targets)) is not None]
        sentences = [sentence(name, entry, targets) for name, entry in found[:MOST]]
        more = f"; rlhf config from-{found[0][1].peer.lower()} FILE translates a whole file" if found else ""
        return "; ".join(sentences) + more
    entry = best(key, targets)
    return "" if entry is None else sentence(key, entry, targets)


def best(key: str, targets: Targets) -> Entry | None:
    """The row of a key: one with a counterpart in this run before one without, TRL's before the others'."""
    rows = [row for name in PEERS for row in rows_of(name, key)]
    return next((row for row in rows if target_of(row, targets)), rows[0] if rows else None)


def rows_of(peer: str, key: str) -> Iterator[Entry]:
    """Rows of one peer for a whole key, or for its last word."""
    exact = load_table(peer).by_key.get(key)
    if exact is not None:
        yield exact
    yield from by_last_word(peer).get(key, ())


def target_of(entry: Entry, targets: Targets) -> str:
    """The counterpart that the run has, "" if none."""
    return next((target for target in entry.ours if targets.exists(target)), "")


def sentence(key: str, entry: Entry, targets: Targets) -> str:
    """Example: ``TRL's learning_rate is trainer.optimizer.learning_rate here``"""
    name = f"{entry.peer}'s {key}"
    if entry.meaning == "unneeded":
        return f"{name} is not needed" + (f": {entry.note}" if entry.note else "")
    if target := target_of(entry, targets):
        note = entry.note if entry.meaning != "same" else ""
        return f"{name} is {target} here" + (f" ({note})" if note else "")
    if entry.meaning == "unsupported":
        return f"{name} has no counterpart" + (f": {entry.note}" if entry.note else "")
    algorithm = targets.chosen.get("trainer", "")
    return f"{name} has no counterpart with algorithm '{algorithm}'" + (f": {entry.note}" if entry.note else "")


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of a nested mapping."""
    rows: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        rows |= flat(inner, name) if isinstance(inner, Mapping) and inner else {name: inner}
    return rows
