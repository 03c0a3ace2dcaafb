"""Baselines of the algorithm ReMax: one more completion of each prompt, greedy, with a score and never learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlhf_core.data import Prompt, PromptGroup
from rlhf_core.rewards import Score
from rlhf_core.rl.trainer import OnlineTrainer
from rlhf_core.rollouts import Rollout, SamplingParams

GREEDY = "greedy"
"""Part of a score: the reward of the greedy completion of the same prompt."""


class GreedyBaseline:
    """Stands for a collector's generator and rewards: samples each prompt once more, greedily, and scores that too."""

    def __init__(self, generator: Any, rewards: Any) -> None:
        self.generator, self.rewards = generator, rewards
        self.greedy: dict[str, Rollout] = {}

    def sample(
        self, groups: Sequence[PromptGroup], sampling: SamplingParams, version: int, *, tag: object = None
    ) -> list[Rollout]:
        """The completions asked for; the greedy ones wait for :meth:`score`."""
        rollouts = self.generator.sample(groups, sampling, version, tag=tag)
        once, greedy = [replace(g, group_size=1) for g in groups], replace(sampling, temperature=0.0, support=False)
        answers = self.generator.sample(once, greedy, version, tag=(GREEDY, tag))
        self.greedy = {g.prompt.id: rollout for g, rollout in zip(groups, answers, strict=True)}
        return rollouts

    def score(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> list[Score]:
        """Scores of the completions, with their prompt's greedy reward as a part."""
        scores = self.rewards.score(prompts, rollouts)
        by_id = {prompt.id: prompt for prompt in prompts}
        greedy = [self.greedy[name] for name in by_id]
        baselines = dict(zip(by_id, self.rewards.score(list(by_id.values()), greedy), strict=True))
        self.check(list(baselines.values()))
        known = {name: {GREEDY: float(s.value)} for name, s in baselines.items() if s.ok and s.value is not None}
        rows = zip(prompts, scores, strict=True)
        return [replace(score, parts={**score.parts, **known.get(prompt.id, {})}) for prompt, score in rows]

    def check(self, scores: Sequence[Score]) -> None:
        """See :meth:`rlhf_core.training.rewards.RewardManager.check`."""
        self.rewards.check(scores)


class GreedyBaselineTrainer(OnlineTrainer):
    """The on-policy loop, with a greedy completion of each prompt beside those that it learns from."""

    def build(self, checkpoint: Any) -> Any:
        """The loop's parts; evaluations sample as ever."""
        parts = super().build(checkpoint)
        collector: Any = parts.source.collector
        collector.generator = collector.rewards = GreedyBaseline(collector.generator, collector.rewards)
        return parts
