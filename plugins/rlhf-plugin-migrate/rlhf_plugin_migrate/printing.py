"""A translated configuration as YAML with a comment for each key."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from rlhf_plugin_migrate.case import UNFILLED
from rlhf_plugin_migrate.convert import Converted, Row

MEANINGS = {
    "same": "same",
    "other": "not quite the same",
    "unneeded": "not needed",
    "unsupported": "not supported",
    "unknown": "not translated",
}
ORDER = ("model", "dataset", "trainer", "loss", "advantage", "reward", "rollout", "strategy", "trackers")


def lines(converted: Converted, peer: str) -> Iterator[str]:
    """The file, line by line: settings with where each comes from, then the keys that set nothing."""
    yield f"# From {peer}; keys that are not here have the defaults of '{converted.algorithm}', which are not {peer}'s."
    if converted.processes > 1:
        yield f"# It is for {converted.processes} processes: rlhf train --config FILE --nproc {converted.processes}"
    if f"'{UNFILLED}'" in str(converted.config):
        yield f"# Write what is {UNFILLED}: nothing trains before."
    set_by = [(target, row, value) for row in converted.rows for target, value in row.settings.items()]
    comments = {target: comment(row) for target, row, _ in set_by}
    for target in {target for target, _, value in set_by if value == UNFILLED}:
        comments[target] = "; ".join(comment(row) for t, row, value in set_by if (t, value) == (target, UNFILLED))
    for section in sorted(converted.config, key=lambda s: ORDER.index(s) if s in ORDER else -1):
        yield from _section({section: converted.config[section]}, comments, "", 0)
    for meaning in ("unsupported", "unknown", "unneeded"):
        rows = [row for row in converted.rows if not row.settings and row.meaning == meaning]
        if rows:
            yield f"# {MEANINGS[meaning].capitalize()}:"
            yield from _grouped(rows)


def _grouped(rows: Sequence[Row]) -> Iterator[str]:
    for note in dict.fromkeys(row.note for row in rows):
        keys = ", ".join(f"{row.key}={_short(row.value)}" for row in rows if row.note == note)
        text = f"{keys}: {note}" if note else keys
        yield from textwrap.wrap(text, 116, initial_indent="#   ", subsequent_indent="#     ", break_long_words=False)


def comment(row: Row) -> str:
    """Example: ``num_generations: same``"""
    note = f"; {row.note}" if row.note and row.meaning != "same" else f" ({row.note})" if row.note else ""
    value = f"={_short(row.value)}" if row.meaning == "unknown" else ""
    return f"{row.key}{value}: {MEANINGS[row.meaning]}{note}"


def _section(data: Mapping[str, Any], comments: Mapping[str, str], prefix: str, depth: int) -> Iterator[str]:
    for key, value in data.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield f"{'  ' * depth}{key}:"
            yield from _section(value, comments, name, depth + 1)
            continue
        text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
        said = comments.get(name, f"no {prefix} is named" if value == UNFILLED else "")
        yield f"{'  ' * depth}{key}: {text.strip().removesuffix('...').strip()}" + (f"  # {said}" if said else "")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
