"""In which order turns are sampled and calls answered: by counts, or whoever is ready (ADR 0016)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from rlhf_core.plugins.protocols import ReportsProgress
from rlhf_core.rollouts import Rollout, SamplingParams
from rlhf_plugin_episodes.episode import STOPPED, Episode
from rlhf_plugin_verifiers.workers import sigkill

if TYPE_CHECKING:
    from rlhf_core.plugins.protocols import RolloutEngine
    from rlhf_plugin_episodes.agent import MultiTurnAgent, Written

STEPS = 4
"""Tokens decoded between two looks at which calls have been answered."""


class Turns:
    """Samples turns of at most ``most`` tokens (None: the rest), by the engine's stream or in one call for all."""

    def __init__(self, engine: RolloutEngine, sampling: SamplingParams, version: int, most: int | None) -> None:
        self.engine, self.sampling, self.version, self.most = engine, sampling, version, most
        self.stream: Any = None
        self._over: set[Episode] = set()

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

    def over(self, episode: Episode) -> None:
        """The episode has ended: nothing of it is kept, and whoever shows progress hears of it, once."""
        if self.stream is None or episode in self._over:
            return
        self._over.add(episode)
        self.stream.forget(episode)
        on_ended = self.engine.on_ended if isinstance(self.engine, ReportsProgress) else None
        if on_ended is not None:
            on_ended(1)


def play_by_count(agent: MultiTurnAgent, episodes: Sequence[Episode], turns: Turns, version: int) -> None:
    """All that wait for the policy are sampled together, then all that they called is answered."""
    while live := [episode for episode in episodes if not episode.ended]:
        written = [(e, agent.took(e, rollout)) for e, rollout in zip(live, turns.all(live), strict=True)]
        agent.respond([(e, w.text) for e, w in written if w is not None and not w.calls], version)
        calling = [(e, w.calls) for e, w in written if w is not None and w.calls]
        for (episode, calls), results in zip(calling, agent.answers.step(calling, version), strict=True):
            agent.tell(episode, calls, results)
        for episode in live:
            if episode.ended:
                turns.over(episode)


def play_as_ready(agent: MultiTurnAgent, episodes: Sequence[Episode], turns: Turns, version: int) -> None:
    """Whoever has its results is decoded; an engine without streams is asked as by :func:`play_by_count`."""
    stream = turns.stream
    if stream is None:
        play_by_count(agent, episodes, turns, version)
        return
    with _Asking(agent, version) as asking:
        for episode in episodes:
            stream.submit(episode, episode.request(turns.most))
        while stream.waiting or asking.count:
            for episode in asking.answered(wait=not stream.waiting):
                if episode.ended:
                    turns.over(episode)
                else:
                    stream.submit(episode, episode.request(turns.most))
            for episode, rollout in turns.take(STEPS) if stream.waiting else ():
                written = agent.took(episode, rollout)
                if written is None:
                    turns.over(episode)
                else:
                    asking.ask(episode, written)


class _Asking:
    """Asks environments beside the decoding, one thread for each episode that waits; ``workers`` at most."""

    def __init__(self, agent: MultiTurnAgent, version: int) -> None:
        self.agent, self.version = agent, version
        self._threads = ThreadPoolExecutor(agent.config.workers, thread_name_prefix="episode")
        self._waiting: dict[Episode, Written] = {}
        self._answers: SimpleQueue[tuple[Episode, Future[Any]]] = SimpleQueue()

    @property
    def count(self) -> int:
        return len(self._waiting)

    def ask(self, episode: Episode, written: Written) -> None:
        answers, version = self.agent.answers, self.version
        work = (
            (lambda: answers.step([(episode, written.calls)], version)[0])
            if written.calls
            else (lambda: answers.respond([(episode, written.text)], version)[0])
        )
        self._waiting[episode] = written
        self._threads.submit(work).add_done_callback(lambda future: self._answers.put((episode, future)))

    def answered(self, *, wait: bool) -> list[Episode]:
        """Episodes whose answers have come, and have been told to the policy; ``wait`` for one at least."""
        answered: list[Episode] = []
        while self._waiting and ((wait and not answered) or not self._answers.empty()):
            episode, future = self._answers.get()  # an answer is late after its deadline, and then it is one as well
            written, answer = self._waiting.pop(episode), future.result()
            if written.calls:
                self.agent.tell(episode, written.calls, answer)
            else:
                self.agent.replied(episode, *answer)
            answered.append(episode)
        return answered

    def __enter__(self) -> _Asking:
        return self

    def __exit__(self, *_: object) -> None:
        """After an error or Ctrl-C: what is still being asked is killed."""
        for episode in self._waiting:
            episode.end(STOPPED)
            if episode.process.pid:
                sigkill([episode.process.pid])
        self._threads.shutdown(wait=True, cancel_futures=True)
