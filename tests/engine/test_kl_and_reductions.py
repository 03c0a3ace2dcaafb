"""KL gradients against exact enumeration; reductions that add up over micro-batches; the chunked head."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.models.layers.chunked_head import entropy_of, head_logprobs, selected_logprobs
from rlhf_core.plugins.loss_contract import CheckedLoss
from rlhf_core.rl.advantages import apply_kl_penalty
from rlhf_core.rl.build import policy_terms
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.rl.settings import ImportanceSettings, KLSettings, RolloutSettings
from rlhf_core.rl.update import PolicyTerms
from rlhf_core.training.functional import kl_loss, kl_value, reduce_loss
from rlhf_core.types.batches import TokenBatch
from rlhf_core.types.errors import ConfigError
from rlhf_core.types.rollouts import FinishReason, Rollout, Score
from rlhf_plugin_grpo.functional.masked import masked_mean, masked_normalize, masked_sum
from rlhf_plugin_grpo.loss import GrpoClip

VOCABULARY = 7
Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture
def case() -> Case:
    """Policy logits (with gradient), reference logprobs, behaviour logprobs over a tiny vocabulary."""
    torch.manual_seed(0)
    policy = torch.randn(VOCABULARY, dtype=torch.float64, requires_grad=True)
    return (
        policy,
        torch.randn(VOCABULARY, dtype=torch.float64).log_softmax(-1),
        torch.randn(VOCABULARY, dtype=torch.float64).log_softmax(-1),
    )


def exact(policy: torch.Tensor, reference: torch.Tensor, forward: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(policy || reference), or the other way round, and its gradient."""
    logp = policy.log_softmax(-1)
    kl = (reference.exp() * (reference - logp)).sum() if forward else (logp.exp() * (logp - reference)).sum()
    return kl.detach(), torch.autograd.grad(kl, policy)[0]


def expected(policy: torch.Tensor, terms: torch.Tensor, behaviour: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean over all tokens, each as probable as the behaviour policy makes it; the draw itself has no gradient."""
    value = (behaviour.detach().exp() * terms).sum()
    return value.detach(), torch.autograd.grad(value, policy)[0]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_loss_gradient_is_the_kls_on_policy(case: Case, estimator: str) -> None:
    policy, reference, _ = case
    logp = policy.log_softmax(-1)
    value, gradient = expected(policy, kl_loss(logp, reference, estimator), logp)
    kl, kl_gradient = exact(policy, reference)
    torch.testing.assert_close(gradient, kl_gradient)
    if estimator != "k2":
        torch.testing.assert_close(value, kl)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_loss_gradient_is_the_kls_off_policy(case: Case, estimator: str) -> None:
    policy, reference, behaviour = case
    terms = kl_loss(policy.log_softmax(-1), reference, estimator, old_logprobs_BT=behaviour)
    value, gradient = expected(policy, terms, behaviour)
    kl, kl_gradient = exact(policy, reference)
    torch.testing.assert_close(gradient, kl_gradient)
    if estimator != "k2":
        torch.testing.assert_close(value, kl)


def test_kl_term_of_a_run_is_the_kls_off_policy(case: Case) -> None:
    """As the trainer puts it into a batch of an older policy's tokens; the other loss adds nothing here."""
    policy, reference, behaviour = case
    logp = policy.log_softmax(-1)
    batch = TokenBatch(
        logp[None],
        torch.ones_like(logp[None], dtype=torch.bool),
        torch.zeros_like(logp[None]),
        old_logprobs_BT=behaviour[None],
        ref_logprobs_BT=reference[None],
    )
    value, gradient = expected(
        policy, CheckedLoss(GrpoClip(0.2, 0.2), terms=[PolicyTerms(0.5)])(batch).loss[0], behaviour
    )
    kl, kl_gradient = exact(policy, reference)
    torch.testing.assert_close(gradient, 0.5 * kl_gradient)
    torch.testing.assert_close(value, 0.5 * kl)


@pytest.mark.parametrize(("stale", "updates"), [(1, 1), (4, 2), (0, 1)])
def test_kl_term_of_rollouts_sampled_ahead_is_the_kls(case: Case, stale: int, updates: int) -> None:
    """The step's old logprobs are its start's; the tokens came from an older policy, against which they weigh."""
    policy, reference, behaviour = case
    logp = policy.log_softmax(-1)
    start = (behaviour + logp.detach()).log_softmax(-1) if stale else behaviour
    config = OnlineTrainerConfig(
        name="t",
        kl=KLSettings(coefficient=0.5, estimator="k3", where="loss"),
        rollouts=RolloutSettings(max_staleness=stale),
        epochs_per_rollout_batch=updates,
        importance=ImportanceSettings(mode="off"),
    )
    batch = TokenBatch(
        logp[None],
        torch.ones_like(logp[None], dtype=torch.bool),
        torch.zeros_like(logp[None]),
        old_logprobs_BT=start[None],
        ref_logprobs_BT=reference[None],
        behaviour_logprobs_BT=behaviour[None],
    )
    value, gradient = expected(
        policy, CheckedLoss(GrpoClip(0.2, 0.2), terms=policy_terms(config))(batch).loss[0], behaviour
    )
    kl, kl_gradient = exact(policy, reference)
    torch.testing.assert_close(gradient, 0.5 * kl_gradient)
    torch.testing.assert_close(value, 0.5 * kl)


def test_what_differentiating_the_estimators_gives(case: Case) -> None:
    """The table in the module's docstring: k1 nothing, k2 the KL's gradient, k3 the forward KL's."""
    policy, reference, _ = case
    wanted = {
        "k1": torch.zeros_like(reference),
        "k2": exact(policy, reference)[1],
        "k3": exact(policy, reference, forward=True)[1],
    }
    for estimator, gradient in wanted.items():
        logp = policy.log_softmax(-1)
        torch.testing.assert_close(
            expected(policy, kl_value(logp, reference, estimator), logp)[1], gradient, atol=1e-12, rtol=1e-9
        )


def test_k1_in_the_reward_has_the_kls_gradient(case: Case) -> None:
    """REINFORCE on the reward -k1 descends KL: E[k1 * grad log p] = grad KL. With k2 and k3 it does not."""
    policy, reference, _ = case
    for estimator in ("k1", "k2", "k3"):
        logp = policy.log_softmax(-1)
        _, gradient = expected(policy, kl_value(logp, reference, estimator).detach() * logp, logp)
        assert torch.allclose(gradient, exact(policy, reference)[1]) is (estimator == "k1")


def test_kl_of_whole_completions() -> None:
    """Over all 2-token completions of a 3-token alphabet, with the code of a run.

    In the reward (k1) the gradient is that of the KL between distributions over completions. In the loss each token
    answers for itself: the second token's KL is reduced, but the first is not steered away from where it is large.
    """
    torch.manual_seed(1)
    first, second = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3,), (3, 3)))
    ref_first, ref_second = torch.randn(3).double().log_softmax(0), torch.randn(3, 3).double().log_softmax(1)
    head, tail = first.log_softmax(0), second.log_softmax(1)
    rows = list(itertools.product(range(3), repeat=2))
    logp = torch.stack([torch.stack([head[a], tail[a, b]]) for a, b in rows])
    ref = torch.stack([torch.stack([ref_first[a], ref_second[a, b]]) for a, b in rows])
    weight = logp.detach().sum(1).exp()

    def gradient(value: torch.Tensor) -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, (first, second), retain_graph=True)])

    whole = (logp.sum(1).exp() * (logp - ref).sum(1)).sum()
    by_prefix = (head.exp() * (head - ref_first)).sum() + (
        head.detach().exp() * (tail.exp() * (tail - ref_second)).sum(1)
    ).sum()
    torch.testing.assert_close(whole, by_prefix)
    charged: list[float] = []
    for row, r in zip(logp.detach(), ref):
        done = Rollout("p", 0, (1,), (5, 6), row.numpy(), 0, FinishReason.EOS, "x", 1)
        score = apply_kl_penalty(
            Score(0.0), done, r.numpy(), KLSettings(coefficient=1.0, estimator="k1", where="reward")
        )
        charged.append(float(score.value or 0.0))
    policy_gradient = (weight * torch.tensor(charged, dtype=torch.float64) * logp.sum(1)).sum()
    torch.testing.assert_close(gradient(policy_gradient), -gradient(whole))
    for estimator in ("k1", "k2", "k3"):
        in_loss = (weight[:, None] * kl_loss(logp, ref, estimator)).sum()
        torch.testing.assert_close(gradient(in_loss), gradient(by_prefix))
    assert not torch.allclose(gradient(by_prefix), gradient(whole))


def test_kl_values_of_numpy_and_torch_agree() -> None:
    a, b = np.array([-1.0, -2.0, -0.5]), np.array([-1.5, -1.0, -0.5])
    for estimator in ("k1", "k2", "k3"):
        np.testing.assert_allclose(kl_value(a, b, estimator), kl_value(torch.tensor(a), torch.tensor(b), estimator))
    assert (kl_value(a, b, "k3") >= 0).all()
    with pytest.raises(ConfigError, match="k1, k2, k3"):
        kl_value(a, b, "k4")


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_reductions_add_up_over_micro_batches(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    cut = data.draw(st.integers(0, len(lengths)))
    mask = torch.arange(6)[None, :] < torch.tensor(lengths)[:, None]
    loss = torch.randn(mask.shape, dtype=torch.float64)
    loss = torch.where(mask, loss, torch.full_like(loss, math.nan))
    tokens, sequences = max(1, sum(lengths)), len(lengths)
    whole = {
        "token_mean": loss[mask].sum() / tokens,
        "constant": loss[mask].sum() / (sequences * 64),
        "sequence_mean": sum(
            (row[m].mean() for row, m in zip(loss, mask) if m.any()), torch.zeros((), dtype=torch.float64)
        )
        / sequences,
    }
    sizes = {"token_mean": tokens, "constant": sequences * 64.0, "sequence_mean": sequences}
    for mode, want in whole.items():
        parts = [
            reduce_loss(loss[rows], mask[rows], mode, sizes[mode])
            for rows in (slice(0, cut), slice(cut, None))
            if len(loss[rows])
        ]
        torch.testing.assert_close(sum(parts, torch.zeros((), dtype=torch.float64)), want)


def test_masked_places_reach_neither_value_nor_gradient() -> None:
    x = torch.tensor([[1.0, 2.0, float("inf")]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    reduce_loss(x, mask, "sequence_mean", 1).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.5, 0.5, 0.0]]
    assert masked_sum(x, mask).item() == 3
    assert masked_mean(x, mask, dim=-1).tolist() == [1.5]
    assert masked_normalize(x, mask, 6.0).item() == 0.5


def test_reduce_refuses_nonsense() -> None:
    loss, mask = torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="token_mean, sequence_mean or constant"):
        reduce_loss(loss, mask, "mean", 1)
    with pytest.raises(ValueError, match="positive"):
        reduce_loss(loss, mask, "token_mean", 0)
    with pytest.raises(ValueError, match="mask_BT"):
        reduce_loss(loss, mask[:, :1], "token_mean", 1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", [{}, {"keep_bytes": 0}, {"keep_bytes": 0, "chunk_bytes": 4 * 50 * 4}])
@pytest.mark.parametrize("trained", ["both", "hidden", "head"])
def test_the_chunked_head_is_the_full_one(bias: bool, options: dict[str, int], trained: str) -> None:
    torch.manual_seed(1)
    head = torch.nn.Linear(16, 50, bias=bias)
    head.requires_grad_(trained != "hidden")
    hidden = torch.randn(13, 16, requires_grad=trained != "head")
    targets = torch.randint(0, 50, (13,))
    weights, entropy_weights = torch.randn(13), torch.randn(13)
    leaves = [t for t in (hidden, *head.parameters()) if t.requires_grad]
    logits = head(hidden)
    want, want_entropy = selected_logprobs(logits, targets, 0.8), entropy_of(logits, 0.8)
    want_grads = torch.autograd.grad((want * weights + want_entropy * entropy_weights).sum(), leaves)
    got, got_entropy = head_logprobs(hidden, head, targets, temperature=0.8, entropy=True, **options)
    assert got_entropy is not None
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(got_entropy, want_entropy)
    for a, b in zip(torch.autograd.grad((got * weights + got_entropy * entropy_weights).sum(), leaves), want_grads):
        torch.testing.assert_close(a, b)


def test_a_head_that_is_not_a_plain_linear_layer_works_too() -> None:
    torch.manual_seed(1)
    head = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 50))
    hidden, targets = torch.randn(13, 16, requires_grad=True), torch.randint(0, 50, (13,))
    got, got_entropy = head_logprobs(hidden, head, targets, entropy=True, chunk_bytes=4 * 65536 * 4)
    want = selected_logprobs(head(hidden), targets)
    assert got_entropy is not None
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), hidden)[0], torch.autograd.grad(want.sum(), hidden)[0])


def test_logits_far_apart_stay_finite() -> None:
    head = torch.nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        head.weight[:] = torch.tensor([[0.0], [1000.0], [-1000.0]])
    hidden = torch.ones(1, 1, requires_grad=True)
    logprobs, entropies = head_logprobs(hidden, head, torch.tensor([2]), entropy=True)
    assert entropies is not None
    assert logprobs.item() == -2000.0
    (logprobs + entropies).sum().backward()
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()


def test_bfloat16_weights_get_float32_logprobs() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 50, bias=False).bfloat16()
    hidden, targets = torch.randn(5, 16).bfloat16().requires_grad_(), torch.randint(0, 50, (5,))
    got, _ = head_logprobs(hidden, head, targets, chunk_bytes=4 * 50 * 2, keep_bytes=0)
    assert got.dtype == torch.float32
    got.sum().backward()
    assert head.weight.grad is not None
    assert head.weight.grad.dtype == torch.bfloat16
    want = torch.autograd.grad(selected_logprobs(head(hidden), targets).sum(), head.weight)[0]
    torch.testing.assert_close(head.weight.grad, want, atol=0.05, rtol=0.05)
