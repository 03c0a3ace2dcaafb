"""Replies of a service that is paid by the token, through the judge plugin: its cap, ledger, retries, kept answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlhf_core.rewards import ScoreStatus
from rlhf_plugin_agents.backends.base import BackendFault, ContextFull, ModelReply, ModelRequest
from rlhf_plugin_episodes.tool_spec import tool_spec
from rlhf_plugin_judge.replies import ServiceReply, ToolRequest

TOO_LONG = ("context_length_exceeded", "maximum context length", "prompt is too long", "context window")
"""What services say of a request that does not fit."""
PROBE = tool_spec("add", "Adds two numbers.", a="number", b="number")


class PaidBackend:
    """Asks a :class:`~rlhf_plugin_judge.paid.PaidService`, from several threads."""

    def __init__(self, service: Any, name: str, *, takes_tools: bool = True) -> None:
        self.service, self.name, self.takes_tools = service, name, takes_tools
        self._stopped = False

    def complete(self, request: ModelRequest) -> ModelReply:
        if self._stopped:
            raise BackendFault("interrupted")
        question = ToolRequest(
            request.key, tuple(request.messages), max_tokens=request.max_tokens, temperature=request.temperature,
            seed=request.seed, tools=tuple(request.tools),
        )  # fmt: skip
        reply: ServiceReply = self.service.ask([question])[0]
        if not reply.ok:
            if any(words in reply.detail.lower() for words in TOO_LONG):
                raise ContextFull(reply.detail)
            raise BackendFault(f"{reply.status}: {reply.detail}")
        return model_reply(reply, sum(len(m.get("tool_calls") or ()) for m in request.messages))

    def interrupt(self) -> None:
        """Send nothing more; what is in flight is still paid for, and kept."""
        self._stopped = True

    def close(self) -> None:
        self.service.close()


def model_reply(reply: ServiceReply, earlier: int) -> ModelReply:
    """A turn of the assistant; a call without a JSON object has an error, one without an id is numbered."""
    calls: list[dict[str, Any]] = []
    errors: list[dict[str, str]] = []
    for call in reply.calls:
        name, used_ids = call["id"], {c["id"] for c in calls}
        name = name if name and name not in used_ids else f"call{earlier + len(calls):05d}"
        arguments, error = _arguments(call["arguments"])
        if error:
            errors.append({"id": name, "name": call["name"], "error": error})
        calls.append({"id": name, "type": "function", "function": {"name": call["name"], "arguments": arguments}})
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or ""}
    if calls:
        message["tool_calls"] = calls
    return ModelReply(message, reply.input_tokens, reply.output_tokens, reply.paid_usd, errors)


def _arguments(text: str) -> tuple[Mapping[str, Any], str]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are not JSON: {error}"
    return (value, "") if isinstance(value, dict) else ({}, "the arguments are not a JSON object")


def probe(service: Any, *, tools: bool) -> ServiceReply:
    """Ask the service a question of a few tokens, whose answer is stored; one that a kill cut off gets another seed."""
    question = ({"role": "user", "content": "Say: ready."},)
    reply = ServiceReply(None, ScoreStatus.MISSING, "not asked")
    for seed in range(4):
        reply = service.ask(
            [ToolRequest("probe", question, max_tokens=64, seed=seed, tools=(PROBE,) if tools else ())]
        )[0]
        if reply.ok or "may have been billed" not in reply.detail:
            break
    return reply
