from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class CalibrationTopDecileConfig(StudyConfig):
    """When a reward model is most certain, is it right as often as it thinks, before and after a policy was trained on
    it? Pairs of three kinds, all scored by the reward that a run of ``lambda_sweep`` was trained against: the
    annotator's held-out pairs; the best- and worst-scored completion of each prompt in the run's first steps; the same
    in its last steps. The pairs of a kind are cut into ten by margin.
    """

    name: str = "calibration_top_decile"
    component: ClassVar[str] = "rlhf_studies.calibration_top_decile.run:CalibrationTopDecile"
    smoke: ClassVar[Mapping[str, Any]] = {"last": 1}
    after: ClassVar[tuple[str, ...]] = ("lambda_sweep",)

    sweep: Path | None = None
    """Folder of ``lambda_sweep``; None takes the one beside this study's."""
    last: int = Field(default=3, ge=1)
    """Steps at the beginning and at the end of a run."""
