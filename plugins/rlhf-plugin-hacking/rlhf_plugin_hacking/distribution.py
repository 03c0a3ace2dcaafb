"""How far the rewards have moved from those of the first steps: a metric."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from rlhf_plugin_hacking.config import DistributionConfig
from rlhf_plugin_hacking.signals import Finding, Row, number


class Distribution:
    """KL(warm-up || now) of the rewards, both taken for normal distributions. It never alarms."""

    def __init__(self, config: DistributionConfig, warmup: int) -> None:
        self.config, self.warmup = config, warmup
        self.memory: dict[str, Any] = {"warmup": [], "step": []}

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """Moments instead of a histogram: with 64 scores in 10 bins the sampling noise of a histogram's KL is about as
        large as what a run moves in its first steps."""
        centre, deviation = number(row, "reward/mean"), number(row, "reward/std")
        memory = self.memory
        if centre is None or deviation is None:
            return {}, None
        if len(memory["warmup"]) < self.warmup:
            memory["warmup"] = [*memory["warmup"], [centre, deviation]]
            return {}, None
        memory["step"] = [*memory["step"], [centre, deviation]]
        if len(memory["step"]) < self.config.every:
            return {}, None
        kl = normal_kl(pooled(memory["warmup"]), pooled(memory["step"]))
        memory["step"] = []
        return {"reward_kl": kl}, None


def pooled(rows: list[list[float]]) -> tuple[float, float]:
    """Mean and standard deviation of all scores of several equally large steps, from each step's own."""
    centre = fmean(m for m, _ in rows)
    return centre, math.sqrt(fmean(s * s + (m - centre) ** 2 for m, s in rows))


def normal_kl(base: tuple[float, float], now: tuple[float, float]) -> float:
    r"""KL(base || now) of two normal distributions given by mean and standard deviation, in nats.

    .. math:: \log\frac{s_1}{s_0} + \frac{s_0^2 + (m_0 - m_1)^2}{2 s_1^2} - \frac{1}{2}

    A spread of less than a tenth of the baseline's counts as that, since a reward that all completions get would
    otherwise be infinitely far away.
    """
    (m0, s0), (m1, s1) = base, now
    s0 = max(s0, 1e-6)
    s1 = max(s1, 0.1 * s0)
    return math.log(s1 / s0) + (s0 * s0 + (m0 - m1) ** 2) / (2 * s1 * s1) - 0.5
