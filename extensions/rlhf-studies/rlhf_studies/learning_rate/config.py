from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class LearningRateConfig(SumsAblation):
    """GRPO on sums with four learning rates."""

    name: str = "learning_rate"
    arms: Mapping[str, Settings] = {
        f"{rate:g}": {"trainer": {"optimizer": {"learning_rate": rate}}} for rate in (5e-5, 3e-4, 1e-3, 5e-3)
    }
    real_arms: ClassVar[Mapping[str, Settings]] = {
        arm: {"trainer": {"optimizer": {"learning_rate": rate}}}
        for arm, rate in (("5e-05", 3e-7), ("0.0003", 1e-6), ("0.001", 5e-6), ("0.005", 5e-5))
    }
    claims: tuple[Claim, ...] = (
        Claim("000:680", "A rate that is too high diverges", "0.005", "0.0003", -1),
        Claim("000:680", "Is a rate three times as high better?", "0.001", "0.0003"),
    )
