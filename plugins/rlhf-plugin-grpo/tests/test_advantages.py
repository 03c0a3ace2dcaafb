"""Advantage estimators, against their formulas written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlhf_core
from rlhf_core.config import ConfigError, Registry
from rlhf_core.data import read_jsonl
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_testing import make_context, make_rollouts

REGISTRY = Registry(disabled=())
NAMES = sorted(e.name for e in REGISTRY.entries("advantage") if e.distribution == "rlhf-plugin-grpo")


def estimate(name: str, values: list[float | None], groups: int = 1, **options: Any) -> list[Any]:
    rollouts, ids = make_rollouts(groups, len(values) // groups)
    scores = [Score.failed(ScoreStatus.TIMEOUT, "slow") if v is None else Score(v) for v in values]
    config = REGISTRY.load("advantage", name)(name=name, **options)
    advantages = config.build(make_context()).estimate(rollouts, scores, ids).values
    return [v if v is None or np.ndim(v) else float(v) for v in advantages]


def test_each_group_is_its_own_baseline() -> None:
    values = [1.0, 0.0, 0.0, 1.0, 5.0, 7.0, 9.0, 11.0]
    advantages = estimate("group_norm", list(values), 2)
    for rows in (slice(0, 4), slice(4, 8)):
        group = np.array(values[rows])
        assert advantages[rows] == pytest.approx((group - group.mean()) / (group.std(ddof=1) + 1e-6))


def test_without_std_only_the_mean_is_taken_off() -> None:
    assert estimate("group_norm", [3.0, 1.0, 2.0, 2.0], 1, scale="none") == pytest.approx([1.0, -1.0, 0.0, 0.0])


def test_a_missing_score_takes_no_part() -> None:
    assert estimate("group_norm", [1.0, None, 0.0, None], 1) == [
        pytest.approx(2**-0.5, rel=1e-5),
        None,
        pytest.approx(-(2**-0.5), rel=1e-5),
        None,
    ]
    assert estimate("group_norm", [1.0, None, None, None], 1) == [0.0, None, None, None]


@pytest.mark.parametrize("level", [0.1, 1e6, -3.0])
def test_rounding_of_equal_rewards_does_not_become_signal(level: float) -> None:
    noisy = np.float32(level) + np.float32(abs(level)) * np.float32([0, 1e-7, -1e-7, 0])
    assert estimate("group_norm", [float(v) for v in noisy], 1) == [0.0] * 4
    assert max(map(abs, estimate("group_norm", [level, level * 1.1, level, level], 1))) > 1  # type: ignore[type-var,arg-type]


def test_leave_one_out_is_each_score_less_the_others_mean() -> None:
    values = [1.0, 4.0, 2.0, 9.0]
    expected = [v - (sum(values) - v) / 3 for v in values]
    assert estimate("leave_one_out", list(values)) == pytest.approx(expected)
    assert estimate("leave_one_out", [1.0, None, 3.0, None]) == [-2.0, None, 2.0, None]


def test_batch_norm_divides_by_the_batchs_own_spread() -> None:
    values = [1.0, 0.0, 0.0, 1.0, 5.0, 7.0, 9.0, 11.0]
    std = np.std(values, ddof=1) + 1e-6
    expected = [(v - m) / std for v, m in zip(values, [0.5] * 4 + [8.0] * 4)]
    assert estimate("batch_norm", list(values), 2) == pytest.approx(expected)


def test_reinforce_pp_takes_mean_and_std_from_the_whole_batch() -> None:
    values = np.array([1.0, 0.0, 0.0, 1.0, 5.0, 7.0, 9.0, 11.0])
    expected = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
    assert estimate("reinforce_pp", values.tolist(), 2) == pytest.approx(expected)
    centred = values - np.repeat([0.5, 8.0], 4)
    advantages = estimate("reinforce_pp", values.tolist(), 2, baseline="group")
    assert advantages == pytest.approx(centred / (centred.std(ddof=1) + 1e-6))


def test_the_optimal_baseline_is_the_mean_by_length() -> None:
    rollouts, _ = make_rollouts(1, 4)
    values, lengths = np.array([1.0, 0.0, 3.0, 2.0]), np.array([len(r.completion_ids) for r in rollouts])
    assert len(set(lengths)) > 1
    assert estimate("optimal_baseline", values.tolist()) == pytest.approx(values - (lengths @ values) / lengths.sum())
    assert estimate("optimal_baseline", values.tolist(), weight="gradient") == pytest.approx(
        values - (lengths @ values) / lengths.sum()
    )  # these rollouts' tokens are equally likely


def estimate_parts(
    parts: list[dict[str, float]], totals: list[float], weights: dict[str, float], **options: Any
) -> list[float]:
    rollouts, ids = make_rollouts(1, len(parts))
    scores = [Score(t, p) for t, p in zip(totals, parts)]
    config = REGISTRY.load("advantage", "gdpo")(name="gdpo", parts=weights, **options)
    return [float(v) for v in config.build(make_context()).estimate(rollouts, scores, ids).values]


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
    summed_last = estimate_parts(parts, totals, weights)
    summed_first = estimate_parts(parts, totals, weights, order="sum_then_normalise")
    assert summed_last[0] == pytest.approx(0.0, abs=1e-4)
    assert summed_last[3] == pytest.approx(-summed_last[2])
    assert summed_first[0] < -0.8
    rewards_KG = np.array([[p[k] for p in parts] for k in weights])
    std_K1 = rewards_KG.std(1, ddof=1, keepdims=True) + 1e-6
    a = ((rewards_KG - rewards_KG.mean(1, keepdims=True)) / std_K1).sum(0)
    assert summed_last == pytest.approx(a / (a.std(ddof=1) + 1e-6), abs=1e-9)


def test_gdpo_takes_the_kl_of_a_policy_that_is_still_the_reference_for_rounding() -> None:
    parts = [{"right": r, "kl": k} for r, k in ((1.0, 1e-9), (0.0, 3e-8), (1.0, 0.0), (0.0, 2e-8))]
    advantages = estimate_parts(parts, [1.0, 0.0, 1.0, 0.0], {"right": 1.0, "kl": -1.0})
    assert advantages == pytest.approx(estimate_parts(parts, [1.0, 0.0, 1.0, 0.0], {"right": 1.0}))


def test_gdpo_hears_a_part_however_small_it_is() -> None:
    """The unit of a reward is nobody's business: a part of size 1e-7 counts as the same part of size 1."""
    whole = [{"right": r, "style": s} for r, s in ((1.0, 0.2), (0.0, 0.9), (1.0, 0.4), (0.0, 0.1))]
    tiny = [{**p, "style": p["style"] * 1e-7} for p in whole]
    weights, totals = {"right": 1.0, "style": 1.0}, [1.0, 0.0, 1.0, 0.0]
    wanted = estimate_parts(whole, totals, weights, epsilon=0)
    assert estimate_parts(tiny, totals, weights, epsilon=0) == pytest.approx(wanted)
    assert wanted != pytest.approx(estimate_parts(whole, totals, {"right": 1.0}, epsilon=0))


@pytest.mark.parametrize("name", ["group_norm", "group_mean", "leave_one_out", "optimal_baseline", "batch_norm"])
@pytest.mark.parametrize(("low", "high"), [(1000.0, 1000.05), (1000.0, 1000.01), (-3e6, -3e6 + 20), (1e-9, 2e-9)])
def test_scores_that_differ_by_more_than_rounding_teach(name: str, low: float, high: float) -> None:
    rollouts, ids = make_rollouts(1, 4)
    config = REGISTRY.load("advantage", name)(name=name)
    scores = [Score(v) for v in (low, high, low, high)]
    values = config.build(make_context()).estimate(rollouts, scores, ids).values
    assert values[0] < 0 < values[1]
    float32 = np.float32(low)
    near = [Score(float(v)) for v in (float32, np.nextafter(float32, np.float32(np.inf)), float32, float32)]
    assert not np.any(config.build(make_context()).estimate(rollouts, near, ids).values), "one rounding of float32"


def test_gdpo_names_a_part_that_no_score_has() -> None:
    with pytest.raises(ConfigError, match="no part 'fromat'") as caught:
        estimate_parts([{"format": 1.0}] * 2, [1.0, 1.0], {"fromat": 1.0})
    assert "format" in str(caught.value)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("raw", "keep")])
@pytest.mark.parametrize("level", [0.1, 1e6, -3.0])
def test_rounding_of_equal_scores_never_becomes_signal(name: str, level: float) -> None:
    noisy = np.float32(level) + np.float32(abs(level)) * np.float32([0, 1e-7, -1e-7, 0] * 2)
    if name == "max_rl" and level < 0:
        pytest.skip("it refuses negative scores")
    assert not any(np.any(value) for value in estimate(name, [float(v) for v in noisy], 2))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [1.0, None, None, 1.0, None, None, 1.0, 1.0]),
        ({"threshold": 0.5}, [1.0, None, 1.0, 1.0, None, None, 1.0, 1.0]),
        ({"best": 1}, [1.0, None, None, None, None, None, 1.0, None]),
        ({"threshold": None, "best": 2}, [1.0, None, None, 1.0, None, None, 1.0, 1.0]),
    ],
)
def test_what_is_imitated(options: dict[str, Any], kept: list[float | None]) -> None:
    assert estimate("keep", [1.0, None, 0.5, 1.0, 0.0, 0.2, 2.0, 2.0], 2, **options) == kept


def test_everything_is_not_imitated() -> None:
    with pytest.raises(ValueError, match="would keep every completion"):
        REGISTRY.load("advantage", "keep")(name="keep", threshold=None)


def test_the_loss_is_the_cross_entropy_of_what_is_kept_alone(tmp_path: Path) -> None:
    """The tokens of what is left out are in no mean."""
    run = rlhf_core.train(
        "expert_iteration",
        dataset="pocket/arithmetic",
        reward=lambda samples: [float(n % 3 == 0) for n, _ in enumerate(samples)],
        settings={
            "trainer": {"steps": 1, "rollout_batch_size": 16, "group_size": 4, "eval_samples": 0, "trace_prompts": 4},
            "trainer.sampling": {"max_tokens": 6},
            "threads": 1,
        },
        run_dir=tmp_path / "run",
        progress=False,
    )
    rows = [row for row in read_jsonl(run.path / "trace.jsonl") if row["stage"] == "step" and "prompt" in row]
    sampled = [one for row in rows for one in row["completions"]]
    kept = [one for one in sampled if one["score"] == 1.0]
    (metrics,) = [row for row in read_jsonl(run.path / "metrics.jsonl") if "tokens_generated" in row]
    assert 0 < len(kept) < len(sampled) == 16
    logprobs = [value for one in kept for value in one["logprobs"]]
    assert metrics["train/tokens"] == len(logprobs)
    assert metrics["kept/completions"] == len(kept) / 16
    assert metrics["loss"] == pytest.approx(-sum(logprobs) / len(logprobs), rel=1e-4)
