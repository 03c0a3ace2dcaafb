from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class MultiTurnConfig(StudyConfig):
    """Does a reward model need the whole conversation? Pocket conversations of two turns: somebody asks for a fact and
    gets an answer, then asks for it again in other words. The pairs are labelled by the simulated annotator, whose fact
    is the one told in the first turn (drawn at random, so that memory of the world is no help). Reward models from the
    same trunk are trained on whole conversations and on their last turn, and compared on held-out pairs: on all, and on
    those whose two responses differ in truth alone.
    """

    name: str = "multi_turn"
    component: ClassVar[str] = "rlhf_studies.multi_turn.run:MultiTurn"
    smoke: ClassVar[Mapping[str, Any]] = {"pairs": 64, "heldout": 16, "train": smoke.OFFLINE}

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    pairs: int = Field(default=4096, ge=2)
    heldout: int = Field(default=512, ge=2)
    train: Mapping[str, Any] = {}
    """Further settings of the reward models' training."""
