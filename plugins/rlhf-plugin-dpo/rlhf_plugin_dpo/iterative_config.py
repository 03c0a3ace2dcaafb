"""`rlhf train --algo iterative_dpo`: its settings; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.rl import RolloutTrainerConfig
from rlhf_core.training import OptimizerSettings
from rlhf_plugin_dpo.config import BetaSchedule, SftTerm, check_preferences, check_supervised_term

OF_TOKEN_LOSSES = (
    "train_batch_size",
    "epochs_per_rollout_batch",
    "target_kl",
    "entropy_coefficient",
    "entropy_quantile",
    "overlong",
    "mask_truncated",
    "drop_constant_groups",
    "rollouts",
    "importance",
    "micro_batch_tokens",
    "self_check",
)
"""Settings of trainers whose loss sees tokens."""


class IterativeDpoConfig(RolloutTrainerConfig):
    """Sample, score, take the best and the worst of each prompt as a pair, update on pairs, and again.

    Xu et al. 2023 (iterative DPO), Guo et al. 2024 (online DPO).
    """

    name: str = "iterative_dpo"
    component: ClassVar[str] = "rlhf_plugin_dpo.iterative:IterativeTrainer"
    feeds: ClassVar[str | None] = "pairs"
    companions: ClassVar[Mapping[str, Any]] = {"dataset": "pocket/assistant", "reward": "ensemble", "loss": "sigmoid"}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pocket": {
            "trainer": {
                "name": "iterative_dpo",
                "steps": 4,
                "rollout_batch_size": 512,
                "group_size": 8,
                "updates": 8,
                "pair_batch_size": 32,
                "micro_batch_size": 64,
                "optimizer": {"learning_rate": 3e-4},
                "sampling": {"max_tokens": 48},
            }
        }
    }
    no_effect: ClassVar[Mapping[str, str]] = dict.fromkeys(
        OF_TOKEN_LOSSES, "the updates of iterative_dpo see pairs, not advantages of tokens"
    )
    steps: int = Field(default=5, ge=1)
    """Iterations."""
    group_size: int = Field(default=8, ge=2, le=2**16)
    rollout_batches: int = Field(default=1, ge=1)
    """Rollout batches per iteration. A run can be saved and resumed between them, as between updates."""
    updates: int = Field(default=16, ge=1)
    """Optimizer updates per iteration."""
    pair_batch_size: int = Field(default=32, ge=1)
    """Pairs per update over all ranks; of a smaller buffer all are taken."""
    margin_threshold: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """A prompt gives a pair if its best score is more than this above its worst. Ties never do. Both are counted."""
    buffer: Literal["current", "rolling", "full"] = "current"
    """Pairs that an iteration's updates are drawn from: its own, those of the last ``buffer_iterations``, or all."""
    buffer_iterations: int = Field(default=2, ge=2)
    """For ``rolling``."""
    reference_free: bool = False
    """Count every text as equally likely under the reference policy."""
    sft: SftTerm = SftTerm()
    beta_schedule: BetaSchedule = BetaSchedule()
    ld_alpha: float = Field(default=1.0, ge=0, le=1)
    """See ``dpo``."""
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-6, warmup_steps=10)
    eval_every: int = Field(default=1, ge=0)
    """Iterations between held-out evaluations; 0 evaluates only before and after."""
    checkpoint_every: int = Field(default=10, ge=0)
    """Rollout batches and updates between checkpoints; 0 keeps only the last."""

    def sequences_per_update(self) -> int:
        return self.pair_batch_size

    def rehearsal(self, ctx: BuildContext, sizes: Sequence[tuple[int, Sequence[int]]]) -> tuple[Any, Sequence[Any]]:
        """As that of ``dpo``."""
        from rlhf_plugin_dpo.pair_module import pair_rehearsal

        paths = {"shared_prefix": self.share_prefix, "packed": self.packing != "off", "chunked": self.chunked_head}
        return pair_rehearsal(self, ctx, sizes, paths)

    def preflight(self, ctx: BuildContext) -> None:
        self.micro_batches(ctx.world_size)
        self.check_precision(ctx)
        check_preferences(self, ctx)
        check_supervised_term(self.sft)
        check_iterative(self, ctx)
        self.check_rollouts(ctx)


def check_iterative(config: IterativeDpoConfig, ctx: BuildContext) -> None:
    if ctx.config.reward is None:
        raise ConfigError(
            "algorithm 'iterative_dpo' needs a reward to tell the best completion from the worst",
            fix="--reward NAME; rlhf plugins list --kind reward",
        )
    if ctx.config.advantage is not None:
        raise ConfigError(
            f"advantage '{ctx.config.advantage.name}' has no effect with algorithm 'iterative_dpo'",
            why="it learns from pairs, not from advantages",
            fix="leave it out",
        )
    need = getattr(ctx.config.loss, "reference", "optional")
    if not config.kl.track and need != "unused" and not config.reference_free:
        assert ctx.config.loss is not None
        raise ConfigError(
            f"trainer.kl.track=false would keep no reference policy, which loss '{ctx.config.loss.name}' compares with",
            fix="leave it out, or set trainer.reference_free",
        )
    if config.sampling.temperature == 0:
        raise ConfigError(
            "temperature 0 samples the same completion for the whole group: there would be no pairs",
            fix="--set trainer.sampling.temperature=1.0",
        )
    if (
        config.buffer != "rolling"
        and config.buffer_iterations != type(config).model_fields["buffer_iterations"].default
    ):
        raise ConfigError(
            f"trainer.buffer_iterations has no effect with buffer {config.buffer}",
            fix="--set trainer.buffer=rolling, or leave it out",
        )
