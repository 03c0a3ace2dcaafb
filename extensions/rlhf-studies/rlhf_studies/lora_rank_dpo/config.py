from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.assistants import ADAPTERS, GOLD, WINS, RowsAblation, ranks
from rlhf_studies.common.ablation.planned import PEAK
from rlhf_study.ablation.config import Claim, Settings


class LoraRankDpoConfig(RowsAblation):
    """DPO of all weights and with LoRA of rank 16, 8 and 1, each at a learning rate of its own."""

    name: str = "lora_rank_dpo"
    component: ClassVar[str] = "rlhf_studies.common.ablation.planned:Planned"
    shared: ClassVar[Settings] = {"trainer": {"name": "dpo", "sample_prompts": 200, "sampling": {"max_tokens": 48}}}
    arms: Mapping[str, Settings] = ranks(1e-3)
    claims: tuple[Claim, ...] = (
        Claim("002:248", "Rank 16 prefers the chosen answer less often than full fine-tuning", "r=16", "full", -1),
        Claim("002:249", "Rank 8 less often than rank 16", "r=8", "r=16", -1),
        Claim("002:249", "Is rank 8 worse by the hidden gold score?", "r=8", "full", metric=GOLD),
    )
    metric: str = "eval/accuracy"
    also: tuple[str, ...] = ("eval/loss", "eval/kl", GOLD, WINS, ADAPTERS, PEAK)
