"""Each signal on rows as runs write them: silent on healthy ones, to the point on others, exact after a resume."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from rlhf_core.api import ConfigError, StopRun
from rlhf_core.config.load import validate
from rlhf_core.sdk import Registry
from rlhf_core.testing import check_monitor, make_context
from rlhf_plugin_hacking.config import HackingConfig
from rlhf_plugin_hacking.signals import normal_kl

Steps = list[dict[str, float]]
WARM = [10.0, 10.6, 9.4, 10.2, 9.8]


def only(name: str, **changes: Any) -> HackingConfig:
    """The monitor with one signal."""
    off = {k: None for k in ("length", "distribution", "divergence", "dominance") if k != name}
    return HackingConfig.model_validate({**off, **changes})


def lengths(*values: float) -> Steps:
    return [{"completion_length/mean": v, "reward/mean": 0.0, "reward/std": 1.0} for v in values]


def rewards(*values: float, **parts: list[float]) -> Steps:
    return [
        {"reward/mean": v, "reward/std": 1.0, **{f"reward/part/{k}": p[i] for k, p in parts.items()}}
        for i, v in enumerate(values)
    ]


def weighted(a: list[float], b: list[float]) -> dict[str, list[float]]:
    """A composite's two parts."""
    return {"a/weighted": a, "b/weighted": b}


def pairs(*values: tuple[float, float]) -> Steps:
    """Proxy and second reward, as the monitor joins them from rollouts or evaluations."""
    return [{"reward/mean": p, "proxy": p, "second": s, "proxy_std": 1.0, "second_std": 1.0} for p, s in values]


UP = [0.1 * n for n in range(20)]
CASES: dict[str, tuple[HackingConfig, Steps, Steps, str]] = {
    "longer": (only("length"), lengths(*WARM, 11.0, 9.0), lengths(*WARM, 12.2), "pays for length"),
    "shorter": (only("length", length={"direction": "both"}), lengths(*WARM, 9.0), lengths(*WARM, 7.0), "saying less"),
    "shorter is no alarm by default": (only("length"), lengths(*WARM, 3.0), [], ""),
    "rewards move": (
        only("distribution"),
        rewards(*[0.0] * 5, *[0.1, -0.1] * 5),
        rewards(*[0.0] * 5, 0.3, 0.3, 0.5, 0.5, 0.8, 0.8),
        "KL 0.05, 0.12, 0.32 nats",
    ),
    "rewards fall": (only("distribution"), rewards(*[0.0] * 5, *[-0.3 * n for n in range(8)]), [], ""),
    "both rise": (only("divergence"), pairs(*[(v, v) for v in UP]), [], ""),
    "both stay": (only("divergence"), pairs(*[(0.0, 0.0)] * 20), [], ""),
    "second stays": (
        only("divergence"),
        pairs(*[(v, 0.0) for v in UP[:5]]),
        pairs(*[(v, 0.0) for v in UP]),
        "gained 0.60 standard deviations and the other lost 0.00",
    ),
    "second falls a little": (
        only("divergence"),
        pairs(*[(0.3, v) for v in (0.0, 0.0, 0.1, 0.0, -0.1, 0.0, 0.05)]),
        pairs(*[(0.3, 0.0)] * 6, *[(0.25, -0.3)] * 4),
        "hacking WARNING: divergence",
    ),
    "second falls": (
        only("divergence"),
        pairs(*[(-v, -v) for v in UP]),
        pairs(*[(v, min(v, 2 - v)) for v in UP]),
        "hacking HARD_STOP: divergence",
    ),
    "one part at another's cost": (
        only("dominance"),
        rewards(*UP, **weighted(UP, UP)),
        rewards(*UP, **weighted([2 * v for v in UP], [-v for v in UP])),
        "100% of the reward's rise is its part 'a'",
    ),
    "one part alone": (only("dominance"), rewards(*UP, **weighted(UP, [1.0] * 20)), [], ""),
    "one part alone, asked for": (
        only("dominance", dominance={"at_others_cost": 0}),
        [],
        rewards(*UP, **weighted(UP, [1.0] * 20)),
        "while 'b' changed by +0",
    ),
    "logits, and a composite within": (
        only("dominance"),
        rewards(
            *UP,
            **weighted(UP, UP),
            **{"a/raw": [300 * v for v in UP], "b/raw": [-v for v in UP], "b/x/weighted": [9 * v for v in UP]},
        ),
        [],
        "",
    ),
    "where a process reward's steps end": (
        only("dominance"),
        rewards(*UP, step_1=UP, step_2=UP, end_1=[-20 * v for v in UP], end_2=[60 * v for v in UP]),
        [],
        "",
    ),
    "its steps, by name": (
        only("dominance", dominance={"parts": ["step_1", "step_2"]}),
        [],
        rewards(*UP, step_1=UP, step_2=[-v for v in UP], end_2=[60 * v for v in UP]),
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
@pytest.mark.parametrize("cut", [2, 5, -1])
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


def test_two_signals_at_once_stop_the_run() -> None:
    config = only("length", distribution={"every": 1})
    steps = [{**a, **b} for a, b in zip(lengths(*WARM, 13, 14, 15), rewards(*[0.0] * 5, 0.6, 0.8, 1.0))]
    monitor = config.build(make_context())
    warnings = [monitor.observe(n, row) for n, row in enumerate(steps[:7], 1)]
    assert [bool(t) for t in warnings] == [False] * 5 + [True, False], "warned once"
    assert str(warnings[5]).startswith("hacking WARNING: length: ")
    with pytest.raises(StopRun) as caught:
        monitor.observe(8, steps[7])
    assert caught.value.reason.startswith("hacking HARD_STOP: length: ")
    assert "distribution: " in caught.value.reason
    three = config.model_copy(update={"hard_stop_signals": 3})
    assert not any("HARD_STOP" in w for w in warnings_of(three, steps))


def test_length_scores_have_the_size_that_chance_gives_them() -> None:
    """Of steps like the warm-up's, a share near the t distribution's beyond 2.5 alarms; not 15 %, as without the
    correction for a warm-up of five steps."""
    rng, alarms, trials = np.random.default_rng(0), 0, 800
    for _ in range(trials):
        monitor = only("length", warmup=10).build(make_context())
        for n, value in enumerate(rng.normal(100, 20, 11), 1):
            alarms += bool(monitor.observe(n, {"completion_length/mean": value}))
    assert 0.004 < alarms / trials < 0.035, "t with 9 degrees of freedom: 0.017"


@pytest.mark.parametrize("now", [(0.0, 1.0), (1.0, 1.0), (-0.5, 2.0), (0.3, 0.4)])
def test_kl_of_normals_is_that_of_samples(now: tuple[float, float]) -> None:
    draws = np.random.default_rng(0).normal(0, 1, 400_000)
    log_ratio = -0.5 * draws**2 - (-0.5 * ((draws - now[0]) / now[1]) ** 2 - math.log(now[1]))
    assert normal_kl((0.0, 1.0), now) == pytest.approx(log_ratio.mean(), abs=0.02)


RUN = {"trainer": "grpo", "dataset": {"name": "pocket", "subset": "arithmetic"}, "reward": "verifier"}


def test_a_second_reward_that_is_trained_on_is_refused() -> None:
    monitor = {"name": "hacking", "divergence": {"second": "verifier"}}
    run = validate(Registry(disabled=()), {**RUN, "monitors": [monitor]})
    with pytest.raises(ConfigError, match="the reward that is trained on"):
        run.monitors[0].preflight(make_context().with_(config=run))


def test_no_signal_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="no signal left"):
        only("none").preflight(make_context())


def test_a_setting_is_named_with_its_present_value() -> None:
    run = validate(Registry(disabled=()), {**RUN, "monitors": ["hacking"]})
    monitor = run.monitors[0].build(make_context().with_(config=run))
    warning = [monitor.observe(n, row) for n, row in enumerate(lengths(*WARM, 14.0), 1)][-1]
    assert "--set trainer.kl.coefficient=0.1 (now 0.0)" in str(warning)


def test_an_offline_run_is_watched_by_its_evaluations() -> None:
    from types import SimpleNamespace

    monitor = only("length").build(make_context())
    warnings: list[str | None] = []
    for n, value in enumerate([*WARM, 14.0], 1):
        monitor.rlhf_eval_end(SimpleNamespace(metrics={"eval/completion_length/mean": value, "eval/loss": 1.0}))
        warnings += [monitor.observe(n, {"loss": 0.1}), monitor.observe(n, {"loss": 0.1})]
    assert [bool(t) for t in warnings] == [False] * 10 + [True, False]
