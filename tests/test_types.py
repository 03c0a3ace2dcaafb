"""Rollouts of several turns, and what is checked when one is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlhf_core.types import FinishReason, MalformedRollout, Rollout, Segment


def rollout(tokens: int = 5, **options: Any) -> Rollout:
    logprobs_T = np.full(tokens, -0.5, np.float32)
    return Rollout("a/1", 0, (1,), tuple(range(tokens)), logprobs_T, 0, FinishReason.EOS, "x", 0, **options)


def test_a_single_turn_has_no_info_and_no_segments() -> None:
    assert rollout().info == {}
    assert rollout().segments == ()


def test_segments_cover_the_completion_end_to_end() -> None:
    turns = (Segment((0, 2), "assistant"), Segment((2, 4), "tool"), Segment((4, 5), "assistant"))
    assert rollout(segments=turns).segments == turns


@pytest.mark.parametrize("spans", [[(0, 4)], [(1, 5)], [(0, 2), (3, 5)], [(0, 3), (2, 5)], [(0, 6)]])
def test_segments_that_leave_tokens_out_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(MalformedRollout, match="do not cover its 5 tokens"):
        rollout(segments=tuple(Segment(span, "assistant") for span in spans))
