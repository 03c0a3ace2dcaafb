"""Answers kept on disk under a hash of the question: what was asked before costs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.data import write_text


def digest(question: Mapping[str, Any]) -> str:
    """Hash of everything that decides an answer. Example: ``digest({"model": "m", "messages": [...]})[:8]``"""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


class Answers:
    """One small file per answer, written whole or not at all, so that many processes may share the folder; None keeps
    nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def get(self, name: str) -> dict[str, Any] | None:
        if self.folder is None:
            return None
        try:
            row = json.loads(self._file(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return row if isinstance(row, dict) and isinstance(row.get("text"), str) else None

    def put(self, name: str, row: Mapping[str, Any]) -> None:
        """Keep an answer; :class:`RunDirError` if it cannot be written."""
        if self.folder is not None:
            file = self._file(name)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps(dict(row)) + "\n")

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / name[:2] / f"{name}.json"
