from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class AdamEpsAndWarmupConfig(SumsAblation):
    """GRPO at a high learning rate with Adam's eps of 1e-8 or 1e-4 and a warm-up of 0 or 8 updates."""

    name: str = "adam_eps_and_warmup"
    shared: ClassVar[Settings] = {
        "trainer": {
            "optimizer": {"learning_rate": 2e-3},
            "kl": {"coefficient": 0.001, "track": True},
        }
    }
    arms: Mapping[str, Settings] = {
        f"eps {eps:g}, warm-up {warmup}": {"trainer": {"optimizer": {"eps": eps, "warmup_steps": warmup}}}
        for eps in (1e-8, 1e-4)
        for warmup in (0, 8)
    }
    claims: tuple[Claim, ...] = (
        Claim(
            "001:2125",
            "eps 1e-4 with warm-up keeps KL small",
            "eps 0.0001, warm-up 8",
            "eps 1e-08, warm-up 0",
            -1,
            "kl",
        ),
        Claim("001:2125", "eps alone does", "eps 0.0001, warm-up 0", "eps 1e-08, warm-up 0", -1, "kl"),
        Claim("001:2125", "warm-up alone does", "eps 1e-08, warm-up 8", "eps 1e-08, warm-up 0", -1, "kl"),
        Claim("001:2125", "Does the model learn more with both?", "eps 0.0001, warm-up 8", "eps 1e-08, warm-up 0"),
    )
