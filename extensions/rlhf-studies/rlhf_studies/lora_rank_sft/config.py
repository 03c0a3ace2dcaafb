from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.assistants import ADAPTERS, RowsAblation, ranks
from rlhf_studies.common.ablation.planned import PEAK
from rlhf_study.ablation.config import Claim, Settings


class LoraRankSftConfig(RowsAblation):
    """SFT of all weights and with LoRA of rank 16, 8 and 1, each at a learning rate of its own."""

    name: str = "lora_rank_sft"
    component: ClassVar[str] = "rlhf_studies.common.ablation.planned:Planned"
    shared: ClassVar[Settings] = {"trainer": {"name": "sft", "sample_prompts": 0}}
    arms: Mapping[str, Settings] = ranks(1e-3)
    claims: tuple[Claim, ...] = (
        Claim("002:246", "Rank 16 has a higher held-out loss than full fine-tuning (2.861, 2.847)", "r=16", "full", 1),
        Claim("002:247", "Rank 8 has a higher one than rank 16 (2.879)", "r=8", "r=16", 1),
    )
    metric: str = "eval/loss"
    also: tuple[str, ...] = ("grad_norm", ADAPTERS, PEAK)
