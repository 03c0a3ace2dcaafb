from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common.ablation.worlds import WorldAblation
from rlhf_study.ablation.config import Claim, Settings

AGENTS = ("react", "plan_and_execute", "multi_agent", "scratchpad")
CATEGORIES = ("tool_use", "multi_step", "failure_recovery")
STEPS, LONG = "measured/multi_step", "measured/eight_hops"
SFT: Settings = {
    "model": {"path": "pocket-tools"},
    "dataset": {"heldout_fraction": 0.02, "max_dropped_fraction": 1.0},
    "trainer": {
        "name": "sft",
        "epochs": 1000,
        "batch_size": 16,
        "micro_batch_size": 8,
        "eval_every": 100,
        "optimizer": {"learning_rate": 1e-3},
    },
}


class TrainedAgentsConfig(WorldAblation):
    """The model `pocket-tools`, fine-tuned on every request and reply of an oracle that plays as one agent, plays as
    that agent on other tasks of `agentbench_generated` and `chains`. What exceeds its context is dropped in training
    and ends a task in play."""

    name: str = "trained_agents"
    component: ClassVar[str] = "rlhf_studies.trained_agents.run:TrainedAgents"
    length: ClassVar[str] = "max_steps"
    smoke: ClassVar[Mapping[str, Any]] = {"steps": 1, "learned": 1, "played": 1, "hops": 1}
    worlds: ClassVar[Mapping[str, Settings]] = {"pocket": SFT}
    arms: Mapping[str, Settings] = {agent: {"dataset": {"name": "jsonl", "path": f"@{agent}"}} for agent in AGENTS}
    claims: tuple[Claim, ...] = (
        Claim("002:334", "Plans beat steps (75.0, 69.4 %)", "plan_and_execute", "react", 1),
        Claim("002:651", "Several agents beat one plan (80.6, 75.0 %)", "multi_agent", "plan_and_execute", 1),
        Claim("002:651", "On several steps they win 16.7 points", "multi_agent", "plan_and_execute", 1, STEPS),
        Claim("002:814", "Over eight hops a scratchpad holds (88, 58 %)", "scratchpad", "multi_agent", 1, LONG),
    )
    metric: str = "measured/right"
    also: tuple[str, ...] = (STEPS, "measured/two_hops", LONG, "eval/loss")
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 200
    learned: int = Field(default=60, ge=1)
    """Tasks of each category that the oracle plays for training, and of each number of hops."""
    played: int = Field(default=80, ge=1)
    """Tasks of each category that the model plays."""
    hops: int = Field(default=30, ge=1)
    """Chains of each length that it plays."""
