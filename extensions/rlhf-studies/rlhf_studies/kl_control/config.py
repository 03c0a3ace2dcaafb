from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.assistants import ALSO, FOUR_UPDATES, AssistantAblation
from rlhf_study.ablation.config import Claim, Settings

REPEATED = "eval/repeat_surprise"


class KlControlConfig(AssistantAblation):
    """PPO with the adaptive controller, a fixed coefficient, and none."""

    name: str = "kl_control"
    shared: ClassVar[Settings] = FOUR_UPDATES
    arms: Mapping[str, Settings] = {
        "adaptive": {"trainer": {"kl": {"coefficient": 0.2, "controller": "adaptive"}}},
        "fixed": {"trainer": {"kl": {"coefficient": 0.2, "controller": "fixed"}}},
        "none": {"trainer": {"kl": {"coefficient": 0.0, "controller": "fixed"}}},
    }
    also: tuple[str, ...] = (*ALSO, REPEATED)
    claims: tuple[Claim, ...] = (
        Claim("002:160", "Without control KL grows to 18 nats, with it stays near 5", "none", "adaptive", 1, "kl"),
        Claim("002:160", "Without control texts degenerate", "none", "adaptive", -1),
        Claim("002:160", "Do answers repeat each other more?", "none", "adaptive", metric=REPEATED),
    )
    steps: int = 60
