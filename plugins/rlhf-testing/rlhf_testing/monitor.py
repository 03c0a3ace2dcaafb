"""Conformance of monitors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.hooks import StopRun
from rlhf_testing.config import built, check_config
from rlhf_testing.report import require
from rlhf_testing.samples import make_context

ODD = ({}, {"reward/mean": float("nan"), "kl": float("inf")}, {"grad_norm": 1e30}, {"a metric of tomorrow": 1.0})


def check_monitor(
    config: ComponentConfig,
    ctx: BuildContext | None = None,
    *,
    healthy: Sequence[Mapping[str, float]] = (),
    alarming: Sequence[Mapping[str, float]] = (),
) -> None:
    """Check a monitor: it takes any metrics, answers None or a warning, and leaves them alone; it is silent on
    ``healthy`` steps and speaks (or stops the run) on ``alarming`` ones.

    Args:
        config: the monitor's configuration. It is built anew for each case.
        healthy: metrics of successive steps that must not warn.
        alarming: metrics of successive steps that must, at the last one or before.
    """
    check_config(config, "monitor")
    context = ctx or make_context()
    watch(config, context, ODD)
    warnings = watch(config, context, healthy)
    require(not any(warnings), config, "a monitor is silent on a healthy run", f"it warned {warnings}")
    if alarming:
        warnings = watch(config, context, alarming)
        require(any(warnings), config, "a monitor warns on an alarming run", f"nothing after {len(alarming)} steps")


def watch(config: ComponentConfig, ctx: BuildContext, steps: Sequence[Mapping[str, float]]) -> list[str]:
    """The warnings of a fresh monitor for successive steps; "" where it gives none."""
    monitor: Any = built(config, "monitor", ctx)
    warnings: list[str] = []
    for step, metrics in enumerate(steps, 1):
        given = dict(metrics)
        try:
            answer = monitor.observe(step, given)
        except StopRun as stop:
            return [*warnings, stop.reason or "stop"]
        except Exception as error:
            raise AssertionError(
                f"{type(config).__name__} ('{config.name}'): a monitor takes whatever a step measured\n"
                f"  seen: {type(error).__name__}: {error}, for {metrics}\n  fix: use metrics.get(name)"
            ) from error
        rule = "observe() answers None or a warning"
        require(answer is None or (isinstance(answer, str) and bool(answer)), config, rule, repr(answer))
        rule = "observe() leaves the metrics alone"
        require(repr(given) == repr(dict(metrics)), config, rule, f"{metrics} became {given}")
        warnings.append(answer or "")
    return warnings
