"""Tools that a model may call while one talks to it: they run in processes of their own, with deadlines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import ComponentConfig, ConfigError, PluginError, Registry
from rlhf_core.data import Message, Prompt, PromptGroup, Tool
from rlhf_core.models import ModelConfig
from rlhf_core.rollouts import Rollout, SamplingParams, Turn

SHOWN = 400
"""Characters of a result that a line shows; the model reads it whole, up to the agent's limit."""


@dataclass(frozen=True)
class Toolbox:
    """An environment with the tools, and the agent that calls them; checked, not started."""

    registry: Registry
    environment: Any
    agent: ComponentConfig

    @classmethod
    def chosen(cls, names: Sequence[str], max_turns: int, call_timeout_s: float) -> Toolbox:
        registry = open_registry()
        tools: list[str] = []
        files: list[str] = []
        environment = ""
        for name in names:
            if name.endswith(".py") or ("/" in name and Path(name).expanduser().exists()):
                files.append(name)
            elif _is(registry, "tool", name):
                tools.append(name)
            elif _is(registry, "environment", name):
                environment = name
            else:
                raise ConfigError(
                    f"there is no tool, environment or file '{name}'",
                    fix="a Python file with functions, or a name of rlhf plugins list --kind tool (or environment)",
                )
        if environment and len(names) > 1:
            raise ConfigError(f"environment '{environment}' cannot be joined with other tools", fix="name it alone")
        settings = {} if environment else {"tools": tools, "files": files}
        chosen = registry.config("environment", environment or "tools", settings)
        chosen.preflight(context_of(registry))
        limits = {"max_turns": max_turns, "call_timeout_s": call_timeout_s}
        return cls(registry, chosen, registry.config("agent", "multi_turn", limits))

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self.environment.offered())

    def open(self, sampler: Any, model: ModelConfig) -> ToolUser:
        """Start the processes of the tools for one model, which :func:`load_sampler` loaded."""
        ctx = context_of(self.registry, model=model, policy=sampler.policy)
        ctx = ctx.with_(config=ctx.config.model_copy(update={"environment": self.environment}))
        return ToolUser(sampler, self.agent.build(ctx), self.tools)


@dataclass(frozen=True)
class ToolUser:
    """A model, and the agent that makes its calls."""

    sampler: Any
    agent: Any
    tools: tuple[Tool, ...]

    def answer(
        self,
        messages: Sequence[Message],
        ids: tuple[int, ...],
        seed: int,
        sampling: SamplingParams,
        watch: Callable[[Turn], None],
    ) -> Rollout:
        """Answer the last message: the model writes, its calls are made, and it writes again."""
        self.agent.watch = lambda episode, turn: watch(turn)
        group = PromptGroup(Prompt("chat", tuple(messages), tools=self.tools), ids, 1)
        return self.sampler.play(self.agent, [group], [[seed]], sampling)[0]

    def close(self) -> None:
        """End the processes of the tools."""
        self.agent.close()


def lines_of(turn: Turn) -> list[str]:
    if turn.role == "assistant":
        calls: Sequence[Any] = turn.message.get("tool_calls") or ()
        named = [call["function"] for call in calls]
        return [f"call {one['name']} {json.dumps(one['arguments'], ensure_ascii=False)}" for one in named]
    text = turn.text if len(turn.text) <= SHOWN else f"{turn.text[:SHOWN]} … ({len(turn.text) - SHOWN} more characters)"
    status = "" if turn.status.value == "ok" else f" ({turn.status.value})"
    return [f"{turn.message.get('name') or turn.role}{status}: {text}"]


def _is(registry: Registry, kind: str, name: str) -> bool:
    try:
        registry.find(kind, name)
    except PluginError:
        return False
    return True
