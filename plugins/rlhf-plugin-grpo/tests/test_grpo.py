"""Group-relative advantages and the clipped surrogate, against formulas written out and exact enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.api import Score, ScoreStatus, TokenBatch
from rlhf_core.testing.samples import make_rollouts
from rlhf_plugin_grpo.advantage import GroupNorm
from rlhf_plugin_grpo.config import GroupNormConfig
from rlhf_plugin_grpo.loss import GrpoClip


def estimate(values: list[float | None], groups: int, **options: Any) -> list[float | None]:
    rollouts, ids = make_rollouts(groups, len(values) // groups)
    scores = [Score.failed(ScoreStatus.TIMEOUT, "slow") if v is None else Score(v, {}) for v in values]
    found = GroupNorm(GroupNormConfig(**options)).estimate(rollouts, scores, ids).values
    return [None if v is None else float(v) for v in found]  # type: ignore[arg-type]


def test_each_group_is_its_own_baseline() -> None:
    values = [1.0, 0.0, 0.0, 1.0, 5.0, 7.0, 9.0, 11.0]
    found = estimate(list(values), 2)
    for rows in (slice(0, 4), slice(4, 8)):
        group = np.array(values[rows])
        assert found[rows] == pytest.approx((group - group.mean()) / (group.std(ddof=1) + 1e-6))


def test_without_std_only_the_mean_is_taken_off() -> None:
    assert estimate([3.0, 1.0, 2.0, 2.0], 1, scale="none") == pytest.approx([1.0, -1.0, 0.0, 0.0])


def test_a_missing_score_takes_no_part() -> None:
    assert estimate([1.0, None, 0.0, None], 1) == [
        pytest.approx(2**-0.5, rel=1e-5),
        None,
        pytest.approx(-(2**-0.5), rel=1e-5),
        None,
    ]
    assert estimate([1.0, None, None, None], 1) == [0.0, None, None, None]


@pytest.mark.parametrize("level", [0.1, 1e6, -3.0])
def test_rounding_of_equal_rewards_does_not_become_signal(level: float) -> None:
    noisy = np.float32(level) + np.float32(abs(level)) * np.float32([0, 1e-7, -1e-7, 0])
    assert estimate([float(v) for v in noisy], 1) == [0.0] * 4
    assert max(map(abs, estimate([level, level * 1.1, level, level], 1))) > 1  # type: ignore[type-var,arg-type]


def batch(new: Any, old: Any, advantages: Any) -> TokenBatch:
    return TokenBatch(
        torch.as_tensor(new),
        torch.ones(torch.as_tensor(new).shape, dtype=torch.bool),
        advantages_BT=torch.as_tensor(advantages),
        old_logprobs_BT=torch.as_tensor(old),
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "moves"),
    [
        (1.0, 2.0, -2.0, True),
        (1.1, 2.0, -2.2, True),
        (1.5, 2.0, -2.56, False),  # above 1.28: clipped
        (0.5, 2.0, -1.0, True),  # a good token that became rare may come back
        (0.5, -2.0, 1.6, False),  # below 0.8: clipped
        (1.5, -2.0, 3.0, True),  # a bad token that became frequent is still pushed down
    ],
)
def test_clipping_takes_the_gradient_away_on_the_far_side_only(
    ratio: float, advantage: float, loss: float, moves: bool
) -> None:
    new = torch.tensor([[float(np.log(ratio)) - 1.0]], requires_grad=True)
    out = GrpoClip(0.2, 0.28)(batch(new, [[-1.0]], [[advantage]]))
    assert float(out.loss.detach()) == pytest.approx(loss, rel=1e-5)
    out.loss.sum().backward()
    assert new.grad is not None
    assert bool(new.grad.abs() > 0) is moves
    cut, tokens = out.metrics["clip_fraction"]
    assert (float(cut), float(tokens)) == (0.0 if moves else 1.0, 1.0)


def test_on_policy_gradient_is_the_policy_gradient_by_exact_enumeration() -> None:
    """Over all 2-token texts of a 3-token alphabet, the expected surrogate gradient is that of the expected reward."""
    torch.manual_seed(0)
    first, second = torch.randn(3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    reward = torch.randn(3, 3)
    head, tail = first.log_softmax(0), second.log_softmax(1)
    expected = sum((head[a] + tail[a, b]).exp() * reward[a, b] for a, b in itertools.product(range(3), repeat=2))
    wanted = torch.autograd.grad(expected, (first, second))  # type: ignore[arg-type]
    head, tail = first.log_softmax(0), second.log_softmax(1)
    total = torch.zeros(())
    for a, b in itertools.product(range(3), repeat=2):
        logprobs = torch.stack([head[a], tail[a, b]])[None]
        out = GrpoClip(0.2, 0.2)(batch(logprobs, logprobs.detach(), reward[a, b].expand(1, 2)))
        total = total + logprobs.sum().detach().exp() * out.loss.sum()
    found = torch.autograd.grad(total, (first, second))
    for a, b in zip(found, wanted):
        assert torch.allclose(a, -b, atol=1e-6)
