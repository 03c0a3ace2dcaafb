"""The reward of a run that learns from a teacher alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rlhf_core.config import ComponentConfig
from rlhf_core.rewards import Sample, Score, ScoreStatus


class UnscoredConfig(ComponentConfig):
    """No reward: every score is missing on purpose (``gated``). Any other reward is measured and not learned from."""

    name: str = "unscored"
    component: ClassVar[str] = "rlhf_plugin_distill.unscored:Unscored"
    downloads: ClassVar[bool] = False


class Unscored:
    """See UnscoredConfig."""

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score.failed(ScoreStatus.GATED, "distillation needs no score")] * len(samples)
