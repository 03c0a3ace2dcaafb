from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_study.config import StudyConfig

Mix = Literal["pure_conv", "conv_synth", "conv_agentic", "equal_3way", "agentic_heavy", "pure_agentic"]


class DataMixesConfig(StudyConfig):
    """What do a reward model (`reward_model`, on pairs) and an agent (`sft`, on demonstrations) make of six published
    mixes of training data, with the same number of rows? Conversational rows are `pocket/assistant` with noise and a
    taste for length, synthetic ones candidates chosen by the written rule, agentic ones questions of `lookup` by the
    plan against a beginner's. AUC is on held-out conversational and agentic pairs; accuracy on held-out questions of
    `lookup`, also before training."""

    name: str = "data_mixes"
    component: ClassVar[str] = "rlhf_studies.data_mixes.run:DataMixes"
    smoke: ClassVar[Mapping[str, Any]] = {"mixes": ("equal_3way",), "rows": 12, "epochs": 1, "tasks": 2, "pairs": 8}

    mixes: tuple[Mix, ...] = ("pure_conv", "conv_synth", "conv_agentic", "equal_3way", "agentic_heavy", "pure_agentic")
    rows: int = Field(default=1000, ge=10)
    """Of each kind of training data together."""
    epochs: float = Field(default=2.0, gt=0)
    tasks: int = Field(default=250, ge=1)
    """Held out, for the agent."""
    pairs: int = Field(default=640, ge=2)
    """Held out, for the reward model."""
    agent_start: str = "pocket-tools"
    reward_start: str = "pocket"
    rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the agent."""
