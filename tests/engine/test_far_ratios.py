"""Log ratios whose exponential leaves float32 give finite losses and gradients, and are counted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.losses import kl_value
from rlhf_core.plugins.loss_contract import CheckedLoss
from rlhf_core.rl.update import PolicyTerms
from rlhf_core.training.functional import kl_loss, reduce_loss
from rlhf_core.training.learner import core_metrics
from rlhf_core.types.batches import LossOutput, TokenBatch
from rlhf_plugin_dpo import formulas
from rlhf_plugin_grpo.functional import compute_grpo_clip_loss
from rlhf_plugin_grpo.loss import Cispo, GrpoClip, NoClip, Sapo
from rlhf_plugin_grpo.loss_config import CispoLossConfig, NoClipConfig, SapoConfig

LEVELS = ("token", "sequence", "product")
LOSSES = {
    "clip": lambda level: GrpoClip(0.2, 0.2, level),
    "dual": lambda level: GrpoClip(0.2, 0.2, level, dual_clip=3.0),
    "free": lambda level: NoClip(NoClipConfig(importance_level=level)),
    "sapo": lambda level: Sapo(SapoConfig(importance_level=level)),
    "cispo": lambda level: Cispo(CispoLossConfig(importance_level=level)),
}


def batch(gap: float, advantage: float = 1.0) -> TokenBatch:
    """Two tokens whose log ratio is ``gap``, and a masked one that is as far off the other way."""
    logprobs = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
    old = logprobs.detach() - torch.tensor([[gap, gap, -gap]])
    mask = torch.tensor([[True, True, False]])
    return TokenBatch(logprobs, mask, torch.full((1, 3), advantage), old, ref_logprobs_BT=old)


def gradient(out: LossOutput, made: TokenBatch) -> torch.Tensor:
    reduce_loss(out.loss, made.mask_BT, "token_mean", 2.0).backward()
    assert made.logprobs_BT.grad is not None
    return made.logprobs_BT.grad[0]


@pytest.mark.parametrize(("name", "level", "sign"), list(itertools.product(LOSSES, LEVELS, (1.0, -1.0))))
def test_gradients_are_finite_however_far_the_policies_are(name: str, level: Any, sign: float) -> None:
    for gap in (100.0, -100.0, 1e4):
        made = batch(gap, sign)
        out = LOSSES[name](level)(made)
        grad = gradient(out, made)
        assert torch.isfinite(grad).all(), (gap, grad)
        assert all(np.isfinite(float(total)) for total, _ in out.metrics.values())
        assert out.metrics["log_ratios_clamped"] == (2.0, 2.0)


def test_the_clip_wins_over_an_overflow() -> None:
    """A good token whose ratio is e^100 is past the clip: no gradient, where the product of 0 and infinity was NaN."""
    made = batch(100.0)
    assert not gradient(GrpoClip(0.2, 0.2)(made), made).any()
    logprobs = torch.tensor([[0.0]], requires_grad=True)
    compute_grpo_clip_loss(torch.ones(1, 1), logprobs, torch.tensor([[-100.0]]), 0.2)[0].sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == 0.0


@pytest.mark.parametrize("gap", [0.0, 0.3, -19.9, 19.9])
def test_ratios_within_reach_are_as_before_and_not_counted(gap: float) -> None:
    made = batch(gap, -1.0)
    out = NoClip(NoClipConfig())(made)
    assert torch.equal(out.loss, (made.logprobs_BT - made.old_logprobs_BT).exp())
    assert out.metrics["log_ratios_clamped"] == (0.0, 0.0)
    assert CheckedLoss(GrpoClip(0.2, 0.2), terms=[PolicyTerms(0.1)])(made).metrics["kl_clamped"] == (0.0, 0.0)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_kl_far_from_the_reference_is_finite_and_counted(estimator: str) -> None:
    for gap in (100.0, -100.0):
        made = batch(gap)
        out = CheckedLoss(GrpoClip(0.2, 0.2), terms=[PolicyTerms(0.1, estimator)])(made)
        assert torch.isfinite(gradient(out, made)).all()
        assert out.metrics["kl_clamped"] == (2.0, 2.0)
        ref = made.logprobs_BT.detach() + 100
        assert torch.isfinite(kl_loss(made.logprobs_BT, ref, estimator)).all()
        assert np.isfinite(kl_value(np.float32(-100), np.float32(0), estimator))


def test_the_metric_of_drift_is_finite() -> None:
    far = batch(100.0)
    far = replace(far, behaviour_logprobs_BT=far.old_logprobs_BT)
    assert np.isfinite(core_metrics(far)["approx_kl"][0])


@pytest.mark.parametrize("d", [-1e4, -100.0, 100.0])
def test_discopop_far_from_the_reference(d: float) -> None:
    d_B = torch.tensor([d], requires_grad=True)
    formulas.discopop(d_B, 1.0, 0.05).sum().backward()
    assert d_B.grad is not None
    assert torch.isfinite(d_B.grad).all()
