"""A KL estimator whose gradient is wrong where it stands is named before the run."""

from __future__ import annotations

import logging

import pytest

from rlhf_core.config.load import merge_settings, validate
from rlhf_core.plugins.registry import Registry
from rlhf_core.runs.launch.run import preflight

from .conftest import ONLINE


@pytest.mark.parametrize(
    ("kl", "warned"),
    [
        ({"where": "reward", "coefficient": 0.1}, True),
        ({"where": "reward", "coefficient": 0.1, "estimator": "k2"}, True),
        ({"where": "reward", "coefficient": 0.1, "estimator": "k1"}, False),
        ({"where": "loss", "coefficient": 0.1, "estimator": "k3"}, False),
        ({"where": "reward", "coefficient": 0.0, "estimator": "k3"}, False),
    ],
)
@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_k2_and_k3_in_the_reward(
    kl: dict[str, object], warned: bool, algo: str, caplog: pytest.LogCaptureFixture
) -> None:
    if algo == "ppo":
        kl = {"controller": "fixed", "estimator": "k3", **kl}
    registry = Registry(disabled=())
    settings = merge_settings(ONLINE, {"trainer": {"name": algo, "kl": kl}, "reward": "verifier"})
    with caplog.at_level(logging.WARNING, "rlhf"):
        preflight(registry, validate(registry, settings), 1)
    assert ("is not the KL's" in caplog.text) is warned
    assert ("--set trainer.kl.estimator=k1" in caplog.text) is warned
