"""In which order turns are sampled and calls answered: by counts, or whoever is ready (ADR 0016)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from rlhf_core.plugins.protocols import ReportsProgress
from rlhf_core.rollouts import Rollout, SamplingParams
from rlhf_plugin_episodes.episode import Episode

if TYPE_CHECKING:
    from rlhf_core.plugins.protocols import RolloutEngine
    from rlhf_plugin_episodes.agent import MultiTurnAgent, PendingTurn

STEPS = 4
"""Tokens decoded between two looks at which calls have been answered."""


class Turns:
    """Samples turns of at most ``most`` tokens (None: the rest), by the engine's stream or in one call for all."""

    def __init__(self, engine: RolloutEngine, sampling: SamplingParams, version: int, most: int | None) -> None:
        self.engine, self.sampling, self.version, self.most = engine, sampling, version, most
        self.stream: Any = None
        self._forgotten: set[Episode] = set()

    def __enter__(self) -> Turns:
        opens = getattr(self.engine, "open_stream", None)
        self.stream = None if opens is None else opens(self.sampling, self.version)
        return self

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.close()

    def all(self, episodes: Sequence[Episode]) -> list[Rollout]:
        requests = [episode.request(self.most) for episode in episodes]
        if self.stream is None:
            return self.engine.generate(requests, self.sampling, self.version)
        for episode, request in zip(episodes, requests, strict=True):
            self.stream.submit(episode, request)
        rollouts: dict[Episode, Rollout] = {}
        while self.stream.waiting:
            rollouts |= self.take()
        return [rollouts[episode] for episode in episodes]

    def take(self, steps: int | None = None) -> list[tuple[Episode, Rollout]]:
        """Turns of the stream that have ended."""
        assert self.stream is not None
        return [(cast("Episode", episode), rollout) for episode, rollout in self.stream.take(steps)]

    def forget_ended(self, episodes: Sequence[Episode]) -> None:
        """Nothing is kept of episodes that have ended, and whoever shows progress hears of each, once."""
        if self.stream is None:
            return
        on_ended = self.engine.on_ended if isinstance(self.engine, ReportsProgress) else None
        for episode in [e for e in episodes if e.ended and e not in self._forgotten]:
            self._forgotten.add(episode)
            self.stream.forget(episode)
            if on_ended is not None:
                on_ended(1)


def play_by_count(agent: MultiTurnAgent, episodes: Sequence[Episode], turns: Turns) -> None:
    """All that wait for the policy are sampled together, then all that they called is answered."""
    while live := [episode for episode in episodes if not episode.ended]:
        added = [(e, agent.add_policy_turn(e, rollout)) for e, rollout in zip(live, turns.all(live), strict=True)]
        pending = [(episode, turn) for episode, turn in added if turn is not None]
        silent = [(episode, turn.text) for episode, turn in pending if not turn.calls]
        for (episode, _), reply in zip(silent, agent.answers.respond(silent, turns.version), strict=True):
            agent.add_reply(episode, *reply)
        calling = [(episode, turn.calls) for episode, turn in pending if turn.calls]
        for (episode, calls), results in zip(calling, agent.answers.step(calling, turns.version), strict=True):
            agent.add_tool_results(episode, calls, results)
        turns.forget_ended(live)


def play_as_ready(agent: MultiTurnAgent, episodes: Sequence[Episode], turns: Turns) -> None:
    """Whoever has its results is decoded; an engine without streams is asked as by :func:`play_by_count`."""
    stream = turns.stream
    if stream is None:
        play_by_count(agent, episodes, turns)
        return
    with _Asking(agent, turns.version) as asking:
        for episode in episodes:
            stream.submit(episode, episode.request(turns.most))
        while stream.waiting or asking.count:
            for episode in asking.answered(wait=not stream.waiting):
                turns.forget_ended([episode])
                if not episode.ended:
                    stream.submit(episode, episode.request(turns.most))
            for episode, rollout in turns.take(STEPS) if stream.waiting else ():
                pending = agent.add_policy_turn(episode, rollout)
                turns.forget_ended([episode])
                if pending is not None:
                    asking.ask(episode, pending)


class _Asking:
    """Asks environments beside the decoding, one thread for each episode that waits; ``workers`` at most."""

    def __init__(self, agent: MultiTurnAgent, version: int) -> None:
        self.agent, self.version = agent, version
        self._threads = ThreadPoolExecutor(agent.config.workers, thread_name_prefix="episode")
        self._waiting: dict[Episode, PendingTurn] = {}
        self._answers: SimpleQueue[tuple[Episode, Future[Any]]] = SimpleQueue()

    @property
    def count(self) -> int:
        return len(self._waiting)

    def ask(self, episode: Episode, pending: PendingTurn) -> None:
        answers, version = self.agent.answers, self.version
        work = (
            (lambda: answers.step([(episode, pending.calls)], version)[0])
            if pending.calls
            else (lambda: answers.respond([(episode, pending.text)], version)[0])
        )
        self._waiting[episode] = pending
        self._threads.submit(work).add_done_callback(lambda future: self._answers.put((episode, future)))

    def answered(self, *, wait: bool) -> list[Episode]:
        """Episodes whose answers have come, and have been told to the policy; ``wait`` for one at least."""
        answered: list[Episode] = []
        while self._waiting and ((wait and not answered) or not self._answers.empty()):
            episode, future = self._answers.get()  # an answer is late after its deadline, and then it is one as well
            pending, answer = self._waiting.pop(episode), future.result()
            if pending.calls:
                self.agent.add_tool_results(episode, pending.calls, answer)
            else:
                self.agent.add_reply(episode, *answer)
            answered.append(episode)
        return answered

    def __enter__(self) -> _Asking:
        return self

    def __exit__(self, *_: object) -> None:
        """After an error or Ctrl-C: what is still being asked is killed."""
        for episode in self._waiting:
            episode.stop()
        self._threads.shutdown(wait=True, cancel_futures=True)
