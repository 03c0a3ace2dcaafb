from __future__ import annotations

from collections.abc import Mapping

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class RateAndKlConfig(SumsAblation):
    """GRPO with three learning rates and three KL coefficients."""

    name: str = "rate_and_kl"
    arms: Mapping[str, Settings] = {
        f"{rate:g}, {beta:g}": {
            "trainer": {"optimizer": {"learning_rate": rate}, "kl": {"coefficient": beta, "track": True}}
        }
        for rate in (1e-4, 3e-4, 1e-3)
        for beta in (0.0, 0.001, 0.1)
    }
    claims: tuple[Claim, ...] = (
        Claim("001:1676", "A KL coefficient of .001 helps at a high rate", "0.001, 0.001", "0.001, 0", 1),
        Claim("001:637", "A KL coefficient of .1 holds the policy near its start", "0.001, 0.1", "0.001, 0", -1, "kl"),
    )
