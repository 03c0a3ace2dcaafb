"""Importance correction: the weights, what they do to a loss, and what a run reports of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.rl.settings import ImportanceSettings
from rlhf_core.rl.update import with_sample_size
from rlhf_core.training.functional import effective_sample_size
from rlhf_core.training.learner import Learner
from rlhf_core.types.batches import LossOutput, TokenBatch
from rlhf_plugin_schedule.importance import ImportanceCorrection, importance_weights

from .conftest import ONLINE, Train

RATIOS = torch.tensor([[3.0, 1.0, 0.25, 1.0], [0.5, 4.0, 1.0, 50.0]])
MASK = torch.tensor([[True, True, True, True], [True, True, True, False]])
BEHAVIOUR = torch.log(torch.tensor([[0.2, 0.5, 0.4, 0.3], [0.6, 0.1, 0.7, 0.01]]))
OLD = BEHAVIOUR + RATIOS.log()


def batch(logprobs: torch.Tensor | None = None) -> TokenBatch:
    return TokenBatch(
        logprobs_BT=OLD.clone() if logprobs is None else logprobs,
        mask_BT=MASK,
        old_logprobs_BT=OLD,
        behaviour_logprobs_BT=BEHAVIOUR,
        advantages_BT=torch.tensor([[1.0] * 4, [-2.0] * 4]),
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mode": "truncate"}, [[2, 1, 0.25, 1], [0.5, 2, 1, 2]]),
        ({"mode": "truncate", "low": 0.5}, [[2, 1, 0.5, 1], [0.5, 2, 1, 2]]),
        ({"mode": "mask"}, [[0, 1, 0.25, 1], [0.5, 0, 1, 0]]),
        ({"mode": "mask", "cap": 3.5, "low": 0.4}, [[3, 1, 0, 1], [0.5, 0, 1, 0]]),
        ({"mode": "truncate", "level": "sequence", "cap": 1.5}, [[0.75] * 4, [1.5] * 4]),
        ({"mode": "mask", "level": "sequence", "cap": 1.5}, [[0.75] * 4, [0] * 4]),
    ],
)
def test_weights_are_those_worked_out_by_hand(settings: Any, expected: list[list[float]]) -> None:
    weights, ratios = importance_weights(OLD, BEHAVIOUR, MASK, **settings)
    torch.testing.assert_close(weights.expand(2, 4), torch.tensor(expected), atol=1e-5, rtol=1e-5)
    full = RATIOS if ratios.shape == (2, 4) else torch.tensor([[0.75], [2.0]])
    torch.testing.assert_close(ratios, full, atol=1e-5, rtol=1e-4)


def test_gradient_is_the_losses_own_times_the_weight() -> None:
    def clip(tokens: TokenBatch) -> LossOutput:
        ratio = (tokens.logprobs_BT - tokens.old_logprobs_BT).exp()
        return LossOutput(-ratio * tokens.advantages_BT, {"mine": (3.0, 4.0)})

    logprobs = OLD.clone().requires_grad_()
    tokens = batch(logprobs)
    out = ImportanceCorrection(ImportanceSettings(), "truncate")(clip(tokens), tokens)
    out.loss[MASK].sum().backward()
    weights = torch.tensor([[2, 1, 0.25, 1], [0.5, 2, 1, 0.0]])
    torch.testing.assert_close(logprobs.grad, -weights * torch.tensor([[1.0] * 4, [-2.0] * 4]))
    assert out.metrics["mine"] == (3.0, 4.0)


def test_metrics_cover_what_counts_and_add_up_over_micro_batches() -> None:
    def none(tokens: TokenBatch) -> LossOutput:
        return LossOutput(tokens.logprobs_BT)

    for level, ratios, clipped in (("token", [3, 1, 0.25, 1, 0.5, 4, 1], 2), ("sequence", [0.75, 2.0], 1)):
        terms, tokens = ImportanceCorrection(ImportanceSettings(level=level, cap=1.9), "truncate"), batch()
        found = {k: (float(s), float(w)) for k, (s, w) in terms(none(tokens), tokens).metrics.items()}
        n = len(ratios)
        assert found["importance/mean_ratio"] == (pytest.approx(sum(ratios), rel=1e-5), n)
        assert found["importance/clipped_fraction"] == (clipped, n)
        means = with_sample_size({k: s / w for k, (s, w) in found.items()})
        ess = sum(ratios) ** 2 / (n * sum(r * r for r in ratios))
        assert means["importance/ess"] == pytest.approx(ess, rel=1e-5)
        assert "importance/mean_square" not in means


def test_effective_sample_size_of_equal_and_of_one_sided_weights() -> None:
    assert effective_sample_size(1.0, 1.0) == 1.0
    assert effective_sample_size(0.1, 0.1) == pytest.approx(0.1), "one of ten has all the weight"
    assert effective_sample_size(0.0, 0.0) == 0.0


def test_no_ratio_overflows() -> None:
    weights, ratios = importance_weights(
        torch.zeros(1, 9), torch.full((1, 9), -90.0), torch.ones(1, 9).bool(), level="sequence"
    )
    assert math.isfinite(float(ratios) ** 2)
    assert float(weights) == 2.0


def steps(train: Train, run: str) -> list[dict[str, Any]]:
    return [r for r in read_jsonl(train.folder / run / "metrics.jsonl") if "tokens_generated" in r]


FAST = {
    "steps": 3,
    "rollout_batch_size": 32,
    "eval_samples": 0,
    "sampling": {"max_tokens": 12},
    "optimizer": {"learning_rate": 3e-3},
}


def test_a_synchronous_run_of_our_own_engine_needs_no_correction(train: Train) -> None:
    train(ONLINE, change={"trainer": {**FAST, "steps": 1, "importance": {"mode": "truncate"}}})
    rows = steps(train, "run")
    assert all(abs(r["importance/mean_ratio"] - 1) < 1e-4 for r in rows)
    assert all(r["importance/ess"] > 0.9999 and r["importance/clipped_fraction"] == 0 for r in rows)


@pytest.mark.slow
def test_a_stale_run_is_corrected_unless_told_otherwise(train: Train) -> None:
    """Two policies later, the ratio that the loss lacks is the one to the policy that sampled."""
    train(ONLINE, change={"trainer": {**FAST, "rollouts": {"max_staleness": 1}}}, run="corrected")
    behaviour = {"old_policy": "behaviour"}
    train(ONLINE, change={"trainer": {**FAST, "rollouts": {"max_staleness": 1}, "importance": behaviour}}, run="ppo")
    mine, plain = steps(train, "corrected"), steps(train, "ppo")
    assert [r["staleness/max"] for r in mine] == [0, 1, 1]
    assert abs(mine[0]["importance/mean_ratio"] - 1) < 1e-4 < abs(mine[1]["importance/mean_ratio"] - 1)
    assert mine[1]["importance/ess"] < 0.9999
    assert mine[1]["importance_ratio"] == 1, "the loss's own ratio is to the start of the step"
    assert "importance/ess" not in plain[1]
    assert plain[1]["importance_ratio"] == pytest.approx(mine[1]["importance/mean_ratio"], rel=1e-4), "here it is not"
    assert ["drift/mean_abs" in r for r in mine] == [True, False, False], "staleness is no drift of the engine"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (["rollouts.max_reads=3"], ("max_reads 3 needs max_staleness of at least 2", "the second read is 1 versions")),
        (
            ["rollouts.max_staleness=1", "train_batch_size=8"],
            ("max_staleness 1 is less than the 2 updates of one step",),
        ),
        (["rollouts.capacity=2"], ("capacity 2 with max_staleness 0", "thrown away")),
        (["importance.low=3"], ("importance.low 3 is more than importance.cap 2",)),
        (
            ["importance.mode=mask", "importance.old_policy=behaviour"],
            ("mode mask cannot be combined", "corrected twice"),
        ),
    ],
)
def test_settings_that_contradict_each_other(
    rlhf: Callable[..., Any], quick: tuple[str, ...], setting: list[str], says: tuple[str, ...]
) -> None:
    out = rlhf(*quick, *(w for s in setting for w in ("--set", f"trainer.{s}")))
    assert out.code == 2
    assert all(part in out.err for part in says), out.err


def test_accumulation_steps_say_the_micro_batch_size(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    forward_backward = Learner._forward_backward

    def counted(self: Learner, items: Any, *args: Any, **options: Any) -> Any:
        sizes.append(len(items))
        return forward_backward(self, items, *args, **options)

    monkeypatch.setattr(Learner, "_forward_backward", counted)
    accumulated = {"gradient_accumulation_steps": 4, "train_batch_size": 16, "drop_constant_groups": False}
    train(ONLINE, change={"trainer": {**FAST, "steps": 1, "share_prefix": False, **accumulated}})
    assert sizes == [4] * 8
