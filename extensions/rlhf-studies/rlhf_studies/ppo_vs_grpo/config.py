from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.assistants import ALSO, FOUR_UPDATES, PROXY, WINS, AssistantAblation
from rlhf_studies.common.ablation.planned import PEAK
from rlhf_studies.common.ablation.worlds import unnamed
from rlhf_study.ablation.config import Claim, Settings


class PpoVsGrpoConfig(AssistantAblation):
    """PPO and GRPO from the same prompts, completions and updates, with the same KL penalty, and GRPO without one."""

    name: str = "ppo_vs_grpo"
    component: ClassVar[str] = "rlhf_studies.common.ablation.planned:Planned"
    worlds: ClassVar[Mapping[str, Settings]] = unnamed(AssistantAblation.worlds)
    shared: ClassVar[Settings] = FOUR_UPDATES
    arms: Mapping[str, Settings] = {
        "ppo": {"trainer": {"name": "ppo", "kl": {"coefficient": 0.02, "controller": "fixed"}}},
        "grpo": {"trainer": {"name": "grpo", "kl": {"coefficient": 0.02}}},
        "grpo, no KL": {"trainer": {"name": "grpo", "kl": {"coefficient": 0.0}}},
    }
    claims: tuple[Claim, ...] = (
        Claim("002:112", "Is GRPO as good by the hidden gold score?", "grpo", "ppo"),
        Claim("002:117", "GRPO moves less far", "grpo", "ppo", -1, "kl"),
        Claim("002:112", "Does it reach the same reward?", "grpo", "ppo", metric=PROXY),
        Claim("002:121", "GRPO needs less memory: it has no critic", "grpo", "ppo", -1, PEAK),
        Claim("002:112", "Does it win as often against its start?", "grpo", "ppo", metric=WINS),
    )
    also: tuple[str, ...] = (*ALSO, WINS, PEAK)
