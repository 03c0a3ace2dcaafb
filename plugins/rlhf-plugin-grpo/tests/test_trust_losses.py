"""Losses that bound a token's change without PPO's clip, against their formulas written out token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlhf_core.config import Registry
from rlhf_core.losses import LossOutput, TokenBatch
from rlhf_testing import make_context

B, T = 4, 6
LENGTHS = [6, 1, 3, 4]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("dppo", {"divergence_max": 0.05}),
    ("dppo", {"divergence": "kl", "divergence_max": 0.01, "divergence_max_positive": 0.02, "ratio_max": 1.1}),
    ("gspo_token", {"clip_range": 0.05, "clip_range_high": 0.02}),
    ("dro", {"beta": 0.7}),
]


def batch() -> TokenBatch:
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(B, T, generator=generator, dtype=torch.float64) * 2 - 0.1
    new = (old + torch.randn(B, T, generator=generator, dtype=torch.float64) * 0.3).clamp(max=-0.01)
    A = torch.randn(B, T, generator=generator, dtype=torch.float64)
    mask = torch.arange(T)[None] < torch.tensor(LENGTHS)[:, None]
    return TokenBatch(new.requires_grad_(), mask, A, old, None, None, None)


def compute(name: str, settings: dict[str, Any], tokens: TokenBatch) -> LossOutput:
    config = Registry(disabled=()).load("loss", name)(**settings)
    return config.build(make_context())(tokens)


def expected(name: str, s: dict[str, Any], tokens: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of each token, from scalars."""
    new_BT, old_BT, A_BT = tokens.logprobs_BT.tolist(), tokens.old_logprobs_BT.tolist(), tokens.advantages_BT.tolist()
    there = [(b, t) for b in range(B) for t in range(LENGTHS[b])]
    loss, gradient = torch.zeros(B, T, dtype=torch.float64), torch.zeros(B, T, dtype=torch.float64)
    for b, t in there:
        new, old, A = new_BT[b][t], old_BT[b][t], A_BT[b][t]
        rho, p, q = math.exp(new - old), math.exp(new), math.exp(old)
        if name == "dppo":
            far = abs(p - q) if s.get("divergence") != "kl" else q * (old - new) + (1 - q) * math.log((1 - q) / (1 - p))
            limit = s.get("divergence_max_positive", s["divergence_max"]) if A > 0 else s["divergence_max"]
            keeps = 0.0 if far > limit and A * (p - q) > 0 else 1.0
            weight = min(rho, s.get("ratio_max", 20.0))
            loss[b, t], gradient[b, t] = -A * weight * new * keeps, -A * weight * keeps
        elif name == "gspo_token":
            ratio = math.exp(sum(new_BT[b][u] - old_BT[b][u] for u in range(LENGTHS[b])) / LENGTHS[b])
            held = min(max(ratio, 1 - s["clip_range"]), 1 + s["clip_range_high"])
            loss[b, t] = -min(ratio * A, held * A)
            gradient[b, t] = -ratio * A if ratio * A <= held * A else 0.0
        elif name == "dro":
            loss[b, t] = -(A * new - s["beta"] / 2 * (new - old) ** 2)
            gradient[b, t] = -A + s["beta"] * (new - old)
    return loss, gradient


@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])
def test_value_and_gradient_are_the_formulas(name: str, settings: dict[str, Any]) -> None:
    tokens = batch()
    output = compute(name, settings, tokens)
    assert torch.isfinite(output.loss).all()
    loss = torch.where(tokens.mask_BT, output.loss, 0.0)
    loss.sum().backward()
    wanted, gradient = expected(name, settings, tokens)
    torch.testing.assert_close(loss.detach(), wanted, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(tokens.logprobs_BT.grad, gradient, rtol=1e-6, atol=1e-7)


def test_gmpo_is_the_geometric_mean_of_clipped_ratios() -> None:
    tokens = batch()
    loss = compute("gmpo", {"clip_range": 0.2}, tokens).loss
    for b, length in enumerate(LENGTHS):
        A_T, new_T, old_T = (
            v[b, :length].tolist() for v in (tokens.advantages_BT, tokens.logprobs_BT, tokens.old_logprobs_BT)
        )
        logs = [
            min(new - old, 0.2) if A > 0 else max(new - old, -0.2)
            for A, new, old in zip(A_T, new_T, old_T, strict=True)
        ]
        wanted = -sum(A_T) / length * math.exp(sum(logs) / length)
        assert loss[b, 0].item() == pytest.approx(wanted)
        assert (loss[b] == loss[b, 0]).all()


def covariances(tokens: TokenBatch) -> dict[tuple[int, int], float]:
    new_BT, A_BT = tokens.logprobs_BT.tolist(), tokens.advantages_BT.tolist()
    there = [(b, t) for b in range(B) for t in range(LENGTHS[b])]
    new, A = (sum(values[b][t] for b, t in there) / len(there) for values in (new_BT, A_BT))
    return {(b, t): (new_BT[b][t] - new) * (A_BT[b][t] - A) for b, t in there}


def test_clip_cov_leaves_out_tokens_between_the_bounds() -> None:
    covariance = covariances(batch())
    settings = {"share": 0.2, "covariance_min": 0.1, "covariance_max": 0.9}
    losses: list[Any] = []
    for seed in (0, 1):
        tokens = batch()
        plain = compute("grpo_clip", {}, tokens).loss
        torch.manual_seed(seed)
        loss = compute("clip_cov", settings, tokens).loss
        changed = [place for place in covariance if loss[place] != plain[place]]
        assert len(changed) == 2 < sum(0.1 < value < 0.9 for value in covariance.values()), "a fifth of 14 tokens"
        assert all(0.1 < covariance[place] < 0.9 and loss[place] == 0 for place in changed)
        loss[tokens.mask_BT].sum().backward()
        assert all(tokens.logprobs_BT.grad[place] == 0 for place in changed)
        losses.append(changed)
    assert losses[0] != losses[1]
    with pytest.raises(ValueError, match="is not below covariance_max"):
        compute("clip_cov", {"covariance_min": 5.0}, batch())


def test_kl_cov_penalises_the_tokens_of_the_highest_covariance() -> None:
    tokens, covariance = batch(), covariances(batch())
    highest = sorted(covariance, key=lambda place: -covariance[place])[:4]
    output = compute("kl_cov", {"share": 0.3, "beta": 0.7}, tokens)
    for b, t in covariance:
        delta = (tokens.logprobs_BT - tokens.old_logprobs_BT)[b, t].item()
        wanted = -math.exp(delta) * tokens.advantages_BT[b, t].item() + 0.7 * abs(delta) * ((b, t) in highest)
        assert output.loss[b, t].item() == pytest.approx(wanted)
    assert output.metrics["penalised"][0] == 4
