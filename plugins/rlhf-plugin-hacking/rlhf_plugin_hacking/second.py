"""A second reward on a sample of the rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from rlhf_core.config import BuildContext
from rlhf_core.data import Datasets, Prompt
from rlhf_core.rewards import Score, score_samples
from rlhf_core.rollouts import Rollout
from rlhf_plugin_hacking.config import DivergenceConfig


class Pairs(NamedTuple):
    """What one rank has measured of a step."""

    pairs: Sequence[tuple[float, float]]
    """(Score of the run's reward, score of the second) by completion."""
    missing: int
    """Completions without a score of the second reward."""
    problem: str = ""
    """Why the first of them has none."""


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

    def measure(self, scored: Sequence[tuple[Rollout, Score]], ranks: int, rank: int) -> Pairs:
        """Both scores of this rank's share of the step's samples, evenly spaced over its completions; completions that
        lack a score of the run's reward are left out, those that lack the second reward's are counted."""
        valued = [(r, s.value) for r, s in scored if s.ok and s.value is not None]
        samples = self.config.samples
        count = min(samples * (rank + 1) // ranks - samples * rank // ranks, len(valued))
        chosen = [valued[i * len(valued) // count] for i in range(count)]
        second_scores = score_samples(
            self.reward,
            [r.sample(self._prompt(r.prompt_id)) for r, _ in chosen],
            f"second reward '{self.config.second.name}'" if self.config.second else "",
        )
        pairs = [(float(v), float(s.value)) for (_, v), s in zip(chosen, second_scores) if s.ok and s.value is not None]
        problem = next((f"{s.status.value}: {s.detail}" for s in second_scores if not s.ok), "")
        return Pairs(pairs, len(chosen) - len(pairs), problem)

    def compare(self, measured: Sequence[Pairs]) -> Mapping[str, float]:
        """Mean and spread of both rewards over the same completions of all ranks; ``second_missing`` counts what lacks
        a score, and there is nothing else with fewer than two."""
        pairs = [pair for of_rank in measured for pair in of_rank.pairs]
        self.problem = next((of_rank.problem for of_rank in measured if of_rank.problem), self.problem)
        missing = {"second_missing": float(sum(of_rank.missing for of_rank in measured))}
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
