"""Agents of the core: one prompt, one completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.types.rollouts import PromptGroup, Rollout, RolloutRequest, SamplingParams

if TYPE_CHECKING:
    from rlhf_core.plugins.protocols import RolloutEngine


class SingleTurnConfig(ComponentConfig):
    """Answer each prompt once."""

    name: str = "single_turn"
    component: ClassVar[str] = "rlhf_core.rl.single_turn:SingleTurnAgent"


class SingleTurnAgent:
    """Samples every completion in one call of the engine."""

    def play(
        self,
        groups: Sequence[PromptGroup],
        seeds: Sequence[Sequence[int]],
        engine: RolloutEngine,
        sampling: SamplingParams,
        policy_version: int,
    ) -> list[Rollout]:
        """Return ``group_size`` rollouts per group, group by group."""
        requests = [
            RolloutRequest(g.prompt.id, g.token_ids, i, seed)
            for g, row in zip(groups, seeds)
            for i, seed in enumerate(row)
        ]
        return engine.generate(requests, sampling, policy_version)
