from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class MultiTurnConfig(StudyConfig):
    """Does a reward model need the whole conversation? In pocket conversations of two turns the annotator's fact is
    told in the first. Reward models of one trunk learn from whole conversations or their last turn, and are compared on
    held-out pairs: on all, and on those whose responses differ in truth alone."""

    name: str = "multi_turn"
    component: ClassVar[str] = "rlhf_studies.multi_turn.run:MultiTurn"
    smoke: ClassVar[Mapping[str, Any]] = {"pairs": 64, "heldout": 16, "train": smoke.OFFLINE}

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    pairs: int = Field(default=4096, ge=2)
    heldout: int = Field(default=512, ge=2)
    train: Mapping[str, Any] = {}
    """Further settings of the reward models' training."""
