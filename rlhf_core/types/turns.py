"""The turns of an episode: who wrote which tokens, with which weights, what was said, and how it went."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from rlhf_core.types.frozen import frozen
from rlhf_core.types.messages import Message, content_of

POLICY = "assistant"
"""The role of what the policy wrote; every other role is what it read."""


class TurnStatus(enum.StrEnum):
    """How a turn went."""

    OK = "ok"
    ERROR = "error"
    """A call was no JSON, broke its schema or named no tool, or the tool said that it failed."""
    TIMEOUT = "timeout"
    """A tool did not answer before its deadline and was killed."""
    TRUNCATED = "truncated"
    """Cut: a turn of the policy by its token limit, a result by ``max_result_characters``."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of an episode.

    Example:
        Turn((12, 40), "tool", {"role": "tool", "content": "42", "tool_call_id": "call_0"}, seconds=0.2)
    """

    span: tuple[int, int]
    """First token and one past the last, as places in ``Rollout.completion_ids``, the template's marks included."""
    role: str
    """``assistant`` for what the policy sampled; ``tool``, ``user`` or ``environment`` for what it was given."""
    message: Mapping[str, Any]
    """As a chat message; JSON values only. ``content`` of the policy's turns is what it wrote besides calls."""
    score: float | None = None
    """A reward for this turn alone; None where there is none."""
    status: TurnStatus = TurnStatus.OK
    seconds: float = 0.0
    """How long the environment took."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", frozen(self.message))

    @property
    def text(self) -> str:
        """Content of the message; "" where it has none."""
        return content_of(self.message)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a completion: one author's (a turn, a tool's result), or what was sampled in one context.

    Example:
        Segment((0, 12), "assistant"), Segment((12, 40), "tool"), Segment((40, 55), "assistant")
    """

    span: tuple[int, int]
    """First token and one past the last, as places in ``completion_ids``."""
    role: str
    """``assistant`` for what the policy sampled; ``tool``, ``user`` or ``environment`` for what it was given."""
    prompt_ids: tuple[int, ...] | None = None
    """All that the policy was fed before this stretch, where its context was rewritten; None: what stands before it."""

    def __post_init__(self) -> None:
        if self.prompt_ids is not None and not self.prompt_ids:
            raise ValueError(f"segment {self.span} begins a context of no tokens")


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """A stretch of a completion that one version of the weights sampled.

    Example:
        VersionSpan((0, 31), 4), VersionSpan((31, 64), 5)
    """

    span: tuple[int, int]
    """First token and one past the last, as places in ``completion_ids``."""
    version: int
    """Optimizer updates that these weights had seen."""


def final_text(turns: Sequence[Turn]) -> str:
    """What the policy wrote in its last turn; "" if it wrote none."""
    return next((turn.text for turn in reversed(turns) if turn.role == POLICY), "")


def last_turn(turns: Sequence[Turn]) -> int:
    """Place of the policy's last turn; 0 if it has none."""
    return max((n for n, turn in enumerate(turns) if turn.role == POLICY), default=0)


def conversation(messages: Sequence[Message], turns: Sequence[Turn]) -> tuple[Message, ...]:
    """A prompt's messages and turns after them as one conversation.

    An agent may open contexts of its own, each with rules. Those are no turns of one conversation: the latest stand
    first, in the place of the prompt's own, which agents put into theirs.
    """
    whole = (*messages, *(turn.message for turn in turns))
    rules = [turn.message for turn in turns if turn.role == "system"]
    return (rules[-1], *(m for m in whole if m["role"] != "system")) if rules else whole


def fault_in(count: int, mask: Sized | None, segments: Sequence[Segment], turns: Sequence[Turn]) -> str | None:
    """What is wrong about the shape of an episode of ``count`` tokens; None if nothing is."""
    if mask is not None and len(mask) != count:
        return f"{count} tokens but a mask of {len(mask)}"
    for name, spans in (("segments", [s.span for s in segments]), ("turns", [t.span for t in turns])):
        if spans and ([start for start, _ in spans] + [count] != [0, *(end for _, end in spans)]):
            return f"{name} {spans} do not cover its {count} tokens end to end"
        if any(start > end for start, end in spans):
            return f"{name} {spans} run backwards"
    return None


def fault_in_versions(count: int, oldest: int, versions: Sequence[VersionSpan], *, rising: bool) -> str | None:
    """What is wrong about version spans of a completion of ``count`` tokens; None if nothing is.

    Args:
        count: tokens.
        oldest: the completion's policy version.
        versions: the spans; none where one version sampled all of it.
        rising: later tokens have later versions; of an episode, whose turns different servers may answer, they need
            not.
    """
    if not versions:
        return None
    spans, numbers = [v.span for v in versions], [v.version for v in versions]
    if [start for start, _ in spans] + [count] != [0, *(end for _, end in spans)] or any(a >= b for a, b in spans):
        return f"version spans {spans} do not cover its {count} tokens end to end"
    if min(numbers) != oldest or any(a == b or (rising and a > b) for a, b in itertools.pairwise(numbers)):
        return f"version spans of versions {numbers}, which do not rise from policy version {oldest}"
    return None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What an environment answers to one call; a plain ``str`` stands for a result with status ``ok``.

    Example:
        ToolResult("42", score=0.1)
    """

    content: str
    status: TurnStatus = TurnStatus.OK
    score: float | None = None
    """A reward for this result alone."""
    done: bool = False
    """The episode ends here; the policy writes no more."""


class ToolError(Exception):
    """Raised by a tool or an environment: the call was wrong. The policy reads the message, and the episode goes on."""
