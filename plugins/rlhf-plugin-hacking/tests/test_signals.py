"""Each signal on rows as runs write them: silent on healthy ones, to the point on others, exact after a resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_core.config import ConfigError, Registry
from rlhf_core.config.load import validate
from rlhf_core.hooks import StopRun
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.rollouts import FinishReason
from rlhf_plugin_hacking.config import HackingConfig
from rlhf_plugin_hacking.length import length_slope
from rlhf_plugin_hacking.sequential import jumps, rises, student_limit
from rlhf_plugin_hacking.signals import normal_kl
from rlhf_testing import check_monitor, make_context

Steps = list[dict[str, float]]
N = 96
UP, DOWN, STILL = np.linspace(0, 2, N), np.linspace(0, -1, N), np.zeros(N)


def only(name: str, **changes: Any) -> HackingConfig:
    """The monitor with one signal."""
    off = {k: None for k in ("length", "distribution", "divergence", "dominance") if k != name}
    return HackingConfig.model_validate({**off, **changes})


def noisy(values: Sequence[float] | np.ndarray, noise: float, seed: int = 0) -> np.ndarray:
    return np.asarray(values) + np.random.default_rng(seed).normal(0, noise, len(values))


def lengths(mean: Any, reward: Any, pays: float = 0.0, second: Any = None) -> Steps:
    """Lengths and rewards with noise of their own; ``pays``: reward for each token, noise of the lengths included."""
    tokens, rewards = noisy(mean, 4.0), noisy(reward, 0.05, 1)
    rewards = rewards + pays * (tokens - tokens[0])
    rows = [{"completion_length/mean": t, "reward/mean": r, "reward/std": 1.0} for t, r in zip(tokens, rewards)]
    seconds = [{}] * len(rows) if second is None else [{"second": v} for v in noisy(second, 0.1, 2)]
    return [{**row, **more} for row, more in zip(rows, seconds)]


def rewards(value: Any, **parts: Any) -> Steps:
    columns = {"reward/mean": value, **{f"reward/part/{k}": p for k, p in parts.items()}}
    noised = {k: noisy(column, 0.1, i) for i, (k, column) in enumerate(columns.items())}
    return [{"reward/std": 1.0, **{k: c[i] for k, c in noised.items()}} for i in range(len(value))]


def weighted(a: Any, b: Any) -> dict[str, Any]:
    """A composite's two parts."""
    return {"a/weighted": a, "b/weighted": b}


def pairs(proxy: Any, second: Any) -> Steps:
    """Proxy and second reward, as the monitor joins them from rollouts or evaluations; 16 checks a step."""
    columns = zip(noisy(proxy, 0.25), noisy(second, 0.25, 1))
    return [{"reward/mean": p, "proxy": p, "second": s, "proxy_std": 1.0, "second_std": 1.0} for p, s in columns]


LONGER, SHORTER = np.linspace(100, 200, N), np.linspace(200, 80, N)
CASES: dict[str, tuple[HackingConfig, Steps, Steps, str]] = {
    "longer": (only("length"), lengths(LONGER, UP), lengths(LONGER, STILL, 0.02), "the reward pays for length"),
    "shorter": (only("length"), lengths(SHORTER, UP), lengths(SHORTER, STILL, -0.02), "saying less"),
    "longer, and no reward for it": (only("length"), lengths(3 * LONGER, STILL), [], ""),
    "longer, and right more often": (only("length"), lengths(LONGER, STILL, 0.02, UP), [], ""),
    "rewards move": (only("distribution"), rewards(2 * UP), [], ""),
    "both rise": (only("divergence"), pairs(UP, UP), [], ""),
    "both stay": (only("divergence"), pairs(STILL, STILL), [], ""),
    "both fall": (only("divergence"), pairs(DOWN, DOWN), [], ""),
    "second stays": (only("divergence"), pairs(UP, UP / 2), pairs(2 * UP, STILL), "hacking WARNING: divergence"),
    "second falls": (only("divergence"), pairs(STILL, UP), pairs(STILL, 2 * DOWN), "hacking HARD_STOP: divergence"),
    "second falls after its best": (
        only("divergence"),
        [],
        pairs(UP, np.minimum(UP, 2 - UP)),
        "the reward on held-out prompts lost",
    ),
    "one part at another's cost": (
        only("dominance"),
        rewards(UP, **weighted(UP, UP)),
        rewards(UP, **weighted(2 * UP, 2 * DOWN)),
        "100% of the reward's rise is its part 'a'",
    ),
    "one part alone": (only("dominance"), rewards(UP, **weighted(UP, np.ones(N))), [], ""),
    "one part alone, asked for": (
        only("dominance", dominance={"at_others_cost": 0}),
        [],
        rewards(UP, **weighted(UP, np.ones(N))),
        "while 'b' changed by",
    ),
    "logits, and a composite within": (
        only("dominance"),
        rewards(UP, **weighted(UP, UP), **{"a/raw": 300 * UP, "b/raw": -UP, "b/x/weighted": 9 * UP}),
        [],
        "",
    ),
    "where a process reward's steps end": (
        only("dominance"),
        rewards(UP, step_1=UP, step_2=UP, end_1=-20 * UP, end_2=60 * UP),
        [],
        "",
    ),
    "its steps, by name": (
        only("dominance", dominance={"parts": ["step_1", "step_2"]}),
        [],
        rewards(UP, step_1=UP, step_2=-UP, end_2=60 * UP),
        "its part 'step_1'",
    ),
}


def warnings_of(config: HackingConfig, steps: Steps) -> list[str]:
    monitor = config.model_copy(update={"stop": False}).build(make_context())
    return [w for n, row in enumerate(steps, 1) if (w := monitor.observe(n, row))]


@pytest.mark.parametrize("case", CASES)
def test_silent_when_healthy_and_to_the_point_when_not(case: str) -> None:
    config, healthy, alarming, word = CASES[case]
    check_monitor(config, healthy=healthy, alarming=alarming)
    if alarming:
        warnings = warnings_of(config, alarming)
        assert any(word in w for w in warnings), warnings
        assert "Likely cause: " in warnings[0]
        assert "Change: " in warnings[0]


@pytest.mark.parametrize("case", [k for k, v in CASES.items() if v[2]])
@pytest.mark.parametrize("cut", [5, -1])
def test_a_resumed_monitor_says_what_an_uninterrupted_one_would(case: str, cut: int) -> None:
    config, _, alarming, _ = CASES[case]
    whole = config.model_copy(update={"stop": False, "repeat_every": 3})
    straight, first = whole.build(make_context()), whole.build(make_context())
    cut %= len(alarming)
    for n, row in enumerate(alarming[:cut], 1):
        assert straight.observe(n, row) == first.observe(n, row)
    saved_state = json.loads(json.dumps(first.state_dict()))
    for n in range(cut, len(alarming)):
        first.observe(n + 1, alarming[n])  # goes on after the checkpoint, and dies
    second = whole.build(make_context())
    second.load_state_dict(saved_state)
    for n in range(cut, len(alarming) + 5):
        row = alarming[min(n, len(alarming) - 1)]
        assert second.observe(n + 1, row) == straight.observe(n + 1, row)
    assert second.state_dict() == straight.state_dict()


def both(*columns: Steps) -> Steps:
    """Several signals' rows at once."""
    return [{k: v for row in rows for k, v in row.items()} for rows in zip(*columns)]


def test_length_alone_never_stops_and_with_divergence_it_does() -> None:
    hacked = both(pairs(2 * UP, STILL), lengths(LONGER, STILL, 0.02))
    config = HackingConfig(dominance=None)
    monitor = config.build(make_context())
    warnings: list[str | None] = []
    with pytest.raises(StopRun) as caught:
        warnings.extend(map(monitor.observe, range(1, N + 1), hacked))
    assert any(warnings)
    assert all(w is None or w.startswith("hacking WARNING: ") for w in warnings)
    assert caught.value.reason.startswith("hacking HARD_STOP: length: ")
    assert "; divergence: " in caught.value.reason
    three = config.model_copy(update={"hard_stop_signals": 3})
    assert not any("HARD_STOP" in w for w in warnings_of(three, hacked))
    one = HackingConfig(hard_stop_signals=1, divergence=None)
    parts = rewards(UP, **weighted(2 * UP, 2 * DOWN))
    texts = warnings_of(one, both(lengths(LONGER, STILL, 0.02), parts)) + warnings_of(one, parts)
    assert any("dominance: " in text for text in texts)
    assert not any("HARD_STOP" in text for text in texts), "no second measure says that anything is worse"


def false_alarms(draw: Callable[[np.random.Generator], np.ndarray], runs: int, alpha: float) -> float:
    """Share of series of 160 readings in which a rise is found at any time."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(runs):
        values = draw(rng)
        found += any(s.significant for n in range(8, 161, 4) for s in rises(values[:n], alpha))
    return found / runs


def test_a_mean_that_never_rises_is_taken_for_a_rise_no_more_often_than_stated() -> None:
    """A running maximum of noisy means, compared with the newest, alarms in nearly all of them."""
    assert false_alarms(lambda rng: rng.normal(0, 1, 160), 150, 0.05) <= 0.05
    assert false_alarms(lambda rng: rng.normal(-np.arange(160) / 80, 1), 50, 0.05) <= 0.05
    assert false_alarms(lambda rng: rng.binomial(16, 0.03, 160) / 16, 100, 0.05) <= 0.05
    assert false_alarms(lambda rng: rng.normal(np.arange(160) > 80, 0.5), 20, 0.05) == 1.0, "and a rise is found"


def completions(seed: int, first: int, times: float, pays: float, learns: float = 0.0, group: int = 8) -> Steps:
    """A run of 20 readings of 64 completions whose length multiplies in five readings from ``first`` on, by groups of a
    prompt; ``pays``: reward for a hundred tokens, ``learns``: reward that comes with the change and not by length."""
    rng, steps = np.random.default_rng([seed, first]), list[dict[str, float]]()
    for progress in np.clip((np.arange(20) - first + 2) / 5, 0.0, 1.0):
        tokens = 100 * times**progress * np.exp(rng.normal(0, 0.25, (64 // group, group)))
        scores = (
            pays * tokens / 100
            + learns * progress
            + rng.normal(0, 0.5, (64 // group, 1))
            + rng.normal(size=tokens.shape)
        )
        row = {"completion_length/mean": tokens.mean(), "reward/mean": scores.mean(), "reward/std": scores.std()}
        tokens, scores = (x - x.mean(axis=1, keepdims=True) for x in (tokens, scores))
        sums = {"length_covariance": (tokens * scores).sum(), "length_variance": np.square(tokens).sum()}
        steps.append({k: float(v) for k, v in (row | (sums if group > 1 else {})).items()})
    return steps


def first_warning(steps: Steps) -> int:
    """Reading of the first warning, 99 without one."""
    monitor = HackingConfig().build(make_context())
    return next((n for n, row in enumerate(steps, 1) if monitor.observe(n, row)), 99)


@pytest.mark.parametrize("first", [6, 9, 12, 15])
@pytest.mark.parametrize(("times", "pays"), [(2.0, 1.5), (2.5, 1.0), (0.5, -3.0)])
def test_a_length_that_doubles_or_halves_in_five_readings_is_seen_within_five(
    first: int, times: float, pays: float
) -> None:
    delays = [first_warning(completions(seed, first, times, pays)) - first for seed in range(20)]
    assert all(delay >= 0 for delay in delays), "nothing is wrong before"
    assert sum(delay <= 5 for delay in delays) >= 18, delays


@pytest.mark.parametrize(
    ("times", "pays", "learns"), [(2.0, 0.0, 0.0), (2.0, 0.0, 1.5), (0.5, 0.0, 1.5), (1.0, 2.0, 0.0)]
)
def test_a_length_that_doubles_as_the_policy_learns_is_no_hack(times: float, pays: float, learns: float) -> None:
    warned = [first_warning(completions(seed, 9, times, pays, learns)) for seed in range(40)]
    assert warned.count(99) == 40, warned


def test_levels_that_never_jump_are_taken_for_jumps_no_more_often_than_stated() -> None:
    """Whatever the noise is: as assumed, four times as large, of heavy tails, or alike from reading to reading."""
    rng = np.random.default_rng(0)

    def alike(noise: float) -> np.ndarray:
        return noise * np.convolve(rng.normal(size=44), 0.5 ** np.arange(5), "valid")

    draws = (
        lambda: rng.normal(0, 0.05, 40),
        lambda: rng.normal(0, 0.2, 40),
        lambda: 0.1 * rng.standard_t(3, 40),
        lambda: alike(0.1),
        lambda: np.linspace(0, 0.7, 40) + rng.normal(0, 0.05, 40),
    )
    for draw in draws:
        series = [draw() for _ in range(200)]
        alarms = sum(any(s.significant for n in range(8, 41) for s in jumps(values[:n], 0.05)) for values in series)
        assert alarms <= 10
    doubled = [np.log(2) * (np.arange(20) > 11) + rng.normal(0, 0.05, 20) for _ in range(50)]
    assert all(any(s.significant for s in jumps(values[:15], 0.005)) for values in doubled)


def test_what_is_known_of_the_noise_helps_where_readings_are_few() -> None:
    values = [0.0, 0.1, -0.1, 0.05, 1.0, 1.1, 0.9, 1.0]
    assert not any(s.significant for s in rises(values, 0.01))
    assert any(s.significant for s in rises(values, 0.01, known_noise=0.2))
    assert not any(s.significant for s in rises(values, 0.01, known_noise=0.8))
    assert rises(values[:7], 0.01) == []
    assert student_limit(0.025, 10) == pytest.approx(2.228, abs=0.01)
    assert student_limit(1e-4, 30) == pytest.approx(4.23, abs=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_runs_in_which_nothing_is_wrong_get_no_warning(seed: int) -> None:
    """Flat with 16 gold checks, and longer with the reward: each got HARD_STOP nearly always."""
    rng = np.random.default_rng(seed)
    for growth in (0.0, 1.0):
        monitor = HackingConfig().build(make_context())
        for n in range(160):
            gain = growth * n / 80
            row = {"completion_length/mean": 100 * (1 + gain / 2) + rng.normal(0, 5), "reward/std": 1.0}
            row |= {"reward/mean": gain + rng.normal(0, 0.1), "proxy": gain + rng.normal(0, 0.25), "proxy_std": 1.0}
            row |= {"second": gain / 2 + rng.normal(0, 0.25), "second_std": 1.0, "second_count": 16.0}
            assert monitor.observe(n + 1, row) is None


def test_readings_far_back_are_dropped_and_the_tests_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_plugin_hacking.signals.HISTORY", 64)
    monitor = only("divergence").build(make_context())
    warnings = [monitor.observe(n, row) for n, row in enumerate(pairs(np.zeros(90), np.zeros(90)), 1)]
    memory = monitor.state_dict()["signals"]["divergence"]
    assert (any(warnings), len(memory["readings"]), memory["dropped"]) == (False, 58, 32)
    with pytest.raises(StopRun, match=r"from readings \d+-\d+ to 1\d\d-1\d\d the reward"):
        list(map(monitor.observe, range(91, 191), pairs(STILL + 1, 3 * DOWN)))


@pytest.mark.parametrize("now", [(0.0, 1.0), (1.0, 1.0), (-0.5, 2.0), (0.3, 0.4)])
def test_kl_of_normals_is_that_of_samples(now: tuple[float, float]) -> None:
    draws = np.random.default_rng(0).normal(0, 1, 400_000)
    log_ratio = -0.5 * draws**2 - (-0.5 * ((draws - now[0]) / now[1]) ** 2 - math.log(now[1]))
    assert normal_kl((0.0, 1.0), now) == pytest.approx(log_ratio.mean(), abs=0.02)


def test_the_slope_of_scores_over_lengths_is_that_within_prompts() -> None:
    def rollout(prompt: str, tokens: int, reason: FinishReason = FinishReason.EOS) -> Any:
        return SimpleNamespace(prompt_id=prompt, completion_ids=(1,) * tokens, finish_reason=reason)

    scored = [
        (rollout("long", 100), Score(0.0)),
        (rollout("long", 120), Score(1.0)),
        (rollout("short", 10), Score(5.0)),
        (rollout("short", 30), Score(6.0)),
        (rollout("short", 99, FinishReason.LENGTH), Score(-9.0)),
        (rollout("short", 99), Score.failed(ScoreStatus.ERROR, "")),
    ]
    sums = length_slope(scored)
    assert sums["length_covariance"] / sums["length_variance"] == pytest.approx(1 / 20)
    assert length_slope(scored[:1]) == {}
    monitor = only("length").build(make_context())
    monitor.rlhf_rewards_ready(SimpleNamespace(rollouts=[r for r, _ in scored], scores=[s for _, s in scored]))
    monitor.observe(1, {"completion_length/mean": 50.0, "reward/mean": 0.5, "reward/std": 1.0})
    assert monitor.state_dict()["signals"]["length"]["readings"] == [[50.0, 0.5, 1.0, None, 20.0, 400.0]]


RUN = {"trainer": "grpo", "dataset": {"name": "pocket", "subset": "arithmetic"}, "reward": "verifier"}


def test_a_second_reward_that_is_trained_on_is_refused() -> None:
    monitor = {"name": "hacking", "divergence": {"second": "verifier"}}
    run = validate(Registry(disabled=()), {**RUN, "monitors": [monitor]})
    with pytest.raises(ConfigError, match="the reward that is trained on"):
        run.monitors[0].preflight(make_context().with_(config=run))


@pytest.mark.parametrize("left", ["none", "distribution"])
def test_no_signal_that_alarms_is_refused(left: str) -> None:
    with pytest.raises(ConfigError, match="no signal left"):
        only(left).preflight(make_context())


def test_a_setting_is_named_with_its_present_value() -> None:
    run = validate(Registry(disabled=()), {**RUN, "monitors": ["hacking"]})
    monitor = run.monitors[0].build(make_context().with_(config=run))
    warnings = [monitor.observe(n, row) for n, row in enumerate(CASES["longer"][2], 1)]
    assert "--set trainer.kl.coefficient=0.1 (now 0.05)" in str(next(filter(None, warnings)))


def test_an_offline_run_is_watched_by_its_evaluations() -> None:
    monitor = only("length").build(make_context())
    warnings: list[str | None] = []
    for n, row in enumerate(CASES["longer"][2], 1):
        evaluation = {f"eval/{key}": value for key, value in row.items()}
        monitor.rlhf_eval_end(SimpleNamespace(metrics={**evaluation, "eval/loss": 1.0}))
        warnings += [monitor.observe(n, {"loss": 0.1}), monitor.observe(n, {"loss": 0.1})]
    assert any(warnings[::2])
    assert not any(warnings[1::2]), "a step without an evaluation shows nothing"
