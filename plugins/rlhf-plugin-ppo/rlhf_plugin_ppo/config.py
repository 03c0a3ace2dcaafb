"""What the entry points name; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlhf_core.config import BuildContext, ComponentConfig, Config, ConfigError
from rlhf_core.models import ModelPath
from rlhf_core.rl import KLSettings, OnlineTrainerConfig
from rlhf_core.training import OptimizerSettings


class PpoKL(KLSettings):
    """Per-token KL penalty in the reward, its coefficient held or steered (Ziegler et al. 2019, section 2.2)."""

    coefficient: float = Field(default=0.2, ge=0)
    """With ``adaptive`` only where it starts."""
    estimator: Literal["k1", "k2", "k3"] = "k1"
    where: Literal["loss", "reward"] = "reward"
    controller: Literal["fixed", "adaptive"] = "adaptive"
    """``adaptive`` steers the coefficient towards ``target``; it is part of every checkpoint."""
    target: float = Field(default=6.0, gt=0)
    """KL per completion, nats."""
    horizon: float = Field(default=10_000, gt=0)
    """Completions over which an error of 20 % changes the coefficient by about 20 %."""

    @model_validator(mode="after")
    def _can_steer(self) -> PpoKL:
        if self.controller == "fixed":
            defaults = type(self).model_fields
            idle = [n for n in ("target", "horizon") if getattr(self, n) != defaults[n].default]
            if idle:
                raise ConfigError(
                    f"kl.{idle[0]} has no effect with kl.controller fixed",
                    fix=f"--set trainer.kl.controller=adaptive, or leave out kl.{idle[0]}",
                )
            return self
        if self.where == "loss":
            raise ConfigError(
                "kl.controller adaptive steers the KL in the reward, but kl.where is loss",
                fix="--set trainer.kl.where=reward, or --set trainer.kl.controller=fixed",
            )
        if self.coefficient == 0:
            raise ConfigError(
                "kl.controller adaptive multiplies the coefficient, which would stay 0",
                fix="--set trainer.kl.controller=fixed, or a coefficient above 0",
            )
        return self


class PpoConfig(OnlineTrainerConfig):
    """PPO: a critic is the baseline of every token (Schulman et al. 2017; Ouyang et al. 2022 for language models)."""

    name: str = "ppo"
    companions: ClassVar[Mapping[str, Any]] = {
        "dataset": "pocket/assistant",
        "reward": "ensemble",
        "advantage": "gae",
        "loss": "ppo_clip",
    }
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pocket": {
            "trainer": {
                "name": "ppo",
                "steps": 20,
                "rollout_batch_size": 256,
                "train_batch_size": 128,
                "epochs_per_rollout_batch": 2,
                "micro_batch_size": 64,
                "optimizer": {"learning_rate": 3e-4},
                "sampling": {"max_tokens": 48},
                "kl": {"coefficient": 0.02},
            },
            "advantage": {"name": "gae", "critic": {"learning_rate": 1e-3}},
        },
        "pocket-tools": {
            "trainer": {
                "name": "ppo",
                "steps": 60,
                "rollout_batch_size": 128,
                "train_batch_size": 64,
                "epochs_per_rollout_batch": 2,
                "micro_batch_size": 64,
                "eval_every": 10,
                "eval_samples": 200,
                "optimizer": {"learning_rate": 5e-4},
                "kl": {"coefficient": 0.02},
            },
            "advantage": {"name": "gae", "critic": {"learning_rate": 1e-3}},
        },
    }
    group_size: int = Field(1, ge=1, le=2**16)
    epochs_per_rollout_batch: int = Field(4, ge=1)
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=3e-6, warmup_steps=2)
    kl: PpoKL = PpoKL()  # pyright: ignore[reportIncompatibleVariableOverride]

    def preflight(self, ctx: BuildContext) -> None:
        super().preflight(ctx)
        chosen = ctx.config.advantage
        assert chosen is not None
        if not chosen.has_critic:
            raise ConfigError(
                f"algorithm 'ppo' needs a critic, but advantage '{chosen.name}' has none",
                why="without one its advantages are those of another algorithm",
                fix="--set advantage.name=gae, or choose that algorithm: --algo grpo",
            )
        adaptive = self.adaptive_sampling
        most = self.prompts_per_step * (self.group_size if adaptive is None else adaptive.max_completions)
        if self.kl.controller == "adaptive" and 0.2 * most >= self.kl.horizon:
            raise ConfigError(
                f"kl.horizon {self.kl.horizon:g} is too short for {most} completions a step",
                why="one step could change the coefficient by its own size and turn its sign",
                fix=f"--set trainer.kl.horizon={4 * most} or more",
            )
        warmup = getattr(chosen, "warmup_steps", 0)
        if warmup >= self.steps:
            raise ConfigError(
                f"advantage.warmup_steps {warmup} leaves none of the {self.steps} steps to the policy",
                fix="lower it, or raise trainer.steps",
            )


class CriticSettings(Config):
    """The network that predicts the return from the tokens so far."""

    kind: Literal["separate", "shared"] = "separate"
    """``separate`` has a trunk of its own, ``shared`` is a linear head on the policy's."""
    path: ModelPath | None = None
    """Model whose trunk a separate critic starts from; its tokenizer must be the policy's. None copies the policy."""
    stop_gradient: bool = False
    """With ``shared``: the value loss does not reach the trunk."""
    learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """None takes ``trainer.optimizer.learning_rate``. The schedule is the same."""

    @model_validator(mode="after")
    def _fits(self) -> CriticSettings:
        if self.kind == "shared" and self.path is not None:
            raise ConfigError(
                f"critic.path '{self.path}' would have no effect: a shared critic sits on the policy's trunk",
                fix="--set advantage.critic.kind=separate, or leave out the path",
            )
        if self.kind == "separate" and self.stop_gradient:
            raise ConfigError(
                "critic.stop_gradient would have no effect: a separate critic never reaches the policy",
                fix="--set advantage.critic.kind=shared, or leave it out",
            )
        return self


class GaeConfig(ComponentConfig):
    """Generalised advantage estimation over completion tokens (Schulman et al. 2016)."""

    name: str = "gae"
    component: ClassVar[str] = "rlhf_plugin_ppo.advantage:Gae"
    has_critic: ClassVar[bool] = True
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per token."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """1 takes whole returns (no bias), 0 one-step errors (least variance)."""
    critic: CriticSettings = CriticSettings()
    value_coefficient: float = Field(0.5, gt=0, allow_inf_nan=False)
    """Weight of the value loss beside the policy's."""
    cliprange_value: float | None = Field(0.2, gt=0)
    """A value may move this far from the one it had when sampled before its loss stops it; None does not clip."""
    whiten: bool = True
    """Mean 0 and standard deviation 1 over all tokens of the rollout batch, on all ranks."""
    truncated: Literal["score", "bootstrap"] = "score"
    """Of completions cut at ``max_tokens``: their score counts like any other, or the critic's value of the state after
    the last token stands in for it. ``trainer.mask_truncated`` leaves them out."""
    warmup_steps: int = Field(0, ge=0)
    """During this many steps only the critic learns."""

    def preflight(self, ctx: BuildContext) -> None:
        if self.critic.path is not None:
            from rlhf_core.models import resolve_model

            resolve_model(self.critic.path)
