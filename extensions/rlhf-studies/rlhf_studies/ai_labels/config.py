from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common.ablation.assistants import FILES, RowsAblation
from rlhf_study.ablation.config import Claim, Settings, interaction

VOLUMES = (250, 1000, 2000, 4000)


class AiLabelsConfig(RowsAblation):
    """Bradley-Terry reward models on 250 to 4,000 pairs, equal updates, measured on held-out pairs that the pocket
    world's annotator labelled. The labels are the annotator's, who is noisy and likes length, or those of a judge who
    has a constitution (right, plain, short) and errs."""

    name: str = "ai_labels"
    component: ClassVar[str] = "rlhf_studies.ai_labels.run:AiLabels"
    smoke: ClassVar[Mapping[str, Any]] = {
        **RowsAblation.smoke,
        "arms": {"human 250": {"dataset": {"path": "@human 250"}}},
        "claims": (),
    }
    worlds: ClassVar[Mapping[str, Settings]] = {"pocket": FILES}
    shared: ClassVar[Settings] = {
        "trainer": {"name": "reward_model", "epochs": 1000, "optimizer": {"learning_rate": 3e-4}}
    }
    arms: Mapping[str, Settings] = {
        f"{who} {count}": {"dataset": {"path": f"@{who} {count}"}} for who in ("human", "ai") for count in VOLUMES
    }
    claims: tuple[Claim, ...] = (
        Claim(
            "002:172", "10,000 human labels teach more than 2,000 of a judge (72.4, 68.1)", "human 4000", "ai 1000", 1
        ),
        Claim("002:174", "At equal numbers a judge's labels teach 1.6 points less", "ai 4000", "human 4000", -1),
        Claim("002:173", "2,000 labels of a judge teach less than 10,000 (68.1, 70.8)", "ai 1000", "ai 4000", -1),
        Claim(
            "002:174",
            "Does the gap close with their number?",
            "gain of a judge's labels from 250 to 4,000 less that of human ones",
            weights=interaction("ai", "human", "4000", "250"),
        ),
    )
    metric: str = "eval/accuracy"
    also: tuple[str, ...] = ("eval/loss", "eval/margin")
    steps: int = 60
    error: float = Field(default=0.1, ge=0, le=0.5)
    """Share of the judge's labels that are turned round."""
