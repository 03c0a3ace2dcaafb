"""Agents that are programs: every episode asks the policy as it likes, and what all of them ask is sampled together."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread
from typing import Any

from rlhf_core.config import ConfigError, PluginError
from rlhf_core.data import Message, Prompt, Tool, ToolCall, json_values
from rlhf_core.models import Formatter
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.rollouts import ToolResult, Turn, TurnStatus
from rlhf_plugin_episodes.agent import EpisodePlayer
from rlhf_plugin_episodes.agent_config import EpisodeAgentConfig
from rlhf_plugin_episodes.answers import Answers
from rlhf_plugin_episodes.episode import POLICY, STOPPED, Episode, result_turn
from rlhf_plugin_episodes.schedules import Turns

STOP_S = 10.0


class EpisodeOver(BaseException):
    """The episode cannot go on: no room is left, its environment failed, or the run stops. Programs let it pass."""


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    message: Message
    calls: Sequence[ToolCall]
    """Also those that cannot run, which are not in ``message``."""
    prompt_tokens: int
    completion_tokens: int


class Conversation:
    """One episode, as a program sees it. ``prompt`` is what was asked, ``tools`` what the environment offers."""

    def __init__(self, agent: ProgramAgent, episode: Episode, version: int) -> None:
        self._agent, self.episode, self._version = agent, episode, version
        self.prompt: Prompt = episode.prompt
        self.tools: Sequence[Tool] = episode.tools
        self.responds = agent.answers.responds
        """Whether the environment may answer turns without calls."""
        self.read: Sequence[str] | None = None
        """The messages that the policy was fed and wrote last, as JSON; None before the first turn."""
        self.offered: Sequence[Tool] = ()
        self.pending: list[tuple[ToolResult, float]] = []
        """Results that the policy has not read yet."""
        self.replies: list[ToolResult] = []
        """Those of :meth:`respond`, which are the user's."""
        self.question: tuple[Sequence[Message], Sequence[Tool]] = ((), ())
        self.since, self.calling = time.monotonic(), False
        """When it went on by itself, and whether it waits for its environment, which has deadlines of its own."""
        self.events: SimpleQueue[Any] = SimpleQueue()
        self.answer: SimpleQueue[PolicyTurn | EpisodeOver] = SimpleQueue()

    @property
    def failed_unasked(self) -> bool:
        """Its score is missing, and the policy wrote nothing; a row has a turn, so that one is sampled all the same."""
        return self.read is None and self.episode.failure is not None

    def ask(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> PolicyTurn:
        """Sample the policy's next turn after these messages, the whole context, which may be others than before. As
        long as it continues the last one, tokens are never written anew."""
        self.question = (messages, tools)
        self.events.put(self)
        answer = self.answer.get()
        self.since = time.monotonic()
        if isinstance(answer, EpisodeOver):
            raise answer
        return answer

    def call(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Make calls in the environment, and return their results in their order."""
        with self._environment() as answers:
            answered = answers.step([(self.episode, calls)], self._version)[0]
        self.pending += answered
        return [result for result, _ in answered]

    def respond(self, text: str) -> str | None:
        """What the environment says to a turn without calls; None where it says nothing, and the episode may end."""
        with self._environment() as answers:
            result, seconds = answers.respond([(self.episode, text)], self._version)[0]
        if result is None:
            return None
        self.pending.append((result, seconds))
        self.replies.append(result)
        return None if result.done else result.content

    @contextlib.contextmanager
    def _environment(self) -> Generator[Answers, None, None]:
        """While it is asked; an episode that is over asks nothing, and goes no further."""
        if self.episode.ended:
            raise EpisodeOver(self.episode.ended)
        self.calling = True
        try:
            with self._agent.asking:
                yield self._agent.answers
        finally:
            self.since, self.calling = time.monotonic(), False
        if self.episode.ended:
            raise EpisodeOver(self.episode.ended)


class ProgramAgent(EpisodePlayer[EpisodeAgentConfig]):
    """Plays programs. A new context begins where a program's messages do not continue those of its last turn."""

    def __init__(self, config: EpisodeAgentConfig, formatter: Formatter, answers: Answers, context: int) -> None:
        super().__init__(config, formatter, answers, context)
        self.asking = Semaphore(config.workers)

    def play_episodes(self, episodes: Sequence[Episode], turns: Turns) -> None:
        talks = [Conversation(self, episode, turns.version) for episode in episodes]
        with _Programs(self.config, talks) as programs:
            while waiting := programs.waiting():
                self._sample([t for t in waiting if self._feed_question(t)], turns)
                turns.forget_ended(episodes)
            self._sample([talk for talk in talks if talk.failed_unasked], turns)
        for talk in talks:
            self._add_unread_results(talk)

    def _sample(self, talks: Sequence[Conversation], turns: Turns) -> None:
        if not talks:
            return
        for talk, rollout in zip(talks, turns.all([t.episode for t in talks]), strict=True):
            episode, (messages, tools) = talk.episode, talk.question
            fed = len(episode.read)
            turn = episode.add_policy_turn(rollout, self.formatter, tools)
            talk.read, talk.offered = [*map(_plain, messages), _plain(turn.message)], tools
            talk.since = time.monotonic()
            talk.answer.put(PolicyTurn(turn.message, turn.calls, fed, len(rollout.completion_ids)))

    def _feed_question(self, talk: Conversation) -> bool:
        """Feed the policy what the program asks; False, and the episode ended, where that leaves it no room."""
        episode, (messages, tools) = talk.episode, talk.question
        plain, read = [_plain(m) for m in messages], list(talk.read or ())
        same = next((n for n, (a, b) in enumerate(zip(plain, read)) if a != b), min(len(plain), len(read)))
        new = [m for m in messages[same:] if m["role"] != POLICY]
        goes_on = 0 < len(read) == same and len(new) == len(messages) - same > 0 and tools == talk.offered
        if goes_on:
            ids, anew = self.formatter.bridge(episode.read, messages, tools)
        else:
            ids, anew = self.formatter.encode(messages, tools), True
        if talk.read is None:
            of_prompt = {_plain(m) for m in talk.prompt.messages}
            new = [m for m in new if _plain(m) not in of_prompt]
            if tuple(ids) == tuple(episode.group.token_ids):
                return True
        if episode.observe(ids, _turns(talk.pending, new), new_context=anew):
            talk.pending = [] if new else talk.pending
            return True
        if talk.read is None:
            raise ConfigError(
                f"agent '{self.config.name}' has no room for its first turn of prompt {talk.prompt.id}",
                why=f"rules, tools and prompt are {len(ids)} tokens, and the policy reads {self.context}",
                fix="fewer or shorter tools, or a model that reads more",
            )
        room = self.context - len(ids) - (0 if anew else len(episode.read))
        episode.end("context_full" if room < 1 else "length")
        talk.answer.put(EpisodeOver(episode.ended))
        return False

    def _add_unread_results(self, talk: Conversation) -> None:
        """Results that nobody read count, too: they may have scores."""
        if talk.read is None:
            raise PluginError(f"agent '{self.config.name}' ended an episode without asking the policy anything")
        for result, seconds in talk.pending:
            role = "user" if any(result is reply for reply in talk.replies) else "tool"
            talk.episode.add_unread([result_turn({"role": role, "content": result.content}, result, seconds)])
        talk.pending.clear()


class _Programs:
    """The programs of all episodes, each in a thread of its own, for each waits for the policy by itself."""

    def __init__(self, config: EpisodeAgentConfig, talks: Sequence[Conversation]) -> None:
        self.config, self.talks = config, talks
        self._events: SimpleQueue[Conversation | tuple[Conversation, BaseException | None]] = SimpleQueue()
        self._open: set[int] = set()
        self._left: set[int] = set()
        self._running = len(talks)
        self._order = {id(talk): n for n, talk in enumerate(talks)}
        self._threads = [Thread(target=self._play, args=(talk,), daemon=True) for talk in talks]

    def _play(self, talk: Conversation) -> None:
        error: BaseException | None = None
        try:
            talk.episode.end(self.config.converse(talk))
        except EpisodeOver as over:
            talk.episode.end(str(over))
        except BaseException as raised:
            error = raised
        self._events.put((talk, error))

    def waiting(self) -> list[Conversation]:
        """The episodes that ask, in order, once all others have ended; [] once all have; raises what a program
        raised."""
        asking: list[Conversation] = []
        while self._running:
            try:
                event = self._events.get(timeout=self.config.program_timeout_s)
            except Empty:
                self._give_up(asking)
                continue
            if id(event[0] if isinstance(event, tuple) else event) in self._left:
                continue
            self._running -= 1
            if isinstance(event, tuple):
                self._open.discard(id(event[0]))
                if event[1] is not None:
                    raise event[1]
            else:
                asking.append(event)
        self._running = len(asking)
        return sorted(asking, key=lambda talk: self._order[id(talk)])

    def _give_up(self, asking: Sequence[Conversation]) -> None:
        """Leave behind the programs that have been at work for too long; Python cannot stop a thread."""
        limit, now = self.config.program_timeout_s or 0.0, time.monotonic()
        waiting = {id(talk) for talk in asking}
        for talk in self.talks:
            at_work = id(talk) in self._open - waiting and not talk.calling
            if at_work and now - talk.since >= limit:
                if not talk.episode.ended:
                    why = f"agent '{self.config.name}' did nothing for {limit:g} s (agent.program_timeout_s)"
                    talk.episode.failure = Score.failed(ScoreStatus.TIMEOUT, why)
                    talk.episode.end("timeout")
                talk.answer.put(EpisodeOver(talk.episode.ended))
                self._left.add(id(talk))
                self._open.discard(id(talk))
                self._running -= 1

    def __enter__(self) -> _Programs:
        self._open = set(self._order)
        for talk, thread in zip(self.talks, self._threads):
            talk.events = self._events
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """After an error or Ctrl-C: who waits is told so, and what is being asked of environments is killed."""
        for talk in self.talks:
            if id(talk) not in self._open:
                continue
            talk.episode.stop()
            talk.answer.put(EpisodeOver(STOPPED))
        until = time.monotonic() + STOP_S
        for talk, thread in zip(self.talks, self._threads):
            if id(talk) not in self._left:
                thread.join(max(0.0, until - time.monotonic()))


def _plain(message: Mapping[str, Any]) -> str:
    return json.dumps(json_values(message), sort_keys=True)


def _turns(pending: Sequence[tuple[ToolResult, float]], messages: Sequence[Message]) -> list[Turn]:
    """Messages as turns; a result's score, status and seconds go to the first that shows it, or to the last."""
    scores: dict[int, list[tuple[ToolResult, float]]] = {}
    for result, seconds in pending if messages else ():
        shown = (n for n, m in enumerate(messages) if n not in scores and result.content in (m.get("content") or ""))
        scores.setdefault(next(shown, len(messages) - 1), []).append((result, seconds))
    turns: list[Turn] = []
    for n, message in enumerate(messages):
        results = scores.get(n, [])
        paid = [r.score for r, _ in results if r.score is not None]
        refused = message["role"] == "tool" and (message.get("content") or "").startswith("Error: ")
        status = next((r.status for r, _ in results if r.status is not TurnStatus.OK), None)
        turns.append(
            Turn(
                (0, 0),
                str(message["role"]),
                message,
                sum(paid) if paid else None,
                status or (TurnStatus.ERROR if refused else TurnStatus.OK),
                sum(seconds for _, seconds in results),
            )
        )
    return turns
