"""Settings of ``gaia`` and ``gaia_mini``. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from rlhf_core.config import BuildContext
from rlhf_plugin_agents.suites.config import AgentSuiteConfig
from rlhf_plugin_agents.suites.task import AgentTask
from rlhf_plugin_agents.tools.config import PythonExecConfig
from rlhf_plugin_agents.tools.web_config import WebSearchConfig
from rlhf_plugin_episodes.config import ToolConfig


class GaiaMini(AgentSuiteConfig):
    """30 own tasks in the manner of GAIA: levels 1 (one call), 2 (2 to 4) and 3 (4 and more), 10 each."""

    ships_tasks: ClassVar[bool] = True
    name: str = "gaia_mini"

    def all_tasks(self, ctx: BuildContext) -> list[AgentTask]:
        from rlhf_plugin_agents.suites.gaia import mini_tasks

        return mini_tasks(ctx)


class Gaia(AgentSuiteConfig):
    """GAIA's 165 validation tasks (Mialon et al. 2023), from a folder or the hub, where they are gated."""

    least: ClassVar[Mapping[str, int]] = {"max_turns": 30, "max_calls": 40}
    name: str = "gaia"
    mode: Literal["official", "live"] = "official"
    """``official``: the published prompt, the task's attachment and tools without a network, so that figures repeat.
    ``live``: also a search of the web."""
    search: WebSearchConfig = WebSearchConfig()
    """The search of ``live``."""
    python: bool = False
    """Offer ``python_exec``, too."""
    python_exec: PythonExecConfig = PythonExecConfig()
    """Its settings."""

    def all_tasks(self, ctx: BuildContext) -> list[AgentTask]:
        from rlhf_plugin_agents.suites.gaia import HUB, from_hub, official_tasks

        tools: list[ToolConfig] = [self.search] if self.mode == "live" else []
        if self.python:
            from rlhf_plugin_code.preflight import isolation

            isolation(self.python_exec.sandbox)
            tools.append(self.python_exec)
        if self.mode == "live":
            self.search.preflight(ctx)
        calculator = ctx.registry.config("tool", "rlhf-plugin-episodes/calculator")
        assert isinstance(calculator, ToolConfig)
        named = self.path or HUB
        folder = Path(named).expanduser()
        if self.path is None or (named.count("/") == 1 and not folder.exists()):
            folder = from_hub(named)
        return official_tasks(folder, [calculator, *tools], ctx)
