"""Rows that are written once, durably: ``OUT``; ``OUT.left_out.jsonl`` with what cannot be used, and why; and
``OUT.settings.json``. An item is in one of the first two, or still to be made."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError, JsonlFile, read_rows, write_json


class Store:
    """The files of one output, held by one process."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.left_out_path = path.with_name(f"{path.name}.left_out.jsonl")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = path.with_name(f".{path.name}.lock").open("w")
        except OSError as error:
            raise ConfigError(f"--output '{path}' cannot be written", why=str(error), fix="choose another") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another process is writing '{path}'", fix="wait for it, or choose another --output"
            ) from error
        check_settings(path, settings)
        self.rows, self.left_out = read_complete(path), read_complete(self.left_out_path)
        self.done = ids_of([*self.rows, *self.left_out], path)
        self._files = [JsonlFile(p, complete_bytes(p)) for p in (path, self.left_out_path)]

    def write(self, rows: Sequence[Mapping[str, Any]], left_out: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; durable when this returns."""
        for file, written, new in zip(self._files, (self.rows, self.left_out), (rows, left_out)):
            for row in new:
                file.append(row)
            if new:
                file.offset()
            written += [dict(r) for r in new]
        self.done |= {str(r["id"]): r for r in (*rows, *left_out)}

    def close(self) -> None:
        for file in self._files:
            file.close()
        if not self.left_out and not self._lock.closed:
            self.left_out_path.unlink(missing_ok=True)
        self._lock.close()


def complete_bytes(path: Path) -> int:
    """Length up to the last line end: what comes after is a line that a killed process left torn."""
    return path.read_bytes().rfind(b"\n") + 1 if path.is_file() else 0


def read_complete(path: Path) -> list[dict[str, Any]]:
    if not complete_bytes(path):
        return []
    with path.open("rb+") as file:
        file.truncate(complete_bytes(path))
    return [dict(row) for row in read_rows(str(path)).rows]


def ids_of(rows: Sequence[Mapping[str, Any]], path: Path) -> dict[str, Mapping[str, Any]]:
    row_of_id: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        name = row.get("id")
        if not isinstance(name, str) or name in row_of_id:
            why = "it has a row without an id" if not isinstance(name, str) else f"id '{name}' occurs twice"
            raise DatasetError(f"'{path}' was not written by this command", why=why, fix="choose another --output")
        row_of_id[name] = row
    return row_of_id


def check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings beside a new output; refuse to mix others into one that is there."""
    settings_file = path.with_name(f"{path.name}.settings.json")
    has_rows = path.is_file() and path.stat().st_size > 0
    if has_rows and not settings_file.is_file():
        raise ConfigError(f"--output '{path}' exists, and was not written by this command", fix="choose another")
    if settings_file.is_file():
        before = json.loads(settings_file.read_text(encoding="utf-8"))
        differing = [k for k in {**before, **settings} if before.get(k) != json.loads(json.dumps(settings.get(k)))]
        if differing and has_rows:
            shown = "; ".join(f"{k}: {str(before.get(k))[:60]} -> {str(settings.get(k))[:60]}" for k in differing)
            raise ConfigError(
                f"'{path}' was begun with other settings",
                why=shown,
                fix="go on with the same, or choose another --output",
            )
    write_json(settings_file, settings)
