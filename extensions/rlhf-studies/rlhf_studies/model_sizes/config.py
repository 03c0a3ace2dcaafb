from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common.ablation.assistants import ROWS, SMOKE_BEFORE, RowsAblation
from rlhf_study.ablation.config import Claim, Settings, slope

WIDTHS = {"0.08M": 32, "0.26M": 64, "0.54M": 96, "1.4M": 160}
STAGES = ("reward model", "dpo")


def grows(stage: str) -> dict[str, float]:
    return slope({f"{stage} {size}": math.log(float(size[:-1])) for size in WIDTHS})


class ModelSizesConfig(RowsAblation):
    """Four sizes of the pocket model, pretrained on the same texts, through SFT, a reward model and DPO on the same
    rows; slopes are for e-fold sizes."""

    name: str = "model_sizes"
    component: ClassVar[str] = "rlhf_studies.model_sizes.run:ModelSizes"
    smoke: ClassVar[Mapping[str, Any]] = {**RowsAblation.smoke, "build_steps": 2, "train_before": SMOKE_BEFORE}
    worlds: ClassVar[Mapping[str, Settings]] = {"pocket": ROWS}
    worlds_before: ClassVar[Mapping[str, Settings]] = worlds
    before: ClassVar[Mapping[str, Settings]] = {
        f"sft {size}": {"model": {"path": f"@{size}"}, "trainer": {"name": "sft"}} for size in WIDTHS
    }
    arms: Mapping[str, Settings] = {
        f"{stage} {size}": {
            "model": {"path": f"@sft {size}"},
            "trainer": {"name": stage.replace(" ", "_"), "eval_every": 32},
        }
        for stage in STAGES
        for size in WIDTHS
    }
    claims: tuple[Claim, ...] = (
        Claim(
            "002:306",
            "A reward model of three times the size gains 4.1 points",
            "slope",
            sign=1,
            weights=grows(STAGES[0]),
        ),
        Claim("002:307", "DPO gains 3.6 points", "slope", sign=1, weights=grows(STAGES[1])),
    )
    metric: str = "eval/accuracy"
    also: tuple[str, ...] = ("eval/loss",)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 64
    build_steps: int = Field(default=1200, ge=1)
    """Of pretraining; the shipped model has 5,000."""
