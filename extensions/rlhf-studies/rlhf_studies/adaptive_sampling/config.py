from __future__ import annotations

from collections.abc import Mapping

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class AdaptiveSamplingConfig(SumsAblation):
    """GRPO with groups of eight, with groups that grow until two answers are right and two are wrong, and with DAPO's
    dynamic sampling."""

    name: str = "adaptive_sampling"
    arms: Mapping[str, Settings] = {
        "fixed": {},
        "adaptive": {"trainer": {"adaptive_sampling": {"k_success": 2, "k_failure": 2, "max_completions": 32}}},
        "dynamic": {"trainer": {"dynamic_sampling": {}}},
    }
    claims: tuple[Claim, ...] = (
        Claim(
            "001:1936", "Adaptive groups learn more than groups of one size in the same steps", "adaptive", "fixed", 1
        ),
        Claim("001:1936", "Does dynamic sampling do as much?", "adaptive", "dynamic"),
    )
