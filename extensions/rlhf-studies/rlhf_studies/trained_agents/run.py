"""Rows of an oracle's plays, and plays of the model that learnt them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.data import read_jsonl
from rlhf_plugin_agents.backends.known import backend_of
from rlhf_plugin_agents.harness import Job, evaluate
from rlhf_studies.agent_claims.run import IN_TURNS, LIMITS
from rlhf_studies.agent_claims.verdict import right
from rlhf_studies.common.plays import Recorded
from rlhf_studies.common.pocket import Row, write_jsonl
from rlhf_studies.trained_agents.config import AGENTS, CATEGORIES, TrainedAgentsConfig
from rlhf_study.ablation.run import Ablation
from rlhf_study.runs import Run

TRAINING = 10_000
"""Added to the seeds of tasks that are learned."""


class TrainedAgents(Ablation[TrainedAgentsConfig]):
    def files(self, seed: int, folder: Path) -> dict[str, Path]:
        files = {agent: folder / f"{agent}.jsonl" for agent in AGENTS}
        for agent, file in files.items():
            if not file.is_file():
                oracle = Recorded()
                for suite, settings in self.suites(seed + TRAINING, self.config.learned, self.config.learned):
                    self.play(suite, settings, agent, oracle, folder / "oracle" / f"{suite}-{agent}", seed)
                write_jsonl(file, oracle.rows)
        return files

    def suites(self, seed: int, count: int, hops: int) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "agentbench_generated", {"task_seed": seed, "count": count, "category": CATEGORIES}
        yield "chains", {"chain_seed": seed, "count": hops}

    def play(
        self, suite: str, settings: Mapping[str, Any], agent: str, backend: Any, out: Path, seed: int
    ) -> list[Row]:
        limits = {**LIMITS, **(IN_TURNS if agent == "react" else {})}
        ctx = context_of(open_registry())
        chosen: Any = ctx.registry.config("benchmark", suite, {**settings, "agent_settings": limits})
        folder, _ = evaluate(Job(chosen, chosen.agent_config(agent), backend, seed), ctx, out, None)
        return list(read_jsonl(folder / "rows.jsonl"))

    def measured(self, run: Run) -> Mapping[str, float]:
        agent, seed = run.folder.name, run.config["seed"]
        backend = backend_of("native", {"model": {"path": str(run.final)}})
        rows = {
            suite: self.play(suite, settings, agent, backend, run.folder.with_name(f"{agent}-{suite}"), seed)
            for suite, settings in self.suites(seed, self.config.played, self.config.hops)
        }
        tasks, chains = rows["agentbench_generated"], rows["chains"]
        shares = {
            "right": right(tasks),
            "multi_step": right(tasks, "multi_step"),
            "two_hops": right(chains, "level 2"),
            "eight_hops": right(chains, "level 8"),
        }
        return {name: share for name, share in shares.items() if share is not None}
