"""A suite inside a training run: the policy plays its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlhf_core.api import BuildContext
from rlhf_plugin_agents.backends.config import check_form
from rlhf_plugin_agents.backends.native import NativeBackend
from rlhf_plugin_agents.harness import play_one
from rlhf_plugin_agents.report import report

if TYPE_CHECKING:
    from rlhf_plugin_agents.suites.config import AgentSuiteConfig


class AgentBenchmark:
    """Plays with whatever engine it is given.

    Args:
        suite: tasks and agent.
        ctx: has the policy and the seed.

    Raises:
        UserError: the suite's rows or the agent's settings cannot work.
    """

    def __init__(self, suite: AgentSuiteConfig, ctx: BuildContext) -> None:
        self.policy, self.seed = ctx.policy, ctx.seed
        self.agent, self.tasks, self.trials = suite.agent_config(), suite.tasks(ctx), suite.trials

    def evaluate(self, engine: Any, policy_version: int) -> Mapping[str, float]:
        """``answer``, ``right``, ``process`` and ``calls`` of what was judged, ``missing`` plays; also by category."""
        backend = NativeBackend(self.policy, engine, version=policy_version)
        check_form(backend, self.agent.calls, self.agent.name)
        rows = [play_one(self.agent, backend, t, self.seed, k) for t in self.tasks for k in range(self.trials)]
        result = report(rows, self.trials)
        named = {"": result, **{f"{name}/": part for name, part in result["categories"].items()}}
        metrics = {
            f"{prefix}{name}": value["value"] if isinstance(value, dict) else value
            for prefix, part in named.items()
            for name, value in part.items()
            if name in ("answer", "right", "process", "calls", "missing")
        }
        return {k: float(v) for k, v in metrics.items() if v is not None}
