from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_core.config import merge_settings
from rlhf_studies.common import smoke
from rlhf_studies.common.ablation.sums import COPIES, POCKET, REAL, SUMS, SumsAblation
from rlhf_study.ablation.config import Claim, Settings

ADAPTIVE: Settings = {"adaptive_sampling": {"k_success": 2, "k_failure": 2, "max_completions": 32}}
BY_PASS_RATE: Settings = {
    "dataset": {"curriculum": {"path": "@pass_rates", "band": [0.05, 0.95], "max_unmatched_fraction": 0.1}}
}

MOSTLY_ONE_COPY: Settings = {
    "dataset": {
        "sources": [{"source": SUMS, "label": copy, "weight": 1.0 if n else 1e4} for n, copy in enumerate(COPIES)]
    }
}
"""Training asks the 533 sums of the first copy, and all copies are held out: a run asks every sum more than twice, so
that an order by the run's own scores can matter."""


class CurriculumConfig(SumsAblation):
    """GRPO on prompts in any order, on those that the start solves sometimes (easiest first, by pass rate), on those
    that the run itself solves sometimes, and with every lever at once."""

    name: str = "curriculum"
    smoke: ClassVar[Mapping[str, Any]] = {
        "steps": 1,
        "tries": 2,
        "train": merge_settings(dict(smoke.ONLINE), {"trainer": {"sampling": {"max_tokens": 16}}}),
    }
    component: ClassVar[str] = "rlhf_studies.curriculum.run:Curriculum"
    worlds: ClassVar[Mapping[str, Settings]] = {"pocket": merge_settings(POCKET, MOSTLY_ONE_COPY), "real": REAL}
    steps: int = Field(default=80, ge=1)
    arms: Mapping[str, Settings] = {
        "any order": {},
        "easiest first": BY_PASS_RATE,
        "by own scores": {"dataset": {"difficulty": {"band": [0.1, 0.9]}}},
        "all levers": {**BY_PASS_RATE, "trainer": {"rollouts": {"max_staleness": 1}, **ADAPTIVE}},
    }
    claims: tuple[Claim, ...] = (
        Claim("001:312", "Ordering by pass@64 does not help", "easiest first", "any order"),
        Claim("001:192", "Do prompts that are solved sometimes help?", "by own scores", "any order"),
        Claim("001:1610", "Staleness, adaptive groups and order together", "all levers", "any order"),
    )

    tries: int = Field(default=16, ge=1)
    """Answers to each prompt, for its pass rate (the document takes 64)."""
