from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_study.config import StudyConfig

Mix = Literal["pure_conv", "conv_synth", "conv_agentic", "equal_3way", "agentic_heavy", "pure_agentic"]


class DataMixesConfig(StudyConfig):
    """What do a reward model and an agent make of six mixes of training data? Another repository publishes, for its own
    data and one run each, the AUC of a reward model and the accuracy of an agent by the mix they were trained on. Here
    each mix trains both with the same number of rows: a reward model (`reward_model`, on pairs) and an agent (`sft`, on
    demonstrations).

    - conversational: `pocket/assistant`, the simulated annotator's choices, with noise and a taste for length
    - synthetic: candidates about the same facts, chosen by the written rule (right, concise, plain) without noise
    - agentic: questions of `lookup`, calls and results by the plan, against a beginner's that end in a wrong answer

    AUC is on held-out conversational pairs, as published, and besides on held-out agentic ones. The agent's accuracy is
    on held-out questions of `lookup`, one greedy play each; how it plays before any training is measured, too.
    """

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
