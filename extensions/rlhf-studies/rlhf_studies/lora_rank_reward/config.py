from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.assistants import ADAPTERS, RowsAblation, ranks
from rlhf_studies.common.ablation.planned import PEAK
from rlhf_study.ablation.config import Claim, Settings


class LoraRankRewardConfig(RowsAblation):
    """Reward models of all weights and with LoRA of rank 16, 8 and 1, each at a learning rate of its own."""

    name: str = "lora_rank_reward"
    component: ClassVar[str] = "rlhf_studies.common.ablation.planned:Planned"
    shared: ClassVar[Settings] = {
        "trainer": {"name": "reward_model", "eval_every": 32, "optimizer": {"learning_rate": 3e-4}}
    }
    arms: Mapping[str, Settings] = ranks(1e-3)
    claims: tuple[Claim, ...] = (
        Claim("002:247", "Rank 16 ranks pairs worse than full fine-tuning (71.8, 72.4)", "r=16", "full", -1),
        Claim("002:248", "Rank 8 worse than rank 16 (70.9)", "r=8", "r=16", -1),
    )
    metric: str = "eval/accuracy"
    also: tuple[str, ...] = ("eval/loss", ADAPTERS, PEAK)
    steps: int = 64
