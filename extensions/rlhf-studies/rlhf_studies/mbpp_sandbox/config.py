from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class MbppSandboxConfig(StudyConfig):
    """MBPP's reference solutions in the sandbox: do they pass, does one small change fail, and how many tests a second?
    Programs with one change say how often tests call a wrong program right."""

    name: str = "mbpp_sandbox"
    component: ClassVar[str] = "rlhf_studies.mbpp_sandbox.run:MbppSandbox"
    smoke: ClassVar[Mapping[str, Any]] = {"rows": 4}

    seeds: tuple[int, ...] = (0,)
    """Of the changes."""
    data: Path | None = None
    """``sanitized-mbpp.json``; None takes that of $RLHF_TEST_DATA."""
    rows: int | None = None
    """Only so many."""
    timeout_s: float = Field(default=30.0, gt=0)
    """For a reference solution; one needs two seconds."""
