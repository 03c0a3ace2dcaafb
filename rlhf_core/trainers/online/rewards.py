"""Scores of rollouts, each by the reward of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_core.contracts import Label, class_name, score_samples
from rlhf_core.errors import ScoreError
from rlhf_core.protocols import RewardModel
from rlhf_core.types import Prompt, Rollout, Sample, Score, ScoreStatus


class RewardManager:
    """Scores rollouts; a source may have its own reward.

    Args:
        default: reward for every source that names none.
        by_source: source label -> its own reward.
        max_missing: the run fails when more than this share of a batch has no score.
        label: component -> how to name it in errors.
    """

    def __init__(
        self, default: RewardModel, by_source: Mapping[str, RewardModel], max_missing: float, label: Label = class_name
    ) -> None:
        self.default, self.by_source, self.max_missing, self.label = default, dict(by_source), max_missing, label

    def score(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> list[Score]:
        """One score per rollout; a reward that raises gives status ``error``, never 0.0.

        Raises:
            PluginError: a reward returned something else than one ``Score`` per sample.
        """
        scores: dict[int, Score] = {}
        by_reward: dict[int, list[int]] = {}
        rewards = {id(r): r for r in (self.default, *self.by_source.values())}
        for i, prompt in enumerate(prompts):
            by_reward.setdefault(id(self.by_source.get(prompt.source, self.default)), []).append(i)
        for key, rows in by_reward.items():
            samples = [Sample(prompts[i], rollouts[i].text, rollouts[i].finish_reason) for i in rows]
            scores |= zip(rows, score_samples(rewards[key], samples, self.label(rewards[key])))
        return [scores[i] for i in range(len(rollouts))]

    def check(self, scores: Sequence[Score]) -> None:
        """Fail loudly when too many scores are missing (deliberate gating does not count).

        Raises:
            ScoreError: with the commonest reason.
        """
        bad = [s for s in scores if not s.ok and s.status is not ScoreStatus.GATED]
        all_missing = not any(s.ok for s in scores)
        if scores and (all_missing or len(bad) > self.max_missing * len(scores)):
            first = bad[0] if bad else scores[0]
            raise ScoreError(
                f"{len(bad)} of {len(scores)} scores are missing",
                why=f"first: {first.status}: {first.detail}",
                fix="mend the reward, or raise trainer.max_missing_fraction",
            )
