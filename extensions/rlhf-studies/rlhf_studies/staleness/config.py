from __future__ import annotations

from collections.abc import Mapping

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class StalenessConfig(SumsAblation):
    """GRPO on rollouts whose weights are up to 0, 1, 2 and 4 updates old, with the importance correction."""

    name: str = "staleness"
    arms: Mapping[str, Settings] = {
        str(stale): {"trainer": {"rollouts": {"max_staleness": stale}}} for stale in (0, 1, 2, 4)
    }
    claims: tuple[Claim, ...] = (
        Claim("001:1627", "Fresh rollouts end higher than rollouts one update old (.591, .525)", "0", "1", 1),
        Claim("001:1627", "Fresh rollouts end higher than rollouts four updates old", "0", "4", 1),
    )
