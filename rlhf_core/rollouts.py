"""Rollouts, agents, environments and rollout engines: requests in, completions out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.training.generation import request_seed as request_seed
    from rlhf_core.types.errors import EngineUnavailable as EngineUnavailable
    from rlhf_core.types.messages import ToolError as ToolError
    from rlhf_core.types.messages import ToolResult as ToolResult
    from rlhf_core.types.messages import Turn as Turn
    from rlhf_core.types.messages import TurnStatus as TurnStatus
    from rlhf_core.types.messages import VersionSpan as VersionSpan
    from rlhf_core.types.rollouts import FinishReason as FinishReason
    from rlhf_core.types.rollouts import Rollout as Rollout
    from rlhf_core.types.rollouts import RolloutRequest as RolloutRequest
    from rlhf_core.types.rollouts import SamplingParams as SamplingParams

__getattr__, __dir__ = surface(__name__)
