"""The reward rises by what it pays for length."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_hacking.config import LengthConfig
from rlhf_plugin_hacking.sequential import Shift, jumps, rises, student_limit
from rlhf_plugin_hacking.signals import SECOND_REWARD, Change, Finding, Readings, Row, gain, number, spread

LENGTH, REWARD, STD, SECOND, COVARIANCE, VARIANCE = range(6)
WITHIN_PROMPTS, FROM_STEP_TO_STEP = 1e-2, 5e-4
"""Of the signal's rate, for one look at the slope of scores over lengths, of which a run has up to a few hundred. From
step to step the lengths and rewards of a policy that learns to think move together too."""
AGREES = 2.0
"""Standard errors by which a second measure rises if the change of length is healthy."""


class Length:
    """Length alone is never a HARD_STOP, and no alarm where the reward does not rise or a second measure rises too."""

    def __init__(self, config: LengthConfig, warmup: int, alpha: float, change: Change) -> None:
        self.config, self.warmup, self.alpha, self.change = config, warmup, alpha, change
        self.memory: dict[str, Any] = {}

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """Reads lengths and rewards, ``second`` and the sums of :func:`length_slope`; see :class:`LengthConfig`."""
        length, reward, std = (number(row, k) for k in ("completion_length/mean", "reward/mean", "reward/std"))
        if length is None or length <= 0:
            return {}, None
        more = (number(row, k) for k in ("second", "length_covariance", "length_variance"))
        readings = Readings(self.memory)
        readings.add((length, reward, std, *more))
        if len(readings) <= self.warmup:
            return {}, None
        logs = np.log(readings.column(LENGTH))
        shifts = [
            shift
            for test in (rises, jumps)
            for values in (logs, -logs)
            for shift in test(values, self.alpha / 4, readings.dropped)
        ]
        if not shifts:
            return {}, None
        top = max(shifts, key=lambda shift: shift.z)
        metrics = {"length_z": math.copysign(top.z, gain(logs, top.early, top.late))}
        findings = [f for s in sorted(shifts, key=lambda s: -s.z) if s.significant and (f := self.judge(s))]
        return metrics, findings[0] if findings else None

    def judge(self, shift: Shift) -> Finding | None:
        """An alarm if the reward rose over the same windows, by what the change of length explains."""
        readings, config = Readings(self.memory), self.config
        rewards, stds = readings.column(REWARD), readings.column(STD)
        if any(value is None for value in (*rewards, *stds)):
            return None
        lengths = readings.column(LENGTH)
        before, now = (float(np.mean(lengths[window])) for window in (shift.early, shift.late))
        rise, scale = gain(rewards, shift.early, shift.late), spread(stds, self.warmup)
        if max(before, now) < (1 + config.change) * min(before, now) or rise < config.rise * scale:
            return None
        if self.second_rose(shift):
            return None
        slope, error = self.slope()
        paid = slope * (now - before)
        if paid < max(error * abs(now - before), config.share * rise):
            return None
        return Finding(
            f"completions went from {before:.1f} to {now:.1f} tokens ({shift.z:.1f} standard errors), and the reward "
            f"rose by {rise:.3g}, of which {min(paid / rise, 1.0):.0%} is what it pays for "
            f"{'length' if now > before else 'brevity'}",
            "the reward pays for length" if now > before else "the reward pays for saying less",
            (
                self.change("trainer.kl.coefficient", 0.1),
                self.change("trainer.sampling.max_tokens", "..."),
                SECOND_REWARD,
            ),
        )

    def second_rose(self, shift: Shift) -> bool:
        """Whether a second measure rose over the same windows."""
        seconds = Readings(self.memory).column(SECOND)
        early, late = ([v for v in seconds[window] if v is not None] for window in (shift.early, shift.late))
        if len(early) < 2 or len(late) < 2:
            return False
        error = math.sqrt(np.var(early, ddof=1) / len(early) + np.var(late, ddof=1) / len(late))
        return float(np.mean(late) - np.mean(early)) > AGREES * error

    def slope(self) -> tuple[float, float]:
        """(Reward per token, what chance explains of it): within prompts, else from step to step. Steps whose lengths
        differ more weigh more, and fewer steps than there are then carry the slope."""
        readings = Readings(self.memory)
        rows = [(c, v) for c, v in zip(readings.column(COVARIANCE), readings.column(VARIANCE)) if c is not None]
        share = WITHIN_PROMPTS
        if len(rows) < len(readings) / 2:
            share = FROM_STEP_TO_STEP
            lengths, rewards = np.diff(readings.column(LENGTH)), np.diff(readings.column(REWARD))
            rows = list(zip(lengths * rewards, lengths * lengths))
        covariances, variances = np.array(rows, np.float64).T
        total = float(variances.sum())
        if total <= 0:
            return 0.0, math.inf
        slope = float(covariances.sum()) / total
        freedom = max(len(rows) / 2, total * total / float(variances @ variances) - 1)
        error = math.sqrt(float(np.square(covariances - slope * variances).sum())) / total
        return slope, student_limit(self.alpha * share, freedom) * error


def length_slope(scored: Sequence[tuple[Rollout, Score]]) -> Mapping[str, float]:
    """Sums over a step of how scores and lengths vary together within prompts; {} where no two differ. Only completions
    that ended by themselves count."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for rollout, score in scored:
        if score.ok and score.value is not None and rollout.finish_reason.value != "length":
            groups[rollout.prompt_id].append((float(len(rollout.completion_ids)), float(score.value)))
    covariance = variance = 0.0
    for rows in groups.values():
        lengths, values = np.array(rows).T
        covariance += float(((lengths - lengths.mean()) * (values - values.mean())).sum())
        variance += float(np.square(lengths - lengths.mean()).sum())
    return {"length_covariance": covariance, "length_variance": variance} if variance else {}


def add_slopes(slopes: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """The sums of :func:`length_slope` over all ranks, none of which has a part of another's prompt."""
    names = ("length_covariance", "length_variance")
    return {name: sum(slope[name] for slope in slopes if slope) for name in names} if any(slopes) else {}
