from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.assistants import RowsAblation
from rlhf_study.ablation.config import Claim, Settings

RATE: Settings = {"trainer": {"optimizer": {"learning_rate": 1e-3}}}


class LoraRankSftConfig(RowsAblation):
    """SFT of all weights and with LoRA of rank 16, 8 and 1, each at a learning rate of its own."""

    name: str = "lora_rank_sft"
    shared: ClassVar[Settings] = {"trainer": {"name": "sft", "sample_prompts": 0}}
    arms: Mapping[str, Settings] = {
        "full": {},
        **{f"r={r}": {"model": {"lora": {"r": r}}, **RATE} for r in (16, 8, 1)},
    }
    claims: tuple[Claim, ...] = (
        Claim("002:246", "Rank 16 has a higher held-out loss than full fine-tuning (2.861, 2.847)", "r=16", "full", 1),
        Claim("002:247", "Rank 8 has a higher one than rank 16 (2.879)", "r=8", "r=16", 1),
    )
    metric: str = "eval/loss"
    also: tuple[str, ...] = ("grad_norm",)
