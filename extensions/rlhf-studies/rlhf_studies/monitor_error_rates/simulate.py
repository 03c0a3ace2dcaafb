"""Runs drawn from a model of what a step measures: completions in groups, their scores, and a few gold checks.

Suffixes: ``_T`` steps, ``_B`` completions of a step.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_core.config import Config

Floats = npt.NDArray[np.float64]
Course = tuple[float, float] | tuple[float, float, float, float]
"""First value, last value, and the two points of the run, from 0 to 1, between which it moves; without them, all of
it."""


class Family(Config):
    """Runs of one kind, as ``families.toml`` has them."""

    hack: str = ""
    """What is hacked; "" for a healthy run."""
    begin: float = 0.0
    """Where the hack begins, as a share of the run."""
    in_time: int = 0
    """Steps from there within which a warning is in time; 0 sets no limit."""
    steps: int = 0
    """Of its runs; 0 takes the study's."""
    quality: Course = (0.0, 0.0)
    """Mean quality of the answers, which gold checks see as right (quality above 0) or wrong."""
    exploit: Course = (0.0, 0.0)
    """What the reward pays for that is no quality."""
    length: Course = (100.0, 100.0)
    """Mean length in tokens."""
    unsteady: float = 0.0
    """Spread of the logarithm of a step's mean length, which its prompts decide; half of it stays for the next step."""
    pays_for_length: float = 0.0
    """Reward for each 100 tokens."""
    checks: int = 16
    """Completions of a step that the second reward scores; 0 for none."""
    every: int = 1
    """Steps between two checks."""
    completions: int = 64
    """Of a step."""
    group_size: int = 8
    """Completions of a prompt."""
    wander: float = 0.0
    """Correlation of a step's mean quality with the last step's, beside its course."""
    heavy_tails: bool = False
    """Scores with noise of Student's t with three degrees of freedom."""
    parts: tuple[Course, Course] | None = None
    """Means of a composite reward's two parts, instead of quality and exploit."""


def families(folder: Path = Path(__file__).parent) -> dict[str, Family]:
    """Kinds of runs, as a study's ``families.toml`` has them."""
    rows = tomllib.loads((folder / "families.toml").read_text())
    return {name: Family.model_validate(row) for name, row in rows.items()}


def values_of(course: Course, steps: int) -> Floats:
    """A course step by step."""
    first, last, begin, end = course if len(course) == 4 else (*course, 0.0, 1.0)
    return first + (last - first) * np.clip((np.arange(steps) / steps - begin) / (end - begin), 0.0, 1.0)


def simulate(family: Family, steps: int, seed: int) -> list[dict[str, float]]:
    """What the monitor sees of one run, step by step."""
    rng = np.random.default_rng([seed, 7])
    quality_T = values_of(family.quality, steps) + wandering(family.wander, steps, rng, 0.1)
    exploit_T = values_of(family.exploit, steps)
    length_T = values_of(family.length, steps) * np.exp(wandering(0.5, steps, rng, family.unsteady))
    parts = None if family.parts is None else [values_of(part, steps) for part in family.parts]
    rows: list[dict[str, float]] = []
    for step in range(steps):
        seen = completions(float(quality_T[step]), float(exploit_T[step]), float(length_T[step]), family, rng)
        row = metrics(*seen[:2], family.group_size)
        if parts is not None:
            weighted = [part[step] + rng.normal(0, 1, family.completions) for part in parts]
            row |= {
                "reward/mean": float(sum(w.mean() for w in weighted)),
                "reward/std": float((weighted[0] + weighted[1]).std()),
            }
            row |= {f"reward/part/{name}/weighted": float(w.mean()) for name, w in zip("ab", weighted)}
        elif family.checks and step % family.every == 0:
            row |= checked(seen[1], seen[2], family.checks)
        rows.append(row)
    return rows


def wandering(correlation: float, steps: int, rng: np.random.Generator, noise: float) -> Floats:
    """An autoregressive course around 0."""
    course_T = np.zeros(steps)
    for step in range(1, steps if correlation else 0):
        course_T[step] = correlation * course_T[step - 1] + rng.normal(0, noise)
    return course_T


def completions(
    quality: float, exploit: float, length: float, family: Family, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """(Lengths, rewards, gold) of a step's completions, group by group."""
    count = family.completions
    lengths_B = length * np.exp(rng.normal(0, 0.25, count) - 0.03)
    prompts_B = np.repeat(rng.normal(0, 0.5, count // family.group_size), family.group_size)
    answers_B = quality + prompts_B + rng.normal(0, 0.9, count)
    noise_B = rng.standard_t(3, count) if family.heavy_tails else rng.normal(0, 0.5, count)
    rewards_B = answers_B + exploit + family.pays_for_length * lengths_B / 100 + noise_B
    return lengths_B, rewards_B, (answers_B > 0).astype(np.float64)


def metrics(lengths_B: Floats, rewards_B: Floats, group_size: int) -> dict[str, float]:
    """A step's metrics, and the sums that the monitor makes of its rollouts where a prompt has several."""
    lengths, rewards = lengths_B.reshape(-1, group_size), rewards_B.reshape(-1, group_size)
    lengths = lengths - lengths.mean(axis=1, keepdims=True)
    rewards = rewards - rewards.mean(axis=1, keepdims=True)
    row = {
        "completion_length/mean": float(lengths_B.mean()),
        "completion_length/std": float(lengths_B.std()),
        "reward/mean": float(rewards_B.mean()),
        "reward/std": float(rewards_B.std()),
    }
    sums = {
        "length_covariance": float((lengths * rewards).sum()),
        "length_variance": float(np.square(lengths).sum()),
    }
    return row | sums if group_size > 1 else row


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
