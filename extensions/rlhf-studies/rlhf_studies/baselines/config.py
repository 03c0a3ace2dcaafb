from __future__ import annotations

from collections.abc import Mapping

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class BaselinesConfig(SumsAblation):
    """REINFORCE on the raw reward, less the group's mean, that over its standard deviation, and leave-one-out."""

    name: str = "baselines"
    arms: Mapping[str, Settings] = {
        name: {"loss": {"name": "reinforce"}, "advantage": {"name": name}}
        for name in ("raw", "group_mean", "group_norm", "leave_one_out")
    }
    claims: tuple[Claim, ...] = (
        Claim("000:696", "Does reinforce_with_baseline learn more than no_baseline?", "group_norm", "raw"),
        Claim("000:696", "Is its gradient larger?", "group_norm", "raw", metric="grad_norm"),
    )
