"""The folder of one evaluation of an agent: ``settings.json``, ``rows.jsonl`` and ``report.json``."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError, JsonlFile, json_values, read_jsonl, write_json, write_text

ROOT = Path("evals")


class AgentFolder:
    """One row per task and trial; by default in ``evals/SUITE-AGENT-BACKEND-HASH``, so that equal settings resume."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.settings = json.loads(json.dumps(json_values(settings)))
        self.path = path or ROOT / self._name()
        self.rows_path = self.path / "rows.jsonl"

    def _name(self) -> str:
        words = "-".join(str(self.settings[k]["name"]) for k in ("suite", "agent", "backend"))
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', words)}-{digest}"

    def check(self) -> None:
        """Refuse a folder that holds another evaluation, or something else."""
        file = self.path / "settings.json"
        if self.path.is_dir():
            with _locked(self.path):
                pass
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--out {self.path} is a file", fix="name a folder")
        if not file.is_file():
            if self.path.is_dir() and any(self.path.iterdir()):
                raise ConfigError(
                    f"--out {self.path} holds something that is not an evaluation", fix="name another folder"
                )
            return
        try:
            then = json.loads(file.read_text())
        except ValueError as error:
            raise ConfigError(
                f"'{file}' cannot be read: {error}", fix="name another folder, or remove this one"
            ) from error
        differing = [k for k in {**then, **self.settings} if then.get(k) != self.settings.get(k)]
        if differing:
            raise ConfigError(
                f"'{self.path}' holds an evaluation with other settings",
                why=f"they differ in {', '.join(differing)}",
                fix="the same settings go on with it; for these choose another --out",
            )

    def rows(self) -> list[dict[str, Any]]:
        try:
            return list(read_jsonl(self.rows_path))
        except ValueError as error:
            raise DatasetError(
                f"'{self.rows_path}' cannot be read: {error}", fix="remove the broken line: its task is played again"
            ) from error

    def judged(self) -> set[tuple[str, int]]:
        return {(r["task"], r["trial"]) for r in self.rows() if r["value"] is not None}

    def keep(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.check()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "settings.json", self.settings)
        write_text(self.rows_path, "".join(json.dumps(json_values(r), ensure_ascii=False) + "\n" for r in rows))

    @contextmanager
    def writing(self) -> Generator[Any, None, None]:
        """Yield what appends a row, from any thread; rows without a verdict are dropped first, to be played again."""
        self.check()
        self.path.mkdir(parents=True, exist_ok=True)
        with _locked(self.path):
            write_json(self.path / "settings.json", self.settings)
            judged = [r for r in self.rows() if r["value"] is not None]
            write_text(self.rows_path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in judged))
            file, lock = JsonlFile.resume(self.rows_path), Lock()

            def append(row: Mapping[str, Any]) -> None:
                with lock:
                    file.append(row)

            try:
                yield append
            finally:
                file.close()


@contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    """Hold the folder's lock, which ends with this process; without effect where the file system has none."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another process plays into '{folder}'", fix="wait until it has ended, or name another --out"
            ) from error
        except OSError:  # no locks on this file system
            pass
        yield
    finally:
        os.close(handle)
