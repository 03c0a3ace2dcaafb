from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_studies.common import smoke
from rlhf_studies.common.ablation.assistants import (
    ALSO,
    BEFORE,
    FOUR_UPDATES,
    GOLD,
    JUDGE,
    POCKET,
    REAL,
    SAMPLED,
    SMOKE_BEFORE,
    WINS,
)
from rlhf_studies.common.ablation.worlds import WorldAblation
from rlhf_study.ablation.config import Claim, Settings, interaction

EPOCHS = ("0.25", "1", "3")


def arms_of(online: Settings, rows: Settings) -> dict[str, Settings]:
    ours = {**online["trainer"], **FOUR_UPDATES["trainer"]}
    trainers = {
        "dpo": {**rows["trainer"], **SAMPLED},
        "ppo": {**ours, "kl": {"coefficient": 0.02, "controller": "fixed"}},
        "grpo": {**ours, "kl": {"coefficient": 0.02}},
    }
    return {
        f"{name} {epochs}": {"model": {"path": f"@sft {epochs}"}, "trainer": {**trainer, "name": name}}
        for name, trainer in trainers.items()
        for epochs in EPOCHS
    }


class SftEpochsConfig(WorldAblation):
    """DPO, PPO and GRPO after a quarter, one and three epochs of SFT; one reward model of the untuned model."""

    name: str = "sft_epochs"
    smoke: ClassVar[Mapping[str, Any]] = {
        "steps": 1,
        "train_before": SMOKE_BEFORE,
        "arms": {"grpo 1": {**arms_of(POCKET, BEFORE["pocket"])["grpo 1"]}},
        "claims": (),
        "train": smoke.ONLINE,
    }
    worlds: ClassVar[Mapping[str, Settings]] = {
        world: {"dataset": of["dataset"], "reward": {"name": "bradley_terry", "path": "@judge"}}
        for world, of in (("pocket", POCKET), ("real", REAL))
    }
    worlds_before: ClassVar[Mapping[str, Settings]] = BEFORE
    before: ClassVar[Mapping[str, Settings]] = {
        "judge": JUDGE,
        **{f"sft {epochs}": {"trainer": {"name": "sft", "epochs": float(epochs)}} for epochs in EPOCHS},
    }
    arms: Mapping[str, Settings] = arms_of(POCKET, BEFORE["pocket"])
    real_arms: ClassVar[Mapping[str, Settings]] = arms_of(REAL, BEFORE["real"])
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

    def length_of(self, arm: str) -> str:
        return "max_steps" if arm.startswith("dpo") else "steps"
