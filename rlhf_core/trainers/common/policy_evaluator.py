"""Held-out evaluation during training: fixed prompts, fixed seeds, one completion each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.data.datasets import Datasets
from rlhf_core.data.mixture import by_source
from rlhf_core.protocols import Strategy
from rlhf_core.trainers.common.metrics import gold_rows, mean, rollout_metrics, score_metrics
from rlhf_core.trainers.online.generation import RolloutGenerator
from rlhf_core.trainers.online.rewards import RewardManager
from rlhf_core.types import PromptGroup, SamplingParams, ScoreStatus


@dataclass(frozen=True)
class Evaluation:
    """Result of one evaluation; ``golds`` (None without a gold score) and ``scores`` are aligned with ``texts``."""

    metrics: Mapping[str, float]
    texts: list[str]
    golds: list[float] | None
    scores: list[float | None] | None = None
    """The run's reward, None where it is missing."""

    @property
    def missing(self) -> dict[str, int]:
        """Status -> how many completions have no score because of it."""
        found = {s.value: int(self.metrics.get(f"eval/reward/{s.value}", 0)) for s in ScoreStatus}
        return {status: count for status, count in found.items() if count}

    def state(self) -> dict[str, Any]:
        """JSON values for a checkpoint."""
        return {"metrics": dict(self.metrics), "texts": self.texts, "golds": self.golds, "scores": self.scores}


class Evaluator:
    """Samples the held-out prompts and scores them.

    Args:
        groups: held-out prompts, group size 1; every rank takes its share.
    """

    def __init__(
        self,
        studio: RolloutGenerator,
        court: RewardManager,
        datasets: Datasets,
        groups: Sequence[PromptGroup],
        sampling: SamplingParams,
        strategy: Strategy,
    ) -> None:
        self.studio, self.court, self.datasets = studio, court, datasets
        self.groups, self.sampling, self.strategy = list(groups), sampling, strategy

    def run(self, version: int, count: int) -> Evaluation:
        """Evaluate on the first ``count`` prompts; the same seeds every time, so that runs can be compared.

        Of a mixture, each source's scores are reported as well, under ``eval/LABEL/``.
        """
        mine = self.groups[:count][self.strategy.rank :: self.strategy.world_size]
        rollouts = self.studio.sample(mine, self.sampling, version, tag="eval") if mine else []
        prompts = [g.prompt for g in mine]
        scores = self.court.score(prompts, rollouts)
        golds = gold_rows(self.datasets, prompts, rollouts)
        shards = self.strategy.gather_objects(list(zip(rollouts, scores, golds)))
        rows = interleave(shards)
        metrics = {**score_metrics([r[1] for r in rows], "reward"), **rollout_metrics([r[0] for r in rows])}
        metrics |= gold_metrics(rows, "gold")
        places = by_source([g.prompt.source for g in self.groups[: len(rows)]])
        for source, found in places.items() if len(places) > 1 else ():
            own = [rows[i] for i in found]
            metrics |= {**score_metrics([r[1] for r in own], f"{source}/reward"), **gold_metrics(own, f"{source}/gold")}
        have_gold = bool(rows) and all(r[2] is not None for r in rows)
        return Evaluation(
            {f"eval/{k}": v for k, v in metrics.items()},
            [r[0].text for r in rows],
            [float(r[2]["value"]) for r in rows] if have_gold else None,
            [r[1].value if r[1].ok else None for r in rows],
        )


def gold_metrics(rows: Sequence[Any], prefix: str) -> dict[str, float]:
    """Means of the gold score and its parts; nothing unless every one of the (rollout, score, gold) rows has one."""
    golds = [r[2] for r in rows]
    if not golds or any(g is None for g in golds):
        return {}
    return {
        f"{prefix}/{name}": mean([float(g[name]) for g in golds]) for name in golds[0] if all(name in g for g in golds)
    }


def interleave(shards: Sequence[Sequence[Any]]) -> list[Any]:
    """Undo ``rows[rank::world_size]``."""
    return [shards[i % len(shards)][i // len(shards)] for i in range(sum(len(s) for s in shards))]
