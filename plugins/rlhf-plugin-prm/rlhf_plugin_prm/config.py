"""Trainers and loss of process and outcome reward models; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import ComponentConfig
from rlhf_core.training import OptimizerSettings
from rlhf_plugin_prm.steps import Split
from rlhf_plugin_reward.config import RewardTrainerConfig

if TYPE_CHECKING:
    from rlhf_core.data import Prompt


class StepBceConfig(ComponentConfig):
    """``-log p(label)`` of each labelled step (Lightman et al. 2023; Cobbe et al. 2021 for outcomes)."""

    name: str = "step_bce"
    component: ClassVar[str] = "rlhf_plugin_prm.loss:StepBce.from_config"
    consumes: ClassVar[str | None] = "labels"
    wrong_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Weight of a wrong step's loss, for data in which they are rare."""


class PrmConfig(RewardTrainerConfig):
    """Train a process reward model: is each step of a solution right, judged at the step's last token?

    Rows have ``prompt``; ``steps`` (a list) or ``completion`` (cut by ``split``); and ``labels`` (right or wrong, one
    per step) or ``label`` (index of the first wrong step, -1 for none; it and all later steps count as wrong).
    """

    name: str = "prm"
    component: ClassVar[str] = "rlhf_plugin_prm.task:build_trainer"
    no_effect: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("truncation", "turns"), "of a solution with steps only the prompt's beginning may be cut"
    )
    target: ClassVar[Literal["steps", "outcome"]] = "steps"
    feeds: ClassVar[str | None] = "labels"
    reads: ClassVar[str] = "prompts"
    companions: ClassVar[Mapping[str, Any]] = {"dataset": "chain_steps", "loss": "step_bce"}
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-3, warmup_steps=20, schedule="cosine")
    split: Split = "newline"
    """Where a completion is cut into steps: lines, paragraphs, "Step n", or sentences. Saved with the model."""
    after_first_error: Literal["keep", "ignore"] = "keep"
    """``ignore`` learns nothing from the steps after a solution's first wrong one."""

    def check_row(self, prompt: Prompt, where: str) -> str:
        """The solution of a row, for `rlhf data check`."""
        from rlhf_plugin_prm.examples import read_solutions

        return read_solutions([prompt], self.split, lambda _: where)[0].text


class OrmConfig(PrmConfig):
    """Train an outcome reward model: does the solution end in the right answer, judged at its last step's last token?

    The same trunk, head and rows as ``prm``, with ``outcome`` (true or false); without it the last step's label.
    """

    name: str = "orm"
    target: ClassVar[Literal["steps", "outcome"]] = "outcome"
