from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from rlhf_study.config import StudyConfig


class TauBenchGoldConfig(StudyConfig):
    """tau-bench: gold actions of every task, and each with one action dropped or changed, judged: 1 is expected of the
    gold actions, and of a changed list only where the whole database ends the same. With a checkout of
    sierra-research/tau-bench the results are compared with what its functions return."""

    name: str = "tau_bench_gold"
    component: ClassVar[str] = "rlhf_studies.tau_bench_gold.run:TauBenchGold"
    smoke: ClassVar[Mapping[str, Any]] = {"limit": 2}

    seeds: tuple[int, ...] = (0,)
    domain: Literal["retail", "airline"] = "retail"
    data: Path | None = None
    """The domain's files, or the checkout; None takes ``tau_bench_retail`` of $RLHF_TEST_DATA."""
    published: Path | None = None
    """The checkout."""
    limit: int | None = None
    """Only so many tasks of a split."""
