"""Losses and advantages of the family: what only they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.api import ConfigError, Score, ScoreStatus, TokenBatch
from rlhf_core.config.load import validate
from rlhf_core.launch.run import preflight
from rlhf_core.registry import Registry
from rlhf_core.testing import make_context
from rlhf_core.testing.samples import make_rollouts

REGISTRY = Registry(disabled=())


def names(kind: str) -> list[str]:
    return sorted(e.name for e in REGISTRY.entries(kind) if e.distribution == "rlhf-plugin-grpo")


def resolve(**slots: Any) -> Any:
    return validate(REGISTRY, {"reward": "verifier", "trainer": "grpo", **slots})


def estimate(name: str, values: list[float | None], groups: int = 1, **options: Any) -> list[float | None]:
    rollouts, ids = make_rollouts(groups, len(values) // groups)
    scores = [Score.failed(ScoreStatus.TIMEOUT, "slow") if v is None else Score(v) for v in values]
    config = REGISTRY.load("advantage", name)(name=name, **options)
    found = config.build(make_context()).estimate(rollouts, scores, ids).values
    return [None if v is None else float(v) for v in found]


def test_leave_one_out_is_each_score_less_the_others_mean() -> None:
    values = [1.0, 4.0, 2.0, 9.0]
    wanted = [v - (sum(values) - v) / 3 for v in values]
    assert estimate("leave_one_out", list(values)) == pytest.approx(wanted)
    assert estimate("leave_one_out", [1.0, None, 3.0, None]) == [-2.0, None, 2.0, None]


def test_batch_norm_divides_by_the_batchs_own_spread() -> None:
    values = [1.0, 0.0, 0.0, 1.0, 5.0, 7.0, 9.0, 11.0]
    std = np.std(values, ddof=1) + 1e-6
    wanted = [(v - m) / std for v, m in zip(values, [0.5] * 4 + [8.0] * 4)]
    assert estimate("batch_norm", list(values), 2) == pytest.approx(wanted)


def test_reinforce_pp_takes_mean_and_std_from_the_whole_batch() -> None:
    values = np.array([1.0, 0.0, 0.0, 1.0, 5.0, 7.0, 9.0, 11.0])
    wanted = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
    assert estimate("reinforce_pp", values.tolist(), 2) == pytest.approx(wanted)
    less = values - np.repeat([0.5, 8.0], 4)
    found = estimate("reinforce_pp", values.tolist(), 2, baseline="group")
    assert found == pytest.approx(less / (less.std(ddof=1) + 1e-6))


def test_the_optimal_baseline_is_the_mean_by_length() -> None:
    rollouts, _ = make_rollouts(1, 4)
    values, lengths = np.array([1.0, 0.0, 3.0, 2.0]), np.array([len(r.completion_ids) for r in rollouts])
    assert len(set(lengths)) > 1
    assert estimate("optimal_baseline", values.tolist()) == pytest.approx(values - (lengths @ values) / lengths.sum())
    assert estimate("optimal_baseline", values.tolist(), weight="gradient") == pytest.approx(
        values - (lengths @ values) / lengths.sum()
    )  # these rollouts' tokens are equally likely


def test_gdpo_gives_a_small_reward_the_say_its_weight_has() -> None:
    """Totals 0, 10, 0, 10 + format 0..0.1: added first, the format reward is drowned; normalised first, it counts."""
    parts = [
        {"answer": 0.0, "format": 0.1},
        {"answer": 10.0, "format": 0.0},
        {"answer": 0.0, "format": 0.0},
        {"answer": 10.0, "format": 0.1},
    ]
    totals = [sum(p.values()) for p in parts]
    weights = {"answer": 1.0, "format": 1.0}
    after = estimate_parts(parts, totals, weights)
    before = estimate_parts(parts, totals, weights, order="sum_then_normalise")
    assert after[0] == pytest.approx(0.0, abs=1e-4)
    assert after[3] == pytest.approx(-after[2])
    assert before[0] < -0.8
    both = np.array([[p[k] for p in parts] for k in weights])
    a = ((both - both.mean(1, keepdims=True)) / (both.std(1, ddof=1, keepdims=True) + 1e-6)).sum(0)
    assert after == pytest.approx(a / (a.std(ddof=1) + 1e-6), abs=1e-9)


def estimate_parts(
    parts: list[dict[str, float]], totals: list[float], weights: dict[str, float], **options: Any
) -> list[float]:
    rollouts, ids = make_rollouts(1, len(parts))
    scores = [Score(t, p) for t, p in zip(totals, parts)]
    config = REGISTRY.load("advantage", "gdpo")(name="gdpo", parts=weights, **options)
    return [float(v) for v in config.build(make_context()).estimate(rollouts, scores, ids).values]


def test_gdpo_names_a_part_that_no_score_has_and_a_penalty_it_would_lose() -> None:
    with pytest.raises(ConfigError, match="no part 'fromat'") as caught:
        estimate_parts([{"format": 1.0}] * 2, [1.0, 1.0], {"fromat": 1.0})
    assert "format" in str(caught.value)
    config = resolve(
        trainer={"name": "grpo", "kl": {"where": "reward", "coefficient": 0.1}},
        advantage={"name": "gdpo", "parts": {"format": 1.0}},
    )
    with pytest.raises(ConfigError, match=r"advantage.parts does not name 'kl'"):
        preflight(REGISTRY, config, 1, dry_run=True)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {
                "trainer": {"kl": {"where": "reward", "coefficient": 0.1}},
                "advantage": {"name": "gdpo", "parts": {"kl": 1.0}},
            },
            "would reward distance from the reference",
        ),
        (
            {"trainer": {"dynamic_sampling": {}}, "advantage": {"name": "gdpo", "parts": {"a": 1.0}}},
            "looks at the parts",
        ),
        ({"trainer": {"dynamic_sampling": {}}, "advantage": "raw"}, "advantage 'raw' learns from them too"),
        ({"trainer": {"group_size": 1}, "advantage": {"name": "reinforce_pp", "baseline": "group"}}, "group size 1"),
        ({"trainer": {"epochs_per_rollout_batch": 2}, "loss": "reinforce"}, "loss 'reinforce' has no importance ratio"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(settings: dict[str, Any], says: str) -> None:
    config = resolve(**{**settings, "trainer": {"name": "grpo", **settings["trainer"]}})
    with pytest.raises(ConfigError, match=says):
        preflight(REGISTRY, config, 1, dry_run=True)


def test_gdpo_takes_the_kl_of_a_policy_that_is_still_the_reference_for_rounding() -> None:
    parts = [{"right": r, "kl": k} for r, k in ((1.0, 1e-9), (0.0, 3e-8), (1.0, 0.0), (0.0, 2e-8))]
    found = estimate_parts(parts, [1.0, 0.0, 1.0, 0.0], {"right": 1.0, "kl": -1.0})
    assert found == pytest.approx(estimate_parts(parts, [1.0, 0.0, 1.0, 0.0], {"right": 1.0}))


@pytest.mark.parametrize("name", [n for n in names("advantage") if n != "raw"])
@pytest.mark.parametrize("level", [0.1, 1e6, -3.0])
def test_rounding_of_equal_scores_never_becomes_signal(name: str, level: float) -> None:
    noisy = np.float32(level) + np.float32(abs(level)) * np.float32([0, 1e-7, -1e-7, 0] * 2)
    assert estimate(name, [float(v) for v in noisy], 2) == [0.0] * 8


def built(name: str, **options: Any) -> Any:
    return REGISTRY.load("loss", name)(name=name, **options).build(make_context())


def batch(ratio: list[list[float]], advantage: float, lengths: list[int] | None = None) -> TokenBatch:
    old = torch.full((len(ratio), len(ratio[0])), -1.0, dtype=torch.float64)
    new = (old + torch.tensor(ratio, dtype=torch.float64).log()).requires_grad_()
    mask = torch.arange(len(ratio[0]))[None] < torch.tensor(lengths or [len(r) for r in ratio])[:, None]
    return TokenBatch(new, mask, torch.full_like(old, advantage), old)


@pytest.mark.parametrize(("ratio", "loss", "moves"), [(2.0, 2.0, True), (5.0, 3.0, False)])
def test_the_dual_clip_bounds_what_a_bad_token_can_cost(ratio: float, loss: float, moves: bool) -> None:
    rows = batch([[ratio]], -1.0)
    out = built("ppo_clip")(rows)
    assert out.loss.item() == pytest.approx(loss)
    out.loss.sum().backward()
    assert bool(rows.logprobs_BT.grad.abs() > 0) is moves  # type: ignore[union-attr]
    assert float(out.metrics["clip_fraction"][0]) == float(not moves)
    assert built("grpo_clip")(batch([[ratio]], -1.0)).loss.item() == pytest.approx(ratio)


def test_a_sequences_ratio_is_the_geometric_mean_or_the_product_of_its_own_tokens() -> None:
    rows = batch([[2.0, 0.5, 3.0, 99.0]], 1.0, [3])
    assert built("grpo_no_clip", importance_level="sequence")(rows).loss[0, 0].item() == pytest.approx(-(3 ** (1 / 3)))
    assert built("grpo_no_clip", importance_level="product")(rows).loss[0, 0].item() == pytest.approx(-3)
    assert built("grpo_no_clip")(rows).loss[0, :3].tolist() == pytest.approx([-2.0, -0.5, -3.0])


def test_gspo_clips_whole_sequences() -> None:
    rows = batch([[1.001, 1.001], [1.001, 1.0], [1.5, 1 / 1.5]], 1.0)
    grad = torch.autograd.grad(built("gspo")(rows).loss.sum(), rows.logprobs_BT)[0]
    assert (grad != 0).tolist() == [[False] * 2, [False] * 2, [True] * 2]  # 1.001 and 1.0005 are past 1.0004


def test_cispo_keeps_the_gradient_of_tokens_past_its_bound() -> None:
    rows = batch([[10.0, 1.0]], 1.0)
    grad = torch.autograd.grad(built("cispo")(rows).loss.sum(), rows.logprobs_BT)[0]
    assert grad.tolist() == [[-5.0, pytest.approx(-1.0)]]


@pytest.mark.parametrize("name", names("loss"))
def test_on_policy_every_loss_has_the_policy_gradient(name: str) -> None:
    """At ratio 1, and one token per sequence, each is ``-A grad log pi``: they differ off policy and in reduction."""
    rows = batch([[1.0]], 0.7)
    grad = torch.autograd.grad(built(name)(rows).loss.sum(), rows.logprobs_BT)[0]
    assert grad.item() == pytest.approx(-0.7, rel=1e-6)


def test_a_losss_recipe_gives_way_to_what_the_user_says() -> None:
    config = resolve(loss="dr_grpo")
    assert (config.trainer.reduction, config.advantage.name) == ("constant", "group_mean")
    config = resolve(loss="dr_grpo", trainer={"name": "grpo", "reduction": "token_mean"}, advantage="batch_norm")
    assert (config.trainer.reduction, config.advantage.name) == ("token_mean", "batch_norm")
    assert resolve(loss="dapo").trainer.overlong.cache == 0.2
    assert resolve(loss="dapo", trainer={"name": "grpo", "overlong": {"cache": 0}}).trainer.overlong.cache == 0
    assert resolve().trainer.reduction == "token_mean"


@pytest.mark.parametrize("name", [n for n in names("trainer") if n != "grpo"])
def test_an_algorithm_is_grpo_with_its_loss(name: str) -> None:
    one, other = resolve(trainer=name), resolve(loss=name)
    assert one.trainer.model_dump(exclude={"name"}) == other.trainer.model_dump(exclude={"name"})
    assert (one.loss, one.advantage) == (other.loss, other.advantage)
    assert one.loss.name == name
