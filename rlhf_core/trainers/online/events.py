"""What sampling tells the run: hooks, counts and trace rows, at once or when its batch is first learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlhf_core import hooks as hk
from rlhf_core.types import Rollout, Score

if TYPE_CHECKING:
    from rlhf_core.runs.session import RunSession


class EventSink(Protocol):
    """Is told what happens while a rollout batch is made."""

    def rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """This rank has sampled some completions."""
        ...

    def rewards(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> None:
        """They are scored."""
        ...

    def count(self, found: Mapping[str, int]) -> None:
        """Something was dropped or set aside."""
        ...

    def trace(self, room: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows for ``trace.jsonl``."""
        ...


class LiveEvents:
    """Tells the session at once.

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

    def count(self, found: Mapping[str, int]) -> None:
        """Add to the session's counts."""
        self.session.counts.update(found)

    def trace(self, room: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append to the trace."""
        self.session.trace(self.step, room, rows)


class EventLog:
    """Writes down what a producer tells, since the session belongs to the learner, and its step is not known yet."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, tuple[Any, ...]]] = []
        """(Method of :class:`EventSink`, its arguments)."""

    def rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Note it."""
        self.rows.append(("rollouts", (list(rollouts),)))

    def rewards(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> None:
        """Note it."""
        self.rows.append(("rewards", (list(rollouts), list(scores))))

    def count(self, found: Mapping[str, int]) -> None:
        """Note it."""
        self.rows.append(("count", (dict(found),)))

    def trace(self, room: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Note it."""
        self.rows.append(("trace", (room, list(rows))))

    def read_out(self, listener: EventSink, *, hooks: bool = True) -> None:
        """Tell everything, in order, or with ``hooks`` off counts and traces only; afterwards nothing is left."""
        rows, self.rows = self.rows, []
        for method, arguments in rows:
            if hooks or method in ("count", "trace"):
                getattr(listener, method)(*arguments)
