"""What an agent did on one task: every request, call and result, as JSON that can be replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlhf_core.data import DatasetError, Message, json_values

VERSION = 1
"""Of the JSON form; another one is refused."""
GAVE_UP = ("max_turns", "max_calls", "deadline", "context_full", "length", "bad_plan")
"""How a play ends that is not right, whatever it says: it was cut off, or gave up."""
FIX = 'name a rows.jsonl that `rlhf eval` wrote; of tau_bench also a list [{"task_id", "reward", "traj"}, ...]'

BEFORE, AFTER = 20, 60
"""Characters that are shown before the first difference of two texts, and from there on."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    name: str
    arguments: Mapping[str, Any]
    result: str
    """What the agent read, errors included."""
    status: str = "ok"
    """``ok`` or ``error``: no such tool, arguments that break its schema, or the tool said that it failed."""
    id: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelTurn:
    role: str
    """Which part of the agent asked: ``agent``, ``planner``, ``executor``, ``extractor``, ``summarizer``,
    ``synthesizer``."""
    digest: str
    """Of all that was sent; a replay compares it."""
    message: Message
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    errors: Sequence[Mapping[str, str]] = ()
    """Calls in it that could not be read: ``{"id", "name", "error"}``."""


@dataclass(frozen=True, slots=True)
class AgentTrajectory:
    """One task, played by one agent."""

    task: str
    agent: str
    backend: str
    messages: Sequence[Message]
    """The conversation; of agents with several of them all, one after the other."""
    turns: Sequence[ModelTurn]
    calls: Sequence[CallRecord]
    answer: str
    """What is judged; "" where there is none."""
    stop_reason: str = "answer"
    """``answer``, ``max_turns``, ``max_calls``, ``deadline``, ``context_full``, ``bad_plan``, ``done`` (ended by the
    task) or ``backend_error``."""
    error: str = ""
    """Why the backend gave no reply: such a trajectory has no score."""
    seconds: float = 0.0
    trial: int = 0

    @property
    def prompt_tokens(self) -> int:
        return sum(t.prompt_tokens for t in self.turns)

    @property
    def completion_tokens(self) -> int:
        return sum(t.completion_tokens for t in self.turns)

    @property
    def cost_usd(self) -> float:
        return sum(t.cost_usd for t in self.turns)

    def as_json(self) -> dict[str, Any]:
        return json_values({"version": VERSION, **asdict(self)})


def apart(recorded: str, now: str) -> str:
    """Two texts around the first character in which they differ."""
    at = next((n for n, (a, b) in enumerate(zip(recorded, now)) if a != b), min(len(recorded), len(now)))
    shown = [f"{'…' * (at > BEFORE)}{text[max(0, at - BEFORE) : at + AFTER]}" for text in (recorded, now)]
    return f"they differ from character {at + 1} on: {shown[0]!r} then, {shown[1]!r} now"


def form_of(value: Any) -> str:
    """A JSON value for people. Example: ``an object with the keys results``"""
    if isinstance(value, Mapping):
        return f"an object with the keys {', '.join(map(str, [*value][:8]))}" if value else "an empty object"
    return f"a list of {len(value)}" if isinstance(value, list) else f"{value!r:.40}"


def from_json(row: Any, where: str = "") -> AgentTrajectory:
    if not isinstance(row, Mapping) or "version" not in row:
        raise DatasetError("a row is not a trajectory", where=where, why=f"it is {form_of(row)}", fix=FIX)
    version = row.get("version")
    if version != VERSION:
        raise DatasetError(
            f"a trajectory of version {version!r} cannot be read",
            where=where,
            why=f"this package reads version {VERSION}",
            fix="record it again with this version, or read it with the one that wrote it",
        )
    fields: dict[str, Any] = {k: v for k, v in row.items() if k != "version"}
    try:
        fields["turns"] = tuple(ModelTurn(**t) for t in fields["turns"])
        fields["calls"] = tuple(CallRecord(**c) for c in fields["calls"])
        fields["messages"] = tuple(fields["messages"])
        return AgentTrajectory(**fields)
    except (KeyError, TypeError) as error:
        raise DatasetError(f"a row is not a trajectory: {error}", where=where, fix=FIX) from error
