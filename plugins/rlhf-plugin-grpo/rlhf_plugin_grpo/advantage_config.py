"""Configurations of the advantage estimators; importing this never imports torch or numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError


class FlooredConfig(ComponentConfig):
    """What the estimators that take a baseline off have in common."""

    relative_floor: float = Field(2.0**-19, ge=0)
    """Scores whose std is below this share of the largest are constant: rounding must not become signal.
    The default is 16 roundings of float32."""


class GroupMeanConfig(FlooredConfig):
    """``r - mean(group)`` (Liu et al. 2025, Dr. GRPO)."""

    name: str = "group_mean"
    component: ClassVar[str] = "rlhf_plugin_grpo.advantage:GroupMean"
    min_group_size: ClassVar[int] = 2


class LeaveOneOutConfig(FlooredConfig):
    """``r - mean(the group's others)`` (Ahmadian et al. 2024, RLOO)."""

    name: str = "leave_one_out"
    component: ClassVar[str] = "rlhf_plugin_grpo.advantage:LeaveOneOut"
    min_group_size: ClassVar[int] = 2


class GroupNormConfig(FlooredConfig):
    """``(r - mean(group)) / std(group)`` (Shao et al. 2024, DeepSeekMath)."""

    name: str = "group_norm"
    component: ClassVar[str] = "rlhf_plugin_grpo.advantage:GroupNorm"
    min_group_size: ClassVar[int] = 2
    scale: Literal["std", "none"] = "std"
    """``none`` only subtracts the mean (Liu et al. 2025, Dr. GRPO), as ``group_mean`` does."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""


class OptimalBaselineConfig(FlooredConfig):
    """``r - b``, b the group's mean weighted by length (Hao et al. 2025, OPO)."""

    name: str = "optimal_baseline"
    component: ClassVar[str] = "rlhf_plugin_grpo.advantage:OptimalBaseline"
    min_group_size: ClassVar[int] = 2
    weight: Literal["length", "gradient"] = "length"
    """``gradient`` weighs each token by ``(1 - p)^2`` of its own probability instead of by 1."""


class OptimalTokenBaselineConfig(FlooredConfig):
    """``r - b_t``, b the group's mean at each token, weighted by the squared gradients so far (optimal token baseline,
    2026, as verl's)."""

    name: str = "optimal_token_baseline"
    component: ClassVar[str] = "rlhf_plugin_grpo.outcome_advantages:OptimalTokenBaseline"
    min_group_size: ClassVar[int] = 2
    zero_tail: bool = True
    """No baseline where only one completion of the group is still being written."""


class MaxRLConfig(FlooredConfig):
    """``(r - mean(group)) / mean(group)`` of scores that are not negative (maximum-likelihood RL, 2026)."""

    name: str = "max_rl"
    component: ClassVar[str] = "rlhf_plugin_grpo.outcome_advantages:MaxRL"
    min_group_size: ClassVar[int] = 2


class PassAtKConfig(ComponentConfig):
    """Advantages of the group's pass@k: only prompts that k tries often fail are learned from (Chen et al. 2025)."""

    name: str = "pass_at_k"
    component: ClassVar[str] = "rlhf_plugin_grpo.outcome_advantages:PassAtK"
    min_group_size: ClassVar[int] = 2
    k: int = Field(4, ge=1)
    """Tries of which one has to be right; at most ``trainer.group_size``."""
    threshold: float = Field(0.5, allow_inf_nan=False)
    """A score above it is right."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse more tries than a group has."""
        size = getattr(ctx.config.trainer, "group_size", self.k)
        if self.k > size:
            raise ConfigError(
                f"advantage.k {self.k} is more than trainer.group_size {size}",
                fix=f"--set advantage.k={size}, or a larger trainer.group_size",
            )


class BestOfGroupConfig(FlooredConfig):
    """``max(r) - second(r)`` for a group's best completion, 0 for the others (Tang et al. 2025; verl: grpo_passk)."""

    name: str = "best_of_group"
    component: ClassVar[str] = "rlhf_plugin_grpo.outcome_advantages:BestOfGroup"
    min_group_size: ClassVar[int] = 2
    scale: Literal["std", "none"] = "std"
    """``std`` divides by the group's standard deviation."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""


class RawConfig(ComponentConfig):
    """``r``: the score itself, no baseline (Williams 1992)."""

    name: str = "raw"
    component: ClassVar[str] = "rlhf_plugin_grpo.advantage:Raw"


class RemaxConfig(ComponentConfig):
    """``r - r(greedy)``: the reward of the policy's greedy completion is the baseline (Li et al. 2023, ReMax)."""

    name: str = "remax"
    component: ClassVar[str] = "rlhf_plugin_grpo.remax:Remax"

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a trainer that samples nothing greedily."""
        if not ctx.config.trainer.component.endswith(":GreedyBaselineTrainer"):
            raise ConfigError(
                f"advantage 'remax' cannot be combined with algorithm '{ctx.config.trainer.name}'",
                why="nobody samples the greedy completion that is its baseline",
                fix="--algo remax",
            )


class KeepConfig(ComponentConfig):
    """1 for completions that are imitated; the others are left out, of every mean too (expert iteration)."""

    name: str = "keep"
    component: ClassVar[str] = "rlhf_plugin_grpo.advantage:Keep"
    threshold: float | None = Field(1.0, allow_inf_nan=False)
    """Least score; None sets none."""
    best: int | None = Field(None, ge=1)
    """At most so many of a prompt, the best ones; None takes all. With ``threshold`` null: the best of n."""

    @model_validator(mode="after")
    def _chooses(self) -> KeepConfig:
        if self.threshold is None and self.best is None:
            raise ConfigError(
                "advantage 'keep' would keep every completion",
                why="the policy would imitate itself",
                fix="--set advantage.threshold=1, or advantage.best=1 for the best of a prompt's",
            )
        return self


class BatchNormConfig(FlooredConfig):
    """``(r - mean(group)) / std(batch)`` (Liu et al. 2025, "Tricks or Traps")."""

    name: str = "batch_norm"
    component: ClassVar[str] = "rlhf_plugin_grpo.advantage:BatchNorm"
    min_group_size: ClassVar[int] = 2
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""


class ReinforcePPConfig(FlooredConfig):
    """``(r - mean(batch)) / std(batch)`` (Hu et al. 2025, REINFORCE++)."""

    name: str = "reinforce_pp"
    component: ClassVar[str] = "rlhf_plugin_grpo.advantage:ReinforcePP"
    baseline: Literal["none", "group"] = "none"
    """``group`` takes the group's mean off first (REINFORCE++-baseline)."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""

    @property
    def least_group_size(self) -> int:
        """Two where the group is its own baseline."""
        return 2 if self.baseline == "group" else 1


class TurnConfig(ComponentConfig):
    """What a turn and later ones were paid, less the group's others' at that turn: for episodes (unbiased)."""

    name: str = "turn"
    component: ClassVar[str] = "rlhf_plugin_grpo.turn:TurnAdvantage"
    min_group_size: ClassVar[int] = 2
    outcome_weight: float = Field(1.0, allow_inf_nan=False)
    """Of the episode's score, which comes with its last turn. 0 where the turns' scores add up to it; what
    ``reward.turn_weight`` of the reward ``environment`` added is taken off."""
    turn_weight: float = Field(1.0, allow_inf_nan=False)
    """Of the scores of single turns (``Turn.score``)."""
    discount: float = Field(1.0, gt=0, le=1)
    """Per turn of the policy, of what later turns and the outcome bring."""
    scale: Literal["none", "batch"] = "none"
    """``batch`` divides by the standard deviation over all turns of the batch: one factor for every turn."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to that standard deviation."""
    relative_floor: float = Field(2.0**-19, ge=0)
    """An advantage up to this share of the group's largest return is rounding, and 0.
    The default is 16 roundings of float32."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse settings under which nothing, or the wrong groups, would be learned from."""
        if self.outcome_weight == self.turn_weight == 0:
            raise ConfigError(
                "advantage.outcome_weight and advantage.turn_weight are both 0",
                why="every advantage would be 0 and nothing learned",
                fix="--set advantage.outcome_weight=1",
            )
        reward = getattr(ctx.config, "reward", None)
        if self.outcome_weight and self.turn_weight and any(_turn_weights(reward, inside=False)):
            name = getattr(reward, "name", reward)
            raise ConfigError(
                f"advantage 'turn' would count the turns' scores twice: reward '{name}' adds them inside",
                why="turn scores are subtracted only if 'environment' is the run's own reward, not a part of another",
                fix="set turn_weight: 0 in the reward 'environment' that is inside, or --set advantage.turn_weight=0",
            )
        if self.turn_weight and getattr(ctx.config.trainer, "dynamic_sampling", None) is not None:
            raise ConfigError(
                "dynamic_sampling replaces groups of equal scores, but advantage 'turn' looks at the turns' scores too",
                why="they may differ where the episodes' do not",
                fix="leave out trainer.dynamic_sampling, or --set advantage.turn_weight=0",
            )


def _turn_weights(value: Any, *, inside: bool = True) -> Iterator[float]:
    """``turn_weight`` of the rewards inside of a reward's settings."""
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
        if inside and "turn_weight" in value:
            yield float(value["turn_weight"])
    if isinstance(value, Mapping):
        value = list(value.values())
    for item in value if isinstance(value, list | tuple) else ():
        yield from _turn_weights(item)


class GdpoConfig(FlooredConfig):
    """Each part of the score normalised per group, then added by weight, then scaled by the batch (GDPO, 2026)."""

    name: str = "gdpo"
    component: ClassVar[str] = "rlhf_plugin_grpo.advantage:Gdpo"
    min_group_size: ClassVar[int] = 2
    parts: Mapping[str, Annotated[float, Field(allow_inf_nan=False)]] = {}
    """Part of the score -> weight. Penalties that the loop charges are parts too: ``overlong`` (weight 1) and ``kl``
    (the KL itself: a negative weight); normalised like the rest, so that the loop's own coefficients only switch them
    on. None at all takes the score itself as the only part."""
    order: Literal["normalise_then_sum", "sum_then_normalise"] = "normalise_then_sum"
    """``sum_then_normalise`` normalises the weighted sum per group: a reward of large spread drowns the rest."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to each standard deviation."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse to lose a penalty that the loop charges to the score's value."""
        trainer = ctx.config.trainer
        kl, overlong = getattr(trainer, "kl", None), getattr(trainer, "overlong", None)
        charged = {
            "kl": kl is not None and kl.where == "reward" and kl.coefficient > 0,
            "overlong": overlong is not None and overlong.cache > 0 and overlong.weight > 0,
        }
        for part, on in charged.items():
            if self.parts and on and part not in self.parts:
                sign = "negative " if part == "kl" else ""
                raise ConfigError(
                    f"trainer.{part} is charged to the score, but advantage.parts does not name '{part}'",
                    why="gdpo adds up the parts it is given and would lose the penalty",
                    fix=f"give advantage.parts.{part} a {sign}weight, or switch trainer.{part} off",
                )
        if charged["kl"] and self.parts.get("kl", -1.0) >= 0:
            raise ConfigError(
                f"advantage.parts.kl {self.parts['kl']:g} would reward distance from the reference",
                why="that part is the KL itself, not the penalty",
                fix="--set advantage.parts.kl=-1",
            )
        if self.parts and getattr(trainer, "dynamic_sampling", None) is not None:
            raise ConfigError(
                "dynamic_sampling replaces groups of equal scores, but gdpo looks at the parts, which "
                "may differ where their sum does not",
                fix="leave out trainer.dynamic_sampling",
            )
