from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.assistants import FILES, RowsAblation
from rlhf_studies.common.rubric import RUBRIC
from rlhf_study.ablation.config import Claim, Settings

COUNTS = (100, 200, 400, 800, 1600, 3200)


class RubricModelRowsConfig(RowsAblation):
    """Rubric models on 100 to 3,200 answers that an erring judge graded, equal updates; accuracy on held-out pairs, as
    of `reward_model_pairs`, whose pairs have two answers each."""

    name: str = "rubric_model_rows"
    component: ClassVar[str] = "rlhf_studies.rubric_model_rows.run:RubricModelRows"
    worlds: ClassVar[Mapping[str, Settings]] = {"pocket": FILES}
    shared: ClassVar[Settings] = {
        "trainer": {
            "name": "rubric_model",
            "rubric": {"criteria": RUBRIC},
            "epochs": 1000,
            "eval_every": 20,
            "batch_size": 64,
            "optimizer": {"learning_rate": 3e-4},
        },
    }
    arms: Mapping[str, Settings] = {str(count): {"dataset": {"path": f"@{count}"}} for count in COUNTS}
    claims: tuple[Claim, ...] = (
        Claim("002:801", "From 200 to 3,200 answers accuracy rises (65.8 to 70.1)", "3200", "200", 1),
        Claim("002:804", "1,000 are enough: four times as many gain less than 2 points", "3200", "800"),
    )
    metric: str = "measured/accuracy"
    also: tuple[str, ...] = ("eval/loss", "eval/unexplained")
    steps: int = 40
