"""What the entry points of the trainers name; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, Config, ConfigError
from rlhf_core.training import OptimizerSettings, PolicyTrainerConfig


class SftTerm(Config):
    """Cross-entropy on the chosen responses beside the preference loss (RPO, Pang et al. 2024; CPO; ORPO)."""

    weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """0 leaves it out. The mean is over the tokens of the whole batch."""
    on: Literal["completion", "conversation"] = "completion"
    """``conversation`` imitates the prompt too, as ORPO does."""


class BetaSchedule(Config):
    """How the loss's beta changes over the run."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    end: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Factor on beta at the last step; it begins with 1."""


class PreferenceTrainerConfig(PolicyTrainerConfig):
    """What every trainer that learns from given preferences can be told, whether they are pairs or not."""

    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-6, warmup_steps=10, schedule="linear")
    sample_prompts: int = Field(default=64, ge=0)
    reference_free: bool = False
    """Count every text as equally likely under the reference policy."""
    beta_schedule: BetaSchedule = BetaSchedule()
    share_prefix: bool = True
    """Read the prompt that two responses have in common once."""

    def preflight(self, ctx: BuildContext) -> None:
        super().preflight(ctx)
        check_preferences(self, ctx)


class DpoConfig(PreferenceTrainerConfig):
    """Learn from preference pairs without a reward model (Rafailov et al. 2023); the loss says which method."""

    name: str = "dpo"
    component: ClassVar[str] = "rlhf_plugin_dpo.trainer:PairTrainer"
    feeds: ClassVar[str | None] = "pairs"
    companions: ClassVar[Mapping[str, Any]] = {"dataset": "pocket/assistant", "loss": "sigmoid"}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pocket": {
            "trainer": {
                "name": "dpo",
                "batch_size": 64,
                "micro_batch_size": 64,
                "epochs": 0.6,
                "sample_prompts": 200,
                "eval_every": 0,
                "sampling": {"max_tokens": 48},
                "optimizer": {"learning_rate": 3e-4},
            }
        }
    }
    sft: SftTerm = SftTerm()
    ld_alpha: float = Field(default=1.0, ge=0, le=1)
    """Weight of the log-probabilities of the tokens by which one response is longer than the other (Liu et al. 2024,
    LD-DPO); 1 is plain DPO, 0 ignores them."""

    def rehearsal(self, ctx: BuildContext, sizes: Sequence[tuple[int, Sequence[int]]]) -> tuple[Any, Sequence[Any]]:
        """Module and pairs of these lengths (prompt, both responses), for ``rlhf memory plan``."""
        from rlhf_plugin_dpo.pair_module import pair_rehearsal

        return pair_rehearsal(self, ctx, sizes, {"shared_prefix": self.share_prefix})

    def preflight(self, ctx: BuildContext) -> None:
        super().preflight(ctx)
        check_supervised_term(self.sft)


def check_preferences(config: Any, ctx: BuildContext) -> None:
    loss = ctx.config.loss
    assert loss is not None, "companions name a loss"
    need = getattr(loss, "reference", "optional")
    if config.reference_free and need == "needed":
        raise ConfigError(
            f"loss '{loss.name}' needs the reference policy, but trainer.reference_free is set",
            why="it compares each response's own log ratio with a threshold, not two responses",
            fix="leave trainer.reference_free out, or choose a loss of differences: --loss sigmoid",
        )
    if config.reference_free and need == "unused":
        raise ConfigError(
            f"trainer.reference_free has no effect: loss '{loss.name}' never looks at a reference", fix="leave it out"
        )
    schedule = config.beta_schedule
    if (schedule.kind == "constant") != (schedule.end == 1.0):
        raise ConfigError(
            f"trainer.beta_schedule kind {schedule.kind} and end {schedule.end:g} do nothing together",
            fix="choose kind linear or cosine and an end other than 1, or leave both out",
        )
    if schedule.kind != "constant" and not hasattr(loss, "beta"):
        raise ConfigError(f"trainer.beta_schedule has no effect: loss '{loss.name}' has no beta", fix="leave it out")


def check_supervised_term(sft: SftTerm) -> None:
    if sft.on == "conversation" and sft.weight == 0:
        raise ConfigError(
            "trainer.sft.on has no effect while trainer.sft.weight is 0",
            fix="--set trainer.sft.weight=1, or leave it out",
        )
