"""Each monitor on metrics as runs write them and its memory across a resume."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlhf_core.config import ComponentConfig, Registry
from rlhf_core.config.load import validate
from rlhf_core.hooks import StepMetrics, StopRun
from rlhf_plugin_health import config as c
from rlhf_testing import check_monitor, make_context

Steps = list[dict[str, float]]


def rows(**series: list[float]) -> Steps:
    """``rows(kl=[1, 2])`` is ``[{"kl": 1}, {"kl": 2}]``; ``__`` stands for ``/``."""
    names = {k: k.replace("__", "/") for k in series}
    return [{names[k]: v for k, v in zip(series, step)} for step in zip(*series.values(), strict=True)]


NOISY = [0.9, 1.1, 1.0, 1.2, 0.8, 1.0, 1.1]
CASES: dict[str, tuple[ComponentConfig, Steps, Steps, str]] = {
    "a fixed seed": (
        c.IdenticalConfig(),
        rows(repeat_surprise=[0.0, 0.9, 0.2]),
        rows(repeat_surprise=[9.0, 8.0]),
        "fixed seed",
    ),
    "scoring that times out": (
        c.TimeoutsConfig(),
        rows(reward__timeout=[0.0, 0.01, 0.0, 0.02, 0.0]),
        rows(reward__timeout=[0.0, 0.01, 0.0, 0.1, 0.3]),
        "were not scored in time",
    ),
    "equal groups": (
        c.IdenticalConfig(),
        rows(identical_fraction=[0.0, 0.5]),
        rows(identical_fraction=[0.95] * 2),
        "nothing can be",
    ),
    "one text": (
        c.IdenticalConfig(),
        rows(commonest_fraction=[0.5, 0.8]),
        rows(commonest_fraction=[0.95] * 2),
        "one and the same",
    ),
    "format lost": (
        c.FormatDriftConfig(),
        rows(reward__part__format=[0.9, 0.8, 0.9, 0.8, 0.8, 0.8], reward__part__answer=[0.1, 0.2, 0.2, 0.3, 0.3, 0.3]),
        rows(reward__part__format=[0.7, 0.7, 0.7, 0.7, 0.5, 0.4, 0.4, 0.4], reward__part__answer=[0.4] * 8),
        "format_weight=0.2",
    ),
    "everything lost is not format drift": (
        c.FormatDriftConfig(),
        rows(reward__part__format=[0.7] * 4 + [0.4] * 4, reward__part__answer=[0.6] * 4 + [0.2] * 4),
        [],
        "",
    ),
    "a strict part alone": (
        c.FormatDriftConfig(strict="boxed"),
        [],
        rows(reward__part__boxed=[0.7] * 4 + [0.4] * 4),
        "'boxed' fell to 0.47",
    ),
    "entropy": (
        c.EntropyCollapseConfig(),
        rows(entropy=[0.25, 0.24, 0.2, 0.15, 0.1, 0.01, 0.1]),
        rows(entropy=[0.25, 0.24, 0.2, 0.02, 0.01]),
        "4% of what it was",
    ),
    "kl jumps": (
        c.KLSpikeConfig(),
        rows(kl=[0.0, 0.01, 0.02, 0.03, 0.05, 0.15]),
        rows(kl=[0.0, 0.01, 0.01, 0.02, 1.3]),
        "0.01 is the median",
    ),
    "kl too large": (c.KLSpikeConfig(), [], rows(kl=[0.0, 3.0]), "optimizer.warmup_steps=30"),
    "kl infinite": (c.KLSpikeConfig(), [], rows(kl=[0.0, math.inf]), "kl is inf"),
    "kl before any update": (c.KLSpikeConfig(), rows(kl=[1e-6]), rows(kl=[0.3]), "before any update"),
    "gradient": (
        c.GradientSpikeConfig(),
        rows(grad_norm=[0.4, 0.5, 0.3, 0.4, 2.0]),
        rows(grad_norm=[0.4, 0.5, 0.4, 46.75]),
        "grad_norm is 46.8 (0.4 is",
    ),
    "cut off": (
        c.LengthRunawayConfig(),
        rows(truncated_fraction=[0.2, 0.9, 0.2]),
        rows(truncated_fraction=[0.9, 0.9]),
        "trainer.sampling.stop",
    ),
    "length jumps": (
        c.LengthRunawayConfig(),
        rows(completion_length__mean=[100 * n for n in NOISY]),
        rows(completion_length__mean=[*(100 * n for n in NOISY), 220.0, 260.0]),
        "z-score",
    ),
    "length creeps": (
        c.LengthRunawayConfig(),
        [],
        rows(completion_length__mean=[10 * 1.12**n for n in range(18)]),
        "times those of the first",
    ),
    "length collapses": (
        c.LengthCollapseConfig(),
        rows(completion_length__mean=[*(100 * n for n in NOISY), 60.0, 40.0, 30.0]),
        rows(completion_length__mean=[100 * 0.9**n for n in range(17)]),
        "those of the first steps had 90.0",
    ),
    "nothing is said": (
        c.LengthCollapseConfig(),
        rows(completion_length__mean=[1.0] * 9),
        rows(completion_length__mean=[5.0, 6.0, 5.0, 4.0, 1.5, 1.0]),
        "completions have 1.0 tokens",
    ),
    "engine and trainer": (
        c.RatioDriftConfig(),
        rows(drift__mean_abs=[0.001, 0.02]),
        rows(drift__mean_abs=[0.001, 0.4]),
        "0.4 nats per token",
    ),
    "single tokens": (
        c.RatioDriftConfig(),
        rows(drift__sequence_max_abs=[0.3]),
        rows(drift__sequence_max_abs=[20.0]),
        "padding",
    ),
    "ratio": (
        c.RatioDriftConfig(),
        rows(importance_ratio=[1.0, 1.1, 0.9]),
        rows(importance_ratio=[1.0, 1.4]),
        "epochs_per_rollout_batch=1",
    ),
}


def among_all(config: ComponentConfig) -> c.HealthConfig:
    return c.HealthConfig.model_validate({config.name: config})


def warnings_of(config: ComponentConfig, steps: Steps) -> list[str]:
    monitor = config.build(make_context())
    return [w for n, row in enumerate(steps, 1) if (w := monitor.observe(n, row))]


@pytest.mark.parametrize("case", CASES)
def test_silent_when_healthy_and_to_the_point_when_not(case: str) -> None:
    config, healthy, alarming, word = CASES[case]
    check_monitor(config, healthy=healthy, alarming=alarming)
    check_monitor(among_all(config), healthy=healthy, alarming=alarming)
    warnings = warnings_of(config, alarming)
    if alarming:
        assert len(warnings) == 1
        assert word in warnings[0]
        assert warnings[0].startswith(f"{config.name}: ")
        assert "Likely cause: " in warnings[0]
        assert "Change: --set " in warnings[0]


@pytest.mark.parametrize("case", [k for k, v in CASES.items() if v[2]])
def test_a_resumed_monitor_says_what_an_uninterrupted_one_would(case: str) -> None:
    config, _, alarming, _ = CASES[case]
    for whole in (config, among_all(config)):
        straight, first = whole.build(make_context()), whole.build(make_context())
        cut = len(alarming) - 1
        for n, row in enumerate(alarming[:cut], 1):
            straight.observe(n, row)
            first.observe(n, row)
        second = whole.build(make_context())
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        for n in range(cut, len(alarming) + 12):
            row = alarming[min(n, len(alarming) - 1)]
            assert second.observe(n + 1, row) == straight.observe(n + 1, row)
        assert second.state_dict() == straight.state_dict()


def test_the_same_warning_comes_again_only_now_and_then() -> None:
    steps = rows(truncated_fraction=[0.9] * 25)
    monitor = c.LengthRunawayConfig(patience=3, repeat_every=10).build(make_context())
    assert [n for n, row in enumerate(steps, 1) if monitor.observe(n, row)] == [3, 13, 23]


@pytest.mark.parametrize("config", [c.HealthConfig(stop=True), c.HealthConfig(kl_spike=c.KLSpikeConfig(stop=True))])
def test_stop_ends_the_run_with_everything_that_was_found(config: c.HealthConfig) -> None:
    with pytest.raises(StopRun) as caught:
        config.build(make_context()).observe(1, {"kl": 3.0, "drift/mean_abs": 1.0})
    assert "kl_spike: kl is 3" in caught.value.reason
    assert "ratio_drift: " in caught.value.reason


def test_what_is_null_is_off() -> None:
    monitor = c.HealthConfig(kl_spike=None).build(make_context())
    assert monitor.observe(1, {"kl": 3.0}) is None


def test_a_setting_is_named_with_its_present_value() -> None:
    registry = Registry(disabled=())
    run = validate(
        registry,
        {
            "trainer": {"name": "grpo", "optimizer": {"warmup_steps": 0, "eps": 1e-7}},
            "dataset": {"name": "pocket", "subset": "arithmetic"},
            "reward": "verifier",
            "monitors": ["health"],
        },
    )
    warning = run.monitors[0].build(make_context().with_(config=run)).observe(2, {"kl": 3.0})
    assert "--set trainer.optimizer.warmup_steps=30 (now 0)" in warning
    assert "--set trainer.optimizer.eps=1e-05 (now 1e-07)" in warning


def test_no_gain_stops_when_evaluations_no_longer_beat_the_best() -> None:
    values = [0.1, 0.5, 0.4, 0.55, 0.5, 0.5]
    check_monitor(c.NoGainConfig(), alarming=[{"eval/reward/mean": v} for v in values])
    first = c.NoGainConfig(patience=2).build(make_context())
    for step, value in enumerate(values[:-1]):
        first.observe(step, {"eval/reward/mean": value, "reward/mean": 9.0})
        first.observe(step, {"reward/mean": 9.0})
    resumed = c.NoGainConfig(patience=2).build(make_context())
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(StopRun, match=r"is 0\.5 at step 6, and was 0\.55 at best"):
        resumed.observe(6, {"eval/reward/mean": values[-1]})
    strict = c.NoGainConfig(least=1.0).build(make_context())
    strict.observe(0, {"eval/reward/mean": 0.0})
    with pytest.raises(StopRun):
        strict.observe(1, {"eval/reward/mean": 0.9})


def test_no_gain_does_not_compare_means_of_different_prompts() -> None:
    trainer = SimpleNamespace(gold_samples=200, eval_samples=64, steps=30)
    monitor = c.NoGainConfig().build(make_context(config=SimpleNamespace(trainer=trainer)))
    for step, value in ((0, 0.5), (10, 0.4), (20, 0.45), (30, 0.2)):
        monitor.rlhf_eval_end(StepMetrics(step, {"eval/reward/mean": value, "eval/gold/value": 1.0}))
    assert monitor.best == 0.45


def test_a_slow_step_names_the_part_that_grew(tmp_path: Path) -> None:
    session = SimpleNamespace(dir=SimpleNamespace(path=tmp_path))
    monitor = c.SlowStepConfig().build(make_context().with_(session=session))

    def observed(step: int, rollout: float, reward: float) -> str | None:
        row = {
            "step": step,
            "reward/mean": 0.0,
            "time": {"rollout": rollout, "reward": reward, "step": rollout + reward},
        }
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        return monitor.observe(step, {"reward/mean": 0.0})

    assert [observed(step, 8.0, 2.0) for step in range(1, 5)] == [None] * 4
    assert observed(5, 9.0, 10.0) is None, "less than three times as long"
    said = observed(6, 9.0, 40.0)
    assert said is not None
    assert "the step took 49 s, the last 5 steps 10 s in the median; 'reward' grew most" in said
