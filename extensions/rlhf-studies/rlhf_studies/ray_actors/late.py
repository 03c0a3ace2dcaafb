"""An environment whose call does nothing, or hangs in the episodes of one prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from rlhf_core.data import Prompt, Tool, ToolCall
from rlhf_plugin_episodes.config import EnvironmentConfig
from rlhf_plugin_episodes.tool_spec import tool_spec

ENTRY = "[rlhf.environment]\nlate = rlhf_studies.ray_actors.late:LateConfig\n"
HANGS = "hangs"
"""Id of the prompt whose call hangs."""


class LateConfig(EnvironmentConfig):
    """Offers one tool."""

    name: str = "late"
    component: ClassVar[str] = "rlhf_studies.ray_actors.late:Late"
    tool_specs: ClassVar[Sequence[Tool]] = (tool_spec("wait", "Waits."),)
    pure: ClassVar[bool] = True
    stateless: ClassVar[bool] = True
    scores: ClassVar[bool] = False


class Late:
    def __init__(self, config: LateConfig) -> None:
        self.seconds = 0.0

    def reset(self, prompt: Prompt, seed: int) -> None:
        self.seconds = 600.0 if prompt.id == HANGS else 0.0

    def step(self, calls: Sequence[ToolCall]) -> list[str]:
        time.sleep(self.seconds)
        return ["1234"]

    def score(self, sample: Any) -> None:
        """None."""
