"""Runs on disk as they are: a file that is missing or damaged costs what stood in it, and is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pydantic_core import from_json

from rlhf_core.config import UserError, read_yaml
from rlhf_core.runs import StoredRun
from rlhf_plugin_report.rows import is_count


@dataclass(frozen=True)
class DamagedRun(StoredRun):
    """A run of which not every file can be read; the rest is as of any run."""

    problems: tuple[str, ...] = ()
    """What is damaged, a line each."""


def open_run(name: str) -> StoredRun:
    """The run at a path, or of that name under ``runs``; a :class:`DamagedRun` where a file of it cannot be read."""
    try:
        run = StoredRun.find(name)
        if all(is_count(row.get("step")) for row in run.metrics):
            return run
        return _what_is_left(run.path)
    except UserError:
        candidates = (Path(name).expanduser(), Path("runs") / name)
        folder = next((candidate for candidate in candidates if (candidate / "plan.json").is_file()), None)
        if folder is None:
            raise
        return _what_is_left(folder)


def with_error(run: StoredRun, status: str, error: str) -> StoredRun:
    """The run with the reason why it ended, where it could not write it itself."""
    if run.summary or run.failure or not error:
        return run
    return replace(run, failure={"status": status, "error": error})


def lines_of(path: Path) -> tuple[list[Mapping[str, Any]], int]:
    """Rows of a JSONL file and the number of lines that are none, a torn last line apart."""
    if not path.is_file():
        return [], 0
    rows: list[Mapping[str, Any]] = []
    broken = 0
    for line in path.read_bytes().split(b"\n")[:-1]:
        row = parsed(line)
        if isinstance(row, Mapping):
            rows.append(cast("Mapping[str, Any]", row))
        else:
            broken += 1
    return rows, broken


def _what_is_left(folder: Path) -> DamagedRun:
    problems: list[str] = []

    def read(name: str) -> Mapping[str, Any] | None:
        file = folder / name
        if not file.is_file():
            return None
        value = parsed(file.read_bytes())
        if isinstance(value, Mapping):
            return cast("Mapping[str, Any]", value)
        problems.append(f"{name} is damaged and left out")
        return None

    plan = read("plan.json") or {}
    config = plan.get("config") or _config(folder / "config.yaml")
    rows, broken = lines_of(folder / "metrics.jsonl")
    complete = [row for row in rows if is_count(row.get("step"))]
    if broken or len(complete) < len(rows):
        problems.append(f"metrics.jsonl: {broken + len(rows) - len(complete)} damaged lines are left out")
    steps = [p.name.removeprefix("step-") for p in (folder / "checkpoints").glob("step-*")]
    return DamagedRun(
        folder,
        cast(
            "Any",
            SimpleNamespace(
                config=config if isinstance(config, Mapping) else {},
                versions=mapping(plan.get("versions")),
                components=plan.get("components") if isinstance(plan.get("components"), list) else [],
            ),
        ),
        read("summary.json"),
        read("failure.json"),
        tuple(complete),
        tuple(sorted(int(n) for n in steps if n.isdigit())),
        tuple(problems),
    )


def _config(file: Path) -> Mapping[str, Any]:
    try:
        return read_yaml(file)
    except Exception:  # whatever is wrong with it: the plan's damage is named already
        return {}


def mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def parsed(text: bytes) -> Any:
    """The value of a JSON text; None of one that is broken, or no UTF-8."""
    try:
        return from_json(text)  # twice as fast, but it takes no half of a character
    except ValueError:
        try:
            return json.loads(text)
        except ValueError:
            return None
