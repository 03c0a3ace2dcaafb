"""Settings of the rubric's rewards and trainer; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.models import ModelError, ModelPath
from rlhf_plugin_judge.config import AnthropicConfig
from rlhf_plugin_judge.rewards import Asking, JudgeField
from rlhf_plugin_reward.config import RewardModelConfig
from rlhf_plugin_rubric.rubric import Rubric, RubricField, load_rubric

if TYPE_CHECKING:
    from rlhf_core.data import Prompt


def default_rubric() -> Rubric:
    return load_rubric("assistant")


class RubricRewardConfig(ComponentConfig):
    """A judge grades each completion on every criterion; the weighted mean, from 0 to 1, is the reward."""

    name: str = "rubric"
    component: ClassVar[str] = "rlhf_plugin_rubric.judge_reward:RubricReward.from_config"
    rubric: RubricField = Field(default_factory=default_rubric)
    """``assistant``, a YAML file, or the criteria themselves."""
    judge: JudgeField = AnthropicConfig(name="anthropic")  # pyright: ignore[reportInvalidTypeForm]
    asking: Asking = Asking()

    def preflight(self, ctx: BuildContext) -> None:
        self.judge.preflight(ctx)


class RubricModelConfig(ComponentConfig):
    """A model trained on grades by ``rlhf train --algo rubric_model``: one head per criterion."""

    name: str = "rubric_model"
    component: ClassVar[str] = "rlhf_plugin_rubric.model:RubricModelReward.from_config"
    path: ModelPath
    """Its folder, ``RUN/final``."""
    max_length: int | None = Field(default=None, ge=2)
    """Longer conversations are cut, on the side that the model was trained with; None takes the length of training."""
    batch_tokens: int = Field(default=16384, ge=1)
    """Padded tokens per forward."""

    def preflight(self, ctx: BuildContext) -> None:
        if not (Path(self.path).expanduser() / "rubric.json").is_file():
            raise ModelError(
                f"'{self.path}' holds no rubric model",
                why="rubric.json is not there",
                fix="check reward.path; rlhf train --algo rubric_model writes one to RUN/final",
            )


class RubricTrainerConfig(RewardModelConfig):
    """Train a reward model on grades, by their mean squared error.

    Rows have ``prompt``, ``completion`` and either ``grades`` (criterion -> grade on its scale) or ``parts`` (from 0 to
    1), as ``rlhf reward score --reward rubric --output FILE`` writes them; rows without a score are dropped (and
    counted).
    """

    name: str = "rubric_model"
    component: ClassVar[str] = "rlhf_plugin_rubric.task:RubricTrainer"
    feeds: ClassVar[str | None] = "grades"
    companions: ClassVar[Mapping[str, Any]] = {}
    rubric: RubricField = Field(default_factory=default_rubric)
    """The criteria that the grades are of."""

    def check_row(self, prompt: Prompt, where: str) -> str | None:
        """The response of a row, for `rlhf data check`; None where its score is missing."""
        from rlhf_plugin_rubric.graded import read_row

        row = read_row(prompt, self.rubric, where)
        return None if row is None else row.completion
