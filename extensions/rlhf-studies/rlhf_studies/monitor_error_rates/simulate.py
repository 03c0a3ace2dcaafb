"""Runs drawn from a model of what a step measures: completions in groups, their scores, and a few gold checks.

Suffixes: ``_T`` steps, ``_B`` completions of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Course = Callable[[Floats], Floats]
"""Progress of the run, from 0 to 1 -> a value by step."""
COUNT = 64
"""Completions of a step."""


def still(level: float = 0.0) -> Course:
    """The same at every step."""
    return lambda progress_T: np.full_like(progress_T, level)


def ramp(first: float, last: float, begin: float = 0.0, end: float = 1.0) -> Course:
    """From one value to another between two points of the run."""
    return lambda progress_T: first + (last - first) * np.clip((progress_T - begin) / (end - begin), 0.0, 1.0)


STILL = still()
ALWAYS_100 = still(100.0)


@dataclass(frozen=True)
class Family:
    hack: str = ""
    """What is hacked; "" for a healthy run."""
    begin: float = 0.3
    """Where the hack begins, as a share of the run."""
    quality: Course = STILL
    """Mean quality of the answers, which gold checks see as right (quality above 0) or wrong."""
    exploit: Course = STILL
    """What the reward pays for that is no quality."""
    length: Course = ALWAYS_100
    """Mean length in tokens."""
    pays_for_length: float = 0.0
    """Reward for each 100 tokens."""
    checks: int = 16
    """Completions of a step that the second reward scores; 0 for none."""
    every: int = 1
    """Steps between two checks."""
    group_size: int = 8
    """Completions of a prompt."""
    wander: float = 0.0
    """Correlation of a step's mean quality with the last step's, beside its course."""
    heavy_tails: bool = False
    """Scores with noise of Student's t with three degrees of freedom."""
    parts: tuple[Course, Course] | None = None
    """Means of a composite reward's two parts, instead of quality and exploit."""


def simulate(family: Family, steps: int, seed: int) -> list[dict[str, float]]:
    """What the monitor sees of one run, step by step."""
    rng = np.random.default_rng([seed, 7])
    progress_T = np.arange(steps) / max(steps - 1, 1)
    quality_T = family.quality(progress_T) + wandering(family.wander, steps, rng)
    exploit_T, length_T = family.exploit(progress_T), family.length(progress_T)
    parts = None if family.parts is None else [part(progress_T) for part in family.parts]
    rows: list[dict[str, float]] = []
    for step in range(steps):
        seen = completions(float(quality_T[step]), float(exploit_T[step]), float(length_T[step]), family, rng)
        row = metrics(*seen[:2], family.group_size)
        if parts is not None:
            weighted = [part[step] + rng.normal(0, 1, COUNT) for part in parts]
            row |= {
                "reward/mean": float(sum(w.mean() for w in weighted)),
                "reward/std": float((weighted[0] + weighted[1]).std()),
            }
            row |= {f"reward/part/{name}/weighted": float(w.mean()) for name, w in zip("ab", weighted)}
        elif family.checks and step % family.every == 0:
            row |= checked(seen[1], seen[2], family.checks)
        rows.append(row)
    return rows


def wandering(correlation: float, steps: int, rng: np.random.Generator) -> Floats:
    """An autoregressive course around 0, of a tenth of the answers' spread."""
    course_T = np.zeros(steps)
    for step in range(1, steps if correlation else 0):
        course_T[step] = correlation * course_T[step - 1] + rng.normal(0, 0.1)
    return course_T


def completions(
    quality: float, exploit: float, length: float, family: Family, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """(Lengths, rewards, gold) of a step's completions, group by group."""
    lengths_B = length * np.exp(rng.normal(0, 0.25, COUNT) - 0.03)
    prompts_B = np.repeat(rng.normal(0, 0.5, COUNT // family.group_size), family.group_size)
    answers_B = quality + prompts_B + rng.normal(0, 0.9, COUNT)
    noise_B = rng.standard_t(3, COUNT) if family.heavy_tails else rng.normal(0, 0.5, COUNT)
    rewards_B = answers_B + exploit + family.pays_for_length * lengths_B / 100 + noise_B
    return lengths_B, rewards_B, (answers_B > 0).astype(np.float64)


def metrics(lengths_B: Floats, rewards_B: Floats, group_size: int) -> dict[str, float]:
    """A step's metrics, and the sums that the monitor makes of its rollouts."""
    lengths, rewards = lengths_B.reshape(-1, group_size), rewards_B.reshape(-1, group_size)
    lengths = lengths - lengths.mean(axis=1, keepdims=True)
    rewards = rewards - rewards.mean(axis=1, keepdims=True)
    return {
        "completion_length/mean": float(lengths_B.mean()),
        "reward/mean": float(rewards_B.mean()),
        "reward/std": float(rewards_B.std()),
        "length_covariance": float((lengths * rewards).sum()),
        "length_variance": float(np.square(lengths).sum()),
    }


def checked(rewards_B: Floats, gold_B: Floats, count: int) -> Mapping[str, Any]:
    """Both measures of some completions, evenly spaced over the step."""
    chosen = np.arange(count) * len(gold_B) // count
    proxy, second = rewards_B[chosen], gold_B[chosen]
    return {
        "proxy": float(proxy.mean()),
        "proxy_std": float(proxy.std()),
        "second": float(second.mean()),
        "second_std": float(second.std()),
        "second_count": float(count),
    }
