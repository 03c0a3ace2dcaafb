"""What each key of another library is called here: the files in ``tables/``, read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

import yaml

PEERS = ("trl", "verl", "openrlhf")
Meaning = Literal["same", "other", "unneeded", "unsupported"]
VAGUE = frozenset(
    {"path", "name", "enable", "type", "mode", "dtype", "metric", "strategy", "steps", "dataset", "split"}
    | {"device", "target", "estimator", "model", "rank", "alpha", "seed", "optim", "batch_size", "max_length"}
)
"""Last words of dotted keys that say too little to be looked up alone."""


@dataclass(frozen=True)
class Entry:
    peer: str
    keys: tuple[str, ...]
    ours: tuple[str, ...]
    """The first of these that the algorithm has is the counterpart."""
    meaning: Meaning
    note: str = ""
    values: Mapping[Any, Any] | None = None
    """Their value -> ours; None for a value that needs no setting here."""
    rule: str = ""
    """A function of :mod:`rlhf_plugin_migrate.rules`."""
    only_if: str = ""
    """``positive``, or ``not VALUE``: other values mean that nothing is set."""
    needs: tuple[str, ...] = ()
    """Another of their keys, by its names, that has to be on."""
    unless: tuple[str, ...] = ()
    """The same, that has to be off."""
    hint: str = ""
    """What to look at where there is no counterpart."""


@dataclass(frozen=True)
class Table:
    """All keys of one library."""

    peer: str
    about: str
    entries: tuple[Entry, ...]
    processes: Sequence[Sequence[str]]
    """Keys, by their names, whose product is the number of processes."""
    programs: Mapping[str, str]
    """Their command or module -> our algorithm; "" where a key says it."""
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    """``key`` that names the algorithm, ``values`` -> ours, and the ``default``."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """Their class -> our algorithm."""
    marks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Their class -> keys that only it has."""
    trainers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Their trainer -> its parameters, in order."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Arguments in a script -> keys of the table, where those have other names."""

    @cached_property
    def by_key(self) -> Mapping[str, Entry]:
        return {key: entry for entry in self.entries for key in entry.keys}


@cache
def load_table(name: str) -> Table:
    data = yaml.safe_load((files("rlhf_plugin_migrate") / "tables" / f"{name}.yaml").read_text())
    entries = tuple(_entry(data["peer"], row) for row in data.pop("keys"))
    return Table(entries=entries, **data)


@cache
def by_last_word(name: str) -> Mapping[str, tuple[Entry, ...]]:
    """Last word of a dotted key -> its rows."""
    rows: dict[str, tuple[Entry, ...]] = {}
    for entry in load_table(name).entries:
        for key in entry.keys:
            word = key.rpartition(".")[2]
            if "." in key and word not in VAGUE:
                rows[word] = (*rows.get(word, ()), entry)
    return rows


@cache
def trl_defaults() -> Mapping[str, Mapping[str, Any]]:
    """Class of TRL -> its fields and their defaults, those that are None left out."""
    return yaml.safe_load((files("rlhf_plugin_migrate") / "tables" / "trl_defaults.yaml").read_text())


def _entry(peer: str, row: Mapping[str, Any]) -> Entry:
    fields: dict[str, Any] = {{"key": "keys", "is": "meaning"}.get(name, name): value for name, value in row.items()}
    fields |= {name: _many(fields.get(name, ())) for name in ("keys", "ours", "needs", "unless")}
    return Entry(peer=peer, **fields)


def _many(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
