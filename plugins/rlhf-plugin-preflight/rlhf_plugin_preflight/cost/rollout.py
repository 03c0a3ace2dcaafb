"""Seconds of a rollout: decoding in rounds that read all weights and the keys and values of what is still sampled."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from rlhf_core.config import ConfigError
from rlhf_plugin_preflight.cost.hardware import SERVED, Gpu, Shape

SEEN = 8
"""Engines of which one rollout is simulated; the others are between them."""
LATENCY = 10e-6
"""Seconds of one all-reduce of a few bytes within a machine."""


@dataclass(frozen=True)
class Factors:
    """How much of a GPU's rates is reached (``factors.toml``)."""

    mfu: float
    """Share of peak FLOP/s that a forward or update reaches, recomputed activations not counted as work."""
    memory: float
    """Share of memory bandwidth that a decoding round reaches."""
    round_s: float
    """Seconds of a decoding round in which no GPU works: the engine's host side."""
    completion_s: float
    """Likewise, for each completion that is being sampled."""
    collective: float
    """Share of a link's rate that a collective reaches."""


@dataclass(frozen=True)
class Lengths:
    """Of completions in tokens: a log-normal cut at ``limit``, with that mean."""

    mean: float
    limit: int
    spread: float = 0.7
    """Standard deviation of the logarithm: 0 is one length for all."""

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= self.limit or self.spread < 0:
            raise ConfigError(
                f"completions of {self.mean:g} tokens on average with at most {self.limit}, spread {self.spread:g}",
                why="the mean is at least 1 and at most the limit; the spread is not negative",
                fix="change --mean-tokens, --set trainer.sampling.max_tokens or --spread",
            )

    def drawn(self, count: int) -> list[float]:
        """Quantiles of so many completions, the longest first."""
        return list(_drawn(self, count))


@lru_cache(64)
def _drawn(of: Lengths, count: int) -> tuple[float, ...]:
    normal = NormalDist()
    units = np.exp([of.spread * normal.inv_cdf((count - n - 0.5) / count) for n in range(count)])
    low, high = 0.0, float(of.limit) * math.exp(6 * of.spread + 1)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(middle * units, 1, of.limit).mean() < of.mean else (low, middle)
    return tuple(np.clip(high * units, 1, of.limit).tolist())


@dataclass(frozen=True)
class Engine:
    """One engine of the rollout."""

    shape: Shape
    gpu: Gpu
    factors: Factors
    gpus: int = 1
    """That share every layer."""
    share: float = 0.9
    """Of a GPU's memory that weights, keys and values may take."""

    @property
    def room(self) -> float:
        """Bytes for keys and values.

        Raises:
            ConfigError: there are none.
        """
        weights, memory = SERVED * self.shape.parameters, self.gpus * self.share * self.gpu.memory
        if weights >= memory:
            raise ConfigError(
                f"an engine on {self.gpus} GPU{'s' * (self.gpus > 1)} does not hold the weights",
                why=f"they take {weights / 1e9:.0f} GB, and it may take {memory / 1e9:.0f} GB",
                fix="a larger --tensor",
            )
        return memory - weights

    def rounds(self, count: float, batch: int, held: float) -> float:
        """Seconds of ``count`` rounds of ``batch`` completions that hold ``held`` tokens when they begin."""
        rate = self.gpus * self.gpu.bandwidth * self.factors.memory
        memory = (self.shape.read(batch) + self.shape.kv * (held + batch * count / 2)) / rate
        compute = 2 * self.shape.active * batch / (self.gpus * self.gpu.flops * self.factors.mfu)
        sent = 0.0
        if self.gpus > 1:
            sent = (
                2
                * self.shape.layers
                * (LATENCY + 4 * batch * self.shape.hidden / (self.gpu.link * self.factors.collective))
            )
        return count * (max(memory, compute) + sent + self.factors.round_s + batch * self.factors.completion_s)

    def seconds(self, lengths: Sequence[float], prompt: int) -> float:
        """Until all are sampled, in the order given; what does not fit the cache waits."""
        mean = sum(lengths) / max(1, len(lengths))
        slots = max(1, int(self.room / (self.shape.kv * (prompt + mean))))
        waiting, now, total, tokens = list(reversed(lengths)), 0.0, 0.0, 0.0
        running: list[tuple[float, float]] = []
        while waiting or running:
            while waiting and len(running) < slots:
                heapq.heappush(running, (now + waiting.pop(), now))
                tokens += prompt
            ends = running[0][0]
            total += self.rounds(ends - now, len(running), tokens)
            tokens += (ends - now) * len(running)
            now = ends
            while running and running[0][0] <= now:
                end, began = heapq.heappop(running)
                tokens -= prompt + end - began
        return total


@dataclass(frozen=True)
class Rollout:
    seconds: float
    """Until the last completion."""
    busy: float
    """Of these, those of an engine on average."""


def rollout(engine: Engine, engines: int, lengths: Lengths, completions: int, prompts: int, prompt: int) -> Rollout:
    """Sample ``completions`` of ``prompts`` different prompts of ``prompt`` tokens each, divided evenly."""
    drawn = lengths.drawn(completions)
    used = min(engines, completions)
    seen = sorted({round(n * (used - 1) / (SEEN - 1)) for n in range(SEEN)} if used > 1 else {0})
    read = 2 * engine.shape.active * prompt * prompts / (engines * engine.gpus * engine.gpu.flops * engine.factors.mfu)
    times = [engine.seconds(_mixed(drawn[first::used]), prompt) + read for first in seen]
    return Rollout(max(times), sum(times) / len(times) * used / engines)


def _mixed(lengths: Sequence[float]) -> list[float]:
    """In an order that says nothing of the length, always the same: every third, then those between."""
    return [length for first in range(3) for length in lengths[first::3]]
