"""What environments answer to many episodes: from the journal where it is kept, else from their processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rlhf_core.data import ToolCall
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_core.rollouts import Rollout, ToolResult, TurnStatus
from rlhf_plugin_episodes.agent_config import EpisodeAgentConfig, MultiTurnConfig
from rlhf_plugin_episodes.episode import STOPPED, Episode
from rlhf_plugin_episodes.host import EnvironmentHost, Reply
from rlhf_plugin_episodes.journal import Journal, digest, episode_key
from rlhf_plugin_verifiers.workers import sample_to_json, score_from_json

CLOSE_S = 5.0
"""For ``close()`` of an environment; one that takes longer is killed."""
Answered = tuple[ToolResult, float]
"""A result, and the seconds that it took."""
INTERRUPTED = ToolResult(
    "Error: the run was interrupted during this call; whether it was carried out is not known", TurnStatus.ERROR
)

NOT_PURE = "brought back after a resume, the environment answered otherwise than before: it is not pure"


class Answers:
    """Asks one environment for all episodes; its Config says whether it is ``pure`` and ``stateless``."""

    def __init__(
        self,
        config: MultiTurnConfig | EpisodeAgentConfig,
        environment: Any,
        host: EnvironmentHost,
        journal: Journal,
        label: str,
    ) -> None:
        self.config, self.host, self.journal, self.label = config, host, journal, label
        self.pure = bool(getattr(environment, "pure", False))
        self.stateless = bool(getattr(environment, "stateless", False))
        self.has_score = bool(getattr(environment, "scores", True))
        self.responds = bool(getattr(environment, "responds", False))

    def step(self, calling: Sequence[tuple[Episode, Sequence[ToolCall]]], version: int) -> list[list[Answered]]:
        """Results for each episode's calls, in their order; one that its environment breaks is ended."""
        results: list[list[Answered | None]] = []
        portions: list[list[list[int]]] = []
        for _, calls in calling:
            refused = [_refused(call, n, self.config.max_calls) for n, call in enumerate(calls)]
            good = [n for n, result in enumerate(refused) if result is None]
            results.append([None if result is None else (result, 0.0) for result in refused])
            portions.append([[n] for n in good] if self.stateless else [good] if good else [])
        for turn in range(max(map(len, portions), default=0)):
            rows = [n for n, parts in enumerate(portions) if len(parts) > turn and not calling[n][0].ended]
            portion = [(calling[n][0], [calling[n][1][i] for i in portions[n][turn]]) for n in rows]
            for n, answered in zip(rows, self._portion(portion, version), strict=True):
                for i, one in zip(portions[n][turn], answered, strict=True):
                    results[n][i] = one
        skipped = (ToolResult("Error: the episode was over before this call", TurnStatus.ERROR), 0.0)
        return [[skipped if one is None else one for one in row] for row in results]

    def _portion(self, calling: Sequence[tuple[Episode, list[ToolCall]]], version: int) -> list[list[Answered]]:
        messages = [{"op": "step", "calls": [_call_json(call) for call in calls]} for _, calls in calling]
        replies = self._replies([episode for episode, _ in calling], messages, version)
        rows: list[list[Answered]] = []
        for (episode, calls), reply in zip(calling, replies, strict=True):
            if reply.status is not TurnStatus.OK:
                rows.append(self._failed(episode, reply, len(calls)))
                continue
            episode.state = reply.value["state"]
            each = reply.seconds / len(calls)
            rows.append([(_result(row), each) for row in reply.value["results"]])
        return rows

    def _failed(self, episode: Episode, reply: Reply, count: int) -> list[Answered]:
        """A call that killed its process: told to the policy where nothing is lost, else the end of the episode."""
        if not episode.ended and self.stateless and not reply.alive:
            return [(ToolResult(f"Error: {reply.detail}", reply.status), reply.seconds)] * count
        if reply.detail == INTERRUPTED.content:
            return [(INTERRUPTED, 0.0)] * count
        self._break(episode, reply)
        return [(ToolResult(f"Error: {reply.detail}", reply.status), reply.seconds)] * count

    def respond(self, silent: Sequence[tuple[Episode, str]], version: int) -> list[tuple[ToolResult | None, float]]:
        if not self.responds or not silent:
            return [(None, 0.0)] * len(silent)
        messages = [{"op": "respond", "text": text} for _, text in silent]
        replies = self._replies([episode for episode, _ in silent], messages, version)
        rows: list[tuple[ToolResult | None, float]] = []
        for (episode, _), reply in zip(silent, replies, strict=True):
            if reply.status is not TurnStatus.OK:
                self._break(episode, reply)
                rows.append((None, reply.seconds))
                continue
            answer = reply.value["answer"]
            episode.state = reply.value["state"] if answer is not None else episode.state
            rows.append((None if answer is None else _result(answer), reply.seconds))
        return rows

    def scores(self, episodes: Sequence[Episode], rollouts: Sequence[Rollout], version: int) -> list[Score | None]:
        """The environment's score of each episode; a missing one for what it broke, None where it has none."""
        scored = [n for n, episode in enumerate(episodes) if episode.failure is None and self.has_score]
        samples = [rollouts[n].sample(episodes[n].prompt) for n in scored]
        messages = [{"op": "score", "sample": _untimed(sample)} for sample in samples]
        replies = self._replies([episodes[n] for n in scored], messages, version)
        for n, reply in zip(scored, replies, strict=True):
            if reply.status is not TurnStatus.OK:
                self._break(episodes[n], reply)
            elif reply.value is not None:
                episodes[n].failure = score_from_json(reply.value)
        return [episode.failure for episode in episodes]

    def _break(self, episode: Episode, reply: Reply) -> None:
        """The environment is at fault: the score is missing, never low."""
        status = ScoreStatus.TIMEOUT if reply.status is TurnStatus.TIMEOUT else ScoreStatus.ERROR
        named = reply.detail.startswith(self.label)
        episode.failure = Score.failed(status, reply.detail if named else f"{self.label}: {reply.detail}")
        episode.end(reply.status.value)

    def _replies(self, episodes: Sequence[Episode], messages: Sequence[Mapping[str, Any]], version: int) -> list[Reply]:
        """One reply each: as it is kept, or from the environment, and then it is kept."""
        replies: dict[int, Reply] = {}
        keys: dict[int, str] = {}
        for n, (episode, message) in enumerate(zip(episodes, messages, strict=True)):
            name = episode_key(version, episode.prompt.id, episode.index, episode.seed)
            keys[n] = f"{name}/{message['op']}{episode.requests}/{digest(message)}"
            episode.requests += 1
            row = self.journal.take_answer(keys[n])
            if row is not None and "answer" in row:
                replies[n] = replace(Reply(**row["answer"]), status=TurnStatus(row["answer"]["status"]))
            elif row is not None and not self.pure and message["op"] != "score":
                replies[n] = Reply(status=TurnStatus.ERROR, detail=INTERRUPTED.content)
        missing = [n for n in range(len(episodes)) if n not in replies]
        replies |= zip(missing, self._ready([episodes[n] for n in missing]), strict=True)
        live = [n for n in missing if replies[n].status is TurnStatus.OK]
        for n in missing:
            if replies[n].status is not TurnStatus.OK:
                self._break(episodes[n], replies[n])
        for n in live if not self.pure else ():
            self.journal.begin(keys[n])
        requests = [(episodes[n].process, messages[n], self._limit(episodes[n])) for n in live]
        for n, reply in zip(live, self.host.ask(requests), strict=True):
            if reply.status is TurnStatus.TIMEOUT and self._limit(episodes[n]) < self.config.call_timeout_s:
                most = f"{self.config.episode_timeout_s:g} s of an episode (agent.episode_timeout_s)"
                reply = replace(reply, detail=f"{self.label} took more than the {most}")
            replies[n] = reply
            episodes[n].seconds += reply.seconds
            episodes[n].ready = reply.alive
            if reply.alive or episodes[n].ended != STOPPED:  # killed by us, which is no answer of the environment
                self.journal.answer(keys[n], {**asdict(reply), "status": reply.status.value})
        for n, episode in enumerate(episodes):
            if replies[n].status is TurnStatus.OK and messages[n]["op"] != "score":
                episode.made.append((messages[n], replies[n].value))
        return [replies[n] for n in range(len(episodes))]

    def _limit(self, episode: Episode) -> float:
        """Seconds for the next answer; what is left of the episode's, if that is less."""
        return min(self.config.call_timeout_s, max(self.config.episode_timeout_s - episode.seconds, 0.001))

    def _ready(self, episodes: Sequence[Episode]) -> list[Reply]:
        """Bring each episode's environment to where the episode is; one that answers otherwise than before is at
        fault."""
        replies = {n: Reply() for n in range(len(episodes))}
        fresh = [n for n, episode in enumerate(episodes) if not episode.ready]
        resets = [(episodes[n].process, _reset(episodes[n]), self.config.setup_timeout_s) for n in fresh]
        for n, reply in zip(fresh, self.host.ask(resets), strict=True):
            replies[n] = reply
            episodes[n].ready = reply.status is TurnStatus.OK
        again = [n for n in fresh if episodes[n].ready and episodes[n].state is None and not self.stateless]
        for part in range(max((len(episodes[n].made) for n in again), default=0)):
            rows = [n for n in again if len(episodes[n].made) > part and replies[n].status is TurnStatus.OK]
            requests = [(episodes[n].process, episodes[n].made[part][0], self.config.call_timeout_s) for n in rows]
            for n, reply in zip(rows, self.host.ask(requests), strict=True):
                same = reply.status is not TurnStatus.OK or reply.value == episodes[n].made[part][1]
                replies[n] = reply if same else Reply(status=TurnStatus.ERROR, detail=NOT_PURE)
        return [replies[n] for n in range(len(episodes))]

    def release(self, episodes: Sequence[Episode]) -> None:
        open_ones = [episode.process for episode in episodes if episode.process.channel is not None]
        for process, reply in zip(open_ones, self.host.ask([(p, {"op": "close"}, CLOSE_S) for p in open_ones])):
            if not reply.alive:
                process.channel = None
        self.host.release(open_ones)

    def close(self) -> None:
        self.host.close()
        self.journal.close()


def _refused(call: ToolCall, number: int, most: int) -> ToolResult | None:
    if not call.ok:
        return ToolResult(f"Error: {call.error}", TurnStatus.ERROR)
    if number >= most:
        return ToolResult(f"Error: a turn may hold {most} calls; this one was not made", TurnStatus.ERROR)
    return None


def _call_json(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": dict(call.arguments), "id": call.id}


def _result(row: Mapping[str, Any]) -> ToolResult:
    return ToolResult(row["content"], TurnStatus(row["status"]), row["score"], row["done"])


def _reset(episode: Episode) -> dict[str, Any]:
    prompt = sample_to_json(Sample(episode.prompt, ""))
    state = {} if episode.state is None else {"state": episode.state}
    return {"op": "reset", "prompt": prompt, "seed": episode.seed, **state}


def _untimed(sample: Sample) -> dict[str, Any]:
    """The sample without seconds, which differ after a resume."""
    row = sample_to_json(sample)
    return {**row, "trajectory": [{**turn, "seconds": 0.0} for turn in row.get("trajectory", ())]}
