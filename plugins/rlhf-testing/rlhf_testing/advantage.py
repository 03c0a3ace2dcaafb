"""Conformance of advantage estimators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.losses import Advantages
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.rollouts import Rollout
from rlhf_testing.config import built, check_config
from rlhf_testing.report import frozen, left_alone, require
from rlhf_testing.samples import make_context, make_rollouts

GROUPS, SIZE = 4, 4
Rows = tuple[Sequence[Rollout], Sequence[Score], Sequence[int]]
Estimate = Callable[[Sequence[Rollout], Sequence[Score], Sequence[int]], Advantages]


def check_advantage(config: ComponentConfig, ctx: BuildContext | None = None) -> None:
    """Check an estimator: one finite value per rollout; a missing score gives None and does not move the others; a
    constant group gives zeros (where ``min_group_size`` is 2 or more); a better score never gets a smaller advantage;
    the order of the rollouts does not matter; with ``by_group = True`` no group moves another's; the inputs are left
    alone.

    Args:
        config: the estimator's configuration. It is built anew for each property.
    """
    check_config(config, "advantage")
    context = ctx or make_context()

    def estimate(rollouts: Sequence[Rollout], scores: Sequence[Score], groups: Sequence[int]) -> Advantages:
        estimator = built(config, "advantage", context)
        watched = left_alone(config, estimator.estimate, "estimate()", "rollouts", "scores", "group_ids")
        return watched([frozen(r) for r in rollouts], list(scores), list(groups))

    rollouts, groups = make_rollouts(GROUPS, SIZE)
    values = np.random.default_rng(3).normal(size=len(rollouts))
    values[SIZE : 2 * SIZE] = 0.7  # a constant group
    scores = [Score(float(v)) for v in values]
    check_shape(config, estimate, (rollouts, scores, groups))
    if config.min_group_size > 1:
        equal_group = _flat(estimate(rollouts, scores, groups))[SIZE : 2 * SIZE]
        rule = "a group of equal scores gets zero advantages"
        fix = "subtract the group's mean, and do not divide rounding errors by a tiny standard deviation"
        require(all(v is not None and abs(v) < 1e-9 for v in equal_group), config, rule, str(equal_group), fix)
    check_order(config, estimate, (rollouts, scores, groups))
    check_missing(config, estimate, (rollouts, scores, groups))
    check_permutation(config, estimate, (rollouts, scores, groups))
    estimator: Any = type(built(config, "advantage", context))
    owner: Any = next((c for c in estimator.__mro__ if "estimate" in vars(c)), estimator)
    if vars(owner).get("by_group", False):  # several ranks call it, each with its own groups
        check_by_group(config, estimate, (rollouts, scores, groups))


def _flat(result: Advantages) -> list[float | None]:
    """The mean over tokens of each advantage."""
    return [None if v is None else float(np.mean(v)) for v in result.values]


def check_shape(config: ComponentConfig, estimate: Estimate, rows: Rows) -> None:
    """One finite float, or one per token, for each rollout."""
    rollouts, scores, groups = rows
    result: Any = estimate(rollouts, scores, groups)
    require(isinstance(result, Advantages), config, "estimate returns Advantages", type(result).__name__)
    rule = "there is one advantage per rollout"
    require(len(result.values) == len(rollouts), config, rule, f"{len(result.values)} for {len(rollouts)} rollouts")
    for rollout, value in zip(rollouts, result.values):
        good = (
            value is not None and np.isfinite(value).all() and np.shape(value) in ((), (len(rollout.completion_ids),))
        )
        rule = "a scored rollout gets a finite float, or one per token"
        require(bool(good), config, rule, f"{value!r} for {len(rollout.completion_ids)} tokens")


def check_order(config: ComponentConfig, estimate: Estimate, rows: Rows) -> None:
    """Within a group a better score never gets a smaller advantage, and the best beats the worst."""
    rollouts, scores, groups = rows
    values = _flat(estimate(rollouts, scores, groups))
    ranked = sorted(range(SIZE), key=lambda i: scores[i].value or 0.0)
    ordered = [values[i] or 0.0 for i in ranked]
    rising = all(a <= b + 1e-12 for a, b in pairwise(ordered)) and ordered[0] < ordered[-1]
    rule = "better scores get larger advantages"
    require(rising, config, rule, f"scores {[scores[i].value for i in ranked]}: advantages {ordered}")


def check_missing(config: ComponentConfig, estimate: Estimate, rows: Rows) -> None:
    """A missing score is None, and counts neither as 0 nor at all; a group without any is no error."""
    rollouts, scores, groups = rows
    missing = {0, 5, *range(2 * SIZE, 3 * SIZE)}
    holes = [Score.failed(ScoreStatus.TIMEOUT, "late") if i in missing else s for i, s in enumerate(scores)]
    advantages = _flat(estimate(rollouts, holes, groups))
    wrong = [i for i in missing if advantages[i] is not None]
    rule, fix = "a missing score gives None", "leave out scores whose .ok is False"
    require(not wrong, config, rule, f"rollouts {wrong} got {[advantages[i] for i in wrong]}", fix)
    scored = [i for i in range(len(rollouts)) if i not in missing]
    alone = _flat(estimate([rollouts[i] for i in scored], [scores[i] for i in scored], [groups[i] for i in scored]))
    rule = "a missing score does not move the others' advantages"
    seen = f"{[advantages[i] for i in scored]} instead of {alone}"
    fix = "take mean and standard deviation over scores that are .ok"
    require(_close([advantages[i] for i in scored], alone), config, rule, seen, fix)


def check_permutation(config: ComponentConfig, estimate: Estimate, rows: Rows) -> None:
    """Shuffled rollouts get their own advantages."""
    rollouts, scores, groups = rows
    order = np.random.default_rng(4).permutation(len(rollouts)).tolist()
    straight = _flat(estimate(rollouts, scores, groups))
    mixed = _flat(
        estimate([replace(rollouts[i]) for i in order], [scores[i] for i in order], [groups[i] for i in order])
    )
    rule, seen = "the order of the rollouts does not matter", f"{mixed} instead of {[straight[i] for i in order]}"
    require(_close(mixed, [straight[i] for i in order]), config, rule, seen, "go by group_ids, not by position")


def check_by_group(config: ComponentConfig, estimate: Estimate, rows: Rows) -> None:
    """Each group alone gets what it gets beside the others."""
    rollouts, scores, groups = rows
    together = _flat(estimate(rollouts, scores, groups))
    own = [slice(start, start + SIZE) for start in range(0, len(rollouts), SIZE)]
    alone = [value for one in own for value in _flat(estimate(rollouts[one], scores[one], groups[one]))]
    rule, fix = "with by_group = True no group moves another's advantages", "leave by_group out"
    require(_close(together, alone), config, rule, f"{together} instead of {alone}", fix)


def _close(a: Sequence[float | None], b: Sequence[float | None]) -> bool:
    return len(a) == len(b) and all(
        (x is None) == (y is None) and abs((x or 0.0) - (y or 0.0)) < 1e-6 for x, y in zip(a, b)
    )
