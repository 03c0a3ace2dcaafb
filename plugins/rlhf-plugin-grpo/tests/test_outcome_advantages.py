"""Estimators for verdicts, against all sets of completions counted one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from statistics import fmean, pstdev, stdev
from typing import Any

import numpy as np
import pytest

from rlhf_core.config import ConfigError, Registry
from rlhf_core.config.load import validate
from rlhf_core.rewards import Score
from rlhf_core.types.errors import RlhfError
from rlhf_testing import make_context, make_rollouts

REGISTRY = Registry(disabled=())


def estimate(name: str, rewards: list[float], rollouts: Any = None, **settings: Any) -> list[Any]:
    estimator = REGISTRY.load("advantage", name)(**settings).build(make_context())
    rows = rollouts or make_rollouts(1, len(rewards))[0]
    return list(estimator.estimate(rows, [Score(r) for r in rewards], [0] * len(rewards)).values)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("right", [0, 1, 2, 5])
def test_pass_at_k_is_the_mean_over_all_sets_of_k(k: int, right: int) -> None:
    rewards = [1.0] * right + [0.0] * (5 - right)
    sets = list(combinations(range(5), k))
    paid = {s: max(rewards[i] for i in s) for s in sets}
    mean, sigma = fmean(paid.values()), pstdev(paid.values())
    wanted = [fmean((paid[s] - mean) / sigma for s in sets if i in s) if sigma else 0.0 for i in range(5)]
    assert estimate("pass_at_k", rewards, k=k) == pytest.approx(wanted)


def test_best_of_group_is_what_the_best_would_lose_without_it() -> None:
    rewards = [0.25, 1.0, 0.5, 0.0]
    wanted = [max(rewards) - max(rewards[:i] + rewards[i + 1 :]) for i in range(4)]
    assert estimate("best_of_group", rewards, scale="none") == pytest.approx(wanted)
    assert estimate("best_of_group", rewards) == pytest.approx([w / (stdev(rewards) + 1e-6) for w in wanted])
    assert estimate("best_of_group", [1.0, 1.0, 0.0]) == [0.0, 0.0, 0.0]


def test_max_rl_divides_by_the_share_of_right_answers() -> None:
    assert estimate("max_rl", [1.0, 0.0, 0.0, 0.0]) == pytest.approx([3.0, -1.0, -1.0, -1.0])
    assert estimate("max_rl", [0.0, 0.0]) == [0.0, 0.0]
    assert estimate("max_rl", [1.0, 1.0]) == [0.0, 0.0]
    with pytest.raises(ConfigError, match="score -1"):
        estimate("max_rl", [1.0, -1.0])


def test_the_token_baseline_weighs_by_the_gradients_so_far() -> None:
    logprobs = [np.log([0.5, 0.9, 0.2]), np.log([0.1, 0.3])]
    rows = [
        replace(rollout, completion_ids=(1,) * len(p), logprobs_T=p, mask_T=None)
        for rollout, p in zip(make_rollouts(1, 2)[0], logprobs)
    ]
    weights = [np.cumsum((1 - np.exp(p)) ** 2) for p in logprobs]
    rewards = [1.0, 0.25]
    baseline = [sum(r * w[t] for r, w in zip(rewards, weights)) / sum(w[t] for w in weights) for t in range(2)]
    first, second = estimate("optimal_token_baseline", rewards, rows)
    np.testing.assert_allclose(first, [1 - baseline[0], 1 - baseline[1], 1.0], rtol=1e-6)
    np.testing.assert_allclose(second, [0.25 - baseline[0], 0.25 - baseline[1]], rtol=1e-6)
    tail = estimate("optimal_token_baseline", rewards, rows, zero_tail=False)[0]
    assert tail[2] == 0.0
    for value in estimate("optimal_token_baseline", [0.3, 0.3], rows):
        np.testing.assert_array_equal(value, 0.0)


def test_more_tries_than_a_group_has_are_refused() -> None:
    settings = {
        "reward": "verifier",
        "trainer": {"name": "grpo", "group_size": 4},
        "advantage": {"name": "pass_at_k", "k": 5},
    }
    config = validate(REGISTRY, settings)
    with pytest.raises(RlhfError, match=r"more than trainer\.group_size 4"):
        config.advantage.preflight(make_context().with_(config=config))
