"""Settings of ``code_debug``. Nothing here imports torch."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rlhf_core.config import BuildContext
from rlhf_plugin_agents.suites.config import AgentSuiteConfig
from rlhf_plugin_agents.suites.task import AgentTask
from rlhf_plugin_agents.tools.config import PythonExecConfig


class CodeDebug(AgentSuiteConfig):
    """12 own functions to repair: easy, medium and hard, 4 each; the score is the share of asserts that hold."""

    ships_tasks: ClassVar[bool] = True
    name: str = "code_debug"
    agent: str = "code_executor"
    """As for every suite."""
    python_exec: PythonExecConfig = Field(default_factory=PythonExecConfig)
    """The tool, and where answers are judged; ``--set python_exec.stateful=true``."""

    def all_tasks(self, ctx: BuildContext) -> list[AgentTask]:
        from rlhf_plugin_agents.suites.code_debug import code_tasks
        from rlhf_plugin_code.preflight import isolation

        isolation(self.python_exec.sandbox)
        return code_tasks(self.python_exec)
