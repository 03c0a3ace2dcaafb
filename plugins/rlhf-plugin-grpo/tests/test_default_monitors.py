"""Health and hacking watch every on-policy run, warn, and end none unless asked to."""

from __future__ import annotations

import pytest

from rlhf_core.config import Registry
from rlhf_core.config.load import validate

REGISTRY = Registry(disabled=())


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "gspo", "rloo", "reinforce_pp", "ppo"])
def test_every_run_is_watched_and_none_is_ended(algorithm: str) -> None:
    run = validate(REGISTRY, {"trainer": algorithm})
    assert [(monitor.name, monitor.stop) for monitor in run.monitors] == [("health", False), ("hacking", False)]


def test_what_the_user_says_of_monitors_is_all_that_holds() -> None:
    assert validate(REGISTRY, {"trainer": "grpo", "monitors": []}).monitors == ()
    (chosen,) = validate(REGISTRY, {"trainer": "grpo", "monitors": ["hacking"]}).monitors
    assert (chosen.name, chosen.stop) == ("hacking", True)
    assert validate(REGISTRY, {"trainer": "dpo"}).monitors == ()
