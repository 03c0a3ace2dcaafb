from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_studies.common.ablation.assistants import (
    ALSO,
    BEFORE,
    GOLD,
    JUDGE,
    POCKET,
    REAL,
    WINS,
    AlgorithmsAblation,
    trainers,
)
from rlhf_study.ablation.config import Claim, Settings, interaction

EPOCHS = ("0.25", "1", "3")


def arms_of(world: str, online: Settings) -> dict[str, Settings]:
    return {
        f"{name} {epochs}": {"model": {"path": f"@sft {epochs}"}, "trainer": trainer}
        for name, trainer in trainers(online, BEFORE[world]).items()
        for epochs in EPOCHS
    }


class SftEpochsConfig(AlgorithmsAblation):
    """DPO, PPO and GRPO after a quarter, one and three epochs of SFT; one reward model of the untuned model."""

    name: str = "sft_epochs"
    smoke: ClassVar[Mapping[str, Any]] = {
        **AlgorithmsAblation.smoke,
        "arms": {"grpo 1": arms_of("pocket", POCKET)["grpo 1"]},
    }
    before: ClassVar[Mapping[str, Settings]] = {
        "judge": JUDGE,
        **{f"sft {epochs}": {"trainer": {"name": "sft", "epochs": float(epochs)}} for epochs in EPOCHS},
    }
    arms: Mapping[str, Settings] = arms_of("pocket", POCKET)
    real_arms: ClassVar[Mapping[str, Settings]] = arms_of("real", REAL)
    claims: tuple[Claim, ...] = (
        *(
            Claim(
                "002:155",
                f"DPO depends more on one or three epochs of SFT than {other}",
                f"gain of dpo from 3 epochs over 1, less that of {other}",
                sign=1,
                weights=interaction("dpo", other, "3", "1"),
            )
            for other in ("ppo", "grpo")
        ),
        Claim("002:155", "Does DPO gain from three epochs?", "dpo 3", "dpo 1"),
    )
    metric: str = GOLD
    also: tuple[str, ...] = (*ALSO, "eval/kl", WINS)
