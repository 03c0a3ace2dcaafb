"""What a service wrote: a judge's reply that may hold calls of tools; and a request that offers tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.data import Tool
from rlhf_core.rewards import JudgeReply, JudgeRequest, ScoreStatus


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


def kept_row(reply: ServiceReply, model: str, at: float) -> dict[str, Any]:
    """A reply as it is kept."""
    row: dict[str, Any] = {
        "text": reply.text,
        "model": model,
        "input_tokens": reply.input_tokens,
        "output_tokens": reply.output_tokens,
        "cost_usd": reply.cost_usd,
        "at": round(at, 3),
    }
    return row | ({"calls": [dict(c) for c in reply.calls], "stopped": reply.stopped} if reply.stopped else {})


def kept_reply(row: Mapping[str, Any]) -> ServiceReply:
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
