from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class ConfidenceFilteringConfig(StudyConfig):
    """Does a reward model learn more from the pairs that another is sure of? Linear heads on the frozen trunk are
    trained on all pocket pairs, on the surest half, quarter and half of the half (by margin), on random parts, and on
    the half with the highest signed margin, with equal updates, and measured on the same held-out pairs."""

    name: str = "confidence_filtering"
    component: ClassVar[str] = "rlhf_studies.confidence_filtering.run:ConfidenceFiltering"
    smoke: ClassVar[Mapping[str, Any]] = {"pairs": 64, "heldout": 32}

    seeds: tuple[int, ...] = tuple(range(10))
    pairs: int = Field(default=4096, ge=4)
    heldout: int | None = None
    """Only so many held-out pairs."""
