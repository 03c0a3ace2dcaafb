from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rlhf_study.config import StudyConfig


class VerifierCasesConfig(StudyConfig):
    """Agreement of our maths verifiers with cases from other projects' test suites, each a reference and an answer with
    the verdict that its authors expect, beside math-verify's own.
    """

    name: str = "verifier_cases"
    component: ClassVar[str] = "rlhf_studies.verifier_cases.run:VerifierCases"
    smoke: ClassVar[Mapping[str, Any]] = {"limit": 20}

    seeds: tuple[int, ...] = (0,)
    data: Path | None = None
    """``math.jsonl.gz``; None takes that of $RLHF_TEST_DATA."""
    limit: int | None = None
    """Only so many cases."""
