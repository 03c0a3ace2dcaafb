"""Policy losses: where each clips or bounds the gradient, and that all agree on policy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.config import Registry
from rlhf_core.losses import TokenBatch
from rlhf_plugin_grpo.loss import GrpoClip
from rlhf_testing import make_context

REGISTRY = Registry(disabled=())
NAMES = sorted(e.name for e in REGISTRY.entries("loss") if e.distribution == "rlhf-plugin-grpo")


def token_batch(new: Any, old: Any, advantages: Any) -> TokenBatch:
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
    out = GrpoClip(0.2, 0.28)(token_batch(new, [[-1.0]], [[advantage]]))
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
    expected_reward = sum((head[a] + tail[a, b]).exp() * reward[a, b] for a, b in itertools.product(range(3), repeat=2))
    expected_gradients = torch.autograd.grad(expected_reward, (first, second))  # type: ignore[arg-type]
    head, tail = first.log_softmax(0), second.log_softmax(1)
    total = torch.zeros(())
    for a, b in itertools.product(range(3), repeat=2):
        logprobs = torch.stack([head[a], tail[a, b]])[None]
        out = GrpoClip(0.2, 0.2)(token_batch(logprobs, logprobs.detach(), reward[a, b].expand(1, 2)))
        total = total + logprobs.sum().detach().exp() * out.loss.sum()
    gradients = torch.autograd.grad(total, (first, second))
    for a, b in zip(gradients, expected_gradients):
        assert torch.allclose(a, -b, atol=1e-6)


def built(name: str, **options: Any) -> Any:
    return REGISTRY.load("loss", name)(name=name, **options).build(make_context())


def batch_of_ratios(ratio: list[list[float]], advantage: float, lengths: list[int] | None = None) -> TokenBatch:
    old = torch.full((len(ratio), len(ratio[0])), -1.0, dtype=torch.float64)
    new = (old + torch.tensor(ratio, dtype=torch.float64).log()).requires_grad_()
    mask = torch.arange(len(ratio[0]))[None] < torch.tensor(lengths or [len(r) for r in ratio])[:, None]
    return TokenBatch(new, mask, torch.full_like(old, advantage), old)


@pytest.mark.parametrize(("ratio", "loss", "moves"), [(2.0, 2.0, True), (5.0, 3.0, False)])
def test_the_dual_clip_bounds_what_a_bad_token_can_cost(ratio: float, loss: float, moves: bool) -> None:
    rows = batch_of_ratios([[ratio]], -1.0)
    out = built("ppo_clip")(rows)
    assert out.loss.item() == pytest.approx(loss)
    out.loss.sum().backward()
    assert bool(rows.logprobs_BT.grad.abs() > 0) is moves  # type: ignore[union-attr]
    assert float(out.metrics["clip_fraction"][0]) == float(not moves)
    assert built("grpo_clip")(batch_of_ratios([[ratio]], -1.0)).loss.item() == pytest.approx(ratio)


def test_a_sequences_ratio_is_the_geometric_mean_or_the_product_of_its_own_tokens() -> None:
    rows = batch_of_ratios([[2.0, 0.5, 3.0, 99.0]], 1.0, [3])
    assert built("grpo_no_clip", importance_level="sequence")(rows).loss[0, 0].item() == pytest.approx(-(3 ** (1 / 3)))
    assert built("grpo_no_clip", importance_level="product")(rows).loss[0, 0].item() == pytest.approx(-3)
    assert built("grpo_no_clip")(rows).loss[0, :3].tolist() == pytest.approx([-2.0, -0.5, -3.0])


def test_gspo_clips_whole_sequences() -> None:
    rows = batch_of_ratios([[1.001, 1.001], [1.001, 1.0], [1.5, 1 / 1.5]], 1.0)
    grad = torch.autograd.grad(built("gspo")(rows).loss.sum(), rows.logprobs_BT)[0]
    assert (grad != 0).tolist() == [[False] * 2, [False] * 2, [True] * 2]  # 1.001 and 1.0005 are past 1.0004


def test_cispo_keeps_the_gradient_of_tokens_past_its_bound() -> None:
    rows = batch_of_ratios([[10.0, 1.0]], 1.0)
    grad = torch.autograd.grad(built("cispo")(rows).loss.sum(), rows.logprobs_BT)[0]
    assert grad.tolist() == [[-5.0, pytest.approx(-1.0)]]


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_every_loss_has_the_policy_gradient(name: str) -> None:
    """At ratio 1, and one token per sequence, each is ``-A grad log pi``: they differ off policy and in reduction."""
    rows = batch_of_ratios([[1.0]], 0.7)
    grad = torch.autograd.grad(built(name)(rows).loss.sum(), rows.logprobs_BT)[0]
    assert grad.item() == pytest.approx(-0.7, rel=1e-6)
