"""Intervals of shares by their definition."""

from __future__ import annotations

import math

import pytest

from rlhf_core.runs import wilson
from rlhf_core.runs.metrics import first_and_last


def test_wilsons_ends_are_as_far_from_the_share_as_chance_puts_it() -> None:
    for right, count, z in ((0, 20, 1.959964), (7, 50, 1.959964), (3.5, 50, 1.0), (50, 50, 2.6), (1, 3, 1.959964)):
        share = right / count
        low, high = wilson(share, count, z)
        assert low <= share <= high
        for end in (low, high):
            assert abs(share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / count), abs=1e-12)
    assert wilson(0.0, 20)[0] == 0.0
    assert wilson(1.0, 20)[1] == 1.0
    assert [round(x, 6) for x in wilson(0.35, 20)] == [0.181192, 0.567146]
    assert all(math.isnan(x) for x in wilson(math.nan, 0))


def test_the_two_ends_of_a_run_share_no_step() -> None:
    for steps in range(2, 30):
        ends = first_and_last([{"r": 2.0**n} for n in range(steps)], "r", "reward")
        count = min(5, steps // 2)
        assert ends["reward_first"] == sum(2.0**n for n in range(count)) / count
        assert ends["reward_last"] == sum(2.0**n for n in range(steps - count, steps)) / count
        assert ends["reward_last"] > ends["reward_first"]
    assert first_and_last([{"r": 3.0}, {}], "r", "reward") == {"reward_first": 3.0, "reward_last": 3.0}
    assert first_and_last([{}], "r", "reward") == {"reward_first": None, "reward_last": None}
