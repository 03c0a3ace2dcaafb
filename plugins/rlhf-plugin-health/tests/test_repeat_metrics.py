"""Metrics of repeated completions: what chance explains counts for nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlhf_core.rollouts import FinishReason, Rollout
from rlhf_core.training.generation import repeat_metrics


def rollout(prompt: str, ids: tuple[int, ...], logprob: float, mask: Any = None) -> Rollout:
    logprobs = np.full(len(ids), logprob, np.float32)
    return Rollout(prompt, 0, (1,), ids, logprobs, 0, FinishReason.EOS, "x", 1, mask)


def test_repeats_are_weighed_against_chance() -> None:
    sure = [rollout("a", (1, 2), -0.01)] * 4
    assert repeat_metrics(sure) == {
        "identical_fraction": 1.0,
        "repeat_surprise": pytest.approx(0.06 / 4),
        "commonest_fraction": 1.0,
    }
    rare = [rollout("b", (3, 4), -3.0)] * 4  # three repeats at exp(-6)
    assert repeat_metrics([*sure, *rare]) == {
        "identical_fraction": 1.0,
        "repeat_surprise": pytest.approx(18.06 / 8),
        "commonest_fraction": 0.5,
    }
    pair = [rollout("c", (3, 4), -3.0)] * 2 + [rollout("c", (n,), -3.0) for n in range(2)]
    assert repeat_metrics(pair) == {
        "identical_fraction": 0.0,
        "repeat_surprise": pytest.approx((6 - math.log(3)) / 4),
        "commonest_fraction": 0.5,
    }
    tool = rollout("d", (1, 2, 3), -9.0, np.array([True, False, False]))
    assert repeat_metrics([tool] * 2)["repeat_surprise"] == 4.5, "only the first token was chosen"
    alone = repeat_metrics([rollout("e", (1,), -1.0)])
    assert (alone["identical_fraction"], alone["repeat_surprise"]) == (0.0, 0.0)
    assert set(repeat_metrics([]).values()) == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 8, 64])
def test_independent_draws_surprise_nobody(size: int) -> None:
    """Of distributions from even to sharp."""
    draw = np.random.default_rng(0)
    for sharp in (0.0, 0.1, 1.0, 2.0, 4.0, 40.0):
        logp = -np.log1p(np.arange(500)) * sharp
        logp -= np.log(np.exp(logp).sum())
        rollouts = [
            rollout(str(n), (int(t),), float(logp[t]))
            for n in range(100)
            for t in draw.choice(500, size, p=np.exp(logp))
        ]
        assert repeat_metrics(rollouts)["repeat_surprise"] < 0.25
        same = [
            replace(r, completion_ids=g.completion_ids, logprobs_T=g.logprobs_T)
            for g in rollouts[::size]
            for r in [g] * size
        ]
        assert (repeat_metrics(same)["repeat_surprise"] > 0.75) is (sharp < 4), "certainty is no fixed seed"
