r"""ReMax: the reward of the greedy completion is the baseline (Li et al. 2023, arXiv 2310.10505)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rlhf_core.losses import Advantages
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_schedule.greedy import GREEDY

if TYPE_CHECKING:
    from rlhf_plugin_grpo.advantage_config import RemaxConfig


class Remax:
    """``r - r(greedy)``; a completion whose prompt has no greedy reward is left out."""

    reads_tokens: ClassVar[bool] = False

    def __init__(self, config: RemaxConfig) -> None:
        pass

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        known = [s.ok and s.value is not None and GREEDY in s.parts for s in scores]
        rows = zip(scores, known, strict=True)
        better = [float(s.value) - s.parts[GREEDY] if ok and s.value is not None else None for s, ok in rows]
        values = [value for value in better if value is not None]
        return Advantages(better, {"better_than_greedy": float(np.mean(np.array(values) > 0))} if values else {})
