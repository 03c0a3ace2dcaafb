"""Plays many episodes at once, in turns of the policy and answers of the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Self, TypeVar

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.data import PromptGroup, ToolCall
from rlhf_core.models import Formatter
from rlhf_core.plugins.component_calls import label_for
from rlhf_core.plugins.protocols import RolloutEngine
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout, SamplingParams, ToolResult, Turn
from rlhf_plugin_episodes.agent_config import EpisodeAgentConfig, MultiTurnConfig
from rlhf_plugin_episodes.answers import Answered, Answers
from rlhf_plugin_episodes.episode import Episode, episodes_of, result_turn
from rlhf_plugin_episodes.host import EnvironmentHost
from rlhf_plugin_episodes.journal import Journal
from rlhf_plugin_episodes.schedules import Turns, play_as_ready, play_by_count
from rlhf_plugin_verifiers.workers import worker_spec

C = TypeVar("C", bound=MultiTurnConfig | EpisodeAgentConfig)


class PendingTurn(NamedTuple):
    """A turn of the policy that the environment is to answer."""

    text: str
    calls: Sequence[ToolCall]


class EpisodePlayer(Generic[C]):
    """What agents that play in an environment share; a subclass defines :meth:`play_episodes`. ``context`` is the most
    tokens that the policy reads at once."""

    def __init__(self, config: C, formatter: Formatter, answers: Answers, context: int) -> None:
        self.config, self.formatter, self.answers, self.context = config, formatter, answers, context

    @classmethod
    def from_config(cls, config: C, ctx: BuildContext) -> Self:
        environment = getattr(ctx.config, "environment", None)
        if environment is None:
            raise ConfigError(f"agent '{config.name}' plays in an environment, and there is none", fix="--env tools")
        registry = ctx.registry
        spec = worker_spec("environment", environment, registry, ctx.run_dir, config.memory_mb)
        spec["max_result_characters"] = config.max_result_characters
        label = label_for("environment", environment, registry)
        host = EnvironmentHost(spec, label, config.workers, config.start_timeout_s)
        answers = Answers(config, environment, host, Journal(ctx.run_dir, ctx.rank), label)
        model = getattr(ctx.config, "model", None)
        formats = ("auto", "auto") if model is None else (model.prompt_format, model.tool_format)
        formatter = Formatter(ctx.policy.tokenizer, *formats)
        return cls(config, formatter, answers, ctx.policy.context)

    def play(
        self,
        groups: Sequence[PromptGroup],
        seeds: Sequence[Sequence[int]],
        engine: RolloutEngine,
        sampling: SamplingParams,
        policy_version: int,
    ) -> list[Rollout]:
        episodes = episodes_of(groups, seeds, sampling.max_tokens, self.context)
        try:
            with Turns(engine, sampling, policy_version, self.config.most_turn_tokens) as turns:
                self.play_episodes(episodes, turns)
            rollouts = [episode.rollout(policy_version) for episode in episodes]
            scores = self.answers.scores(episodes, rollouts, policy_version)
            return [
                replace(rollout, score=self._judged(episode, score))
                for episode, rollout, score in zip(episodes, rollouts, scores, strict=True)
            ]
        finally:
            self.answers.release(episodes)

    def play_episodes(self, episodes: Sequence[Episode], turns: Turns) -> None:
        """Play all episodes to their ends."""
        raise NotImplementedError

    def _judged(self, episode: Episode, score: Score | None) -> Score | None:
        if score is None or not score.ok or not self.config.worthless(episode.ended):
            return score
        return replace(score, value=0.0, detail=f"ended: {episode.ended}")

    def state_dict(self) -> dict[str, Any]:
        self.answers.journal.checkpoint()
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        self.answers.close()


class MultiTurnAgent(EpisodePlayer[MultiTurnConfig]):
    def __init__(self, config: MultiTurnConfig, formatter: Formatter, answers: Answers, context: int) -> None:
        super().__init__(config, formatter, answers, context)
        self.watch: Callable[[Episode, Turn], None] = lambda episode, turn: None
        """Called with each turn as it comes, for people who watch."""

    def play_episodes(self, episodes: Sequence[Episode], turns: Turns) -> None:
        play = play_as_ready if self.config.schedule == "as_ready" else play_by_count
        play(self, episodes, turns)

    def add_policy_turn(self, episode: Episode, rollout: Rollout) -> PendingTurn | None:
        """Add a turn of the policy; what the environment is to answer, None where the episode has ended."""
        turn = episode.add_policy_turn(rollout, self.formatter, episode.tools)
        self.watch(episode, episode.turns[-1])
        if turn.calls and episode.policy_turns >= self.config.max_turns:
            episode.end("max_turns")
        elif turn.calls and episode.left < 1:
            episode.end("length")
        return None if episode.ended else PendingTurn(turn.content, turn.calls)

    def add_reply(self, episode: Episode, result: ToolResult | None, seconds: float) -> None:
        """Show the policy what the environment said to a turn without calls; None, where it says nothing, makes that
        turn the last answer."""
        if episode.ended:
            return
        if result is None:
            episode.end("answer")
            return
        turn = result_turn({"role": "user", "content": result.content}, result, seconds)
        if episode.policy_turns >= self.config.max_turns:
            self._unread(episode, [turn], "done" if result.done else "max_turns")
        else:
            self._read(episode, [turn], done=result.done)

    def add_tool_results(self, episode: Episode, calls: Sequence[ToolCall], results: Sequence[Answered]) -> None:
        """Show the policy the results of its calls."""
        if episode.ended:
            return
        rows = zip(calls, results, strict=True)
        turns = [result_turn(_message(call, result), result, seconds) for call, (result, seconds) in rows]
        self._read(episode, turns, done=any(result.done for result, _ in results))

    def _read(self, episode: Episode, turns: Sequence[Turn], *, done: bool) -> None:
        """Append messages to what the policy reads, or end the episode."""
        messages = [*episode.messages, *(turn.message for turn in turns)]
        bridge = self.formatter.bridge(episode.read, messages, episode.tools)
        if not episode.observe(bridge.ids, turns, new_context=bridge.new_segment):
            self._unread(episode, turns, "done" if done else "context_full")
            return
        episode.messages = messages
        for turn in episode.turns[-len(turns) :]:
            self.watch(episode, turn)
        if done:
            episode.end("done")

    def _unread(self, episode: Episode, turns: Sequence[Turn], why: str) -> None:
        """Keep what was said after the policy's last turn: its scores count, though no token of it is read."""
        episode.add_unread(turns)
        for turn in episode.turns[-len(turns) :]:
            self.watch(episode, turn)
        episode.end(why)


def _message(call: ToolCall, result: ToolResult) -> dict[str, Any]:
    named = {"name": call.name} if call.name else {}
    return {"role": "tool", "content": result.content, "tool_call_id": call.id, **named}
