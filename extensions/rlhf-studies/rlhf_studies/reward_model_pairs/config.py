from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.assistants import RowsAblation
from rlhf_study.ablation.config import Claim, Settings

COUNTS = (50, 100, 200, 400, 800, 1600)


class RewardModelPairsConfig(RowsAblation):
    """Bradley-Terry reward models on 50 to 1,600 pairs, equal updates, the same held-out pairs."""

    name: str = "reward_model_pairs"
    component: ClassVar[str] = "rlhf_studies.reward_model_pairs.run:RewardModelPairs"
    shared: ClassVar[Settings] = {
        "trainer": {"name": "reward_model", "epochs": 1000, "eval_every": 20, "optimizer": {"learning_rate": 3e-4}}
    }
    arms: Mapping[str, Settings] = {
        str(count): {"dataset": {"name": "jsonl", "path": f"@{count}", "heldout_path": "@heldout"}} for count in COUNTS
    }
    claims: tuple[Claim, ...] = (
        Claim("002:804", "500 pairs are enough: four times as many gain less than 2 points", "1600", "400"),
        Claim("002:801", "From 100 to 400 pairs accuracy rises (67.1 to 70.9)", "400", "100", 1),
    )
    metric: str = "eval/accuracy"
    also: tuple[str, ...] = ("eval/loss", "eval/margin")
    steps: int = 40
