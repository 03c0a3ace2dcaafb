"""One update does not depend on how its batch is cut, shared or thinned."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, get_scheduler

from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.plugins.loss_contract import CheckedLoss
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.rl.update import PolicyTerms, UpdateStep
from rlhf_core.training.config import OptimizerSettings
from rlhf_core.training.forward import ForwardOptions
from rlhf_core.training.learner import Learner, lr_factor, means
from rlhf_core.training.policy_module import PolicyMicroBatcher, PolicyModule
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_core.training.weight_sync import DriftCheck
from rlhf_core.types.batches import LossOutput, TokenBatch
from rlhf_core.types.errors import TrainingDiverged
from rlhf_plugin_grpo.loss import GrpoClip

REDUCTIONS = ("token_mean", "sequence_mean", "constant")


class Capture(LocalStrategy):
    """Remembers the gradient before clipping."""

    def clip_grad_norm(self, module: torch.nn.Module, max_norm: float) -> float:
        self.gradient = {k: p.grad.clone() for k, p in module.named_parameters() if p.grad is not None}
        return super().clip_grad_norm(module, max_norm)


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            pad_token_id=2,
            eos_token_id=2,
        )
    ).eval()


def items() -> list[TrainingSample]:
    rng = np.random.default_rng(1)
    prompts = [tuple(int(t) for t in rng.integers(0, 64, n)) for n in (3, 6)]
    rows: list[TrainingSample] = []
    for i in range(8):
        count = int(rng.integers(1, 9))
        ids = (*rng.integers(0, 64, count - 1).tolist(), 2)  # token 0 is real, and pad is EOS
        advantages = np.full(count, 0.0 if i in (1, 5) else rng.normal(), np.float32)
        old = rng.normal(-4, 0.2, count).astype(np.float32)
        rows.append(
            TrainingSample(f"i{i}", prompts[i // 4], ids, np.ones(count, bool), advantages, old_T=old, ref_T=old + 0.1)
        )
    return rows


def gradient(
    rows: list[TrainingSample],
    *,
    micro: int = 8,
    share: bool = False,
    drop: bool = False,
    reduction: str = "token_mean",
    kl: float = 0.0,
) -> dict[str, torch.Tensor]:
    strategy = Capture()
    settings = OnlineTrainerConfig(name="t", micro_batch_size=micro, reduction=reduction)  # type: ignore[arg-type]
    loss = CheckedLoss(GrpoClip(0.2, 0.2), terms=[PolicyTerms(kl)])
    totals = (float(sum(i.tokens for i in rows)), float(len(rows)))
    kept = [i for i in rows if i.advantages_T.any()] if drop else rows
    Learner(PolicyModule(model(), 1.0, ForwardOptions(share_prefix=share)), loss, strategy, settings, 1).update(
        kept, totals
    )
    return strategy.gradient


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("micro", "share", "drop"), list(itertools.product((1, 3, 8), (False, True), (False, True))))
def test_every_pair_of_options_gives_the_plain_gradient(micro: int, share: bool, drop: bool, reduction: str) -> None:
    plain = gradient(items(), reduction=reduction)
    other = gradient(items(), micro=micro, share=share, drop=drop, reduction=reduction)
    assert max(float(g.abs().max()) for g in plain.values()) > 1e-3
    assert max(float((plain[k] - other[k]).abs().max()) for k in plain) < 1e-5


def test_order_of_a_batch_does_not_matter_with_kl() -> None:
    plain, other = gradient(items(), kl=0.3), gradient(items()[::-1], micro=2, share=True, kl=0.3)
    assert max(float((plain[k] - other[k]).abs().max()) for k in plain) < 1e-5


def test_masked_tokens_do_not_count() -> None:
    rows = items()
    mask = rows[0].mask_T.copy()
    mask[-1] = False
    masked = [replace(rows[0], mask_T=mask), *rows[1:]]
    wild = [replace(masked[0], advantages_T=np.where(mask, masked[0].advantages_T, 1e6).astype(np.float32)), *rows[1:]]
    a, b = gradient(masked), gradient(wild)
    assert all(torch.equal(a[k], b[k]) for k in a)


def updated(rows: list[TrainingSample]) -> dict[str, torch.Tensor]:
    """The gradient of a step that learns from two groups."""
    strategy, session = Capture(), SimpleNamespace(hooks=SimpleNamespace(fire=lambda *_: None), counts=Counter[str]())
    settings = OnlineTrainerConfig.model_validate({"name": "t", "reduction": "sequence_mean", "micro_batch_size": 8})
    module = PolicyModule(model(), 1.0)
    learner, cut = Learner(module, GrpoClip(0.2, 0.2), strategy, settings, 1), PolicyMicroBatcher(module, 8, None, 32)
    drift = DriftCheck("off", session.counts)
    update: Any = UpdateStep(learner, module, cut, strategy, settings, session, 0, drift)  # type: ignore[arg-type]
    update(1, [rows[:4], rows[4:]], 0)
    return strategy.gradient


def test_a_sequence_without_tokens_is_none_of_the_mean() -> None:
    rows = items()
    empty = replace(rows[4], mask_T=np.zeros_like(rows[4].mask_T))
    a, b = updated([*rows[:4], empty, *rows[5:]]), updated([*rows[:4], *rows[5:]])
    assert max(float((a[k] - b[k]).abs().max()) for k in a) < 1e-6
    assert max(float(g.abs().max()) for g in a.values()) > 1e-3


def test_the_constant_reduction_divides_by_sequences_times_the_longest_completion() -> None:
    settings = OnlineTrainerConfig.model_validate({"name": "t", "reduction": "constant", "sampling": {"max_tokens": 7}})
    learner = Learner(PolicyModule(model()), GrpoClip(0.2, 0.2), LocalStrategy(), settings, 1)
    mask_BT = torch.tensor([[True, True], [True, False]])
    batch = TokenBatch(logprobs_BT=torch.zeros(2, 2), mask_BT=mask_BT)
    assert float(learner.reduce(torch.full((2, 2), 14.0), batch, 3.0, 2.0)) == 3.0


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447]),
    ],
)
def test_the_rate_warms_up_and_falls_over_what_is_left(schedule: str, factors: list[float]) -> None:
    settings = OptimizerSettings.model_validate({"warmup_steps": 2, "schedule": schedule})
    assert [lr_factor(settings, 6)(n) for n in range(6)] == pytest.approx(factors, abs=1e-6)


@pytest.mark.parametrize(
    ("schedule", "settings", "name", "more"),
    [
        ("linear", {}, "linear", {}),
        ("cosine", {}, "cosine", {}),
        ("cosine_with_min_lr", {"min_lr": 1e-6}, "cosine_with_min_lr", {"min_lr": 1e-6}),
        ("constant_with_warmup", {}, "constant_with_warmup", {}),
        ("warmup_stable_decay", {"decay_ratio": 0.3}, "warmup_stable_decay", {"num_decay_steps": 6}),
        (
            "warmup_stable_decay",
            {"decay_ratio": 0.3, "min_lr": 1e-6},
            "warmup_stable_decay",
            {"num_decay_steps": 6, "min_lr_ratio": 0.1},
        ),
    ],
)
def test_after_the_warm_up_a_schedule_is_transformers(
    schedule: str, settings: dict[str, Any], name: str, more: dict[str, Any]
) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    theirs: Any = get_scheduler(name, torch.optim.SGD([weight], lr=1e-5), 4, 20, scheduler_specific_kwargs=more)
    ours = lr_factor(OptimizerSettings.model_validate({"warmup_ratio": 0.2, "schedule": schedule, **settings}), 20)
    assert [ours(n) for n in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert [ours(n) for n in range(4, 20)] == pytest.approx([theirs.lr_lambdas[0](n) for n in range(4, 20)], abs=1e-12)


def test_metrics_of_updates_are_weighted_means_and_counts_are_added() -> None:
    updates = [{"loss": (2.0, 1.0), "train/tokens": (10.0, 1.0)}, {"loss": (10.0, 3.0), "train/tokens": (30.0, 1.0)}]
    assert means(updates) == {"loss": 3.0, "train/tokens": 40.0}


class Broken:
    """A loss that is NaN on one row."""

    def __call__(self, batch: TokenBatch) -> LossOutput:
        return LossOutput(batch.logprobs_BT * math.nan)


def test_nan_names_the_batch_and_leaves_the_weights() -> None:
    policy = model()
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    config = OnlineTrainerConfig(name="t", micro_batch_size=4)
    learner = Learner(PolicyModule(policy), Broken(), LocalStrategy(), config, 1)
    with pytest.raises(TrainingDiverged, match=r"loss is nan[\s\S]*i0, i1, i2, i3"):
        learner.update(items())
    assert all(torch.equal(before[k], v) for k, v in policy.state_dict().items())


def test_no_gradient_no_step() -> None:
    policy = model()
    before = policy.state_dict()["lm_head.weight"].clone()
    learner = Learner(PolicyModule(policy), GrpoClip(0.2, 0.2), LocalStrategy(), OnlineTrainerConfig(name="t"), 1)
    assert learner.update([], (10.0, 2.0))["updates_skipped"] == 1.0
    assert learner.version == 0
    assert torch.equal(before, policy.state_dict()["lm_head.weight"])
