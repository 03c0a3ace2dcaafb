"""The preset ``classic``: fixed thresholds over the warm-up, one signal warns, both stop."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_core.config import ConfigError
from rlhf_core.hooks import StopRun
from rlhf_plugin_hacking.config import HackingConfig
from rlhf_testing import check_monitor, make_context

from .test_ranks import METRICS, scored
from .test_runs import rows, train


def steps(lengths: Any, rewards: Any) -> list[dict[str, float]]:
    """Mean lengths and rewards with little noise; completions scatter by 25 tokens, scores by 1."""
    rng = np.random.default_rng(0)
    return [
        {
            "completion_length/mean": length + rng.normal(0, 2),
            "completion_length/std": 25.0,
            "reward/mean": reward + rng.normal(0, 0.02),
            "reward/std": 1.0,
        }
        for length, reward in zip(lengths, rewards)
    ]


STILL, HACK = np.zeros(20), np.clip((np.arange(20) - 10) / 5, 0, 2)
LONGER, SHORTER = 100 + 100 * HACK, 200 - 90 * HACK


def classic(**settings: Any) -> HackingConfig:
    return HackingConfig.model_validate({"preset": "classic", "classic": settings})


def first(config: HackingConfig, seen: list[dict[str, float]]) -> tuple[int, str]:
    """(Step of the first warning or stop, what it says); (0, "") without one."""
    monitor = config.model_copy(update={"stop": False}).build(make_context())
    return next(((n, w) for n, row in enumerate(seen, 1) if (w := monitor.observe(n, row))), (0, ""))


def test_it_warns_of_length_or_of_rewards_and_stops_at_both() -> None:
    check_monitor(classic(), healthy=steps(100 + STILL, STILL), alarming=steps(LONGER, STILL))
    step, said = first(classic(), steps(LONGER, STILL))
    assert (step, "WARNING: length: completions went from 100" in said) == (15, True), said
    assert first(classic(), steps(SHORTER, STILL))[1].count("saying less") == 1
    step, said = first(classic(), steps(100 + STILL, 2 * HACK))
    assert 14 <= step <= 16, "third reading above 0.15 nats"
    assert "WARNING: distribution: the rewards are" in said
    monitor = classic().build(make_context())
    with pytest.raises(StopRun, match=r"HARD_STOP: length: .*; distribution: "):
        list(map(monitor.observe, range(1, 21), steps(LONGER, 2 * HACK)))


@pytest.mark.parametrize(
    ("settings", "seen", "step"),
    [
        ({"length_z": 99.0}, steps(LONGER, STILL), 0),
        ({"length_z": 1.5}, steps(LONGER, STILL), 13),
        ({"sigma": "steps"}, steps(LONGER, STILL), 7),  # before anything is wrong: five means scatter little
        ({"kl": 99.0}, steps(100 + STILL, 2 * HACK), 0),
        ({"trend": 1}, steps(100 + STILL, 2 * HACK), 13),
        ({"every": 2}, steps(LONGER, STILL), 16),
    ],
)
def test_its_thresholds_are_settings(settings: dict[str, Any], seen: list[dict[str, float]], step: int) -> None:
    assert first(classic(**settings), seen)[0] == step


def test_a_reading_that_is_not_further_away_than_the_last_ends_the_trend() -> None:
    saw = np.where(np.arange(20) % 2, 1.0, 2.0) * (np.arange(20) > 5)
    assert first(classic(), steps(100 + STILL, saw)) == (0, "")


def test_a_resumed_monitor_says_what_an_uninterrupted_one_would() -> None:
    config, seen = classic(every=2).model_copy(update={"stop": False}), steps(LONGER, 2 * HACK)
    straight = config.build(make_context())
    said = [straight.observe(n, row) for n, row in enumerate(seen, 1)]
    for cut in (3, 13):
        before, after = config.build(make_context()), config.build(make_context())
        for n in range(cut):
            before.observe(n + 1, seen[n])
        after.load_state_dict(json.loads(json.dumps(before.state_dict())))
        assert [after.observe(n + 1, seen[n]) for n in range(cut, 20)] == said[cut:]


def test_the_spread_of_lengths_is_that_of_the_completions() -> None:
    monitor = classic().build(make_context())
    for n, length in enumerate((100, 100, 100, 100, 100, 260), 1):
        pairs = [*scored("a", length - 50, length + 50), *scored("b", length - 50, length + 50)]
        monitor.rlhf_rewards_ready(SimpleNamespace(rollouts=[r for r, _ in pairs], scores=[s for _, s in pairs]))
        said = monitor.observe(n, {**METRICS, "completion_length/mean": float(length)})
    assert "+3.2 standard deviations of the warm-up's completions" in str(said)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"preset": "classic", "divergence": {"samples": 8}}, "preset 'classic' does not read divergence"),
        ({"preset": "classic", "false_alarm": 0.1, "length": None}, "does not read false_alarm, length"),
        ({"classic": {"kl": 0.1}}, "preset 'sequential' does not read classic"),
    ],
)
def test_settings_of_the_other_preset_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        HackingConfig.model_validate(settings).preflight(make_context())


@pytest.mark.slow
def test_a_run_says_how_often_its_preset_cries_and_is_watched_by_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rlhf")
    few = {"steps": 3, "rollout_batch_size": 8, "sampling": {"max_tokens": 4}}
    train(tmp_path / "run", {"preset": "classic", "warmup": 2, "stop": False}, trainer=few)
    assert "monitor hacking, preset classic: simulated runs that get a false warning: clean: " in caplog.text
    assert "% (20 steps)" in caplog.text
    last = rows(tmp_path / "run")[-1]
    assert {"hacking/length_z", "hacking/reward_kl", "hacking/level"} <= last.keys()
    assert "hacking/second" not in last
