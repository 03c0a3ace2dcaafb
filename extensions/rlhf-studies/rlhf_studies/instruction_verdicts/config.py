from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class InstructionVerdictsConfig(StudyConfig):
    """Our instruction verdicts against those of the references: Google's checker on IFEval, the authors' on IFBench."""

    name: str = "instruction_verdicts"
    component: ClassVar[str] = "rlhf_studies.instruction_verdicts.run:InstructionVerdicts"
    smoke: ClassVar[Mapping[str, Any]] = {"every": 100}

    seeds: tuple[int, ...] = (0,)
    data: Path | None = None
    """Folder with ``input_data.jsonl`` and ``*_strict.jsonl.gz``, ``*_loose.jsonl.gz``, a verdict per instruction; None
    takes ``ifeval`` of $RLHF_TEST_DATA."""
    ifbench: Path | None = None
    """A clone of IFBench's repository, whose ``eval/`` holds the authors' verdicts; None leaves it out."""
    every: int = Field(default=1, ge=1)
    """Take each so-many-th row."""
