"""Replies that were recorded: the same agent sends the same requests, and the first one that differs is named."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from rlhf_core.data import DatasetError, Message
from rlhf_plugin_agents.agents.react import writes_calls
from rlhf_plugin_agents.backends.base import BackendFault, ModelReply, ModelRequest
from rlhf_plugin_agents.trajectory import FIX, AgentTrajectory, apart, form_of, from_json


class ReplayBackend:
    """Answers from trajectories, one per task and trial."""

    name = "replay"

    def __init__(self, trajectories: Iterable[AgentTrajectory]) -> None:
        rows = [t for t in trajectories if t.turns]
        # Agents write their calls as they did then, or their requests would be other ones.
        self.takes_tools = not any(writes_calls(t.messages) for t in rows)
        self.turns = {(t.task, t.turns[0].digest): t.turns for t in rows}
        self._messages = {
            (t.task, t.turns[0].digest): t.messages for t in rows if {n.role for n in t.turns} == {"agent"}
        }
        # The seed tells the trials of a task apart, which may be played at the same time.
        self._open: dict[tuple[str, int], tuple[str, str]] = {}
        self._next_turn, self._lock = Counter[tuple[str, int]](), Lock()

    def complete(self, request: ModelRequest) -> ModelReply:
        trial, digest = (request.key, request.seed), request.digest
        with self._lock:
            if (request.key, digest) in self.turns:
                self._open[trial], self._next_turn[trial] = (request.key, digest), 0
            playing = self._open.get(trial)
            if playing is None:
                raise BackendFault(
                    f"task '{request.key}': its first request differs from what was recorded (another agent, prompt, "
                    "tools or settings), or it was not recorded"
                )
            position, turns = self._next_turn[trial], self.turns[playing]
            if position >= len(turns):
                raise BackendFault(f"task '{request.key}': {len(turns)} requests were recorded, this is one more")
            if turns[position].digest != digest:
                raise BackendFault(
                    f"task '{request.key}': request {position + 1} differs from what was recorded: a tool answered "
                    f"otherwise, or the agent changed{_difference(self._messages.get(playing, ()), request.messages)}"
                )
            self._next_turn[trial] += 1
        turn = turns[position]
        return ModelReply(turn.message, turn.prompt_tokens, turn.completion_tokens, turn.cost_usd, turn.errors)

    def close(self) -> None:
        """Nothing is held."""


def _difference(recorded: Sequence[Message], sent: Sequence[Message]) -> str:
    """Where the first text of one conversation differs from what was recorded of it; "" where no text does."""
    pairs = ((str(a.get("content")), str(b.get("content")), b) for a, b in zip(recorded, sent))
    return next((f"; of a message of role {m['role']}, {apart(a, b)}" for a, b, m in pairs if a != b), "")


def read_trajectories(path: Path) -> list[AgentTrajectory]:
    """The trajectories of a file: rows of an evaluation (``rows.jsonl``), or one trajectory a line."""
    path = _file(path)
    if not path.is_file():
        raise DatasetError(f"there are no trajectories in '{path}'", fix=FIX)
    rows = [
        from_json(line.get("trajectory", line) if isinstance(line, Mapping) else line, f"{path}, line {n}")
        for n, line in _values(path)
    ]
    if not rows:
        raise DatasetError(f"'{path}' is empty", fix=FIX)
    return rows


def _values(path: Path) -> list[tuple[int, Any]]:
    """(Number of the line, its value); half of a last line, which a killed writer leaves, is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise DatasetError(f"'{path}' is not text", why=str(error), fix=FIX) from error
    lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    values: list[tuple[int, Any]] = []
    for n, line in lines:
        try:
            values.append((n, json.loads(line)))
        except ValueError as error:
            if values and n == lines[-1][0] and not text.endswith("\n"):
                break
            why = str(error)
            with suppress(ValueError):  # JSON over several lines
                why = f"it is {form_of(json.loads(text))}"
            where = f"{path}, line {n}"
            raise DatasetError("trajectories are one JSON object a line", where=where, why=why, fix=FIX) from None
    return values


def recording_digest(path: Path) -> str:
    file = _file(path)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else ""


def _file(path: Path) -> Path:
    return path / "rows.jsonl" if path.is_dir() else path
