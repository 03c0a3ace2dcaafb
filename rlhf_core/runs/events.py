"""What happens while a rollout batch is made: hooks, counts and trace rows, at once or when the batch is first used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlhf_core.plugins import hooks as hk
from rlhf_core.types.rollouts import Rollout, Score

if TYPE_CHECKING:
    from rlhf_core.runs.session import RunSession

Event = tuple[str, tuple[Any, ...]]
"""Method of :class:`EventSink`, and its arguments."""
RECORDS = ("count", "trace")
"""Events that are no hooks."""


class EventSink(Protocol):
    """Receives what happens while a rollout batch is made."""

    def rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """This rank has sampled some completions."""
        ...

    def rewards(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> None:
        """They are scored."""
        ...

    def count(self, counts: Mapping[str, int]) -> None:
        """Something was dropped or filtered."""
        ...

    def trace(self, stage: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows for ``trace.jsonl``."""
        ...


class LiveEvents:
    """Passes events on to the run at once.

    Args:
        session: hooks, counts and trace.
        step: that the batch belongs to.
    """

    def __init__(self, session: RunSession, step: int) -> None:
        self.session, self.step = session, step

    def rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Fire ``rlhf_rollouts_ready``."""
        self.session.hooks.fire("rlhf_rollouts_ready", hk.RolloutsReady(self.step, rollouts))

    def rewards(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> None:
        """Fire ``rlhf_rewards_ready``."""
        self.session.hooks.fire("rlhf_rewards_ready", hk.RewardsReady(self.step, rollouts, scores))

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to the run's counts."""
        self.session.counts.update(counts)

    def trace(self, stage: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append to the trace."""
        self.session.trace(self.step, stage, rows)


class EventLog:
    """Keeps events, since the session belongs to the learner's thread, and the step is not known yet."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Keep it."""
        self.events.append(("rollouts", (list(rollouts),)))

    def rewards(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> None:
        """Keep it."""
        self.events.append(("rewards", (list(rollouts), list(scores))))

    def count(self, counts: Mapping[str, int]) -> None:
        """Keep it."""
        self.events.append(("count", (dict(counts),)))

    def trace(self, stage: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep it."""
        self.events.append(("trace", (stage, list(rows))))


def replay(events: Sequence[Event], sink: EventSink, *, hooks: bool = True) -> None:
    """Pass kept events on, in order; with ``hooks`` off counts and trace rows only."""
    for method, arguments in events:
        if hooks or method in RECORDS:
            getattr(sink, method)(*arguments)
