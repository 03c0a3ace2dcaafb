"""Rollouts of several turns, and what is checked when one is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlhf_core.types.rollouts import FinishReason, MalformedRollout, Rollout, Segment, VersionSpan


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


def test_version_spans_cover_the_completion_and_rise_from_the_oldest() -> None:
    spans = (VersionSpan((0, 2), 0), VersionSpan((2, 5), 3))
    assert rollout(versions=spans).versions == spans
    assert rollout().versions == ()


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([((0, 4), 0)], "do not cover its 5 tokens"),
        ([((0, 2), 0), ((3, 5), 1)], "do not cover its 5 tokens"),
        ([((0, 5), 0), ((5, 5), 1)], "do not cover its 5 tokens"),
        ([((0, 5), 1)], "do not rise from policy version 0"),
        ([((0, 2), 0), ((2, 5), 0)], "do not rise from policy version 0"),
        ([((0, 2), 0), ((2, 4), 2), ((4, 5), 1)], "do not rise from policy version 0"),
    ],
)
def test_version_spans_that_cannot_be_are_refused(spans: list[tuple[tuple[int, int], int]], says: str) -> None:
    with pytest.raises(MalformedRollout, match=says):
        rollout(versions=tuple(VersionSpan(span, version) for span, version in spans))
