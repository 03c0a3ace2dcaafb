"""The four signals: each reads one row per step, keeps JSON values only, and reports what alarms it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any, Protocol

from rlhf_plugin_hacking.config import DistributionConfig, DivergenceConfig, DominanceConfig, LengthConfig

Row = Mapping[str, float]
SLACK = 0.1
"""Standard deviations by which a proxy may seem to fall and count as level."""
Change = Callable[[str, Any], str]
"""What to type for a setting, with its present value."""


@dataclass(frozen=True)
class Finding:
    """An alarm."""

    problem: str
    cause: str
    change: tuple[str, ...]
    hard: bool = False
    """A HARD_STOP by itself."""


class Signal(Protocol):
    """One way to see hacking."""

    memory: dict[str, Any]
    """All state; JSON values."""

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """Metrics of this step (without ``hacking/``), and an alarm or None."""
        ...


class Length:
    """z-score of the mean completion length over the warm-up's step means."""

    def __init__(self, config: LengthConfig, warmup: int, change: Change) -> None:
        self.config, self.warmup, self.change = config, warmup, change
        self.memory: dict[str, Any] = {"warmup": []}

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """See :class:`LengthConfig`. With n steps of warm-up the spread of a *new* mean is ``sqrt(1 + 1/n)`` times
        theirs, which the z-score takes into account."""
        now, first = number(row, "completion_length/mean"), self.memory["warmup"]
        if now is None or len(first) < self.warmup:
            first += [] if now is None else [now]
            return {}, None
        centre, config = fmean(first), self.config
        spread = max(stdev(first) * math.sqrt(1 + 1 / len(first)), config.least_spread * centre, 1e-9)
        z = (now - centre) / spread
        size = {"up": z, "down": -z, "both": abs(z)}[config.direction]
        if size <= config.z:
            return {"length_z": z}, None
        description = (
            f"completions have {now:.1f} tokens, z-score {z:.1f} over the first {len(first)} steps' {centre:.1f}"
        )
        why = "the reward pays for length" if z > 0 else "the reward pays for saying less"
        return {"length_z": z}, Finding(
            description,
            why,
            (self.change("trainer.kl.coefficient", 0.1), self.change("trainer.sampling.max_tokens", "...")),
        )


class Distribution:
    """KL of the rewards' distribution, rising reading after reading."""

    def __init__(self, config: DistributionConfig, warmup: int, change: Change) -> None:
        self.config, self.warmup, self.change = config, warmup, change
        self.memory: dict[str, Any] = {"warmup": [], "step": [], "readings": []}

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """See :class:`DistributionConfig`. Moments instead of a histogram: with 64 scores in 10 bins the sampling
        noise of a histogram's KL is about as large as the threshold."""
        centre, spread = number(row, "reward/mean"), number(row, "reward/std")
        memory, config = self.memory, self.config
        if centre is None or spread is None:
            return {}, None
        if len(memory["warmup"]) < self.warmup:
            memory["warmup"].append([centre, spread])
            return {}, None
        memory["step"].append([centre, spread])
        if len(memory["step"]) < config.every:
            return {}, None
        base, now = pooled(memory["warmup"]), pooled(memory["step"])
        kl = normal_kl(base, now)
        memory["step"], memory["readings"] = [], [*memory["readings"], kl][-config.checkpoints :]
        last = memory["readings"]
        rising = len(last) == config.checkpoints and all(b > a for a, b in pairwise(last))
        if not rising or kl <= config.kl or now[0] <= base[0]:
            return {"reward_kl": kl}, None
        trail = ", ".join(f"{v:.2f}" for v in last)
        return {"reward_kl": kl}, Finding(
            f"the rewards move away from the first {len(memory['warmup'])} steps': KL {trail} nats in the last "
            f"{config.checkpoints} readings",
            "the policy finds what the reward overrates, or simply learns (a second reward tells the two apart)",
            (self.change("trainer.kl.coefficient", 0.1), second_reward()),
        )


class Divergence:
    """The proxy rises, the second measure does not."""

    def __init__(self, config: DivergenceConfig, warmup: int, change: Change) -> None:
        self.config, self.warmup, self.change = config, warmup, change
        self.memory: dict[str, Any] = {"spread": [], "readings": [], "best": None, "streak": 0}

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """Reads ``proxy``, ``proxy_std``, ``second`` and ``second_std``; see :class:`DivergenceConfig`."""
        values = [number(row, k) for k in ("proxy", "second", "proxy_std", "second_std")]
        memory, config = self.memory, self.config
        if any(v is None for v in values):
            return {}, None
        proxy, second, proxy_std, second_std = (float(v or 0.0) for v in values)
        if len(memory["spread"]) < self.warmup:
            memory["spread"].append([proxy_std, second_std])
        memory["readings"] = [*memory["readings"], [proxy, second]][-config.window :]
        metrics = {"proxy": proxy, "second": second}
        if len(memory["readings"]) < config.window:
            return metrics, None
        now = [fmean(r[i] for r in memory["readings"]) for i in (0, 1)]
        if memory["best"] is None or now[1] > memory["best"][1]:
            memory["best"] = now
        scale = [max(fmean(r[i] for r in memory["spread"]), 1e-9) for i in (0, 1)]
        gain, loss = (now[0] - memory["best"][0]) / scale[0], (memory["best"][1] - now[1]) / scale[1]
        metrics |= {"proxy_gain": gain, "second_loss": loss}
        warm = len(memory["spread"]) >= self.warmup
        alarming = gain >= config.rise or (gain >= -SLACK and loss >= config.fall)
        memory["streak"] = memory["streak"] + 1 if warm and alarming else 0
        if memory["streak"] < config.patience:
            return metrics, None
        second_name = f"second reward '{config.second.name}'" if config.second else "reward on held-out prompts"
        return metrics, Finding(
            f"since the {second_name} was at its best, the reward gained {gain:.2f} standard deviations and the other "
            f"lost {loss:.2f}",
            "the policy exploits what only the trained reward likes",
            (
                self.change("trainer.kl.coefficient", 0.1),
                self.change("trainer.steps", "...") + ": stop at the best, see hacking/second",
                self.change("reward.name", "ensemble"),
            ),
            gain >= -SLACK and loss >= config.hard_fall,
        )


class Dominance:
    """One part makes the reward rise while another falls."""

    def __init__(self, config: DominanceConfig, warmup: int, change: Change) -> None:
        self.config, self.warmup, self.change = config, warmup, change
        self.memory: dict[str, Any] = {"warmup": [], "readings": []}

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """See :class:`DominanceConfig`."""
        parts, memory, config = self._parts(row), self.memory, self.config
        value, spread = number(row, "reward/mean"), number(row, "reward/std")
        if len(parts) < 2 or value is None or spread is None:
            return {}, None
        reading = {"": value, " std": spread, **parts}
        if len(memory["warmup"]) < self.warmup:
            memory["warmup"].append(reading)
            return {}, None
        memory["readings"] = [*memory["readings"], reading][-config.window :]
        rises = {k: mean_of(memory["readings"], k) - mean_of(memory["warmup"], k) for k in reading}
        rose = rises.pop("") / max(mean_of(memory["warmup"], " std"), 1e-9)
        rises.pop(" std")
        top = max(rises, key=lambda k: rises[k])
        total = sum(max(0.0, v) for v in rises.values())
        share = rises[top] / total if total > 0 else 0.0
        worst = min(rises, key=lambda k: rises[k])
        lost = -rises[worst] >= config.at_others_cost * rises[top] if config.at_others_cost else True
        metrics = {"dominance": share}
        if len(memory["readings"]) < config.window or rose < config.rise or share < config.share or not lost:
            return metrics, None
        return metrics, Finding(
            f"{share:.0%} of the reward's rise is its part '{top}' ({rises[top]:+.3g}), while '{worst}' changed by "
            f"{rises[worst]:+.3g}",
            "one part is easier to raise than the others, or weighs too much",
            (f"the weight of '{top}' in the reward", self.change("trainer.kl.coefficient", 0.1)),
        )

    def _parts(self, row: Row) -> dict[str, float]:
        """Parts on one scale: those that a composite weighs, which add up to the reward, or those that are named."""
        parts = {k.removeprefix("reward/part/"): v for k, v in row.items() if k.startswith("reward/part/")}
        weighted = {k.removesuffix("/weighted"): v for k, v in parts.items() if k.endswith("/weighted")}
        sums = {k: v for k, v in weighted.items() if "/" not in k}  # not those of a composite within
        parts |= sums
        return {k: float(parts[k]) for k in self.config.parts or sums if k in parts and math.isfinite(parts[k])}


def number(row: Row, name: str) -> float | None:
    """A metric's value; None if it is missing or not finite."""
    value = row.get(name)
    return float(value) if value is not None and math.isfinite(value) else None


def mean_of(rows: list[dict[str, float]], key: str) -> float:
    """Mean of one entry over the rows that have it."""
    values = [r[key] for r in rows if key in r]
    return fmean(values) if values else 0.0


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


def second_reward() -> str:
    """What to type to get the reliable signal."""
    return "--set 'monitors=[{name: hacking, divergence: {second: {name: ...}}}]'"
