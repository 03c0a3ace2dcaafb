from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class RayActorsConfig(StudyConfig):
    """What do Ray's actors cost beside the processes of environments? Both sides, one after the other on the same
    machine: seconds until the first worker answers, from an interpreter that has imported neither; so many workers
    more; milliseconds of a call that does nothing; proportional memory of all processes beside the caller; seconds
    until a worker that hangs is gone, once told to end; and how many processes are left ten seconds after the caller
    was killed with SIGKILL. Ray keeps its own processes (scheduler, store of objects, agents) whatever the number of
    workers. It is asked for no dashboard, an object store of 100 MB and two CPUs.
    """

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
