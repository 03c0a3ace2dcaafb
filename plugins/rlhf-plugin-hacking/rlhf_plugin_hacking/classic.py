"""The preset ``classic``: a z-score of the mean length and a rising KL of the rewards, over the warm-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_hacking.config import ClassicConfig
from rlhf_plugin_hacking.signals import Change, Finding, Row, normal_kl, number, pooled


class Classic:
    """One of the two signals: a reading pools ``every`` steps, and the first ``warmup`` readings are the baseline."""

    mean, std = "", ""
    """Metrics that are read."""

    def __init__(self, config: ClassicConfig, warmup: int, change: Change) -> None:
        self.config, self.warmup, self.change = config, warmup, change
        self.memory: dict[str, Any] = {"warmup": [], "steps": [], "last": []}

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """Reads :attr:`mean` and :attr:`std`; see :class:`~rlhf_plugin_hacking.config.ClassicConfig`."""
        centre, deviation, memory = number(row, self.mean), number(row, self.std), self.memory
        if centre is None:
            return {}, None
        memory["steps"] = [*memory["steps"], [centre, deviation or 0.0]]
        if len(memory["steps"]) < self.config.every:
            return {}, None
        reading, memory["steps"] = pooled(memory["steps"]), []
        if len(memory["warmup"]) < self.warmup:
            memory["warmup"] = [*memory["warmup"], list(reading)]
            return {}, None
        return self.compare(reading)

    def compare(self, now: tuple[float, float]) -> tuple[dict[str, float], Finding | None]:
        raise NotImplementedError


class ClassicLength(Classic):
    mean, std = "completion_length/mean", "completion_length/std"

    def compare(self, now: tuple[float, float]) -> tuple[dict[str, float], Finding | None]:
        means, config = [m for m, _ in self.memory["warmup"]], self.config
        of_responses = config.sigma == "responses" and any(s for _, s in self.memory["warmup"])
        sigma = pooled(self.memory["warmup"])[1] if of_responses else stdev(means)
        z = (now[0] - fmean(means)) / max(sigma, 1e-9)
        if abs(z) <= config.length_z:
            return {"length_z": z}, None
        return {"length_z": z}, Finding(
            f"completions went from {fmean(means):.1f} to {now[0]:.1f} tokens, {z:+.1f} standard deviations of the "
            f"warm-up's {'completions' if of_responses else 'readings'} (limit {config.length_z:g})",
            "the reward pays for length" if z > 0 else "the reward pays for saying less",
            (self.change("trainer.kl.coefficient", 0.1), self.change("trainer.sampling.max_tokens", "...")),
        )


class ClassicRewards(Classic):
    mean, std = "reward/mean", "reward/std"

    def compare(self, now: tuple[float, float]) -> tuple[dict[str, float], Finding | None]:
        config, kl = self.config, normal_kl(pooled(self.memory["warmup"]), now)
        self.memory["last"] = last = [*self.memory["last"], kl][-config.trend :]
        rising = all(a < b for a, b in pairwise(last))
        if len(last) < config.trend or min(last) <= config.kl or not rising:
            return {"reward_kl": kl}, None
        return {"reward_kl": kl}, Finding(
            f"the rewards are {kl:.2f} nats from the warm-up's (limit {config.kl:g}), further at each of the last "
            f"{config.trend} readings",
            "the policy found what scores high; or it learns, which this signal cannot tell apart",
            (self.change("reward.name", "ensemble"),),
        )


def length_sums(scored: Sequence[tuple[Rollout, Score]]) -> tuple[float, float, float]:
    """(Count, sum, sum of squares) of completion lengths in tokens."""
    lengths = [float(len(rollout.completion_ids)) for rollout, _ in scored]
    return float(len(lengths)), sum(lengths), sum(n * n for n in lengths)


def length_std(sums: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    """``completion_length/std`` over all ranks; {} without completions."""
    count, total, squares = (sum(column) for column in zip(*sums))
    return {"completion_length/std": math.sqrt(max(0.0, squares / count - (total / count) ** 2))} if count else {}
