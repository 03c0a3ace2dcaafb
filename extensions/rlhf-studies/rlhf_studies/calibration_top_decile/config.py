from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class CalibrationTopDecileConfig(StudyConfig):
    """When a reward model is most certain, is it right as often as it thinks, before and after a policy was trained on
    it? The reward of a ``lambda_sweep`` run scores held-out pairs, and each prompt's best and worst completion in the
    run's first and last steps; each kind is cut into ten by margin."""

    name: str = "calibration_top_decile"
    component: ClassVar[str] = "rlhf_studies.calibration_top_decile.run:CalibrationTopDecile"
    smoke: ClassVar[Mapping[str, Any]] = {"last": 1}
    after: ClassVar[tuple[str, ...]] = ("lambda_sweep",)

    sweep: Path | None = None
    """Folder of ``lambda_sweep``; None takes the one beside this study's."""
    last: int = Field(default=3, ge=1)
    """Steps at the beginning and at the end of a run."""
