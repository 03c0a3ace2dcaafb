"""The agents of the suites as agents of a training run: the same object plays, its requests answered by the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rlhf_core.data import ToolCall
from rlhf_core.rollouts import ToolError, TurnStatus
from rlhf_plugin_agents.agents.config import (
    AgentConfig,
    CodeExecutorConfig,
    MultiAgentConfig,
    PlanAndExecuteConfig,
    ReactConfig,
    ScratchpadConfig,
    ZeroShotConfig,
)
from rlhf_plugin_agents.backends.base import ModelReply, ModelRequest
from rlhf_plugin_agents.backends.config import check_form
from rlhf_plugin_agents.tools.box import TaskDone, ToolBox
from rlhf_plugin_agents.trajectory import GAVE_UP
from rlhf_plugin_episodes.agent_config import EpisodeAgentConfig
from rlhf_plugin_episodes.program import Conversation


class PolicyBackend:
    """Answers requests with turns of the policy that is being trained."""

    name = "policy"
    takes_tools = True

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk

    def complete(self, request: ModelRequest) -> ModelReply:
        """The policy's next turn; the run's sampling decides, not the request's."""
        turn = self.talk.ask(request.messages, request.tools)
        errors = [{"id": c.id, "name": c.name, "error": c.error} for c in turn.calls if not c.ok]
        return ModelReply(turn.message, turn.prompt_tokens, turn.completion_tokens, errors=errors)

    def close(self) -> None:
        """Nothing is held."""


class EpisodeTools:
    """Answers calls from the run's environment."""

    def __init__(self, talk: Conversation) -> None:
        self.talk, self._made = talk, 0

    def __call__(self, name: str, arguments: Mapping[str, Any]) -> str:
        self._made += 1
        result = self.talk.call([ToolCall(name, arguments, f"made{self._made:05d}")])[0]
        if result.done:
            raise TaskDone(result.content)
        if result.status in (TurnStatus.ERROR, TurnStatus.TIMEOUT):
            raise ToolError(result.content.removeprefix("Error: "))
        return result.content


class PlayedConfig(EpisodeAgentConfig):
    """Base: ``--agent NAME`` plays as `rlhf eval SUITE --agent NAME` does. Temperature is the run's."""

    @property
    def played(self) -> AgentConfig:
        return getattr(self, "settings")  # noqa: B009

    @property
    def most_turn_tokens(self) -> int | None:
        return self.played.max_turn_tokens

    def converse(self, talk: Conversation) -> str:
        # A deadline would make what is sampled depend on how fast the others' turns are.
        settings = self.played.model_copy(update={"deadline_s": math.inf})
        backend = PolicyBackend(talk)
        box = ToolBox(talk.tools, EpisodeTools(talk))
        check_form(backend, settings.calls, settings.name)
        respond = talk.respond if talk.responds else None
        return settings.make(backend).run(talk.prompt, box, respond=respond).stop_reason

    def worthless(self, ended: str) -> bool:
        """As in an evaluation: who gives up, or is cut off, is not right."""
        return ended in GAVE_UP


class ZeroShotPlay(PlayedConfig):
    """Answers at once, without tools."""

    name: str = "zero_shot"
    settings: ZeroShotConfig = Field(default_factory=lambda: ZeroShotConfig.model_validate({}))
    """The agent's own, such as ``max_turn_tokens``."""


class ReactPlay(PlayedConfig):
    """Thinks, calls, reads the result, and again until it answers (Yao et al. 2022, arXiv:2210.03629)."""

    name: str = "react"
    settings: ReactConfig = Field(default_factory=lambda: ReactConfig.model_validate({}))
    """The agent's own, such as ``max_turns``."""


class PlanAndExecutePlay(PlayedConfig):
    """Writes a plan as JSON, carries it out step by step in one conversation, and answers (arXiv:2305.04091)."""

    name: str = "plan_and_execute"
    settings: PlanAndExecuteConfig = Field(default_factory=lambda: PlanAndExecuteConfig.model_validate({}))
    """The agent's own, such as ``max_turns``."""


class MultiAgentPlay(PlayedConfig):
    """A planner, isolated executors of one call and one fact each, and a synthesizer; all of them are the policy."""

    name: str = "multi_agent"
    settings: MultiAgentConfig = Field(default_factory=lambda: MultiAgentConfig.model_validate({}))
    """The agent's own, such as ``max_turns``."""


class ScratchpadPlay(PlayedConfig):
    """As ``multi_agent``, with a rolling summary instead of a list of facts."""

    name: str = "scratchpad"
    settings: ScratchpadConfig = Field(default_factory=lambda: ScratchpadConfig.model_validate({}))
    """The agent's own, such as ``scratchpad_words``."""


class CodeExecutorPlay(PlayedConfig):
    """Writes code, runs it, reads the traceback and revises; runs of its own ``python_exec`` are not in the journal."""

    name: str = "code_executor"
    settings: CodeExecutorConfig = Field(default_factory=lambda: CodeExecutorConfig.model_validate({}))
    """The agent's own, such as ``max_iterations``."""
