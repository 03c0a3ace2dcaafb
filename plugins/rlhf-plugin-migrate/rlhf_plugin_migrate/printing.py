"""A translated configuration as YAML with a comment for each key."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

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
    comments = {target: comment(row) for row in converted.rows for target in row.settings}
    for section in sorted(converted.config, key=lambda s: ORDER.index(s) if s in ORDER else -1):
        yield from _section({section: converted.config[section]}, comments, "", 0)
    if "dataset" not in converted.config:
        yield "# No data set is named: add a section dataset, or --dataset."
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
    return f"{row.key}: {MEANINGS[row.meaning]}{note}"


def _section(data: Mapping[str, Any], comments: Mapping[str, str], prefix: str, depth: int) -> Iterator[str]:
    for key, value in data.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield f"{'  ' * depth}{key}:"
            yield from _section(value, comments, name, depth + 1)
            continue
        text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
        comment = f"  # {comments[name]}" if name in comments else ""
        yield f"{'  ' * depth}{key}: {text.strip().removesuffix('...').strip()}{comment}"


def _short(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
