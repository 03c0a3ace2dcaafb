"""A suite inside a training run: the policy plays its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import JsonlFile
from rlhf_plugin_agents.backends.config import check_form
from rlhf_plugin_agents.backends.native import NativeBackend
from rlhf_plugin_agents.harness import play_one
from rlhf_plugin_agents.report import report
from rlhf_plugin_agents.suites.config import AgentSuiteConfig

PLAYS = "plays.jsonl"
"""Of a run: a row per play, with its messages. A resumed run plays again what came after its checkpoint; the last row
of a version, suite, agent, task and trial counts."""
KEPT = ("task", "trial", "category", "value", "right", "process", "detail", "answer", "stop_reason", "calls", "seconds")


class AgentBenchmark:
    """Plays with whatever engine it is given."""

    def __init__(self, suite: AgentSuiteConfig, ctx: BuildContext) -> None:
        self.policy, self.seed = ctx.policy, ctx.seed
        self.agent, self.tasks, self.trials = suite.agent_config(), suite.tasks(ctx), suite.trials
        self.name = suite.name
        self.plays = ctx.run_dir / PLAYS if ctx.run_dir is not None and ctx.rank == 0 else None

    def evaluate(self, engine: Any, policy_version: int) -> Mapping[str, float]:
        """``answer``, ``right``, ``process`` and ``calls`` of what was judged, ``missing`` plays; also by category."""
        backend = NativeBackend(self.policy, engine, version=policy_version)
        check_form(backend, self.agent.calls, self.agent.name)
        rows = [play_one(self.agent, backend, t, self.seed, k) for t in self.tasks for k in range(self.trials)]
        self._keep(rows, policy_version)
        result = report(rows, self.trials)
        named = {"": result, **{f"{name}/": part for name, part in result["categories"].items()}}
        metrics = {
            f"{prefix}{name}": value["value"] if isinstance(value, dict) else value
            for prefix, part in named.items()
            for name, value in part.items()
            if name in ("answer", "right", "process", "calls", "missing")
        }
        return {k: float(v) for k, v in metrics.items() if v is not None}

    def _keep(self, rows: Sequence[Mapping[str, Any]], version: int) -> None:
        if self.plays is None:
            return
        file = JsonlFile.resume(self.plays)
        try:
            for row in rows:
                tokens = row["prompt_tokens"] + row["completion_tokens"]
                made = {"policy_version": version, "benchmark": self.name, "agent": self.agent.name, "tokens": tokens}
                file.append({**made, **{k: row[k] for k in KEPT}, "messages": row["trajectory"]["messages"]})
        finally:
            file.close()
