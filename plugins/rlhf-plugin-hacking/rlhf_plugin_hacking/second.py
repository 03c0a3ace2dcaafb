"""A second reward on a sample of the rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import Datasets, Prompt
from rlhf_core.rewards import Score, score_samples
from rlhf_core.rollouts import Rollout
from rlhf_plugin_hacking.config import DivergenceConfig


class SecondReward:
    """Built once; scores some rollouts of a step beside the scores that the run's reward gave them."""

    def __init__(self, config: DivergenceConfig, ctx: BuildContext) -> None:
        assert config.second is not None, "built only where one is configured"
        self.config = config
        self.datasets = Datasets(ctx.config.dataset, ctx)
        self.reward: Any = config.second.build(ctx.with_(datasets=self.datasets))
        self.problem = ""
        """Why the last score that is missing is."""
        self._prompts: dict[str, Prompt] = {}

    def compare(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Mapping[str, float]:
        """Mean and spread of both rewards over the same completions, evenly spaced over the step; without those that
        lack a score (``second_missing`` counts the second's), and nothing else with fewer than two."""
        scored = [(r, s.value) for r, s in zip(rollouts, scores) if s.ok and s.value is not None]
        count = min(self.config.samples, len(scored))
        chosen = [scored[i * len(scored) // count] for i in range(count)]
        second_scores = score_samples(
            self.reward,
            [r.sample(self._prompt(r.prompt_id)) for r, _ in chosen],
            f"second reward '{self.config.second.name}'" if self.config.second else "",
        )
        pairs = [(float(v), float(s.value)) for (_, v), s in zip(chosen, second_scores) if s.ok and s.value is not None]
        self.problem = next((f"{s.status.value}: {s.detail}" for s in second_scores if not s.ok), self.problem)
        missing = {"second_missing": float(len(chosen) - len(pairs))}
        if len(pairs) < 2:
            return missing
        proxy, second = [a for a, _ in pairs], [b for _, b in pairs]
        return {
            **missing,
            "proxy": fmean(proxy),
            "proxy_std": pstdev(proxy),
            "second": fmean(second),
            "second_std": pstdev(second),
            "second_count": float(len(second)),
        }

    def _prompt(self, name: str) -> Prompt:
        if not self._prompts:
            self._prompts = {p.id: p for p in self.datasets.prompts("train")}
        return self._prompts[name]

    def close(self) -> None:
        getattr(self.reward, "close", lambda: None)()
