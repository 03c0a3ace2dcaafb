"""Rewards that say nothing, as controls: what training does with them, it does by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext
from rlhf_core.rewards import Sample, Score, score_samples
from rlhf_plugin_composite.config import RandomConfig, ShuffledConfig
from rlhf_plugin_composite.reward import keeps_state


class RandomReward:
    """1.0 with probability ``rate``, else 0.0, whatever the completion."""

    def __init__(self, rate: float, seed: Sequence[int]) -> None:
        self.rate = rate
        self._rng = np.random.default_rng(list(seed))

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(float(drawn < self.rate)) for drawn in self._rng.random(len(samples))]

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]


class ShuffledReward:
    """Each score of ``reward`` given to another completion of the same call, missing ones too; part ``own``: the true
    one."""

    def __init__(self, reward: Any, seed: Sequence[int]) -> None:
        self.reward = reward
        self._rng = np.random.default_rng(list(seed))

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        scores = score_samples(self.reward, samples, "the shuffled reward")
        order = self._rng.permutation(len(scores))
        return [
            Score(shuffled.value, {"own": own.value} if own.value is not None else {}, shuffled.status, shuffled.detail)
            for shuffled, own in zip((scores[i] for i in order), scores)
        ]

    def state_dict(self) -> dict[str, Any]:
        """The generator's, and the reward's where it has one."""
        return {
            "rng": self._rng.bit_generator.state,
            "reward": self.reward.state_dict() if keeps_state(self.reward) else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        if keeps_state(self.reward):
            self.reward.load_state_dict(state["reward"])

    def close(self) -> None:
        if callable(close := getattr(self.reward, "close", None)):
            close()


def build_random(config: RandomConfig, ctx: BuildContext) -> RandomReward:
    return RandomReward(config.rate, (ctx.seed, ctx.rank))


def build_shuffled(config: ShuffledConfig, ctx: BuildContext) -> ShuffledReward:
    return ShuffledReward(config.of.build(ctx), (ctx.seed, ctx.rank))
