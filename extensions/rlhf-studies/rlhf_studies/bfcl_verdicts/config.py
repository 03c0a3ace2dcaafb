from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rlhf_study.config import StudyConfig


class BfclVerdictsConfig(StudyConfig):
    """Our verdicts on function calls beside those of the leaderboard's own checker (``ast_checker`` as published, in
    its own environment), on the example of every possible answer and ten mutations of it."""

    name: str = "bfcl_verdicts"
    component: ClassVar[str] = "rlhf_studies.bfcl_verdicts.run:BfclVerdicts"
    smoke: ClassVar[Mapping[str, Any]] = {"limit": 2}

    seeds: tuple[int, ...] = (0,)
    data: Path | None = None
    """Folder with the published questions; None takes ``bfcl`` of $RLHF_TEST_DATA."""
    python: Path | None = None
    """Of the environment with ``bfcl-eval``."""
    limit: int | None = None
    """Only so many questions of a category."""
