from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_study.config import StudyConfig


class PocketTruthConfig(StudyConfig):
    """Can the pocket model tell a true claim from a false one? Its logits for "true" and "false" after plain statements
    of the world's facts, and after held-out questions with a right and a wrong answer of the same style.
    """

    name: str = "pocket_truth"
    component: ClassVar[str] = "rlhf_studies.pocket_truth.run:PocketTruth"
    smoke: ClassVar[Mapping[str, Any]] = {"limit": 20}

    seeds: tuple[int, ...] = (0,)
    limit: int | None = None
    """Only so many facts."""
