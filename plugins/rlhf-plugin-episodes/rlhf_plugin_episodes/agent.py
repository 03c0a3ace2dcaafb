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
from rlhf_core.rollouts import FinishReason, Rollout, SamplingParams, ToolResult, Turn
from rlhf_plugin_episodes.agent_config import EpisodeAgentConfig, MultiTurnConfig
from rlhf_plugin_episodes.answers import Answers
from rlhf_plugin_episodes.episode import Episode, episodes_of
from rlhf_plugin_episodes.host import EnvironmentHost
from rlhf_plugin_episodes.journal import Journal
from rlhf_plugin_episodes.schedules import Turns, play_as_ready, play_by_count
from rlhf_plugin_verifiers.workers import worker_spec

C = TypeVar("C", bound=MultiTurnConfig | EpisodeAgentConfig)


class Written(NamedTuple):
    """What the environment is to answer."""

    text: str
    calls: Sequence[ToolCall]


class EpisodePlayer(Generic[C]):
    """What agents that play in an environment share; ``context`` is the most tokens that the policy reads at once."""

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

    def play(
        self,
        groups: Sequence[PromptGroup],
        seeds: Sequence[Sequence[int]],
        engine: RolloutEngine,
        sampling: SamplingParams,
        policy_version: int,
    ) -> list[Rollout]:
        episodes = episodes_of(groups, seeds, sampling.max_tokens, self.context)
        play = play_as_ready if self.config.schedule == "as_ready" else play_by_count
        try:
            with Turns(engine, sampling, policy_version, self.config.max_turn_tokens) as turns:
                play(self, episodes, turns, policy_version)
            rollouts = [episode.rollout(policy_version) for episode in episodes]
            scores = self.answers.scores(episodes, rollouts, policy_version)
            return [replace(rollout, score=score) for rollout, score in zip(rollouts, scores, strict=True)]
        finally:
            self.answers.release(episodes)

    def took(self, episode: Episode, rollout: Rollout) -> Written | None:
        """Add a turn of the policy; what the environment is to answer, None where the episode has ended."""
        cut = rollout.finish_reason is FinishReason.LENGTH
        turn = self.formatter.parse(rollout.completion_ids, episode.tools, cut=cut, earlier=episode.calls)
        episode.wrote(rollout, turn.message)
        self.watch(episode, episode.turns[-1])
        episode.calls += len(turn.calls)
        if turn.calls and episode.policy_turns >= self.config.max_turns:
            episode.end("max_turns")
        elif turn.calls and episode.left < 1:
            episode.end("length")
        return None if episode.ended else Written(turn.content, turn.calls)

    def respond(self, silent: Sequence[tuple[Episode, str]], version: int) -> None:
        """Turns without calls: the last answer, unless the environment answers that too."""
        for (episode, _), (result, seconds) in zip(silent, self.answers.respond(silent, version), strict=True):
            self.replied(episode, result, seconds)

    def replied(self, episode: Episode, result: ToolResult | None, seconds: float) -> None:
        """Show the policy what the environment said to a turn without calls; None is nothing."""
        if episode.ended:
            return
        if result is None:
            episode.end("answer")
            return
        message = {"role": "user", "content": result.content}
        turn = Turn((0, 0), "user", message, result.score, result.status, seconds)
        if episode.policy_turns >= self.config.max_turns:
            self._unread(episode, [turn], "done" if result.done else "max_turns")
        else:
            self._read(episode, [turn], done=result.done)

    def tell(self, episode: Episode, calls: Sequence[ToolCall], results: Sequence[tuple[ToolResult, float]]) -> None:
        if episode.ended:
            return
        turns = [
            Turn((0, 0), "tool", _message(call, result), result.score, result.status, seconds)
            for call, (result, seconds) in zip(calls, results, strict=True)
        ]
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
