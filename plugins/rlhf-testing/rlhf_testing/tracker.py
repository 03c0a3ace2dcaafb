"""Conformance of trackers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_testing.config import built, check_config
from rlhf_testing.report import require
from rlhf_testing.samples import make_context

STEPS = (
    {"reward/mean": 0.25, "kl": 0.0},
    {"reward/mean": 0.5, "kl": float("nan"), "time/rollout": 1.5},
    {"eval/reward/mean": float("inf")},
    {},
)


def check_tracker(config: ComponentConfig, ctx: BuildContext | None = None) -> None:
    """Check a tracker: it takes any metrics (new names, NaN, none at all) without raising or changing them, and closes
    after a run, after a failure before the first step, and twice.

    Args:
        ctx: passed to ``build``; None makes one with a temporary run folder.
    """
    check_config(config, "tracker")
    with tempfile.TemporaryDirectory() as folder:
        context = ctx or make_context(Path(folder))
        config.preflight(context)
        unused = built(config, "tracker", context)
        attempt(config, "a tracker closes although nothing was logged", unused.close)
        tracker = built(config, "tracker", context)
        for step, metrics in enumerate(STEPS, 1):
            given = dict(metrics)
            attempt(config, "a tracker takes whatever a step measured", lambda s=step, g=given: tracker.log(s, g))
            rule, fix = "log() leaves the metrics alone", "copy before changing"
            require(repr(given) == repr(dict(metrics)), config, rule, f"{metrics} became {given}", fix)
        attempt(config, "a tracker closes", tracker.close)
        attempt(config, "a tracker closes twice", tracker.close)


def attempt(config: ComponentConfig, rule: str, call: object) -> object:
    """Call, and turn an exception into a broken rule."""
    try:
        return call()  # type: ignore[operator]
    except Exception as error:
        raise AssertionError(
            f"{type(config).__name__} ('{config.name}'): {rule}\n  seen: {type(error).__name__}: {error}"
        ) from error
