"""The agents of the suites play episodes of a training run, in an environment of the suite's tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import Prompt, PromptGroup
from rlhf_core.models import Formatter, ModelConfig, load_tokenizer
from rlhf_core.rollouts import FinishReason, Rollout, SamplingParams
from rlhf_eval.episodes import job_of
from rlhf_plugin_agents.agents.base import FINAL
from rlhf_plugin_agents.play import MultiAgentPlay, ReactPlay
from rlhf_plugin_agents.suites.environment import AgentSuiteData, AgentSuiteEnvironment
from rlhf_testing import make_context

TASK = "tool_use/1"


class Writes:
    """An engine that writes one text after the other."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self.tokenizer, self.texts, self.read = tokenizer, list(texts), list[str]()

    def generate(self, requests: Sequence[Any], sampling: SamplingParams, policy_version: int) -> list[Rollout]:
        (request,) = requests
        self.read.append(self.tokenizer.decode(request.prompt_ids))
        text = self.texts.pop(0)
        ids = (*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id)
        logprobs = np.full(len(ids), -0.5, np.float32)
        place = (request.prompt_id, request.group_index, request.prompt_ids, ids, logprobs, policy_version)
        return [Rollout(*place, FinishReason.EOS, text, request.seed)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(ModelConfig(path="pocket", chat_template="hermes"))


@pytest.fixture
def play(ctx: Any, tokenizer: Any) -> Iterator[Any]:
    agents: list[Any] = []

    def played(config: Any, texts: Sequence[str], task: str = TASK, **environment: Any) -> tuple[Rollout, list[str]]:
        chosen = AgentSuiteEnvironment(**environment)
        run = SimpleNamespace(environment=chosen, model=ModelConfig())
        policy = SimpleNamespace(tokenizer=tokenizer, model=None, context=8192)
        agents.append(config.build(make_context(registry=ctx.registry, config=run, policy=policy)))
        row = next(t for t in chosen.tasks if t.id == task)
        prompt = Prompt(task, tuple(row.messages), tools=tuple(chosen.offered()))
        group = PromptGroup(prompt, Formatter(tokenizer, "auto").encode_prompt(prompt), 1)
        engine = Writes(tokenizer, texts)
        return agents[-1].play([group], [[1]], engine, SamplingParams(max_tokens=4000), 0)[0], engine.read

    yield played
    for agent in agents:
        agent.close()


def oracle(task: str = TASK) -> Any:
    return next(t for t in AgentSuiteEnvironment().tasks if t.id == task).judged_by


def written(call: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': call['name'], 'arguments': call['arguments']})}\n</tool_call>"


@pytest.mark.slow
def test_react_learns_from_the_suites_verdict(play: Any) -> None:
    row = oracle()
    right, read = play(ReactPlay(), [written(row["calls"][0]), f"{FINAL} {row['answer']}"])
    assert (right.score.value, right.score.parts["process"], right.info["ended"]) == (1.0, 1.0, "answer")
    assert "End with a line" in read[0]  # the agent's own rules, which the environment's prompt does not have
    wrong, _ = play(ReactPlay(), [f"{FINAL} {row['wrong'][0]}"], process_weight=0.5)
    assert wrong.score.value == 0.0
    cut, _ = play(ReactPlay(settings={"max_turns": 1}), [written(row["calls"][0])])
    assert (cut.score.value, cut.info["ended"]) == (0.0, "max_turns")


@pytest.mark.slow
def test_every_part_of_a_multi_agent_is_the_policy(play: Any) -> None:
    row = oracle()
    call = row["calls"][0]
    plan = json.dumps({"steps": [{"id": 1, "task": "find it", "tool": call["name"]}], "synthesis": "s"})
    texts = [plan, written(call), "A fact.", f"{FINAL} {row['answer']}"]
    rollout, read = play(MultiAgentPlay(), texts)
    assert rollout.score.value == 1.0
    assert [len(s.prompt_ids or ()) > 0 for s in rollout.segments] == [True] * 4  # four contexts, one episode
    assert "A fact." in read[-1]
    assert "A fact." not in read[1]
    bad, _ = play(MultiAgentPlay(), ["no plan", f"{FINAL} {row['answer']}"])
    assert (bad.score.value, bad.info["ended"]) == (0.0, "bad_plan")


@pytest.mark.slow
def test_a_user_is_told_by_the_part_that_answers_alone(play: Any, airline: Path) -> None:
    """As in an evaluation: what an executor writes down for the others reaches no user."""
    plan = json.dumps({"steps": [{"id": 1, "task": "cancel R1", "tool": "cancel_reservation"}], "synthesis": "s"})
    call = {"name": "cancel_reservation", "arguments": {"reservation_id": "R1"}}
    suite = {"suite": "tau_bench", "suite_settings": {"path": str(airline)}}
    for fact, said, reward in (("90 were paid.", "It is cancelled.", 0.0), ("It is done.", "You get 90 back.", 1.0)):
        made, _ = play(MultiAgentPlay(), [plan, written(call), fact, f"{FINAL} {said}"], task="test/0", **suite)
        assert made.score.value == reward, made.score


def test_suites_are_environments_where_their_tasks_share_their_tools(ctx: Any) -> None:
    chains = AgentSuiteEnvironment(suite="chains", suite_settings={"hops": [2], "count": 8})
    assert [t["function"]["name"] for t in chains.offered()] == ["documents"]
    run = make_context(registry=ctx.registry, config=SimpleNamespace(environment=chains))
    source = AgentSuiteData().build(run)
    train, held_out = source.rows("train"), source.rows("heldout")
    assert (len(train), len(held_out)) == (6, 2)
    assert not {r["id"] for r in train} & {r["id"] for r in held_out}
    job = job_of(ctx, "agent_suite", ["environment.suite=chains", "environment.suite_settings={hops: [2], count: 8}"])
    prompts = job.prompts(ctx)
    assert [p.id.partition("/")[2] or p.id for p in prompts] == [row["id"] for row in held_out]
    assert [t["function"]["name"] for t in prompts[0].tools] == ["documents"]
    with pytest.raises(ConfigError, match="not a suite for agents"):
        AgentSuiteEnvironment(suite="gsm8k").offered()
