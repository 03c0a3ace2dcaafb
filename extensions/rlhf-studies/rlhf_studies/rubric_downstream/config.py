from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common.ablation.assistants import (
    ALSO,
    FOUR_UPDATES,
    HOLLOW,
    POCKET,
    ROWS,
    SMOKE_BEFORE,
    WINS,
    AssistantAblation,
)
from rlhf_studies.common.rubric import RUBRIC
from rlhf_study.ablation.config import Claim, Settings

OUTSIDE = "measured/rank_outside"
TRAINER: Settings = {"max_steps": 64, "batch_size": 64, "optimizer": {"learning_rate": 3e-4}}
TASTE: Settings = {"name": "bradley_terry", "path": "@pairs"}
RULES: Settings = {"name": "programmatic", "mode": "continuous", "length": {"unit": "words", "max": 10}}
SHORT: Settings = {"name": "rubric_model", "path": "@short"}


def learned(rows: str, **trainer: Any) -> Settings:
    files = {"name": "jsonl", "path": f"@{rows} rows", "heldout_fraction": 0}
    return {"dataset": files, "trainer": {**TRAINER, **trainer}}


def mixed(rules: float, short: float = 0.0) -> Settings:
    parts = {
        "taste": {"reward": TASTE, "normalise": "sigmoid", "weight": round(1 - rules - short, 6)},
        "rules": {"reward": RULES, "weight": rules},
        **({"short": {"reward": SHORT, "weight": short}} if short else {}),
    }
    return {"reward": {"name": "composite", "parts": parts}}


class RubricDownstreamConfig(AssistantAblation):
    """PPO under a Bradley-Terry model, under a rubric model of the same answers, and under the former mixed with rules,
    without and with a model of conciseness. None of the models has seen questions about two of the six attributes."""

    name: str = "rubric_downstream"
    component: ClassVar[str] = "rlhf_studies.rubric_downstream.run:RubricDownstream"
    smoke: ClassVar[Mapping[str, Any]] = {**AssistantAblation.smoke, "train_before": SMOKE_BEFORE, "answers": 8}
    worlds: ClassVar[Mapping[str, Settings]] = {"pocket": POCKET}
    worlds_before: ClassVar[Mapping[str, Settings]] = {"pocket": {"trainer": ROWS["trainer"]}}
    before: ClassVar[Mapping[str, Settings]] = {
        "pairs": learned("pairs", name="reward_model"),
        "grades": learned("grades", name="rubric_model", rubric={"criteria": RUBRIC}),
        "short": learned("short", name="rubric_model", rubric={"criteria": RUBRIC[2:]}),
    }
    shared: ClassVar[Settings] = FOUR_UPDATES
    arms: Mapping[str, Settings] = {
        "pairs": {"reward": TASTE},
        "rubric": {"reward": {"name": "rubric_model", "path": "@grades"}},
        "rules": mixed(0.3),
        "rules, short": mixed(0.2, 0.2),
    }
    claims: tuple[Claim, ...] = (
        Claim("002:711", "On unseen topics a rubric model ranks better (rho .71, .58)", "rubric", "pairs", 1, OUTSIDE),
        Claim("002:716", "Under a rubric model fewer answers are verbose (31, 78 %)", "rubric", "pairs", -1, HOLLOW),
        Claim("002:718", "It wins less often (64.8, 71.2 %)", "rubric", "pairs", -1, WINS),
        Claim("002:719", "It moves less far (KL 3.41, 4.82)", "rubric", "pairs", -1, "kl"),
        Claim(
            "002:761", "Rules beside the reward model cut verbose answers (78 to 42 %)", "rules", "pairs", -1, HOLLOW
        ),
        Claim("002:762", "Conciseness cuts them further (31 %)", "rules, short", "rules", -1, HOLLOW),
    )
    also: tuple[str, ...] = (*ALSO, "eval/reward/std", WINS, OUTSIDE)
    answers: int = Field(default=300, ge=2)
    """Of the untrained policy to unseen questions about the two attributes; gold ranks them."""
