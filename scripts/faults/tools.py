"""Many episodes whose tools hang or crash now and then: none is lost, no process is left, neighbours are undisturbed.

Of every 200 calls two hang and one crashes; a stand-in engine writes one call and an answer.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.rollouts import FinishReason, Prompt, PromptGroup, Rollout, SamplingParams
from rlhf_plugin_episodes.agent_config import MultiTurnConfig
from rlhf_plugin_verifiers.workers import descendants
from rlhf_testing import make_context
from scripts._distribution import install

MODULE = """
import ctypes, time
from typing import ClassVar
from rlhf_plugin_episodes.config import EnvironmentConfig
from rlhf_plugin_episodes.tool_spec import tool_spec

class FaultyConfig(EnvironmentConfig):
    name: str = "faulty"
    component: ClassVar[str] = "faulty_environment:Faulty"
    tool_specs: ClassVar = (tool_spec("run", "Runs.", number="integer"),)
    pure: ClassVar[bool] = True

class Faulty:
    def reset(self, prompt, seed): self.number = -1
    def step(self, calls):
        self.number = calls[0].arguments["number"]
        if self.number % 200 in (17, 117): time.sleep(6000)
        if self.number % 200 == 59: ctypes.string_at(0)
        return [str(self.number)]
    def score(self, sample): return float(self.number)
"""
BATCH, HANG, CRASH = 200, (17, 117), 59


class _Engine:
    """Writes a call, then an answer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.lengths: dict[str, int] = {}

    def generate(self, requests: Any, sampling: SamplingParams, policy_version: int) -> list[Rollout]:
        return [self._one(request, policy_version) for request in requests]

    def _one(self, request: Any, version: int) -> Rollout:
        first = len(request.prompt_ids) == self.lengths[request.prompt_id]
        number = request.prompt_id
        text = (
            f'<tool_call>\n{{"name": "run", "arguments": {{"number": {number}}}}}\n</tool_call>' if first else "Done."
        )
        ids = (*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id)
        logprobs = np.full(len(ids), -1, np.float32)
        of_request = (number, request.group_index, request.prompt_ids)
        return Rollout(*of_request, ids, logprobs, version, FinishReason.EOS, text, request.seed)


def play(episodes: int, folder: Path, deadline_s: float = 2.0) -> dict[str, Any]:
    """Play so many episodes, and count what became of them."""
    install(folder, "faulty_environment", MODULE, "[rlhf.environment]\nfaulty = faulty_environment:FaultyConfig\n")
    tokenizer = load_tokenizer(ModelConfig(path="pocket", chat_template="hermes"))
    registry = Registry(disabled=())
    environment: Any = registry.load("environment", "faulty").model_validate({"name": "faulty"})
    policy = SimpleNamespace(tokenizer=tokenizer, model=None, context=4096)
    config = SimpleNamespace(environment=environment, model=ModelConfig())
    agent = MultiTurnConfig.model_validate({"call_timeout_s": deadline_s, "workers": 16}).build(
        make_context(registry=registry, config=config, policy=policy)
    )
    formatter, engine, statuses = Formatter(tokenizer, "auto"), _Engine(tokenizer), Counter[str]()
    wrong, began, others = 0, time.monotonic(), set(descendants(os.getpid()))
    try:
        for start in range(0, episodes, BATCH):
            names = [str(n) for n in range(start, min(start + BATCH, episodes))]
            prompts = [Prompt(name, ({"role": "user", "content": "?"},), tools=environment.offered()) for name in names]
            groups = [PromptGroup(prompt, formatter.encode_prompt(prompt), 1) for prompt in prompts]
            engine.lengths = {group.prompt.id: len(group.token_ids) for group in groups}
            seeds = [[int(name) + 1] for name in names]
            for rollout in agent.play(groups, seeds, engine, SamplingParams(max_tokens=400), 0):
                assert rollout.score is not None
                statuses[rollout.score.status.value] += 1
                wrong += rollout.score.ok and rollout.score.value != float(rollout.prompt_id)
            print(f"{start + len(names)} of {episodes}: {dict(statuses)}", file=sys.stderr, flush=True)
    finally:
        agent.close()
    return {
        "episodes": sum(statuses.values()),
        "hanging": sum(n % BATCH in HANG for n in range(episodes)),
        "crashing": sum(n % BATCH == CRASH for n in range(episodes)),
        "deadline_s": deadline_s,
        "statuses": dict(statuses),
        "wrong": wrong,
        "processes_left": processes_left(others),
        "milliseconds_per_episode": 1000 * (time.monotonic() - began) / max(1, episodes),
    }


def processes_left(others: set[int]) -> int:
    """Descendants besides ``others`` that a killed process has not taken along within ten seconds."""
    deadline = time.monotonic() + 10
    while (left := set(descendants(os.getpid())) - others) and time.monotonic() < deadline:
        time.sleep(0.1)
    return len(left)


def run(episodes: int = 10_000, deadline_s: float = 5.0) -> dict[str, Any]:
    """``deadline_s`` is of a call."""
    with tempfile.TemporaryDirectory() as folder:
        return play(episodes, Path(folder), deadline_s)


def broken(results: Mapping[str, Any]) -> list[str]:
    wanted = {"timeout": results["hanging"], "error": results["crashing"]}
    wanted["ok"] = results["episodes"] - sum(wanted.values())
    lost = ["statuses are not those of the faults"] if results["statuses"] != wanted else []
    return lost + (["processes are left"] if results["processes_left"] else [])
