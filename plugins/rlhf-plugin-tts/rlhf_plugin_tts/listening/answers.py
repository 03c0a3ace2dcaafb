"""Answers of listeners in a folder: every answer as it came, and the preference pairs that follow from the latest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from rlhf_core.data import DatasetError, JsonlFile, read_jsonl, write_text
from rlhf_plugin_tts.listening.trials import Trial

ANSWERS, PAIRS = "answers.jsonl", "pairs.jsonl"
CHOICES = ("A", "B", "tie")


class Answers:
    """Appends to ``answers.jsonl`` and keeps ``pairs.jsonl`` up to date; no answer is ever lost or changed."""

    def __init__(self, folder: Path, trials: Sequence[Trial], listener: str) -> None:
        self.folder, self.listener, self._lock = folder, listener, Lock()
        self.trials = {trial.id: trial for trial in trials}
        file = folder / ANSWERS
        self.rows: list[Mapping[str, Any]] = list(read_jsonl(file)) if file.is_file() else []

    @property
    def seed(self) -> int:
        """Of the order of trials and sides: another one for each listener."""
        return int.from_bytes(hashlib.sha256(self.listener.encode()).digest()[:4], "big") >> 1

    def latest(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """(Listener, trial) -> the last answer, of trials that are compared now."""
        return {(str(row["listener"]), str(row["id"])): row for row in self.rows if row.get("id") in self.trials}

    def of_listener(self) -> dict[str, Mapping[str, Any]]:
        """Trial -> answer of this listener."""
        return {trial: row for (who, trial), row in self.latest().items() if who == self.listener}

    def add(self, answer: Mapping[str, Any]) -> None:
        """Keep one answer, on the disk when this returns."""
        if (
            answer.get("id") not in self.trials
            or answer.get("answer") not in CHOICES
            or answer.get("first") not in (0, 1)
        ):
            raise DatasetError("the answer does not belong to a trial", why=f"got {dict(answer)!r:.200}")
        trial = self.trials[str(answer["id"])]
        row = {key: answer[key] for key in ("id", "answer", "first", "seconds", "at") if key in answer}
        row |= {"listener": self.listener, "kind": trial.kind, "labels": [side.label for side in trial.sides]}
        with self._lock:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = JsonlFile.resume(self.folder / ANSWERS)  # a killed server may have left half of a row
            file.append(row)
            file.offset()
            file.close()
            self.write_pairs()

    def write_pairs(self) -> int:
        """Make ``pairs.jsonl`` that of these trials, of all listeners' servers; returns how many pairs there are."""
        self.rows = list(read_jsonl(self.folder / ANSWERS))
        pairs = self.pairs()
        if self.rows:
            write_text(self.folder / PAIRS, "".join(json.dumps(p, ensure_ascii=False) + "\n" for p in pairs))
        return len(pairs)

    def pairs(self) -> list[dict[str, Any]]:
        """Rows as `rlhf data speech` writes them; where a listener heard no difference there is none."""
        rows = []
        for (listener, name), row in self.latest().items():
            if row["answer"] == "tie":
                continue
            trial = self.trials[name]
            chosen = row["first"] if row["answer"] == "A" else 1 - row["first"]
            better, worse = trial.sides[chosen], trial.sides[1 - chosen]
            texts = {"chosen": better.text, "rejected": worse.text} if better.text and worse.text else {}
            sounds = {"chosen_audio": self._relative(better.file), "rejected_audio": self._relative(worse.file)}
            labels = {"kind": trial.kind, "chosen_is": better.label, "rejected_is": worse.label}
            one = {"id": f"{name}/{listener}", "prompt": trial.prompt, **texts, **sounds, **labels}
            rows.append({**one, "source": "listening", "listener": listener})
        return rows

    def _relative(self, file: Path) -> str:
        return os.path.relpath(file.resolve(), self.folder.resolve())
