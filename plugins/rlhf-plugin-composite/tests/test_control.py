"""Controls: the same values, no information, and the same numbers after a resume."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlhf_core.data import Message, Prompt
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_composite.config import RandomConfig, ShuffledConfig
from rlhf_plugin_composite.control import ShuffledReward, build_random
from rlhf_testing import make_context


def samples(count: int) -> list[Sample]:
    asked: Message = {"role": "user", "content": "2 + 2?"}
    return [Sample(Prompt(str(n), (asked,)), f"{n}") for n in range(count)]


class ByNumber:
    """The completion's number; 3 has no score."""

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [
            Score(None, status=ScoreStatus.ERROR) if s.completion == "3" else Score(float(s.completion))
            for s in samples
        ]


def test_random_scores_have_the_rate_and_know_nothing_of_the_completion() -> None:
    values = [s.value for s in build_random(RandomConfig(rate=0.2), make_context()).score(samples(2000))]
    assert set(values) == {0.0, 1.0}
    assert sum(v for v in values if v) / 2000 == pytest.approx(0.2, abs=0.04)
    reward = build_random(RandomConfig(), make_context())
    first, again = reward.score(samples(64)), reward.score(samples(64))
    assert [s.value for s in first] != [s.value for s in again]


def test_random_scores_go_on_after_a_resume() -> None:
    config = RandomConfig()
    reward, resumed = build_random(config, make_context()), build_random(config, make_context())
    reward.score(samples(5))
    resumed.load_state_dict(reward.state_dict())
    assert resumed.score(samples(32)) == reward.score(samples(32))


def test_processes_draw_different_numbers() -> None:
    ranks = [build_random(RandomConfig(), make_context().with_(rank=rank)) for rank in (0, 1)]
    assert ranks[0].score(samples(64)) != ranks[1].score(samples(64))


def test_shuffled_scores_are_the_same_values_in_another_order_and_keep_what_was_earned() -> None:
    reward = ShuffledReward(ByNumber(), (0, 0))
    scores = reward.score(samples(50))
    values = [s.value for s in scores]
    assert values != [float(n) if n != 3 else None for n in range(50)]
    assert sorted(v for v in values if v is not None) == [float(n) for n in range(50) if n != 3]
    assert [s.status for s in scores].count(ScoreStatus.ERROR) == 1
    assert [s.parts.get("own") for s in scores] == [float(n) if n != 3 else None for n in range(50)]
    resumed = ShuffledReward(ByNumber(), (1, 0))
    resumed.load_state_dict(reward.state_dict())
    assert resumed.score(samples(20)) == reward.score(samples(20))


def test_shuffled_needs_a_reward_and_checks_it() -> None:
    with pytest.raises(ValueError, match="of"):
        ShuffledConfig()  # pyright: ignore[reportCallIssue]
