from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_studies.common.ablation.assistants import BEFORE, FOUR_UPDATES, JUDGE, SMOKE_BEFORE, AssistantAblation
from rlhf_study.ablation.config import Claim, Settings

TASTE: Settings = {"reward": {"name": "bradley_terry", "path": "@judge"}, "normalise": "zscore"}


class MarginCeilingConfig(AssistantAblation):
    """PPO under one reward model, its scores cut at 10 (none), 1.5 and .75 standard deviations."""

    name: str = "margin_ceiling"
    smoke: ClassVar[Mapping[str, Any]] = {**AssistantAblation.smoke, "train_before": SMOKE_BEFORE}
    worlds_before: ClassVar[Mapping[str, Settings]] = BEFORE
    before: ClassVar[Mapping[str, Settings]] = {"judge": JUDGE}
    shared: ClassVar[Settings] = {**FOUR_UPDATES, "reward": {"name": "composite", "parts": {"taste": TASTE}}}
    arms: Mapping[str, Settings] = {
        name: {"reward": {"parts": {"taste": {"clip": clip}}}}
        for name, clip in (("none", 10.0), ("1.5", 1.5), ("0.75", 0.75))
    }
    claims: tuple[Claim, ...] = (
        Claim("002:882", "A ceiling of 1.5 standard deviations keeps the hidden gold score higher", "1.5", "none", 1),
        Claim("002:882", "Does it move the policy less?", "1.5", "none", metric="kl"),
    )
