"""The environment's own score, as the reward of a run."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_episodes.config import EnvironmentRewardConfig


class EnvironmentReward:
    """Passes on what the environment said of each episode."""

    def __init__(self, config: EnvironmentRewardConfig) -> None:
        self.turn_weight = config.turn_weight

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """The score of each episode and, by ``turn_weight``, of its turns; missing where there is neither."""
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> Score:
        turns = [turn.score for turn in sample.trajectory if turn.score is not None]
        outcome = sample.environment
        if outcome is None and not turns:
            why = f"the environment has no score of prompt {sample.prompt.id}: choose a reward that judges its answer"
            return Score.failed(ScoreStatus.MISSING, why)
        if outcome is not None and (not outcome.ok or outcome.value is None):
            return outcome
        value = 0.0 if outcome is None or outcome.value is None else outcome.value
        parts = {} if outcome is None else dict(outcome.parts)
        if turns:
            parts |= {"outcome": value, "turns": sum(turns)}
        return Score(value + self.turn_weight * sum(turns), parts, detail="" if outcome is None else outcome.detail)
