"""What environments answered, written down before it is used: a resumed episode writes the same calls again and finds
their answers by episode, turn and content, so that no side effect is repeated."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.data import write_text


class Journal:
    """Answers of one process of a run since the last checkpoint, and back to the one before; no folder, no files."""

    def __init__(self, folder: Path | None, rank: int = 0) -> None:
        self.folder = None if folder is None else folder / "episodes"
        self.rank = rank
        self._answers: dict[str, dict[str, Any]] = {}
        self._file: Any = None
        self._lock = threading.Lock()
        files = [file for file in self._files() if file.is_file()] if self.folder is not None else []
        for file in files:
            self._load(file)
        if files:
            self._gather()

    def _files(self) -> tuple[Path, Path]:
        assert self.folder is not None
        return self.folder / f"rank-{self.rank}.previous.jsonl", self.folder / f"rank-{self.rank}.jsonl"

    def _load(self, file: Path) -> None:
        for line in file.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # the line that was being written when the process was killed
                continue
            self._answers.setdefault(row["key"], {}).update(row)

    def _gather(self) -> None:
        """Make one current file of all, also after a kill within a checkpoint or a line."""
        previous, current = self._files()
        write_text(current, "".join(json.dumps(row) + "\n" for row in self._answers.values()))
        previous.unlink(missing_ok=True)

    def take_answer(self, key: str) -> Mapping[str, Any] | None:
        return self._answers.pop(key, None)

    def begin(self, key: str) -> None:
        """Note that a call with a side effect is about to be made."""
        self._write({"key": key, "began": True})

    def answer(self, key: str, answer: Mapping[str, Any]) -> None:
        self._write({"key": key, "answer": dict(answer)})

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.folder is None:
            return
        line = json.dumps(row).encode() + b"\n"
        with self._lock:
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._file = self._files()[1].open("ab", buffering=0)
            self._file.write(line)

    def checkpoint(self) -> None:
        """A checkpoint is being saved: what is older than the one before is needed no more."""
        if self.folder is None or self._file is None:
            return
        self.close()
        previous, current = self._files()
        current.replace(previous)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def episode_key(version: int, prompt_id: str, index: int, seed: int) -> str:
    """Names an episode; the same after a resume."""
    return f"{version}/{prompt_id}#{index}/{seed:x}"


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=list)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
