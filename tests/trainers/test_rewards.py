"""A missing score is not 0.0, and too many missing ones end the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rlhf_core.rl.advantages import group_counts
from rlhf_core.training.rewards import RewardManager, score_metrics
from rlhf_core.types.errors import ScoreError
from rlhf_core.types.rollouts import FinishReason, Prompt, Rollout, Sample, Score, ScoreStatus
from rlhf_plugin_grpo.advantage import GroupNorm
from rlhf_plugin_grpo.config import GroupNormConfig

PROMPTS = [Prompt(f"p{i}", ({"role": "user", "content": "?"},), source="b" if i == 3 else "a") for i in range(4)]
ROLLOUTS = [Rollout(f"p{i}", 0, (1,), (5,), np.zeros(1, np.float32), 0, FinishReason.EOS, "x", i) for i in range(4)]


class Constant:
    def __init__(self, value: float) -> None:
        self.value = value

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(self.value) for _ in samples]


class Raises:
    def score(self, samples: Sequence[Sample]) -> list[Score]:
        raise RuntimeError("judge is down")


def test_a_failing_reward_gives_errors_not_zeros() -> None:
    scores = RewardManager(Raises(), {}, 0.5).score(PROMPTS, ROLLOUTS)
    assert all(s.status is ScoreStatus.ERROR and s.value is None and "judge is down" in s.detail for s in scores)
    assert "(test_rewards.py, line " in scores[0].detail
    with pytest.raises(ScoreError, match="4 of 4"):
        RewardManager(Raises(), {}, 0.5).check(scores)


def test_a_source_may_have_its_own_reward() -> None:
    scores = RewardManager(Constant(1.0), {"b": Constant(7.0)}, 0.5).score(PROMPTS, ROLLOUTS)
    assert [s.value for s in scores] == [1.0, 1.0, 1.0, 7.0]


def test_missing_scores_leave_group_statistics_alone() -> None:
    missing = Score.failed(ScoreStatus.TIMEOUT, "5 s")
    scores = [Score(1.0), missing, Score(3.0), Score(2.0)]
    values = GroupNorm(GroupNormConfig()).estimate(ROLLOUTS, scores, [0, 0, 0, 0]).values
    assert values[1] is None
    assert [values[0], values[2], values[3]] == pytest.approx([-1.0, 1.0, 0.0], abs=1e-5)
    assert score_metrics(scores)["reward/mean"] == pytest.approx(2.0)
    assert score_metrics(scores)["reward/timeout"] == 1.0


def test_rounding_is_not_a_signal() -> None:
    scores = [Score(0.1 + 0.2), Score(0.3), Score(0.3), Score(0.3)]
    assert list(GroupNorm(GroupNormConfig()).estimate(ROLLOUTS, scores, [0] * 4).values) == [0.0] * 4


def test_without_scaling_the_mean_is_subtracted() -> None:
    scores = [Score(1.0), Score(0.0), Score(5.0), Score(5.0)]
    values = GroupNorm(GroupNormConfig(scale="none")).estimate(ROLLOUTS, scores, [0, 0, 1, 1]).values
    assert list(values) == [0.5, -0.5, 0.0, 0.0]


def test_a_non_finite_score_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="finite"):
        Score(float("nan"))


def test_gated_samples_do_not_count_as_failures() -> None:
    gated = Score(None, {"std": 2.0}, ScoreStatus.GATED, "members disagree")
    RewardManager(Constant(1.0), {}, 0.1).check([gated, gated, gated, Score(1.0)])


def test_as_many_scores_may_be_missing_as_the_setting_says() -> None:
    late, good = Score.failed(ScoreStatus.TIMEOUT, "5 s"), Score(1.0)
    RewardManager(Constant(1.0), {}, 0.5).check([late, late, good, good])
    with pytest.raises(ScoreError, match=r"3 of 4 scores are missing[\s\S]*timeout: 5 s"):
        RewardManager(Constant(1.0), {}, 0.5).check([late, late, late, good])


def test_a_broken_environment_is_not_blamed_on_the_reward() -> None:
    broke = Score.failed(ScoreStatus.ERROR, "environment 'shop' (acme 1.0): KeyError: 'price'")
    with pytest.raises(ScoreError, match="fix the environment") as caught:
        RewardManager(Constant(1.0), {}, 0.5).check([broke])
    assert caught.value.where == ""


def test_no_reward_is_asked_about_an_episode_that_broke() -> None:
    broke = Score.failed(ScoreStatus.ERROR, "the environment broke")
    rollouts = [replace(ROLLOUTS[0], score=broke), replace(ROLLOUTS[1], score=Score(0.25)), *ROLLOUTS[2:]]
    scores = RewardManager(Constant(1.0), {}, 0.5).score(PROMPTS, rollouts)
    assert scores[0] is broke
    assert [s.value for s in scores] == [None, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("status", [s for s in ScoreStatus if s is not ScoreStatus.OK])
def test_a_value_without_the_status_ok_takes_no_part(status: ScoreStatus) -> None:
    """A gate keeps the value that it dropped."""
    scores = [Score(1.0), Score(9.0, status=status), Score(3.0), Score(2.0)]
    values = GroupNorm(GroupNormConfig()).estimate(ROLLOUTS, scores, [0] * 4).values
    assert values[1] is None
    assert [values[0], values[2], values[3]] == pytest.approx([-1.0, 1.0, 0.0], abs=1e-5)
    assert score_metrics(scores)["reward/mean"] == pytest.approx(2.0)


def test_a_group_with_too_few_scores_to_compare_is_not_called_constant() -> None:
    groups = {
        "equal scores": [(0.0, True), (0.0, True)],
        "one score": [(None, False), (0.0, True)],
        "no score": [(None, False), (None, False)],
        "a signal": [(0.5, True), (-0.5, True)],
        "a single completion": [(0.0, True)],
    }
    rows = [(value, ok, number) for number, group in enumerate(groups.values()) for value, ok in group]
    values, scores_ok, ids = zip(*rows)
    assert group_counts(values, scores_ok, ids) == {"constant_groups": 2, "unscored_groups": 2}
