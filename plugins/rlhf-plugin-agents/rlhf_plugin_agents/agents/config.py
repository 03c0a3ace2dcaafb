"""Settings of the agents. Nothing here imports torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import Config
from rlhf_plugin_code.config import SandboxSettings

if TYPE_CHECKING:
    from rlhf_plugin_agents.agents.base import Agent
    from rlhf_plugin_agents.backends.base import Backend


class AgentConfig(Config):
    """What every agent has."""

    agent: ClassVar[str] = ""
    """``module:class`` of the agent."""
    name: str = ""
    max_turns: int = Field(default=12, ge=1)
    """Requests to the model in one task, those of all parts together."""
    max_calls: int = Field(default=24, ge=1)
    """Calls of tools in one task."""
    max_turn_tokens: int = Field(default=512, ge=1)
    """Most tokens of one reply."""
    temperature: float = Field(default=0.0, ge=0)
    deadline_s: float = Field(default=300.0, gt=0)
    """No request is begun later."""
    calls: Literal["auto", "native", "text"] = "auto"
    """How calls are written: ``native`` in the model's own form, ``text`` as lines ``Action: {...}``; ``auto`` is
    native where the backend can offer tools."""

    def make(self, backend: Backend) -> Agent:
        module, _, name = self.agent.partition(":")
        return getattr(importlib.import_module(module), name)(self, backend)


class ZeroShotConfig(AgentConfig):
    """Answers at once, without tools."""

    agent: ClassVar[str] = "rlhf_plugin_agents.agents.zero_shot:ZeroShotAgent"
    name: str = "zero_shot"


class ReactConfig(AgentConfig):
    """Thinks, calls, reads the result, and again until it answers (Yao et al. 2022, arXiv:2210.03629)."""

    agent: ClassVar[str] = "rlhf_plugin_agents.agents.react:ReactAgent"
    name: str = "react"


class PlanAndExecuteConfig(AgentConfig):
    """Writes a plan as JSON, carries it out step by step in one conversation, and answers (arXiv:2305.04091)."""

    agent: ClassVar[str] = "rlhf_plugin_agents.agents.plan_and_execute:PlanAndExecuteAgent"
    name: str = "plan_and_execute"
    max_turns: int = Field(default=40, ge=1)
    """As for every agent."""


class MultiAgentConfig(AgentConfig):
    """A planner, isolated executors of one call and one fact each, and a synthesizer."""

    agent: ClassVar[str] = "rlhf_plugin_agents.agents.multi_agent:MultiAgent"
    name: str = "multi_agent"
    max_turns: int = Field(default=64, ge=1)
    """As for every agent."""


class ScratchpadConfig(MultiAgentConfig):
    """As ``multi_agent``, with a rolling summary instead of a list of facts."""

    agent: ClassVar[str] = "rlhf_plugin_agents.agents.multi_agent:ScratchpadAgent"
    name: str = "scratchpad"
    scratchpad_words: int = Field(default=150, ge=1)
    """Most words of the summary; a longer one loses its beginning."""


class CodeExecutorConfig(ReactConfig):
    """Writes code, runs it, reads the traceback and revises; offers ``python_exec`` where the task does not."""

    agent: ClassVar[str] = "rlhf_plugin_agents.agents.code_executor:CodeExecutorAgent"
    name: str = "code_executor"
    max_iterations: int = Field(default=6, ge=1)
    """Runs of code in one task; further ones are refused, and the agent is told to answer."""
    stateful: bool = False
    """Names of earlier runs are still there; of the ``python_exec`` that the agent brings."""
    sandbox: SandboxSettings = SandboxSettings(timeout_s=10.0)
    """What a program may use; of the ``python_exec`` that the agent brings."""


AGENTS: dict[str, type[AgentConfig]] = {
    "zero_shot": ZeroShotConfig,
    "react": ReactConfig,
    "plan_and_execute": PlanAndExecuteConfig,
    "multi_agent": MultiAgentConfig,
    "scratchpad": ScratchpadConfig,
    "code_executor": CodeExecutorConfig,
}
