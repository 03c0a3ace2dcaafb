from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class RayActorsConfig(StudyConfig):
    """What do Ray's actors cost beside the processes of environments? Seconds to the first worker and more,
    milliseconds of an empty call, memory of all processes, seconds until a hanging worker is gone, and processes left
    after SIGKILL of the caller. Ray has no dashboard, an object store of 100 MB and two CPUs."""

    name: str = "ray_actors"
    component: ClassVar[str] = "rlhf_studies.ray_actors.run:RayActors"
    smoke: ClassVar[Mapping[str, Any]] = {"workers": 2, "calls": 4, "left_after_s": 1.0, "only_ours": True}

    seeds: tuple[int, ...] = (0,)
    python: Path | None = None
    """Of the environment with ``ray``."""
    workers: int = Field(default=16, ge=2)
    calls: int = Field(default=200, ge=1)
    left_after_s: float = Field(default=10.0, gt=0)
    only_ours: bool = False
    """Leave Ray out."""
