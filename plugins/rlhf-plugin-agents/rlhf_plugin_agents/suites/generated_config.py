"""Settings of ``agentbench_generated``. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from rlhf_core.config import BuildContext
from rlhf_plugin_agents.suites.config import AgentSuiteConfig
from rlhf_plugin_agents.suites.task import AgentTask
from rlhf_plugin_agents.tools.faulty_config import FaultSettings


class AgentBenchGenerated(AgentSuiteConfig):
    """Tasks from a seed, any number of them: tool_use, multi_step, failure_recovery, long_horizon, flaky, conflicting,
    ambiguous."""

    ships_tasks: ClassVar[bool] = True
    least: ClassVar[Mapping[str, int]] = {"max_turns": 40}
    """Ten calls, some of them twice, want turns."""
    name: str = "agentbench_generated"
    count: int = Field(30, ge=1)
    """Tasks of each category."""
    task_seed: int = 0
    """Another one makes other tasks; the same one makes the same first tasks, whatever the count."""
    faults: FaultSettings = FaultSettings()
    """Of the tools of ``flaky``."""
    asks: bool = False
    """``ambiguous`` is a conversation: the user means one reading and says which when asked, and its value alone is
    right, and only once the user was asked."""

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what is not used, so that earlier evaluations go on."""
        return {k: v for k, v in handler(self).items() if k != "asks" or v}

    def all_tasks(self, ctx: BuildContext) -> list[AgentTask]:
        from rlhf_plugin_agents.suites.generated.questions import CATEGORIES
        from rlhf_plugin_agents.suites.generated.tasks import generated_tasks

        # With an unknown category all are made, so that the refusal can name them.
        known = set(self.category) <= set(CATEGORIES)
        chosen = [c for c in CATEGORIES if not known or not self.category or c in self.category]
        return generated_tasks(chosen, self.count, self.task_seed, self.faults.build(), ctx, asks=self.asks)
