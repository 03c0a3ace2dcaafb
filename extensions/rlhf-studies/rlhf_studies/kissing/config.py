from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class KissingConfig(StudyConfig):
    """The kissing number in 11 dimensions, without a model: what the baseline of ``rlhf discover`` finds, seed by seed,
    judged by the verifier ``kissing`` in the sandbox and checked again in Python's integers."""

    name: str = "kissing"
    component: ClassVar[str] = "rlhf_studies.kissing.run:Kissing"
    smoke: ClassVar[Mapping[str, Any]] = {"starts": 1, "seconds": 1.0}

    starts: int = Field(default=8, ge=1)
    """Local searches of a seed."""
    seconds: float = Field(default=300.0, gt=0)
    """Most time for a seed."""
