"""Every setting that needs the plugin is refused without it, and the error names the distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    "setting",
    [
        "dataset.curriculum.path=passes.json",
        "dataset.difficulty.explore=0.2",
        "trainer.dynamic_sampling.max_rounds=2",
        "trainer.adaptive_sampling.k_success=1",
        "trainer.rollouts.max_staleness=1",
        "trainer.sampling.top_k=5",
    ],
)
def test_the_error_names_setting_and_distribution(
    setting: str, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_DISABLE_PLUGINS", "rlhf-plugin-schedule")
    run = ("train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--dry-run")
    ran = call(*run, "--set", setting)
    assert ran.code == 2
    named = setting.partition("=")[0].rpartition(".")[0].replace("trainer.rollouts", "trainer.rollouts.max_staleness")
    named = named.replace("trainer.sampling", "trainer.sampling.top_p (or top_k, min_p)")
    assert f"{named} needs rlhf-plugin-schedule" in ran.err
    assert "pip install rlhf-plugin-schedule" in ran.err
