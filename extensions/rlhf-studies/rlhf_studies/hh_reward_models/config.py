from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class HhRewardModelsConfig(StudyConfig):
    """Reward models of SmolLM2-135M-Instruct on human preference pairs (hh-rlhf): a Bradley-Terry model and an ensemble
    of heads on the frozen trunk learn from the same training rows (``configs/smollm2_hh_*.yaml``) and are evaluated
    together on the rows that training set aside: accuracy, calibration, biases, agreement.
    """

    name: str = "hh_reward_models"
    component: ClassVar[str] = "rlhf_studies.hh_reward_models.run:HhRewardModels"
    smoke: ClassVar[Mapping[str, Any]] = {"model": "pocket", "limit": 120, "probe_pairs": 4}

    seeds: tuple[int, ...] = (0,)
    model: str | None = None
    """Hub id, folder or .gguf file; None takes $RLHF_SMOLLM2_GGUF, else the hub's."""
    data: Path | None = None
    """Folder of hh-rlhf; None takes ``hh_rlhf`` of $RLHF_TEST_DATA."""
    limit: int | None = None
    """Only the first pairs."""
    probe_pairs: int = Field(default=40, ge=1)
