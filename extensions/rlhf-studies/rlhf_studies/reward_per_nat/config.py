from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_studies.common.ablation.assistants import BEFORE, JUDGE, POCKET, REAL, AlgorithmsAblation, trainers
from rlhf_studies.common.ablation.policies import GOLD, HOLLOW, KL, PER_NAT, REWARD, WINS
from rlhf_study.ablation.config import Claim, Settings


def arms_of(world: str, online: Settings) -> dict[str, Settings]:
    all_trainers = trainers(online, BEFORE[world])
    return {name: {"model": {"path": "@sft"}, "trainer": trainer} for name, trainer in all_trainers.items()}


class RewardPerNatConfig(AlgorithmsAblation):
    """DPO, PPO and GRPO from one fine-tuned model, compared with it by `rlhf eval policies`: win rate, reward, KL per
    completion, and the first gain over the last."""

    name: str = "reward_per_nat"
    component: ClassVar[str] = "rlhf_studies.common.ablation.policies:Policies"
    smoke: ClassVar[Mapping[str, Any]] = {
        **AlgorithmsAblation.smoke,
        "arms": {"grpo": arms_of("pocket", POCKET)["grpo"]},
    }
    before: ClassVar[Mapping[str, Settings]] = {"judge": JUDGE, "sft": {"trainer": {"name": "sft", "max_steps": 12}}}
    arms: Mapping[str, Settings] = arms_of("pocket", POCKET)
    real_arms: ClassVar[Mapping[str, Settings]] = arms_of("real", REAL)
    claims: tuple[Claim, ...] = (
        Claim("002:151", "DPO gains more reward a nat than PPO (.191, .097)", "dpo", "ppo", 1),
        Claim("002:115", "PPO wins more often than DPO (71.2, 63.4 %)", "ppo", "dpo", 1, WINS),
        Claim("002:115", "PPO moves farther", "ppo", "dpo", 1, KL),
        Claim("002:117", "Does GRPO gain more a nat than PPO?", "grpo", "ppo"),
    )
    metric: str = PER_NAT
    also: tuple[str, ...] = (REWARD, KL, WINS, GOLD, HOLLOW)
