"""The check of environments catches what breaks an episode that talks."""

from __future__ import annotations

import pytest
from broken_environment import TalkConfig

import rlhf_testing as kit


def test_a_sound_one_passes() -> None:
    kit.check_environment(TalkConfig())


@pytest.mark.parametrize(
    ("fault", "rule"),
    [("raises", "int of None"), ("number", "respond keeps the protocol"), ("random", "same answers of respond")],
)
def test_answers_to_turns_without_calls(fault: str, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        kit.check_environment(TalkConfig(fault=fault))
