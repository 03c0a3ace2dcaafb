from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_studies.common.ablation.assistants import BEFORE, SMOKE_BEFORE, RowsAblation
from rlhf_study.ablation.config import Claim, Settings

LOWEST = "measured/margin_of_lowest_quarter"
AGREES = "measured/labels_right_in_lowest_quarter"
TRAINER: Settings = {"name": "reward_model", "batch_size": 64, "optimizer": {"learning_rate": 3e-4}}


class FilteredPairsConfig(RowsAblation):
    """As `confidence_filtering`, with whole models: Bradley-Terry models on all pairs, on the half and the quarter of
    which a first model is surest, and on random ones; equal updates, the same held-out pairs."""

    name: str = "filtered_pairs"
    component: ClassVar[str] = "rlhf_studies.filtered_pairs.run:FilteredPairs"
    smoke: ClassVar[Mapping[str, Any]] = {**RowsAblation.smoke, "train_before": SMOKE_BEFORE}
    worlds_before: ClassVar[Mapping[str, Settings]] = BEFORE
    before: ClassVar[Mapping[str, Settings]] = {"first": {"trainer": {**TRAINER, "max_steps": 64}}}
    shared: ClassVar[Settings] = {"trainer": {**TRAINER, "epochs": 1000, "eval_every": 32}}
    arms: Mapping[str, Settings] = {
        "all": {},
        **{
            f"{kind} {part}": {"dataset": {"name": "jsonl", "path": f"@{kind} {part}", "heldout_path": "@heldout"}}
            for part in ("half", "quarter")
            for kind in ("surest", "random")
        },
    }
    claims: tuple[Claim, ...] = (
        Claim("002:185", "The surest half teaches more than all pairs (74.8, 72.4)", "surest half", "all", 1),
        Claim("002:186", "The surest quarter teaches more than all pairs (73.2)", "surest quarter", "all", 1),
        Claim("002:184", "A random half teaches less than all pairs (68.1)", "random half", "all", -1),
        Claim("002:187", "Is the surest half better than a random one?", "surest half", "random half"),
    )
    metric: str = "eval/accuracy"
    also: tuple[str, ...] = ("eval/loss", "eval/margin", LOWEST, AGREES)
    steps: int = 64
