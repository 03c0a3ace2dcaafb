"""What every study's Config has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_core.config import ComponentConfig


class StudyConfig(ComponentConfig):
    """Settings of a study. The package that holds the Config also holds ``README.md`` (first line: the question; then
    the verdict) and the recorded ``result.json`` and ``result.md``.
    """

    smoke: ClassVar[Mapping[str, Any]] = {}
    """Settings with which the whole study takes seconds and says nothing: for `rlhf study run NAME --smoke`."""
    after: ClassVar[tuple[str, ...]] = ()
    """Studies whose runs it reads; when they are asked for together, they are finished first."""

    checks_runs: ClassVar[bool] = False
    """Whether its own code refuses runs of other settings, one by one: a seed that was done with others is done again,
    and keeps the runs that fit."""

    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    """Seeds to run with; ``--seeds`` replaces them."""
