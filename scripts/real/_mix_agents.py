"""Where the agents of `scripts.real.data_mixes` are measured, and what they learn from there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlhf_core.cli import context_of, open_registry
from rlhf_core.cli.episodes import Stage
from rlhf_core.data import read_jsonl
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.types.rollouts import SamplingParams
from rlhf_plugin_agents.backends.known import backend_of
from rlhf_plugin_agents.harness import Job, evaluate
from rlhf_plugin_agents.suites.generated_config import AgentBenchGenerated
from rlhf_plugin_episodes.lookup.config import LookupConfig

Row = dict[str, Any]
CATEGORIES = ("tool_use", "multi_step", "failure_recovery")
TIMES = 12
"""Catalogues of 17 tasks that the oracle plays once each."""


class Suite(Protocol):
    """Tasks to learn from and others to measure on."""

    def demonstrations(self, folder: Path, rlhf: Callable[..., None]) -> Sequence[Row] | None:
        """Plays to imitate; None: those of `lookup`."""
        ...

    def play(self, model: str, tasks: int, folder: Path) -> list[Row]:
        """A row per held-out task: ``task``, ``category``, ``value`` (None: no verdict) and ``right``."""
        ...


class LookupSuite:
    """Held-out questions of `lookup`, two to six calls, as many of each; the greedy policy plays each once."""

    def demonstrations(self, folder: Path, rlhf: Callable[..., None]) -> Sequence[Row] | None:
        """Those of `lookup`."""
        return None

    def play(self, model: str, tasks: int, folder: Path) -> list[Row]:
        """With the agent's settings of ``rlhf train --env lookup``."""
        config = ModelConfig(path=model)
        policy = load_policy(config)
        agent, trainer = LookupConfig.companions["agent"], LookupConfig.companions["trainer"]
        stage = Stage.chosen("lookup", [f"agent.{key}={value}" for key, value in agent.items()])
        sampling = SamplingParams(**trainer["sampling"], temperature=0.0)
        data = {"name": "lookup", "prompts": 5 * tasks}  # a fifth is held out
        prompts = stage.offer(context_of(open_registry(), dataset=data).datasets.prompts("heldout"))
        rows: list[Row] = []
        for prompt, rollout in zip(prompts, stage.play(policy, config, prompts, sampling, n=1, seed=0), strict=True):
            score = rollout.score
            value = float(score.value or 0.0) if score is not None and score.ok else None
            category = f"{prompt.meta.get('calls', '')} calls"
            right = None if value is None else value == 1.0
            rows.append({"task": prompt.id, "category": category, "value": value, "right": right})
        return rows


class GeneratedSuite:
    """Tasks of `agentbench_generated`, played by `react`; others of them, played by the oracle, to learn from."""

    def demonstrations(self, folder: Path, rlhf: Callable[..., None]) -> Sequence[Row] | None:
        """The oracle's plays, by `rlhf data generate agentic`."""
        file = folder / "agentic.jsonl"
        if not file.is_file():
            rlhf("data", "generate", "agentic", "--output", file, "--backend", "scripted", "--times", TIMES,
                 "--per-task", 1)  # fmt: skip
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def play(self, model: str, tasks: int, folder: Path) -> list[Row]:
        """A third of the tasks of each of three categories."""
        limits = {"max_turns": 8, "max_turn_tokens": 96}
        suite = AgentBenchGenerated(count=-(-tasks // 3), category=CATEGORIES, agent_settings=limits)
        backend = backend_of("native", {"model": {"path": model}})
        place, _ = evaluate(Job(suite, suite.agent_config("react"), backend), context_of(open_registry()), folder)
        keep = ("task", "category", "value", "right")
        return [{k: row[k] for k in keep} for row in read_jsonl(place / "rows.jsonl")]


SUITES: dict[str, Suite] = {"lookup": LookupSuite(), "agentbench_generated": GeneratedSuite()}
"""Name -> suite."""
