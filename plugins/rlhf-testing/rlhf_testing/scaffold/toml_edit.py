"""Additions to a pyproject.toml that leave every other character as it is, and are checked by parsing the result."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any


def get(data: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value at a path of keys; None if there is none."""
    for key in path:
        if not isinstance(data, Mapping) or key not in data:
            return None
        data = data[key]
    return data


def header_path(line: str) -> list[str] | None:
    """The keys of a table header. Example: ``[project.entry-points."rlhf.loss"]`` -> three keys"""
    if not line.lstrip().startswith("[") or line.lstrip().startswith("[["):
        return None
    try:
        data: Any = tomllib.loads(line + "\n")
    except tomllib.TOMLDecodeError:
        return None
    path = list[str]()
    while isinstance(data, dict) and data:
        (key, data), *_ = data.items()
        path.append(key)
    return path


def header(path: Sequence[str]) -> str:
    """The header of a table. Example: ``[project.entry-points."rlhf.loss"]``"""
    return "[" + ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"' for key in path) + "]"


def add_key(text: str, table: Sequence[str], key: str, value: str) -> str | None:
    """Add ``key = "value"`` to a table, or make it; None if that would change something else."""
    end = "\r\n" if "\r\n" in text else "\n"
    name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'
    row = f'{name} = "{value}"{end}'
    lines = text.splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if header_path(line) == list(table)), None)
    if at is None:
        start = "" if text.endswith(("\n", "\r")) or not text else end
        changed = f"{text}{start}{end}{header(table)}{end}{row}"
    else:
        top = lines[at] if lines[at].endswith(("\n", "\r")) else lines[at] + end
        changed = "".join([*lines[:at], top, row, *lines[at + 1 :]])
    return changed if _only_added(text, changed, (*table, key), value) else None


def add_item(text: str, table: Sequence[str], key: str, value: str) -> str | None:
    """Put a text at the beginning of a list that is there; None if that cannot be done."""
    before = get(tomllib.loads(text), (*table, key))
    lines = text.splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if header_path(line) == list(table)), None)
    if at is None or not isinstance(before, list):
        return None
    for i in range(at + 1, len(lines)):
        if header_path(lines[i]) is not None:
            return None
        match = re.match(rf"(\s*{re.escape(key)}\s*=\s*\[)(.*)", lines[i], re.DOTALL)
        if match:
            more, rest = ", " if before else "", match.group(2)
            own_line = before and not rest.strip()
            indent = re.match(r"\s*", lines[i + 1]).group() if own_line and i + 1 < len(lines) else ""  # pyright: ignore[reportOptionalMemberAccess]
            put = f'{match.group(1)}{rest}{indent}"{value}",{rest[len(rest.rstrip()) :] or chr(10)}' if own_line else ""
            lines[i] = put or f'{match.group(1)}"{value}"{more}{rest}'
            changed = "".join(lines)
            return changed if _only_added(text, changed, (*table, key), [value, *before]) else None
    return None


def _only_added(text: str, changed: str, path: Sequence[str], value: Any) -> bool:
    """Whether the result parses to what was there, with one value put in."""
    try:
        expected, result = tomllib.loads(text), tomllib.loads(changed)
    except tomllib.TOMLDecodeError:
        return False
    inner: Any = expected
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            return False
    inner[path[-1]] = value
    return result == expected
