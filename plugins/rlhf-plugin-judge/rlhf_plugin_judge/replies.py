"""What a service wrote: a judge's reply that may hold calls of tools; and a request that offers tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.data import Tool, write_text
from rlhf_core.rewards import JudgeReply, JudgeRequest, ScoreStatus


def digest(question: Mapping[str, Any]) -> str:
    """Hash of everything that decides an answer. Example: ``digest({"model": "m", "messages": [...]})[:8]``"""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


class Answers:
    """One small file per answer, written whole, so that processes may share the folder; None stores nothing."""

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


@dataclass(frozen=True, slots=True)
class ToolRequest(JudgeRequest):
    """A turn of a conversation whose assistant may call tools; calls and results have this toolkit's form."""

    tools: Sequence[Tool] = ()


@dataclass(frozen=True, slots=True)
class ServiceReply(JudgeReply):
    calls: Sequence[Mapping[str, str]] = ()
    """``{"id", "name", "arguments"}``; arguments as the JSON text that came."""
    stopped: str = ""
    """Why the model stopped, in the service's word."""
    paid_usd: float = 0.0
    """What the answer cost when it was paid for; kept answers, which cost nothing now, too."""


def stored_row(reply: ServiceReply, model: str, at: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "text": reply.text,
        "model": model,
        "input_tokens": reply.input_tokens,
        "output_tokens": reply.output_tokens,
        "cost_usd": reply.cost_usd,
        "at": round(at, 3),
    }
    return row | ({"calls": [dict(c) for c in reply.calls], "stopped": reply.stopped} if reply.stopped else {})


def stored_reply(row: Mapping[str, Any]) -> ServiceReply:
    """A kept answer; it costs nothing now."""
    return ServiceReply(
        row["text"],
        input_tokens=int(row.get("input_tokens", 0)),
        output_tokens=int(row.get("output_tokens", 0)),
        cached=True,
        calls=tuple(row.get("calls", ())),
        stopped=str(row.get("stopped", "")),
        paid_usd=float(row.get("cost_usd", 0.0)),
    )


def failed(status: ScoreStatus, detail: str) -> ServiceReply:
    return ServiceReply(None, status, detail)
