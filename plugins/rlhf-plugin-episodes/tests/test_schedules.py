"""Schedules: who is decoded while others wait for their tools."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.plugins.contracts import CheckedEngine
from rlhf_core.types.errors import PluginError
from rlhf_core.types.rollouts import Prompt, PromptGroup, Rollout, RolloutRequest, SamplingParams, ScoreStatus
from rlhf_plugin_episodes.agent_config import MultiTurnConfig
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_verifiers.workers import descendants

from .conftest import Scripted, Stage, call


class Streaming(Scripted):
    """Writes turns one after the other, as they are submitted."""

    def open_stream(self, sampling: SamplingParams, policy_version: int) -> Streaming:
        self.asked: list[tuple[Hashable, RolloutRequest]] = []
        self.forgotten, self.closed, self.version = list[Any](), False, policy_version
        return self

    @property
    def waiting(self) -> int:
        return len(self.asked)

    def submit(self, episode: Hashable, request: RolloutRequest) -> None:
        self.asked.append((episode, request))

    def take(self, steps: int | None = None) -> list[tuple[Hashable, Rollout]]:
        episode, request = self.asked.pop(0)
        self.requests.append(request)
        return [(episode, self._one(request, self.version))]

    def forget(self, episode: Hashable) -> None:
        self.forgotten.append(episode)

    def close(self) -> None:
        self.closed = True


def order(stage: Stage) -> list[str]:
    assert stage.engine is not None
    return [request.prompt_id for request in stage.engine.requests]


SCRIPT = {
    "slow": [call("sleep", "0.6"), "Slow."],
    "quick": [call("echo", "1"), call("echo", "2"), call("echo", "3"), "Quick."],
    "talks": ["No call."],
}


def test_nobody_waits_for_a_slow_tool(stage: Stage) -> None:
    rollouts = stage.play(SCRIPT, engine=Streaming, schedule="as_ready", call_timeout_s=20)
    assert [r.text for r in rollouts] == ["Slow.", "Quick.", "No call."]
    assert order(stage)[-1] == "slow"
    assert isinstance(stage.engine, Streaming)
    assert stage.engine.closed
    assert {episode.prompt.id for episode in stage.engine.forgotten} == set(SCRIPT)


@pytest.mark.parametrize("schedule", ["by_count", "as_ready"])
def test_an_engine_without_streams_plays_in_turns(schedule: str, stage: Stage) -> None:
    rollouts = stage.play(SCRIPT, schedule=schedule, call_timeout_s=20)
    assert [r.text for r in rollouts] == ["Slow.", "Quick.", "No call."]
    assert stage.engine is not None
    assert stage.engine.batches == [3, 2, 1, 1]


@pytest.mark.parametrize("schedule", ["by_count", "as_ready"])
def test_what_is_broken_or_late_has_no_score_and_the_others_play_on(schedule: str, stage: Stage) -> None:
    script = {"hang": [call("hang")], "exit": [call("exit")], "good": [call("echo", "1"), "Done."]}
    hang, exited, good = stage.play(script, engine=Streaming, schedule=schedule)
    assert (hang.score and hang.score.status) == ScoreStatus.TIMEOUT
    assert (exited.score and exited.score.status) == ScoreStatus.ERROR
    assert (good.text, good.score and good.score.value) == ("Done.", 1.0)


def test_a_wrong_type_ends_the_run_at_once_and_leaves_no_call(stage: Stage) -> None:
    script = {"hang": [call("hang")], "wrong": [call("echo"), call("wrong")]}
    before = descendants(os.getpid())
    with pytest.raises(PluginError, match="returned int 12"):
        stage.play(script, engine=Streaming, schedule="as_ready", call_timeout_s=600)
    for agent in stage.agents:
        agent.close()
    assert not {*descendants(os.getpid())} - {*before}


@pytest.mark.slow
def test_schedules_sample_the_same_episodes(naughty: Path, small_model: Path, tmp_path: Path) -> None:
    """The native engine over a small model, which writes nonsense; the environment answers twice."""
    from rlhf_core.models.load import load_policy

    policy = load_policy(ModelConfig(path=str(small_model), chat_template="hermes"))
    tokenizer = load_tokenizer(ModelConfig(path="pocket", chat_template="hermes"))
    formatter = Formatter(tokenizer, "auto")
    results: dict[str, list[Any]] = {}
    stage = Stage(tokenizer, None)
    try:
        for name, keep, schedule in (("plain", 0, "by_count"), ("kept", 8, "by_count"), ("ready", 8, "as_ready")):
            environment = {"name": "effects", "file": str(tmp_path / f"{name}.txt")}
            agent = stage.agent(environment, {"schedule": schedule, "max_turn_tokens": 6, "call_timeout_s": 30})
            prompts = [Prompt(f"q{n}", ({"role": "user", "content": f"{n}?"},), tools=stage.tools) for n in range(3)]
            groups = [PromptGroup(prompt, formatter.encode_prompt(prompt), 2) for prompt in prompts]
            engine: Any = NativeEngine(policy.model, tokenizer, 1024, keep_mib=keep)
            ended: list[int] = []
            engine = CheckedEngine(engine, "the engine")
            seeds = [[10 * n + g for g in range(2)] for n in range(3)]
            with engine.reporting(ended.append):
                rollouts = agent.play(groups, seeds, engine, SamplingParams(max_tokens=160), 0)
            results[name] = [(r.completion_ids, r.score, len(r.turns), r.info) for r in rollouts]
            assert sum(ended) == 6
    finally:
        for agent in stage.agents:
            agent.close()
    assert results["plain"] == results["kept"] == results["ready"]
    assert max(turns for _, _, turns, _ in results["plain"]) >= 5


def test_the_plan_says_what_cannot_be_repeated() -> None:
    assert MultiTurnConfig().conditions() == {}
    assert "not exactly repeatable" in MultiTurnConfig(schedule="as_ready").conditions()["schedule"]


def test_a_context_that_is_full_ends_the_episode_and_no_other(stage: Stage) -> None:
    script = {"full": [call("huge"), "never written"], "good": [call("echo", "1"), "Done."]}
    full, good = stage.play(script, engine=Streaming, schedule="as_ready", max_tokens=300, call_timeout_s=20)
    assert (full.info["ended"], full.finish_reason.value) == ("context_full", "length")
    assert [turn.role for turn in full.turns] == ["assistant", "tool"]  # what had no room was not read
    assert full.turns[-1].span[0] == full.turns[-1].span[1]
    assert (good.text, good.info["ended"]) == ("Done.", "answer")
    assert isinstance(stage.engine, Streaming)
    assert {episode.prompt.id for episode in stage.engine.forgotten} == set(script)


class Interrupted(Streaming):
    """Ctrl-C while the first call is under way."""

    def take(self, steps: int | None = None) -> list[tuple[Hashable, Rollout]]:
        if self.requests:
            time.sleep(0.3)
            raise KeyboardInterrupt
        return super().take(steps)


@pytest.mark.slow
def test_a_call_that_ctrl_c_has_killed_is_made_again(naughty: Path, tokenizer: Any, tmp_path: Path) -> None:
    script = {"slow": [call("sleep", "1"), "Done."], "talks": ["No call."]}
    stages = [Stage(tokenizer, tmp_path / "run") for _ in range(2)]
    try:
        with pytest.raises(KeyboardInterrupt):
            stages[0].play(script, engine=Interrupted, schedule="as_ready", call_timeout_s=20)
        stages[0].agents[0].close()
        slow = stages[1].play(script, engine=Streaming, schedule="as_ready", call_timeout_s=20)[0]
    finally:
        for stage in stages:
            for agent in stage.agents:
                agent.close()
    assert [turn.text for turn in slow.turns] == ["", "slept", "Done."]
    assert slow.score is not None
    assert slow.score.ok
