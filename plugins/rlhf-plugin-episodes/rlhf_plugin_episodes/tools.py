"""An environment of tools: each call goes to the tool that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import Prompt, ToolCall
from rlhf_core.plugins.registry import check_component
from rlhf_core.rewards import Sample, Score
from rlhf_core.rollouts import ToolResult, TurnStatus
from rlhf_plugin_episodes.config import ToolsEnvironmentConfig
from rlhf_plugin_episodes.functions import load_functions


def error_text(error: BaseException) -> str:
    """What the policy reads of anything that a tool raised, also where its text cannot be had."""
    try:
        text = str(error)
    except BaseException:
        text = ""
    return f"Error: {type(error).__name__}: {text}".rstrip(": ")


class ToolsEnvironment:
    """Calls tools by their names; it has no score of its own."""

    def __init__(self, tools: Mapping[str, Any]) -> None:
        self.tools = dict(tools)

    @classmethod
    def from_config(cls, config: ToolsEnvironmentConfig, ctx: BuildContext) -> ToolsEnvironment:
        built = {str(tool.spec()["function"]["name"]): tool.build(ctx) for tool in config.tools}
        for file in config.files:
            built |= load_functions(file)
        for name, tool in built.items():
            check_component("tool", tool, name)
        return cls(built)

    def reset(self, prompt: Prompt, seed: int) -> None:
        for tool in self.tools.values():
            if hasattr(tool, "reset"):
                tool.reset()

    def step(self, calls: Sequence[ToolCall]) -> list[ToolResult | str]:
        """One result per call; what a tool raises is shown to the policy, which provoked it."""
        return [self._answer(call) for call in calls]

    def _answer(self, call: ToolCall) -> ToolResult | str:
        if call.name not in self.tools:  # offered by a prompt of its own
            return ToolResult(f"Error: there is no tool '{call.name}' here", TurnStatus.ERROR)
        try:
            return self.tools[call.name].call(**call.arguments)
        except BaseException as error:  # sys.exit too: nothing but the call is over
            return ToolResult(error_text(error), TurnStatus.ERROR)

    def score(self, sample: Sample) -> Score | None:
        """None: the run's reward judges the answer."""
        return None
