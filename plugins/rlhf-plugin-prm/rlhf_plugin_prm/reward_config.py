"""The reward ``prm`` and the advantage ``step``; importing this never imports torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError
from rlhf_core.models import ModelPath
from rlhf_plugin_prm.steps import Split
from rlhf_plugin_reward.config import check_reward_folder

Aggregate = Literal["min", "mean", "product", "last"]


class PrmRewardConfig(ComponentConfig):
    """Probability that each step is right, and one number made of them; also the probability of an outcome model.

    Of an episode all of the policy's turns are read, an outcome model's last step alone. One that ended without an
    answer has a step more, of probability 0.
    """

    name: str = "prm"
    component: ClassVar[str] = "rlhf_plugin_prm.reward:StepReward.from_config"
    path: ModelPath
    """What ``rlhf train --algo prm`` (or ``orm``) wrote to RUN/final."""
    aggregate: Aggregate = "min"
    """Over a solution's steps. ``last`` is what an outcome model has anyway."""
    split: Split | None = None
    """None cuts completions as the model's training data was cut."""
    read: Literal["trained", "steps"] = "trained"
    """``steps`` reads an outcome model at every step as well, where it was not trained."""
    max_length: int | None = Field(default=None, ge=2)
    """None takes the length of training. Of longer solutions the prompt loses its beginning; one whose steps alone are
    longer has status ``error``."""
    batch_tokens: int = Field(default=16384, ge=1)
    """Padded tokens per forward."""

    def preflight(self, ctx: BuildContext) -> None:
        from rlhf_plugin_prm.store import read_card

        check_reward_folder(self.path)
        read_card(self.path)


class StepAdvantageConfig(ComponentConfig):
    """Token advantages from a reward's steps, normalised over a prompt's group (Shao et al. 2024, section 4.1.3).

    The reward's parts are ``step_1`` ... and ``end_1`` ... (the character where that step ends), as ``prm`` gives them.
    A score without them is one step over the whole completion: this is then ``group_norm``.
    """

    name: str = "step"
    component: ClassVar[str] = "rlhf_plugin_prm.advantage:StepAdvantage"
    min_group_size: ClassVar[int] = 2
    credit: Literal["sum", "own", "min"] = "sum"
    """What a token answers for: ``sum`` its own and all later steps' rewards (the paper's); ``own`` its own step's;
    ``min`` the worst step's among its own and all later ones (Cheng et al. 2025, PURE, without its softening)."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""
    relative_floor: float = Field(2.0**-19, ge=0)
    """A group whose std is below this share of its largest reward is constant: rounding must not become signal.
    The default is 16 roundings of float32."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse episodes, and to lose a penalty that the loop charges to the score's value."""
        environment = getattr(ctx.config, "environment", None)
        if environment is not None:
            raise ConfigError(
                f"advantage 'step' cannot be used in environment '{environment.name}'",
                why="its steps are places in one completion, and an episode has several turns",
                fix="--set advantage.name=turn, whose steps are turns; reward 'prm' can be kept",
            )
        trainer = ctx.config.trainer
        kl, overlong = getattr(trainer, "kl", None), getattr(trainer, "overlong", None)
        if kl is not None and kl.where == "reward" and kl.coefficient > 0:
            raise ConfigError(
                "trainer.kl is charged to the score, but advantage 'step' reads the steps' own rewards",
                why="the penalty would be lost",
                fix="--set trainer.kl.where=loss",
            )
        if overlong is not None and overlong.cache > 0 and overlong.weight > 0:
            raise ConfigError(
                "trainer.overlong is charged to the score, but advantage 'step' reads the steps' own rewards",
                why="the penalty would be lost",
                fix="--set trainer.overlong.cache=0, or trainer.mask_truncated=true",
            )
