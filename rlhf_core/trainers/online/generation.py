"""Completions from the current policy."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.contracts import Label, ValidatedEngine, check_rollouts, class_name, requested
from rlhf_core.protocols import Agent, RolloutEngine
from rlhf_core.rollout.seeds import request_seed
from rlhf_core.types import PromptGroup, Rollout, SamplingParams


class RolloutGenerator:
    """Samples completions from the current policy.

    Args:
        agent: plays the episodes.
        engine: samples.
        seed: the run's.
        label: component -> how to name it in errors.
    """

    def __init__(self, agent: Agent, engine: RolloutEngine, seed: int, label: Label = class_name) -> None:
        self.agent, self.engine, self.seed = agent, ValidatedEngine(engine, label(engine)), seed
        self.agent_label = label(agent)

    def sample(
        self, groups: Sequence[PromptGroup], sampling: SamplingParams, version: int, *, tag: object
    ) -> list[Rollout]:
        """Sample every group's completions, group by group.

        Raises:
            PluginError: the engine or the agent returned other rollouts than asked for, or in another order.
        """
        seeds = [[request_seed(self.seed, tag, g.prompt.id, i) for i in range(g.group_size)] for g in groups]
        distinct = len({s for row in seeds for s in row})
        assert distinct == sum(g.group_size for g in groups), "two requests of a batch share a seed"
        rollouts = self.agent.play(groups, seeds, self.engine, sampling, version)
        return check_rollouts(rollouts, requested(groups), self.agent_label)
