"""Scores of rollouts: which reward gives them, how many may be missing, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_core.plugins.contracts import CheckedReward
from rlhf_core.plugins.protocols import RewardModel
from rlhf_core.runs.metrics import mean
from rlhf_core.types.errors import ScoreError
from rlhf_core.types.rollouts import Prompt, Rollout, Score, ScoreStatus


class RewardManager:
    """Scores rollouts; a source may have its own reward."""

    def __init__(self, default: RewardModel, by_source: Mapping[str, RewardModel], max_missing: float) -> None:
        self.default, self.max_missing = CheckedReward(default), max_missing
        self.by_source = {source: CheckedReward(reward) for source, reward in by_source.items()}

    def score(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> list[Score]:
        """One score per rollout; a reward that raises gives ``error``, never 0.0, and a broken environment no score."""
        rows_by_reward: dict[CheckedReward, list[int]] = {}
        scores: dict[int, Score] = {}
        for row, (prompt, rollout) in enumerate(zip(prompts, rollouts, strict=True)):
            if rollout.score is not None and not rollout.score.ok:
                scores[row] = rollout.score
            else:
                rows_by_reward.setdefault(self.by_source.get(prompt.source, self.default), []).append(row)
        for reward, rows in rows_by_reward.items():
            scores |= zip(rows, reward.score([rollouts[row].sample(prompts[row]) for row in rows]))
        return [scores[row] for row in range(len(rollouts))]

    def check(self, scores: Sequence[Score]) -> None:
        """Fail loudly when too many scores are missing (deliberate gating does not count)."""
        bad = [s for s in scores if not s.ok and s.status is not ScoreStatus.GATED]
        all_missing = not any(s.ok for s in scores)
        if scores and (all_missing or len(bad) > self.max_missing * len(scores)):
            first = bad[0] if bad else scores[0]
            rewards = dict.fromkeys(reward.label for reward in (self.default, *self.by_source.values()))
            broken = first.detail.startswith("environment ")  # which the detail names; no reward was asked
            raise ScoreError(
                f"{len(bad)} of {len(scores)} scores are missing",
                where="" if broken else ", ".join(rewards),
                why=f"first: {first.status}: {first.detail}",
                fix=f"fix the {'environment' if broken else 'reward'}, or raise trainer.max_missing_fraction",
            )


def score_metrics(scores: Sequence[Score], prefix: str = "reward") -> dict[str, float]:
    """Mean and spread of the scores that exist (left out if none does), parts' means, and counts of the missing."""
    good = [float(s.value) for s in scores if s.ok and s.value is not None]
    centre = mean(good)
    rows = {f"{prefix}/mean": centre, f"{prefix}/std": mean([(v - centre) ** 2 for v in good]) ** 0.5} if good else {}
    names = sorted({n for s in scores for n in s.parts})
    rows |= {f"{prefix}/part/{n}": mean([s.parts[n] for s in scores if n in s.parts]) for n in names}
    for status in ScoreStatus:
        if status is not ScoreStatus.OK and any(s.status is status for s in scores):
            rows[f"{prefix}/{status.value}"] = float(sum(s.status is status for s in scores))
    return rows
