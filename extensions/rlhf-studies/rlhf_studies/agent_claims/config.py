from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig

AGENTS = ("zero_shot", "react", "plan_and_execute", "multi_agent", "scratchpad", "code_executor")
SUITES = (
    *("agentbench_mini", "agentbench_generated", "chains", "injection", "code_debug", "gaia_mini"),
    *("bfcl", "tau_bench"),
)


class AgentClaimsConfig(StudyConfig):
    """Which published differences between agents show with small models? Each agent plays some tasks of each category
    of each suite, more of ``agentbench_generated``. Published figures are of a service's model, so only the claim of
    each row is tested: that an agent is better than the one before it, by so many points."""

    name: str = "agent_claims"
    component: ClassVar[str] = "rlhf_studies.agent_claims.run:AgentClaims"
    smoke: ClassVar[Mapping[str, Any]] = {
        "suites": ("agentbench_generated",),
        "agents": ("zero_shot", "react"),
        "claim_tasks": 1,
    }

    seeds: tuple[int, ...] = (0,)
    agent_model: str = "pocket-tools"
    folders: Path | None = None
    """Has ``bfcl/`` and ``tau_bench_retail/``; None takes $RLHF_TEST_DATA."""
    suites: tuple[str, ...] = SUITES
    agents: tuple[str, ...] = AGENTS
    tasks: int = Field(default=2, ge=1)
    """Of each category."""
    claim_tasks: int = Field(default=4, ge=1)
    """Of each category of ``agentbench_generated``."""
