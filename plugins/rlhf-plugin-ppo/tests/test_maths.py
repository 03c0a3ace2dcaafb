"""GAE, whitening and the KL controller against loops, closed forms and the paper's formula."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.config import BuildContext
from rlhf_core.losses import LossOutput, TokenBatch, TokenValues
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.rl import KLSettings
from rlhf_core.rollouts import FinishReason, Rollout, Turn
from rlhf_plugin_ppo.advantage import Gae
from rlhf_plugin_ppo.config import CriticSettings, GaeConfig, PpoKL
from rlhf_plugin_ppo.loss import WithValues
from rlhf_plugin_ppo.maths import KLController, explained_variance, gae, whitened
from rlhf_testing import make_context

RNG = np.random.default_rng(2)


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (1.0, 0.0), (0.97, 1.0)])
def test_gae_is_the_weighted_sum_of_later_errors(gamma: float, gae_lambda: float) -> None:
    rewards, values = RNG.normal(size=9), RNG.normal(size=10)
    errors = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(9)]
    by_hand = [sum((gamma * gae_lambda) ** (k - t) * errors[k] for k in range(t, 9)) for t in range(9)]
    assert gae(rewards, values, gamma, gae_lambda) == pytest.approx(by_hand, abs=1e-12)


def test_lambda_1_gives_returns_minus_values_and_lambda_0_the_one_step_errors() -> None:
    rewards, values = RNG.normal(size=6), np.append(RNG.normal(size=6), 0.0)
    returns = [sum(0.9 ** (k - t) * rewards[k] for k in range(t, 6)) for t in range(6)]
    assert gae(rewards, values, 0.9, 1.0) == pytest.approx(np.array(returns) - values[:-1])
    assert gae(rewards, values, 0.9, 0.0) == pytest.approx(rewards + 0.9 * values[1:] - values[:-1])
    assert gae([], [0.0]).shape == (0,)


def test_a_perfect_critic_leaves_no_advantage() -> None:
    assert gae([0.0, 0.0, 2.0], [2.0, 2.0, 2.0, 0.0]) == pytest.approx([0.0] * 3)


def test_whitening_is_over_all_tokens_of_all_rows() -> None:
    rows = [RNG.normal(3, 2, n) for n in (4, 1, 7)]
    flat = np.concatenate(whitened(rows))
    everything = np.concatenate(rows)
    assert flat == pytest.approx((everything - everything.mean()) / everything.std())
    assert np.concatenate(whitened([everything])) == pytest.approx(flat), "however the rows are cut"
    noise = whitened([np.float64([1.0, 1.0 + 1e-9]), np.float64([1.0 - 1e-9])])
    assert not np.concatenate(noise).any(), "rounding does not become signal"
    small = RNG.normal(0, 1e-7, 9)
    assert np.concatenate(whitened([small])) == pytest.approx(np.concatenate(whitened([small * 1e7]))), "in any unit"
    near = whitened([small], least=1e-5)
    assert not np.concatenate(near).any(), "nor does that of log-probabilities, when all scores are 0"
    assert whitened([]) == []


def test_explained_variance() -> None:
    returns = RNG.normal(size=50)
    assert explained_variance(returns + 3.0, returns) == pytest.approx(1.0), "a constant error is no variance"
    assert explained_variance(np.full(50, returns.mean()), returns) == pytest.approx(0.0)
    assert explained_variance(-returns, returns) == pytest.approx(-3.0)
    assert explained_variance(returns, np.ones(50)) is None


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (6.0, 1.0),  # on target
        (6.6, 1 + 0.1 * 64 / 10_000),  # 10 % above
        (60.0, 1 + 0.2 * 64 / 10_000),  # the error is clipped to 20 %
        (0.0, 1 - 0.2 * 64 / 10_000),
    ],
)
def test_the_controller_is_the_papers(kl: float, factor: float) -> None:
    """Ziegler et al. 2019: e = clip(KL / target - 1, -0.2, 0.2), beta <- beta (1 + e n / horizon)."""
    control, fixed = KLController(0.2, 6.0, 10_000), KLController(0.2)
    for controller in (control, fixed):
        controller.observe(kl, 64)
    assert control.coefficient == pytest.approx(0.2 * factor, rel=1e-12)
    assert fixed.coefficient == 0.2


def test_the_controller_holds_a_kl_at_its_target() -> None:
    control = KLController(0.2, 6.0, 1000)
    for _ in range(300):
        control.observe(1.2 / control.coefficient, 64)  # the KL falls with the coefficient; 6.0 at 0.2
    assert control.coefficient == pytest.approx(0.2)
    control.coefficient = 0.02
    for _ in range(600):
        control.observe(1.2 / control.coefficient, 64)
    assert control.coefficient == pytest.approx(0.2, rel=1e-3)


def rollout(length: int, *, cut: bool = False, mask: list[bool] | None = None) -> Rollout:
    logprobs = np.linspace(-0.1, -1.0, length).astype(np.float32)
    reason = FinishReason.LENGTH if cut else FinishReason.EOS
    return Rollout(
        "p", 0, (1,), tuple(range(length)), logprobs, 0, reason, "x", 1, None if mask is None else np.array(mask)
    )


def context(**trainer: Any) -> BuildContext:
    settings = {"mask_truncated": False, "kl": PpoKL(coefficient=0.0, controller="fixed"), **trainer}
    return make_context(config=SimpleNamespace(trainer=SimpleNamespace(**settings)))


def token_values(length: int, seed: int = 0, kl: float = 0.0) -> TokenValues:
    values = np.random.default_rng(seed).normal(size=length + 1).astype(np.float32)
    return TokenValues(values, np.linspace(-0.1, -1.0, length).astype(np.float32) - np.float32(kl))


def test_the_score_comes_with_the_last_token_and_the_kl_with_every_one() -> None:
    kl = PpoKL(coefficient=0.5, controller="fixed")
    tokens = token_values(4, kl=0.2)
    result = Gae(GaeConfig(whiten=False), context(kl=kl)).estimate([rollout(4)], [Score(2.0)], [0], [tokens])
    expected = gae([-0.1, -0.1, -0.1, 1.9], [*tokens.values_T1[:-1], 0.0])
    assert result.values[0] == pytest.approx(expected, abs=1e-6)
    assert result.returns is not None
    assert result.returns[0] == pytest.approx(expected + tokens.values_T1[:-1], abs=1e-6)
    assert result.metrics["kl_coefficient"] == 0.5
    in_loss = KLSettings(coefficient=0.5, where="loss")
    result = Gae(GaeConfig(whiten=False), context(kl=in_loss)).estimate([rollout(4)], [Score(2.0)], [0], [tokens])
    assert result.values[0] == pytest.approx(gae([0, 0, 0, 2.0], [*tokens.values_T1[:-1], 0.0]), abs=1e-6)


def test_the_kl_that_was_seen_steers_the_next_batch_and_is_state() -> None:
    estimator = Gae(GaeConfig(), context(kl=PpoKL(coefficient=0.2, target=1.0)))
    rollouts, tokens = (
        [rollout(4), rollout(2)],
        [token_values(4, kl=0.5), token_values(2, kl=0.5)],
    )  # 2.0 and 1.0: mean 1.5
    first = estimator.estimate(rollouts, [Score(1.0)] * 2, [0, 1], tokens)
    assert first.metrics["kl_coefficient"] == 0.2
    assert estimator.state_dict() == {"kl_coefficient": pytest.approx(0.2 * (1 + 0.2 * 2 / 10_000))}
    restored = Gae(GaeConfig(), context(kl=PpoKL(coefficient=0.2, target=1.0)))
    restored.load_state_dict(estimator.state_dict())
    again = [e.estimate(rollouts, [Score(1.0)] * 2, [0, 1], tokens) for e in (estimator, restored)]
    assert again[0].metrics == again[1].metrics


def test_truncated_completions_are_scored_bootstrapped_or_left_out() -> None:
    tokens, score = [token_values(3), token_values(3, 1)], [Score(1.0), Score(5.0)]
    rollouts = [rollout(3), rollout(3, cut=True)]

    def second(config: GaeConfig, **trainer: Any) -> Any:
        return Gae(config, context(**trainer)).estimate(rollouts, score, [0, 1], tokens).values

    values = tokens[1].values_T1
    plain = second(GaeConfig(whiten=False))
    assert plain[1] == pytest.approx(gae([0, 0, 5.0], [*values[:-1], 0.0]), abs=1e-6)
    bootstrapped = second(GaeConfig(whiten=False, truncated="bootstrap"))
    assert bootstrapped[1] == pytest.approx(gae([0, 0, 0], values), abs=1e-6)
    assert bootstrapped[0] == pytest.approx(plain[0])
    masked = second(GaeConfig(), mask_truncated=True)
    assert masked[0].mean() == pytest.approx(0, abs=1e-6)
    assert masked[0].std() == pytest.approx(1, rel=1e-6), "whitened without the one that is left out"


@pytest.mark.parametrize(
    ("weight", "score", "cut", "expected"),
    [
        (2.0, Score(2.0, {"outcome": 1.0, "turns": 0.5}), False, [0.2875, 1.15, 0, 0.6]),  # paid 0, 1, 1
        (2.0, Score(2.0, {"outcome": 1.0, "turns": 0.5}), True, [0.246875, 0.9875, 0, -0.05]),  # paid 0, 1, V = 0.7
        (0.0, Score(1.0, {"outcome": 1.0, "turns": 0.5}), False, [0.0375, 0.15, 0, 0.6]),  # paid 0, 0, 1
        (2.0, Score(1.0), False, [0.0375, 0.15, 0, 0.6]),  # of a source with a reward of its own
    ],
)
def test_what_a_turn_was_paid_comes_with_its_own_last_token(
    weight: float, score: Score, cut: bool, expected: list[float]
) -> None:
    """By hand: values 0.1, 0.2, 0.4; gamma and lambda 0.5; the first delta is 0 + 0.1 - 0.1."""
    episode = replace(
        rollout(4, cut=cut, mask=[True, True, False, True]),
        turns=(Turn((0, 2), "assistant", {}), Turn((2, 3), "tool", {}, 0.5), Turn((3, 4), "assistant", {})),
    )
    tokens = TokenValues(np.float32([0.1, 0.2, 9.0, 0.4, 0.7]))
    settings = GaeConfig(gamma=0.5, gae_lambda=0.5, whiten=False, truncated="bootstrap" if cut else "score")
    ctx = context()
    ctx.config.reward = SimpleNamespace(turn_weight=weight)
    result = Gae(settings, ctx).estimate([episode], [score], [0], [tokens])
    assert result.values[0] == pytest.approx(expected, abs=1e-6)
    assert result.returns is not None
    assert result.returns[0] == pytest.approx([*(expected[:2] + np.array([0.1, 0.2])), 0, expected[3] + 0.4], abs=1e-6)


def test_tokens_of_a_tool_are_no_time_steps_and_missing_scores_take_no_part() -> None:
    values = np.float32([0.1, 9.0, 9.0, 0.4, 0.7])
    rollouts = [rollout(4, mask=[True, False, False, True]), rollout(2), rollout(2, mask=[False, False])]
    scores = [Score(1.0), Score.failed(ScoreStatus.TIMEOUT, "late"), Score(1.0)]
    result = Gae(GaeConfig(whiten=False), context()).estimate(
        rollouts, scores, [0, 1, 2], [TokenValues(values), token_values(2), token_values(2)]
    )
    short = gae([0.0, 1.0], [0.1, 0.4, 0.0])
    assert result.values[0] == pytest.approx([short[0], 0, 0, short[1]], abs=1e-6)
    assert result.values[1] is None
    assert result.values[2] == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "moves"),
    [
        (0.5, 0.5, 1.0, 0.125, True),
        (0.9, 0.5, 1.0, 0.045, False),  # moved further than 0.2 towards the return: held at 0.7
        (0.1, 0.5, 1.0, 0.405, True),  # moved away from it: pulled back
        (1.6, 0.5, 1.0, 0.18, True),  # past it by more than it would be when held
    ],
)
def test_a_value_is_clipped_where_that_makes_the_loss_larger(
    value: float, old: float, target: float, loss: float, moves: bool
) -> None:
    def none(batch: TokenBatch) -> LossOutput:
        return LossOutput(torch.full_like(batch.logprobs_BT, 10.0), {"own": (1.0, 1.0)})

    values = torch.tensor([[value]], requires_grad=True)
    batch = TokenBatch(
        torch.zeros(1, 1),
        torch.ones(1, 1, dtype=torch.bool),
        values_BT=values,
        old_values_BT=torch.tensor([[old]]),
        returns_BT=torch.tensor([[target]]),
    )
    out = WithValues(none, 0.5, 0.2)(batch)
    error = max((value - target) ** 2, (old + min(0.2, max(-0.2, value - old)) - target) ** 2)
    assert float(out.loss.detach()) == pytest.approx(10 + 0.25 * error, rel=1e-5)
    assert float(out.metrics["value_loss"][0]) == pytest.approx(loss, rel=1e-5)
    out.loss.sum().backward()
    assert values.grad is not None
    assert bool(values.grad.abs() > 0) is moves
    assert "own" in out.metrics
    assert float(out.metrics["value_clip_fraction"][0]) == (0.0 if moves else 1.0)
    free = WithValues(none, 0.5, None)(batch)
    assert float(free.metrics["value_loss"][0]) == pytest.approx(0.5 * (value - target) ** 2, rel=1e-5)


def test_settings_that_would_do_nothing_are_refused() -> None:
    for settings in ({"kind": "shared", "path": "pocket"}, {"stop_gradient": True}):
        with pytest.raises(ValueError, match="no effect"):
            CriticSettings.model_validate(settings)
    with pytest.raises(ValueError, match=r"kl\.where is loss"):
        PpoKL(where="loss")
    with pytest.raises(ValueError, match="would stay 0"):
        PpoKL(coefficient=0)
    assert PpoKL(coefficient=0, controller="fixed").coefficient == 0
