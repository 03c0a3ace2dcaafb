"""One episode while it is played: tokens, turns, what it cost, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlhf_core.data import Message, Prompt, PromptGroup, Tool
from rlhf_core.models import Formatter
from rlhf_core.rewards import Score
from rlhf_core.rollouts import (
    FinishReason,
    Rollout,
    RolloutRequest,
    ToolResult,
    Turn,
    TurnStatus,
    VersionSpan,
    request_seed,
)
from rlhf_core.types.messages import AssistantTurn, Segment
from rlhf_plugin_episodes.host import EpisodeProcess
from rlhf_plugin_verifiers.workers import sigkill

POLICY = "assistant"
STOPPED = "stopped"
"""Why an episode ends that is given up, after an error elsewhere or Ctrl-C."""


@dataclass(eq=False)
class Episode:
    """What was written and read so far; ``budget`` counts all tokens, ``context`` those read at once."""

    group: PromptGroup
    index: int
    seed: int
    budget: int
    context: int
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    process: EpisodeProcess = field(default_factory=EpisodeProcess)
    made: list[tuple[Mapping[str, Any], Any]] = field(default_factory=list)
    """What the environment was told and what it answered, in that order, by which it is brought back."""
    state: Any = None
    """The environment's, as kept with the last answer."""
    ready: bool = False
    """Its process has been reset."""
    seconds: float = 0.0
    requests: int = 0
    """How often the environment was asked; names its answers in the journal."""
    calls: int = 0
    ended: str = ""
    """Why the episode is over; "" while it goes on."""
    failure: Score | None = None
    policy_turns: int = 0

    def __post_init__(self) -> None:
        self.messages = [dict(m) for m in self.prompt.messages]
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._mask: list[bool] = []
        self._support_sizes: list[int] = []
        self._support: list[Any] = []
        self._contexts: list[tuple[int, tuple[int, ...]]] = []
        self._versions: list[tuple[int, int]] = []  # (first token, version of the weights that sampled from there on)
        self._finish = FinishReason.EOS

    @property
    def prompt(self) -> Prompt:
        return self.group.prompt

    @property
    def tools(self) -> Sequence[Tool]:
        return self.prompt.tools

    @property
    def name(self) -> str:
        return f"{self.prompt.id}#{self.index}"

    @property
    def read(self) -> tuple[int, ...]:
        """Everything that the policy is fed for its next turn."""
        start, prompt_ids = self._contexts[-1] if self._contexts else (0, self.group.token_ids)
        return (*prompt_ids, *self._ids[start:])

    @property
    def left(self) -> int:
        """Tokens that the policy may still write."""
        return min(self.budget - len(self._ids), self.context - len(self.read))

    def request(self, most: int | None) -> RolloutRequest:
        seed = request_seed(self.seed, "turn", self.policy_turns) if self.policy_turns else self.seed
        limit = self.left if most is None else min(self.left, most)
        return RolloutRequest(self.prompt.id, self.read, self.index, seed, limit)

    def add_policy_turn(self, rollout: Rollout, formatter: Formatter, tools: Sequence[Tool]) -> AssistantTurn:
        """Add a turn of the policy, token by token as it was sampled; ``tools`` were offered to it."""
        cut, start = rollout.finish_reason is FinishReason.LENGTH, len(self._ids)
        turn = formatter.parse(rollout.completion_ids, tools, cut=cut, earlier=self.calls)
        for span in rollout.versions:
            if not self._versions or span.version != self._versions[-1][1]:
                self._versions.append((start + span.span[0] if self._versions else 0, span.version))
        self._ids += rollout.completion_ids
        self._logprobs += rollout.logprobs_T.tolist()
        if rollout.support is not None:  # the first tokens' sizes, then ids
            self._support_sizes += rollout.support[: len(rollout.completion_ids)].tolist()
            self._support.append(rollout.support[len(rollout.completion_ids) :])
        self._mask += [True] * len(rollout.completion_ids)
        self._finish = rollout.finish_reason
        self.policy_turns += 1
        self.calls += len(turn.calls)
        status = TurnStatus.TRUNCATED if cut else TurnStatus.OK
        self.turns.append(Turn((start, len(self._ids)), POLICY, turn.message, status=status))
        self.messages.append(turn.message)
        return turn

    def observe(self, ids: Sequence[int], turns: Sequence[Turn], *, new_context: bool) -> bool:
        """Add what the policy reads next, masked; False, and nothing added, where there is no room. With
        ``new_context`` the policy is fed ``ids`` alone; ``turns`` say the same, with the tokens at the first one."""
        start = len(self._ids)
        if (self.context - len(ids) if new_context else self.left - len(ids)) < 1 or self.budget - start < 1:
            return False
        if new_context:
            self._contexts.append((start, tuple(ids)))
        else:
            self._ids += ids
            self._logprobs += [0.0] * len(ids)
            self._support_sizes += [0] * len(ids)
            self._mask += [False] * len(ids)
        end = len(self._ids)
        for n, turn in enumerate(turns):
            span = (start, end) if n == 0 else (end, end)
            self.turns.append(Turn(span, turn.role, turn.message, turn.score, turn.status, turn.seconds))
        return True

    def add_unread(self, turns: Sequence[Turn]) -> None:
        """Add turns of which the policy reads no token."""
        end = len(self._ids)
        self.turns += [replace(turn, span=(end, end)) for turn in turns]

    def end(self, why: str) -> None:
        self.ended = self.ended or why

    def stop(self) -> None:
        """Give the episode up, and kill what its environment is being asked."""
        self.end(STOPPED)
        if self.process.pid:
            sigkill([self.process.pid])

    def rollout(self, version: int) -> Rollout:
        """The episode as it was played; ``version`` sampled it unless its turns say which did."""
        first = [] if self._contexts and self._contexts[0][0] == 0 else [(0, None)]
        starts = [start for start, _ in (*first, *self._contexts)]
        prompts = [ids for _, ids in (*first, *self._contexts)]
        spans = list(zip(starts, [*starts[1:], len(self._ids)]))
        ends = [*(start for start, _ in self._versions[1:]), len(self._ids)]
        versions = tuple(VersionSpan((start, end), which) for (start, which), end in zip(self._versions, ends))
        last = next(turn for turn in reversed(self.turns) if turn.role == POLICY)
        cut = self.ended in ("context_full", "length")
        return Rollout(
            self.prompt.id,
            self.index,
            self.group.token_ids,
            tuple(self._ids),
            np.asarray(self._logprobs, np.float32),
            min(v.version for v in versions) if versions else version,
            FinishReason.LENGTH if cut else self._finish,
            last.text,
            self.seed,
            None if all(self._mask) else np.asarray(self._mask),
            {"ended": self.ended, "calls": self.calls, "turns": self.policy_turns},
            tuple(Segment(span, POLICY, ids) for span, ids in zip(spans, prompts)) if self._contexts else (),
            tuple(self.turns),
            self.failure,
            versions=versions,
            support=np.concatenate([np.array(self._support_sizes, np.int32), *self._support])
            if self._support
            else None,
        )


def episodes_of(
    groups: Sequence[PromptGroup], seeds: Sequence[Sequence[int]], budget: int, context: int
) -> list[Episode]:
    """An episode for each seed, group by group; ``budget`` and ``context`` as in :class:`Episode`."""
    return [
        Episode(group, index, seed, budget, context)
        for group, row in zip(groups, seeds, strict=True)
        for index, seed in enumerate(row)
    ]


def result_turn(message: Message, result: ToolResult, seconds: float) -> Turn:
    """What the environment answered, as ``message``; its tokens are counted where an episode adds it."""
    return Turn((0, 0), str(message["role"]), message, result.score, result.status, seconds)
