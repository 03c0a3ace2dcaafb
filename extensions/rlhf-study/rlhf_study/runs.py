"""Training runs and other commands, each a process of its own; a run that is there is used again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config import RlhfError, UserError, merge_settings
from rlhf_core.data import read_jsonl


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration that it was made with, every setting."""
        return json.loads((self.folder / "plan.json").read_text())["config"]

    @property
    def final(self) -> Path:
        return self.folder / "final"

    def rows(self, key: str = "") -> list[dict[str, Any]]:
        """Rows of ``metrics.jsonl``, of those that have ``key``."""
        return [row for row in read_jsonl(self.folder / "metrics.jsonl") if not key or row.get(key) is not None]

    @property
    def log(self) -> str:
        return log_of(self.folder).read_text()

    def drop_models(self) -> None:
        for name in ("final", "checkpoints"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """One configuration; later layers win, and it has one thread unless one says otherwise."""
    return reduce(merge_settings, map(dict, layers), {"threads": 1})


def train(folder: Path, *layers: Mapping[str, Any], options: Sequence[str] = ()) -> Run:
    """Make a run with this configuration, go on with it, or find it."""
    file, text = folder.with_name(f"{folder.name}.yaml"), yaml.safe_dump(layered(*layers), sort_keys=False)
    if folder.exists() and (file.read_text() if file.is_file() else "") != text:
        raise UserError(f"{folder} was made with other settings", fix="name another folder with --out")
    if not (folder / "summary.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        begun = (folder / "plan.json").is_file()
        words = ["--resume", folder] if begun else ["--config", file, "--run-dir", folder]
        rlhf("train", *options, *words, log=log_of(folder))
    return Run(folder)


def log_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def rlhf(*words: object, log: Path | None = None, path: Path | None = None) -> str:
    """Run a command of the toolkit, with what :func:`offering` put into ``path``, and return what it prints; its stderr
    is kept in ``log``."""
    command = [sys.executable, "-m", "rlhf_core.cli.main", *map(str, words)]
    env = {"RLHF_REPORT": "0", **os.environ}  # nobody looks at the pages of a study's runs
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), env.get("PYTHONPATH"))))
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if log is not None:
        log.write_text(done.stderr)
    if done.returncode:
        raise RlhfError(f"rlhf {words[0]} ended with code {done.returncode}", why=done.stderr[-2000:])
    return done.stdout


def offering(folder: Path, entries: str) -> Path:
    """A folder for PYTHONPATH whose distribution offers components that only a study wants."""
    info = folder / "offered" / "offered_by_study-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offered-by-study\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    return info.parent


def runs_in(folder: Path) -> list[Run]:
    runs = [Run(path.parent) for path in sorted(folder.glob("*/summary.json"))]
    if not runs:
        raise UserError(f"there are no finished runs in {folder}", fix=f"rlhf study run {folder.parent.name}")
    return runs
