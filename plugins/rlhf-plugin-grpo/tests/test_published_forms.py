"""The settings that follow a paper to the letter, against the paper's formula written out token by token."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlhf_core.config import Registry
from rlhf_core.config.load import validate
from rlhf_core.losses import TokenBatch
from rlhf_core.rewards import Score
from rlhf_core.rl.update import PolicyTerms
from rlhf_core.training.functional import reduce_loss
from rlhf_testing import make_context, make_rollouts

REGISTRY = Registry(disabled=())
G, T = 4, 5
LENGTHS = [5, 1, 3, 2]
REWARDS = [1.0, 0.0, 0.0, 1.0]
MEAN, STD = 0.5, math.sqrt(1 / 3)


def resolve(name: str, **trainer: Any) -> Any:
    return validate(REGISTRY, {"reward": "verifier", "trainer": {"name": "grpo", **trainer}, "loss": name})


def batch(requires_grad: bool = True) -> TokenBatch:
    generator = torch.Generator().manual_seed(5)
    old = -torch.rand(G, T, generator=generator, dtype=torch.float64) * 2 - 0.1
    new = (old + torch.randn(G, T, generator=generator, dtype=torch.float64) * 0.4).requires_grad_(requires_grad)
    ref = old + torch.randn(G, T, generator=generator, dtype=torch.float64) * 0.3
    mask = torch.arange(T)[None] < torch.tensor(LENGTHS)[:, None]
    return TokenBatch(new, mask, torch.zeros(G, T, dtype=torch.float64), old, ref, old, None)


def loss_of(config: Any, tokens: TokenBatch) -> torch.Tensor:
    """As a run computes it: the recipe's advantage, loss, KL term and mean."""
    rollouts, _ = make_rollouts(1, G)
    scores = [Score(r) for r in REWARDS]
    values = config.advantage.build(make_context()).estimate(rollouts, scores, [0] * G).values
    A_BT = torch.tensor([float(v) for v in values], dtype=torch.float64)[:, None].expand(G, T)
    tokens = replace(tokens, advantages_BT=A_BT)
    out = config.loss.build(make_context())(tokens)
    if config.trainer.kl.coefficient and config.trainer.kl.where == "loss":
        out = PolicyTerms(config.trainer.kl.coefficient, config.trainer.kl.estimator)(out, tokens)
    trainer = config.trainer
    denominators = {
        "token_mean": float(sum(LENGTHS)),
        "sequence_mean": float(G),
        "constant": G * trainer.constant_length,
    }
    return reduce_loss(out.loss, tokens.mask_BT, trainer.reduction, denominators[trainer.reduction])


def grpo_objective(tokens: TokenBatch, beta: float) -> torch.Tensor:
    """Shao et al. 2024, eq. 3 and 4, one group; negated."""
    new, old, ref = tokens.logprobs_BT, tokens.old_logprobs_BT, tokens.ref_logprobs_BT
    assert old is not None
    assert ref is not None
    total = torch.zeros((), dtype=torch.float64)
    for i, length in enumerate(LENGTHS):
        A = (REWARDS[i] - MEAN) / STD
        terms = torch.zeros((), dtype=torch.float64)
        for t in range(length):
            ratio = (new[i, t] - old[i, t]).exp()
            surrogate = torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
            kl = (ref[i, t] - new[i, t]).exp() - (ref[i, t] - new[i, t]) - 1
            terms = terms + surrogate - beta * kl
        total = total + terms / length
    return -total / G


def test_grpo_paper_is_the_papers_objective() -> None:
    config = resolve("grpo_paper")
    assert (config.trainer.reduction, config.advantage.name, config.trainer.kl.coefficient) == (
        "sequence_mean",
        "group_norm",
        0.04,
    )
    # Of the policy's own samples: off policy the core weighs the KL by the ratio, and its gradient is the KL's own.
    tokens = batch(requires_grad=False)
    assert tokens.old_logprobs_BT is not None
    on_policy = replace(tokens, logprobs_BT=tokens.old_logprobs_BT)
    assert loss_of(config, on_policy).item() == pytest.approx(grpo_objective(on_policy, 0.04).item(), rel=1e-5)


def test_without_kl_value_and_gradient_are_the_papers() -> None:
    config = resolve("grpo_paper", kl={"coefficient": 0.0})
    ours, theirs = batch(), batch()
    value, expected = loss_of(config, ours), grpo_objective(theirs, 0.0)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    value.backward()
    expected.backward()
    torch.testing.assert_close(ours.logprobs_BT.grad, theirs.logprobs_BT.grad, rtol=1e-5, atol=1e-8)
    default = loss_of(resolve("grpo_clip"), batch())
    assert default.item() != pytest.approx(expected.item(), rel=1e-2)


def test_reinforce_with_baseline_divides_by_the_std_and_averages_each_completion_first() -> None:
    tokens = batch()
    value = loss_of(resolve("reinforce_with_baseline", kl={"coefficient": 0}), tokens)
    means = [tokens.logprobs_BT[i, :n].mean().item() for i, n in enumerate(LENGTHS)]
    expected = -sum((r - MEAN) / STD * m for r, m in zip(REWARDS, means)) / G
    assert value.item() == pytest.approx(expected, rel=1e-5)


def test_dr_grpos_constant_is_the_longest_completion() -> None:
    config = resolve("dr_grpo", sampling={"max_tokens": 1024}, kl={"coefficient": 0})
    assert config.trainer.constant_length == 1024
    tokens = batch()
    new, old = tokens.logprobs_BT, tokens.old_logprobs_BT
    assert old is not None
    ratio = (new - old).exp()
    A = torch.tensor(REWARDS, dtype=torch.float64)[:, None] - MEAN
    surrogate = torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
    expected = -(surrogate * tokens.mask_BT).sum().item() / (G * 1024)
    assert loss_of(config, tokens).item() == pytest.approx(expected, rel=1e-9)
    assert resolve("dr_grpo", reduction_constant=64.0).trainer.constant_length == 64
    assert resolve("luspo", sampling={"max_tokens": 1024}).trainer.constant_length == 1


def test_the_help_says_which_mean_is_the_default_and_why() -> None:
    from rlhf_plugin_grpo.config import DrGrpoConfig, GrpoConfig

    assert "grpo_paper" in str(GrpoConfig.__doc__)
    assert "over all tokens" in str(GrpoConfig.__doc__)
    assert "ten times" in str(DrGrpoConfig.__doc__)
