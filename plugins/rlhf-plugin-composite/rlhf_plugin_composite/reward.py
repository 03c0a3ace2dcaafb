"""A weighted sum of rewards, each on a scale of its own choosing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.data import DatasetError
from rlhf_core.rewards import Sample, Score, ScoreStatus, score_samples
from rlhf_plugin_composite.config import CompositeConfig, PartSettings, needs_calibration


class CompositeReward:
    """``value = sum of weight * normalised`` over the parts; of each, such as ``taste``, ``Score.parts`` has
    ``taste/raw``, ``taste/normalised``, ``taste/weighted`` and its own parts as ``taste/NAME``."""

    def __init__(self, config: CompositeConfig, rewards: Mapping[str, Any]) -> None:
        self.config, self.rewards = config, dict(rewards)
        self.normalisers = {name: Normaliser(part) for name, part in config.parts.items()}

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample; missing where a part that counts is missing (status and reason of that part)."""
        if not samples:
            return []
        scores: dict[str, Sequence[Score]] = {}
        normalised: dict[str, list[float | None]] = {}
        for name, reward in self.rewards.items():
            scores[name] = score_samples(reward, samples, f"part '{name}'")
            normalised[name] = self.normalisers[name]([s.value if s.ok else None for s in scores[name]])
        return [
            self._weighted_sum(
                {name: part_scores[i] for name, part_scores in scores.items()},
                {name: values[i] for name, values in normalised.items()},
            )
            for i in range(len(samples))
        ]

    def _weighted_sum(self, scores: Mapping[str, Score], normalised: Mapping[str, float | None]) -> Score:
        parts: dict[str, float] = {}
        total, missing = 0.0, []
        for name, score in scores.items():
            weight, value = self.config.parts[name].weight, normalised[name]
            parts |= {f"{name}/{k}": float(v) for k, v in score.parts.items()}
            if value is not None and score.value is not None:
                parts |= {
                    f"{name}/raw": float(score.value),
                    f"{name}/normalised": value,
                    f"{name}/weighted": weight * value,
                }
                total += weight * value
            elif weight != 0:
                missing.append(name)
        if missing:
            first = scores[missing[0]]
            return Score(None, parts, first.status, f"part '{missing[0]}': {first.detail or first.status.value}")
        if not math.isfinite(total):
            return Score(None, parts, ScoreStatus.ERROR, f"the weighted sum is {total}")
        return Score(total, parts)

    def state_dict(self) -> dict[str, Any]:
        reward_states = {n: r.state_dict() for n, r in self.rewards.items() if keeps_state(r)}
        return {"statistics": {n: x.state_dict() for n, x in self.normalisers.items()}, "rewards": reward_states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, normaliser in self.normalisers.items():
            normaliser.load_state_dict(state["statistics"][name])
        for name, reward_state in state["rewards"].items():
            self.rewards[name].load_state_dict(reward_state)

    def close(self) -> None:
        for reward in self.rewards.values():
            if callable(close := getattr(reward, "close", None)):
                close()


def keeps_state(reward: Any) -> bool:
    """Whether a checkpoint must hold its state; a torch module is taken for a frozen network, as in any run."""
    methods = callable(getattr(reward, "state_dict", None)) and callable(getattr(reward, "load_state_dict", None))
    return methods and not hasattr(reward, "named_parameters")


def build_composite(config: CompositeConfig, ctx: BuildContext) -> CompositeReward:
    """Build the parts in order and calibrate those that ask for it; what was built is closed if one fails."""
    rewards: dict[str, Any] = {}
    composite = CompositeReward(config, rewards)
    try:
        for name, part in config.parts.items():
            reward = part.reward.build(ctx)
            composite.rewards[name] = reward
            if not callable(getattr(reward, "score", None)):
                raise ConfigError(
                    f"part '{name}' of the composite is not a reward",
                    why=f"what {part.reward.name} builds has no score()",
                )
        calibrate(composite)
    except BaseException:
        composite.close()
        raise
    return composite


def calibrate(composite: CompositeReward) -> None:
    """Score the calibration file once with the parts that need it, and keep mean and std."""
    file = composite.config.calibration
    names = [n for n, p in composite.config.parts.items() if needs_calibration(p)]
    if not names or file is None:
        return
    from rlhf_core.data import read_completions

    samples = read_completions(file).samples
    for name in names:
        rows = score_samples(composite.rewards[name], samples, f"part '{name}'")
        values = [float(s.value) for s in rows if s.ok and s.value is not None]
        statistics = composite.normalisers[name].statistics
        statistics.add(values)
        if statistics.std < 1e-8:
            bad = next((s.detail for s in rows if not s.ok), "")
            raise DatasetError(
                f"part '{name}' cannot be calibrated on '{file}'",
                why=bad or f"{len(values)} of {len(rows)} completions have a score, all the same",
                fix="give completions that it scores differently, or normalise=sigmoid",
            )


Raw = Sequence[float | None]
LEAST_STD = 1e-8
"""Below it all scores were equal."""


class Statistics:
    """Count, mean and variance of all that was added, in one pass (Welford 1962; Chan et al. 1979)."""

    def __init__(self, count: float = 0, mean: float = 0.0, squares: float = 0.0) -> None:
        self.count, self.mean, self.squares = count, mean, squares

    def add(self, values: Sequence[float]) -> None:
        """Take in further values, one after the other; the order is part of what a resume repeats."""
        for value in values:
            self.count += 1
            gap = value - self.mean
            self.mean += gap / self.count
            self.squares += gap * (value - self.mean)

    @property
    def std(self) -> float:
        """Population standard deviation; 0 of nothing."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


class Normaliser:
    """Maps the raw scores of one part. Missing scores stay missing and count nowhere."""

    def __init__(self, settings: PartSettings) -> None:
        self.settings = settings
        self.statistics = Statistics()
        if settings.mean is not None and settings.std is not None:
            self.statistics = Statistics(1, float(settings.mean), float(settings.std) ** 2)
        self.learns = settings.normalise == "zscore" and settings.statistics == "running"

    def __call__(self, raw: Raw) -> list[float | None]:
        """Normalised scores by statistics of earlier calls (the first uses its own), so that batches do not matter."""
        scores = [score for score in raw if score is not None]
        first = self.learns and self.statistics.count < 2
        if first:
            self._learn(scores)
        normalised = [None if score is None else self._normalised(score) for score in raw]
        if self.learns and not first:
            self._learn(scores)
        return normalised

    def _learn(self, values: Sequence[float]) -> None:
        limit, statistics = self.settings.freeze_after, self.statistics
        no_spread = (
            limit is not None and statistics.count >= limit and statistics.std < LEAST_STD
        )  # nothing to freeze yet
        allowed = len(values) if limit is None or no_spread else max(0, limit - int(statistics.count))
        self.statistics.add(values[:allowed])

    def _normalised(self, raw: float) -> float:
        if self.settings.normalise == "none":
            return raw
        if self.settings.normalise == "sigmoid":
            return sigmoid(raw / self.settings.scale)
        if self.statistics.std < LEAST_STD:
            return 0.0  # equal scores so far: how far the next one lies from them cannot be told
        z = (raw - self.statistics.mean) / self.statistics.std
        return min(self.settings.clip, max(-self.settings.clip, z))

    def state_dict(self) -> dict[str, Any]:
        """Count, mean and sum of squared gaps, which give the statistics back bit for bit."""
        s = self.statistics
        return {"count": s.count, "mean": s.mean, "squares": s.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.statistics = Statistics(int(state["count"]), float(state["mean"]), float(state["squares"]))


def sigmoid(x: float) -> float:
    """``1 / (1 + exp(-x))`` without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
