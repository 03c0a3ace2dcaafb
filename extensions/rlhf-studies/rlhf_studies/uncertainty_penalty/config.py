from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.assistants import FOUR_UPDATES, HOLLOW, PROXY, AssistantAblation
from rlhf_study.ablation.config import Claim, Settings


class UncertaintyPenaltyConfig(AssistantAblation):
    """PPO under mean - lambda * std of three reward models, lambda 0, .1, .3, .5 and 1."""

    name: str = "uncertainty_penalty"
    shared: ClassVar[Settings] = FOUR_UPDATES
    arms: Mapping[str, Settings] = {
        f"{value:g}": {"reward": {"uncertainty_penalty": value}} for value in (0.0, 0.1, 0.3, 0.5, 1.0)
    }
    claims: tuple[Claim, ...] = (
        Claim("002:217", "A penalty of .5 cuts verbose answers from 78 to 31 %", "0.5", "0", -1, HOLLOW),
        Claim("002:217", "It lowers KL from 4.82 to 3.14", "0.5", "0", -1, "kl"),
        Claim("002:218", "It gives up reward, .681 to .521", "0.5", "0", -1, PROXY),
        Claim("002:225", "Is .3 as good as 1 by the hidden gold score?", "0.3", "1"),
    )
