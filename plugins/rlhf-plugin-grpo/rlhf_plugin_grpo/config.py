"""Trainers: the on-policy loop with a loss, whose recipe brings the rest. Importing this never imports torch.

``--algo dapo`` and ``--algo grpo --loss dapo`` are the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.rl import OnlineTrainerConfig
from rlhf_core.training import OptimizerSettings
from rlhf_plugin_grpo.advantage_config import GroupNormConfig as GroupNormConfig
from rlhf_plugin_grpo.loss_config import GrpoClipConfig as GrpoClipConfig


class GrpoConfig(OnlineTrainerConfig):
    """GRPO: groups of completions are their own baseline, no critic (Shao et al. 2024).

    Differs from the paper: the loss is the mean over all tokens of the batch, as in DAPO, and there is no KL penalty by
    default; the recipes for the pocket model add one.
    The paper averages over each completion's tokens first, so that a token of a long completion counts less: a long
    wrong answer costs no more than a short one, and lengths grow (Liu et al. 2025, Dr. GRPO, section 3.1). The paper's
    own form is ``grpo_paper``.
    """

    name: str = "grpo"
    companions: ClassVar[Mapping[str, Any]] = {
        "dataset": "pocket/assistant",
        "reward": "ensemble",
        "advantage": "group_norm",
        "loss": "grpo_clip",
    }
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pocket": {
            "trainer": {
                "steps": 40,
                "rollout_batch_size": 256,
                "micro_batch_size": 64,
                "eval_every": 10,
                "optimizer": {"learning_rate": 1.5e-4, "warmup_steps": 2},
                "sampling": {"max_tokens": 48},
                "kl": {"coefficient": 0.05},
            }
        },
        "pocket+ensemble": {
            "trainer": {"steps": 14, "optimizer": {"learning_rate": 5e-4}, "kl": {"coefficient": 0.15}}
        },
        "pocket-tools": {
            "trainer": {
                "steps": 60,
                "rollout_batch_size": 128,
                "micro_batch_size": 64,
                "eval_every": 10,
                "eval_samples": 200,
                "optimizer": {"learning_rate": 3e-4, "warmup_steps": 2},
                "kl": {"coefficient": 0.05},
            }
        },
    }
    """At this rate and KL penalty a reward without information costs the policy little, and a verifier still teaches
    (study `noise_control`). An ensemble's scores say something of every completion: there a
    larger rate pays, with the penalty that was better in five seeds of five (study `pocket_recipe`). The rest of the
    family has the same recipes."""
    group_size: int = Field(8, ge=1, le=2**16)
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-5, warmup_steps=2)


class GrpoPaperConfig(GrpoConfig):
    """GRPO as published: the mean over each completion first, and a k3 KL in the loss (Shao et al. 2024, eq. 3)."""

    name: str = "grpo_paper"
    companions: ClassVar[Mapping[str, Any]] = {**GrpoConfig.companions, "loss": "grpo_paper"}


class DrGrpoConfig(GrpoConfig):
    """Dr.GRPO: no division by length or standard deviation (Liu et al. 2025).

    Each token's loss is divided by ``sampling.max_tokens`` unless ``reduction_constant`` is set. Advantages are not
    scaled up by a small standard deviation, and most completions are shorter than ``max_tokens``, so that gradients
    are several times smaller than GRPO's: expect to need about ten times its learning rate.
    """

    name: str = "dr_grpo"
    companions: ClassVar[Mapping[str, Any]] = {**GrpoConfig.companions, "loss": "dr_grpo"}


class DapoConfig(GrpoConfig):
    """DAPO: clip-higher, token mean, soft overlong penalty, dynamic sampling (Yu et al. 2025)."""

    name: str = "dapo"
    companions: ClassVar[Mapping[str, Any]] = {**GrpoConfig.companions, "loss": "dapo"}


class GspoConfig(GrpoConfig):
    """GSPO: importance ratio and clip per sequence (Zheng et al. 2025)."""

    name: str = "gspo"
    companions: ClassVar[Mapping[str, Any]] = {**GrpoConfig.companions, "loss": "gspo"}


class CispoConfig(GrpoConfig):
    """CISPO: bounds the importance weight and keeps every token's gradient (MiniMax 2025)."""

    name: str = "cispo"
    companions: ClassVar[Mapping[str, Any]] = {**GrpoConfig.companions, "loss": "cispo"}


class RlooConfig(GrpoConfig):
    """RLOO: the other completions' mean is the baseline (Ahmadian et al. 2024)."""

    name: str = "rloo"
    companions: ClassVar[Mapping[str, Any]] = {**GrpoConfig.companions, "loss": "rloo"}


class ReinforcePPConfig(GrpoConfig):
    """REINFORCE++: advantages normalised over the whole batch, KL in the reward (Hu et al. 2025)."""

    name: str = "reinforce_pp"
    companions: ClassVar[Mapping[str, Any]] = {**GrpoConfig.companions, "loss": "reinforce_pp"}


class ExpertIterationConfig(GrpoConfig):
    """Expert iteration: sample, keep what scores enough, imitate it, and again (Anthony et al. 2017).

    ``advantage.threshold`` and ``advantage.best`` say what is kept. The loss is the cross-entropy of supervised
    fine-tuning over the tokens of what is kept; it needs no ratio, so that a rollout batch may make several updates and
    epochs. ``trainer.steps=1`` with a large rollout batch is rejection sampling fine-tuning (Yuan et al. 2023).
    """

    name: str = "expert_iteration"
    companions: ClassVar[Mapping[str, Any]] = {**GrpoConfig.companions, "loss": "expert_iteration"}


class RemaxConfig(GrpoConfig):
    """ReMax: REINFORCE, less the reward of a greedy completion of the prompt; groups may be of 1 (Li et al. 2023).

    The greedy completions cost one more sample for each prompt, are not learned from, and are the part ``greedy`` of
    the scores. A KL in the reward and ``overlong`` are charged to the sampled completion alone.
    """

    name: str = "remax"
    component: ClassVar[str] = "rlhf_plugin_schedule.greedy:GreedyBaselineTrainer"
    companions: ClassVar[Mapping[str, Any]] = {**GrpoConfig.companions, "loss": "remax"}
    group_size: int = Field(1, ge=1, le=2**16)

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse to sample baselines that nothing reads."""
        super().preflight(ctx)
        if ctx.config.advantage is not None and ctx.config.advantage.name != "remax":
            raise ConfigError(
                f"algorithm 'remax' cannot be combined with advantage '{ctx.config.advantage.name}'",
                why="the greedy completions would be sampled for nothing",
                fix=f"--algo grpo --advantage {ctx.config.advantage.name}",
            )
