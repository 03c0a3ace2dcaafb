"""Names that are near, and names that say the opposite."""

from __future__ import annotations

import pytest

from rlhf_core.types.errors import did_you_mean

LOSSES = ["reinforce", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("no_baseline", ""),
        ("reinforce_without_baseline", ""),
        ("grpo_no_clp", "grpo_no_clip"),
        ("grpo-no-clip", "grpo_no_clip"),
        ("reinforce_with_baselin", "reinforce_with_baseline"),
        ("grpo_clp", "grpo_clip"),
    ],
)
def test_a_name_that_denies_something_is_not_answered_with_its_opposite(name: str, near: str) -> None:
    assert did_you_mean(name, LOSSES, limit=1) == (f"did you mean '{near}'?" if near else "")
