"""Configurations of the losses; importing this never imports torch.

``recipe`` is what a loss's paper goes with beyond the loss itself: which mean over tokens, which advantage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError

Level = Literal["token", "sequence", "product"]
PER_SEQUENCE: Mapping[str, Any] = {"trainer": {"reduction": "sequence_mean"}}
PER_TOKEN: Mapping[str, Any] = {"trainer": {"reduction": "token_mean"}}


class RatioLossConfig(ComponentConfig):
    """What losses of an importance ratio have in common."""

    consumes: ClassVar[str | None] = "token_advantages"
    importance_level: Level = "token"
    """One ratio per token, per sequence (geometric mean over its tokens), or per sequence as the plain product."""


class GrpoClipConfig(RatioLossConfig):
    """``-min(rho A, clip(rho, 1 - eps, 1 + eps) A)`` per token (Shao et al. 2024, DeepSeekMath, eq. 3)."""

    name: str = "grpo_clip"
    component: ClassVar[str] = "rlhf_plugin_grpo.loss:GrpoClip.from_config"
    clip_range: float = Field(0.2, gt=0)
    """Lower side: ratios below ``1 - clip_range`` are clipped."""
    clip_range_high: float | None = Field(None, gt=0)
    """Upper side; None uses ``clip_range`` (DAPO's clip-higher sets 0.28)."""
    dual_clip: float | None = Field(None, gt=1)
    """Bounds the loss of a token with negative advantage by this many times the advantage; None does not."""


class GrpoPaperLossConfig(GrpoClipConfig):
    """The clipped surrogate as GRPO was published: averaged over each completion, then over completions, with the std
    and a k3 KL of 0.04 in the loss (Shao et al. 2024, eq. 3 and section 4.2)."""

    name: str = "grpo_paper"
    recipe: ClassVar[Mapping[str, Any]] = {
        "trainer": {
            "reduction": "sequence_mean",
            "kl": {"coefficient": 0.04, "estimator": "k3", "where": "loss"},
        },
        "advantage": "group_norm",
    }


class DrGrpoLossConfig(GrpoClipConfig):
    """The clipped surrogate over a constant instead of each length; advantages without the std (Liu et al. 2025).

    The constant is ``sampling.max_tokens`` unless ``trainer.reduction_constant`` is set. Gradients are several times
    smaller than GRPO's: expect to need about ten times its learning rate."""

    name: str = "dr_grpo"
    recipe: ClassVar[Mapping[str, Any]] = {"trainer": {"reduction": "constant"}, "advantage": "group_mean"}


class DapoLossConfig(GrpoClipConfig):
    """Clip-higher, token mean, soft overlong penalty, constant groups replaced by others (Yu et al. 2025, DAPO)."""

    name: str = "dapo"
    recipe: ClassVar[Mapping[str, Any]] = {
        "trainer": {"reduction": "token_mean", "overlong": {"cache": 0.2}, "dynamic_sampling": {}}
    }
    clip_range_high: float | None = Field(0.28, gt=0)
    """Upper side; None uses ``clip_range``."""


class BnpoLossConfig(GrpoClipConfig):
    """The clipped surrogate over the batch's number of tokens, as TRL's ``bnpo`` (whose batch is the micro-batch)."""

    name: str = "bnpo"
    recipe: ClassVar[Mapping[str, Any]] = PER_TOKEN


class GspoLossConfig(GrpoClipConfig):
    """The clipped surrogate with one ratio per sequence, the geometric mean over its tokens (Zheng et al. 2025)."""

    name: str = "gspo"
    recipe: ClassVar[Mapping[str, Any]] = PER_SEQUENCE
    clip_range: float = Field(3e-4, gt=0)
    """Lower side: ratios below ``1 - clip_range`` are clipped."""
    clip_range_high: float | None = Field(4e-4, gt=0)
    """Upper side; None uses ``clip_range``."""
    importance_level: Level = "sequence"
    """One ratio per token, per sequence (geometric mean over its tokens), or per sequence as the plain product."""


class LuspoLossConfig(GspoLossConfig):
    """GSPO with each sequence's loss times its length: no bias towards short ones (LUSPO, 2026; as TRL's)."""

    name: str = "luspo"
    recipe: ClassVar[Mapping[str, Any]] = {"trainer": {"reduction": "constant", "reduction_constant": 1.0}}


class RlooLossConfig(GrpoClipConfig):
    """REINFORCE leave-one-out (Ahmadian et al. 2024) with the clipped product of ratios that TRL's RLOO has."""

    name: str = "rloo"
    recipe: ClassVar[Mapping[str, Any]] = {**PER_SEQUENCE, "advantage": "leave_one_out"}
    importance_level: Level = "product"
    """One ratio per token, per sequence (geometric mean over its tokens), or per sequence as the plain product."""


class PpoClipConfig(GrpoClipConfig):
    """PPO's clipped surrogate (Schulman et al. 2017) with a dual clip at 3 (Ye et al. 2020)."""

    name: str = "ppo_clip"
    dual_clip: float | None = Field(3.0, gt=1)
    """Bounds the loss of a token with negative advantage by this many times the advantage; None does not."""


class ReinforcePPLossConfig(GrpoClipConfig):
    """REINFORCE++ (Hu et al. 2025): the clipped surrogate without critic, k1 KL in the reward, global normalisation.

    Differs: the KL of a completion is charged to its score as a whole, not token by token from there on.
    """

    name: str = "reinforce_pp"
    recipe: ClassVar[Mapping[str, Any]] = {
        "trainer": {"reduction": "token_mean", "kl": {"where": "reward", "estimator": "k1", "coefficient": 0.01}},
        "advantage": "reinforce_pp",
    }


class ReinforceConfig(ComponentConfig):
    """``-A log pi`` with the score itself for A: no baseline, averaged over each completion first (Williams 1992)."""

    name: str = "reinforce"
    component: ClassVar[str] = "rlhf_plugin_grpo.loss:Reinforce"
    consumes: ClassVar[str | None] = "token_advantages"
    recipe: ClassVar[Mapping[str, Any]] = {**PER_SEQUENCE, "advantage": "raw"}

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse several updates from one rollout batch: without a ratio only the first has the right gradient."""
        updates = getattr(ctx.config.trainer, "updates_per_step", 1)
        if updates > 1:
            raise ConfigError(
                f"loss '{self.name}' has no importance ratio, but each batch makes {updates} updates",
                why="from the second on, the samples are no longer the policy's own",
                fix="--loss grpo_no_clip, or epochs_per_rollout_batch 1 without train_batch_size",
            )


class ExpertIterationLossConfig(ComponentConfig):
    """``-A log pi`` over the tokens of what is kept: the cross-entropy of supervised fine-tuning where A is 1."""

    name: str = "expert_iteration"
    component: ClassVar[str] = "rlhf_plugin_grpo.loss:Reinforce"
    consumes: ClassVar[str | None] = "token_advantages"
    recipe: ClassVar[Mapping[str, Any]] = {
        "trainer": {"reduction": "token_mean", "kl": {"coefficient": 0.0}},
        "advantage": "keep",
    }


class ReinforceWithBaselineConfig(ReinforceConfig):
    """``-A log pi`` with the group's mean score as the baseline, over its std, averaged over each completion first.

    It is GRPO without ratio and clip, for updates from the policy's own samples. Williams (1992) has the mean alone:
    ``--advantage group_mean``.
    """

    name: str = "reinforce_with_baseline"
    recipe: ClassVar[Mapping[str, Any]] = {**PER_SEQUENCE, "advantage": "group_norm"}


class RemaxLossConfig(ReinforceConfig):
    """``-A log pi`` with the greedy completion's score as the baseline, for ``--algo remax`` (Li et al. 2023).

    The mean is over tokens, as in the authors' code: each completion counts by the sum of its log-probabilities.
    """

    name: str = "remax"
    recipe: ClassVar[Mapping[str, Any]] = {**PER_TOKEN, "advantage": "remax"}


class NoBaselineConfig(ReinforceConfig):
    """``reinforce`` by a course's name."""

    name: str = "no_baseline"


class NoClipConfig(RatioLossConfig):
    """``-rho A``: GRPO's surrogate without the clip."""

    name: str = "grpo_no_clip"
    component: ClassVar[str] = "rlhf_plugin_grpo.loss:NoClip"


class CispoLossConfig(RatioLossConfig):
    """``-min(rho, M) A log pi``, no gradient through the bounded ratio (MiniMax 2025, MiniMax-M1)."""

    name: str = "cispo"
    component: ClassVar[str] = "rlhf_plugin_grpo.loss:Cispo"
    recipe: ClassVar[Mapping[str, Any]] = PER_TOKEN
    ratio_max: float = Field(5.0, gt=0)
    """M, the paper's 1 + eps_high, which it does not state; 5 is what Khatri et al. 2025 (ScaleRL) found to do well."""


class SapoConfig(RatioLossConfig):
    """A sigmoid of the ratio instead of the clip (Gao et al. 2025, SAPO)."""

    name: str = "sapo"
    component: ClassVar[str] = "rlhf_plugin_grpo.loss:Sapo"
    recipe: ClassVar[Mapping[str, Any]] = PER_SEQUENCE
    temperature_positive: float = Field(1.0, gt=0)
    """Steepness where the advantage is positive."""
    temperature_negative: float = Field(1.05, gt=0)
    """Steepness elsewhere."""


class VespoConfig(ComponentConfig):
    """``-w A log pi`` with a smooth weight of the sequence's ratio (VESPO, 2026; as TRL's)."""

    name: str = "vespo"
    component: ClassVar[str] = "rlhf_plugin_grpo.loss:Vespo"
    consumes: ClassVar[str | None] = "token_advantages"
    recipe: ClassVar[Mapping[str, Any]] = PER_TOKEN
    positive: tuple[float, float] = (2.0, 3.0)
    """(k, lambda) where the advantage is not negative."""
    negative: tuple[float, float] = (3.0, 2.0)
    """(k, lambda) where it is."""


class DppoConfig(ComponentConfig):
    """``-min(rho, M) A log pi`` but for tokens that moved too far by a divergence (DPPO, 2026, arXiv 2602.04879)."""

    name: str = "dppo"
    component: ClassVar[str] = "rlhf_plugin_grpo.trust_losses:Dppo"
    consumes: ClassVar[str | None] = "token_advantages"
    recipe: ClassVar[Mapping[str, Any]] = PER_TOKEN
    divergence: Literal["tv", "kl"] = "tv"
    """Total variation or KL, both between two outcomes: this token, or any other."""
    divergence_max: float = Field(0.2, gt=0)
    """Tokens beyond it are left out where they moved as the advantage asks."""
    divergence_max_positive: float | None = Field(None, gt=0)
    """The same where the advantage is positive; None uses ``divergence_max``."""
    ratio_max: float = Field(20.0, gt=0)
    """M."""


class GmpoConfig(ComponentConfig):
    """``-A`` times the geometric mean of the clipped ratios of a completion (Zhao et al. 2025, GMPO)."""

    name: str = "gmpo"
    component: ClassVar[str] = "rlhf_plugin_grpo.trust_losses:Gmpo"
    consumes: ClassVar[str | None] = "token_advantages"
    recipe: ClassVar[Mapping[str, Any]] = PER_SEQUENCE
    clip_range: float = Field(0.4, gt=0)
    """Lower side, of the logarithm of the ratio."""
    clip_range_high: float | None = Field(None, gt=0)
    """Upper side; None uses ``clip_range``."""


class GspoTokenConfig(ComponentConfig):
    """GSPO's ratio of the sequence with a gradient per token, for advantages per token (Zheng et al. 2025)."""

    name: str = "gspo_token"
    component: ClassVar[str] = "rlhf_plugin_grpo.trust_losses:GspoToken"
    consumes: ClassVar[str | None] = "token_advantages"
    recipe: ClassVar[Mapping[str, Any]] = PER_SEQUENCE
    clip_range: float = Field(3e-4, gt=0)
    """Lower side: ratios below ``1 - clip_range`` are clipped."""
    clip_range_high: float | None = Field(4e-4, gt=0)
    """Upper side; None uses ``clip_range``."""


class DroConfig(ComponentConfig):
    """``-(A log pi - beta/2 log(rho)^2)``: a square holds the policy to the sampler (Richemond et al. 2024)."""

    name: str = "dro"
    component: ClassVar[str] = "rlhf_plugin_grpo.trust_losses:Dro"
    consumes: ClassVar[str | None] = "token_advantages"
    recipe: ClassVar[Mapping[str, Any]] = PER_TOKEN
    beta: float = Field(1.0, gt=0)
    """Strength of the pull towards the policy that sampled."""


class ClipCovConfig(ComponentConfig):
    """The clipped surrogate less some tokens of a high covariance of log-probability and advantage, which take the
    entropy (Cui et al. 2025, Clip-Cov, arXiv 2505.22617). The covariance is that of a micro-batch."""

    name: str = "clip_cov"
    component: ClassVar[str] = "rlhf_plugin_grpo.covariance_losses:ClipCov"
    consumes: ClassVar[str | None] = "token_advantages"
    recipe: ClassVar[Mapping[str, Any]] = PER_TOKEN
    clip_range: float = Field(0.2, gt=0)
    """Both sides of the clip of the ratio."""
    share: float = Field(2e-4, gt=0, le=1)
    """So many of the tokens are left out, drawn from those between the bounds; 1 token at least."""
    covariance_min: float = 1.0
    """Lower bound of the covariance of a token that may be left out."""
    covariance_max: float = 5.0
    """Upper bound."""

    @model_validator(mode="after")
    def _bounds(self) -> ClipCovConfig:
        if not self.covariance_min < self.covariance_max:
            raise ConfigError(
                f"loss.covariance_min {self.covariance_min:g} is not below covariance_max {self.covariance_max:g}",
                why="no token's covariance would be between them",
                fix="lower covariance_min",
            )
        return self


class KlCovConfig(ComponentConfig):
    """``-rho A``, and ``beta |log rho|`` at the tokens of the highest covariance of log-probability and advantage (Cui
    et al. 2025, KL-Cov, arXiv 2505.22617). The covariance is that of a micro-batch."""

    name: str = "kl_cov"
    component: ClassVar[str] = "rlhf_plugin_grpo.covariance_losses:KlCov"
    consumes: ClassVar[str | None] = "token_advantages"
    recipe: ClassVar[Mapping[str, Any]] = PER_TOKEN
    share: float = Field(2e-4, gt=0, le=1)
    """So many of the tokens are penalised; 1 at least."""
    beta: float = Field(1.0, gt=0)
    """Of the penalty."""
